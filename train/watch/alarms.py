"""What a detector says, and the thresholds by which it speaks."""

from dataclasses import dataclass

import numpy as np

from millstream.train.watch.readings import Readings
from millstream.train.watch.statistics import Flags

QUIET = 20
"""Steps for which a detector that spoke of a number says no more of it, unless it stays: one alarm a stretch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Alarm:
    """Something that a detector found at a step; ``value`` went beyond ``limit``."""

    step: int
    detector: str
    name: str
    domain: str | None
    value: float
    limit: float
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Thresholds. Those in units of spread were set on healthy runs with seeds 0 to 9 (``benchmarks/watch.py``)."""

    window: int = 24
    """Steps that a trend is drawn through."""
    spread: int = 48
    """Deviations that say what is usual."""
    least: int = 16
    """Deviations without which nothing is said."""
    loss: float = 9.0
    """Robust z of the loss, each domain's deviation from its own trend weighed by its sequences."""
    domain: float = 12.0
    """Robust z of one domain's loss."""
    least_rise: float = 0.02
    """Share of a loss that a deviation must reach, however small the spread."""
    grad_norm: float = 12.0
    """Robust z of the logarithm of the gradient norm."""
    grad_ema: float = 12.0
    """Deviations of the logarithm of the gradient norm from its exponential mean."""
    ema_memory: float = 0.97
    drift: float = 30.0
    """Cumulative sum of the loss's standardised deviations from the level that it had ``drift_lag`` steps ago."""
    drift_allowance: float = 1.0
    drift_lag: int = 24
    dead_load: float = 0.01
    """Load of an expert, over the mean, that counts as none."""
    dead_steps: int = 5
    expert_load: float = 8.0
    """Highest load over the mean, for ``dead_steps`` in a row."""
    router_bias: float = 0.5
    """Largest correction bias: sigmoid scores lie between 0 and 1."""
    loading: float = 0.5
    """Share of the time that a step waits for data, ``stall_steps`` in a row."""
    stall_steps: int = 3
    least_loading_s: float = 0.2
    throughput: float = 0.2
    """Tokens a second over the median of the steps before, ``slow_steps`` in a row."""
    slow_steps: int = 10
    idle_s: float = 60.0
    """Without a step for so long, and for ``idle_steps`` of the usual steps, a run that trains is stalled."""
    idle_steps: float = 20.0
    forecast_points: int = 3
    """Points in a row outside the registered band."""
    envelope: float = 1.5
    """Factor beyond what the rungs had."""
    warm: float = 0.05
    """Share of the run at whose beginning numbers without a history are not judged."""


def first_of_each(found: Readings, where: Flags) -> list[int]:
    """Rows at which a stretch of true values begins, stretches less than ``QUIET`` steps apart taken as one."""
    rows = np.flatnonzero(where)
    if not len(rows):
        return []
    gaps = np.diff(found.steps[rows])
    begins: list[int] = rows[np.concatenate(([True], gaps > QUIET))].tolist()
    return begins
