"""Detectors that judge a run's numbers by the numbers before them."""

from collections.abc import Callable

import numpy as np

from millstream.train.forecast.varpro import Floats
from millstream.train.watch.alarms import Alarm, Settings, first_of_each
from millstream.train.watch.readings import Readings
from millstream.train.watch.statistics import (
    cusum,
    ema_z,
    in_a_row,
    median_before,
    off_level,
    off_trend,
    robust_z,
    usual_spread,
)

Detector = Callable[[Readings, Settings], list[Alarm]]

WATCHED_FOR_FINITE = ("loss", "grad_norm", "loss_held_out")


def non_finite(found: Readings, settings: Settings) -> list[Alarm]:
    """A loss or gradient norm that is no finite number."""
    alarms = []
    for (name, domain), values in found.columns.items():
        if name in WATCHED_FOR_FINITE:
            bad = found.given[name, domain] & ~np.isfinite(values)
            # DeepSpeed knows no gradient norm before its first update.
            bad &= (found.steps > 1) | (name != "grad_norm")
            for row in first_of_each(found, bad):
                text = f"{name}{f' of {domain}' if domain else ''} is no number"
                alarms.append(alarm_at(found, row, "non-finite", name, domain, values[row], np.inf, text))
    return alarms


def loss(found: Readings, settings: Settings) -> list[Alarm]:
    """A loss above its trend, whatever the mixture: domains are compared with themselves."""
    off, z = loss_deviation(found, settings)
    level = found.column("loss")
    beyond = (z > settings.loss) & (off > settings.least_rise * level)
    return [
        alarm_at(found, row, "loss", "loss", None, z[row], settings.loss,
               f"loss {level[row]:.4f} is {off[row]:.3f} nats above trend, {z[row]:.0f} times its usual spread")
        for row in first_of_each(found, beyond)
    ]  # fmt: skip


def domain(found: Readings, settings: Settings) -> list[Alarm]:
    """One domain's loss above its own trend."""
    alarms = []
    for name, values in found.domains("loss"):
        off = off_trend(values, settings.window)
        z = robust_z(off, settings.spread, settings.least)
        for row in first_of_each(found, (z > settings.domain) & (off > settings.least_rise * values)):
            text = f"loss of {name} {values[row]:.4f} is {off[row]:.3f} nats above trend, {z[row]:.0f} times its spread"
            alarms.append(alarm_at(found, row, "domain", "loss", name, z[row], settings.domain, text))
    return alarms


def grad_norm(found: Readings, settings: Settings) -> list[Alarm]:
    """A gradient norm far above its trend, by the spread around a line."""
    z = grad_norm_z(found, settings)
    return _grad_alarms(found, "grad-norm", z, settings.grad_norm)


def grad_ema(found: Readings, settings: Settings) -> list[Alarm]:
    """A gradient norm far above its exponential mean, as ZClip has it."""
    z = ema_z(_log(found.column("grad_norm")), settings.ema_memory, settings.window + settings.least)
    return _grad_alarms(found, "grad-ema", z, settings.grad_ema)


def drift(found: Readings, settings: Settings) -> list[Alarm]:
    """A loss that rises slowly, by the sum of what it is above the level that it had before."""
    sums = drift_sums(found, settings)
    return [
        alarm_at(found, row, "drift", "loss", None, sums[row], settings.drift,
               f"loss is rising: cumulative deviation {sums[row]:.0f} from its level {settings.drift_lag} steps before")
        for row in first_of_each(found, sums > settings.drift)
    ]  # fmt: skip


def experts(found: Readings, settings: Settings) -> list[Alarm]:
    """An expert that gets no tokens, or one that gets far more than its share, or a correction bias that runs away."""
    settled = found.steps > settings.warm * found.total
    lowest, highest = found.column("expert_load_min"), found.column("expert_load_max")
    bias = found.column("router_bias_max")
    dead = in_a_row(settled & (lowest < settings.dead_load)) == settings.dead_steps
    crowded = in_a_row(settled & (highest > settings.expert_load)) == settings.dead_steps
    alarms = [
        alarm_at(found, row, "experts", "expert_load_min", None, lowest[row], settings.dead_load,
               f"an expert has had no tokens for {settings.dead_steps} steps")
        for row in np.flatnonzero(dead).tolist()
    ]  # fmt: skip
    alarms += [
        alarm_at(found, row, "experts", "expert_load_max", None, highest[row], settings.expert_load,
               f"the fullest experts have had {highest[row]:.1f} times their share for {settings.dead_steps} steps")
        for row in np.flatnonzero(crowded).tolist()
    ]  # fmt: skip
    return alarms + [
        alarm_at(found, row, "experts", "router_bias_max", None, bias[row], settings.router_bias,
               f"a router's correction bias is {bias[row]:.2f}; scores lie between 0 and 1")
        for row in first_of_each(found, bias > settings.router_bias)
    ]  # fmt: skip


def stall(found: Readings, settings: Settings) -> list[Alarm]:
    """Steps that wait for data, or are far slower than those before."""
    waited, speed, tokens = found.column("loading_s"), found.column("tokens_per_s"), found.column("step_s")
    share = waited / np.maximum(tokens, 1e-9)
    waits = (share > settings.loading) & (waited > settings.least_loading_s)
    alarms = [
        alarm_at(found, row, "stall", "loading_s", None, share[row], settings.loading,
               f"{100 * share[row]:.0f}% of a step's {tokens[row]:.1f} s is waiting for data, "
               f"{settings.stall_steps} steps in a row")
        for row in np.flatnonzero(in_a_row(waits) == settings.stall_steps).tolist()
    ]  # fmt: skip
    usual = median_before(speed, settings.spread, settings.spread // 2)
    slow = in_a_row(speed < settings.throughput * usual) == settings.slow_steps
    return alarms + [
        alarm_at(found, row, "stall", "tokens_per_s", None, speed[row] / usual[row], settings.throughput,
               f"{speed[row]:,.0f} tokens/s for {settings.slow_steps} steps, {usual[row]:,.0f} before")
        for row in np.flatnonzero(slow).tolist()
    ]  # fmt: skip


STATISTICAL: tuple[Detector, ...] = (non_finite, loss, domain, grad_norm, grad_ema, drift, experts, stall)


def loss_deviation(found: Readings, settings: Settings) -> tuple[Floats, Floats]:
    """How far each step's loss is off its trend, in nats and in robust spreads: two (n,)."""
    off = _deviation(found, lambda values: off_trend(values, settings.window))
    return off, robust_z(off, settings.spread, settings.least)


def _deviation(found: Readings, off_usual: Callable[[Floats], Floats]) -> Floats:
    """Each step's loss less what is usual, (n,).

    With losses of domains, each one is compared with its own trend and the deviations are weighed by sequences, so that
    a change of the mixture is none of the loss.
    """
    weighed, count = np.zeros(len(found.steps)), np.zeros(len(found.steps))
    for name, values in found.domains("loss"):
        own = off_usual(values)
        sequences = np.where(np.isfinite(own), found.column("sequences", name), 0)
        weighed += np.where(np.isfinite(own), own, 0) * np.nan_to_num(sequences)
        count += np.nan_to_num(sequences)
    if not count.any():
        return off_usual(found.column("loss"))
    return np.where(count > 0, weighed / np.maximum(count, 1), np.nan)


def drift_sums(found: Readings, settings: Settings) -> Floats:
    """Cumulative deviations of the loss from its level some steps ago, (n,).

    In units of the spread around the trend, which a drift does not widen.
    """
    off = _deviation(found, lambda values: off_level(values, settings.window, settings.drift_lag))
    near, _ = loss_deviation(found, settings)
    z = off / np.maximum(usual_spread(near, settings.spread, settings.least), np.finfo(np.float64).tiny)
    return cusum(z, settings.drift_allowance, 4 * settings.drift_allowance)


def grad_norm_z(found: Readings, settings: Settings) -> Floats:
    """Robust z of the logarithm of the gradient norm off its trend, (n,)."""
    off = off_trend(_log(found.column("grad_norm")), settings.window)
    return robust_z(off, settings.spread, settings.least)


def _grad_alarms(found: Readings, detector: str, z: Floats, limit: float) -> list[Alarm]:
    norm = found.column("grad_norm")
    return [
        alarm_at(found, row, detector, "grad_norm", None, z[row], limit,
               f"gradient norm {norm[row]:.3g} is {z[row]:.0f} spreads above what it was")
        for row in first_of_each(found, z > limit)
    ]  # fmt: skip


def alarm_at(
    found: Readings, row: int, detector: str, name: str, domain: str | None, value: float, limit: float, text: str
) -> Alarm:
    """An alarm at a row."""
    return Alarm(
        step=int(found.steps[row]),
        detector=detector,
        name=name,
        domain=domain,
        value=float(value),
        limit=float(limit),
        text=text,
    )


def _log(values: Floats) -> Floats:
    return np.log(np.where(values > 0, values, np.nan))
