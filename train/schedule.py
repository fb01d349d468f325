"""Learning rate and betas as pure functions of the step and the plan.

So a run that is stopped, resumed on other ranks or repeated gets the same numbers, and nothing about them is stored.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from millstream.mixture.optimizing import Optimizer, Ramp, Schedule
from millstream.stream.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """The numbers of one step. ``lr`` is before a group's own scale; ``momentum`` is Muon's."""

    lr: float
    beta1: float
    beta2: float
    momentum: float


def rates_at(step: int, plan: Plan, optimizer: Optimizer, schedule: Schedule) -> Rates:
    """Rates of a step, from 1, under the plan in force.

    In tokens, a step stands where its batch ends in the plan; sequences that an amendment skips count as passed.
    """
    at, total = plan.span(step)[1] * plan.seq_len, plan.total_sequences * plan.seq_len
    position = (at, total) if schedule.by_tokens else (step, plan.total_steps)
    beta1, beta2 = (_ramped(v, r, step, at) for v, r in zip(optimizer.betas, _betas_ramps(optimizer), strict=True))
    if optimizer.beta2_half_life is not None:
        beta2 = beta2_of(plan.batch_of(step) * plan.seq_len, optimizer.beta2_half_life)
    return Rates(
        lr=learning_rate(*position, optimizer.lr, schedule),
        beta1=beta1,
        beta2=beta2,
        momentum=_ramped(optimizer.muon.momentum, optimizer.ramps.momentum, step, at),
    )


def resolved_schedule(plan: Plan, optimizer: Optimizer, schedule: Schedule) -> dict[str, Any]:
    """What a run begins with, as JSON values.

    The plan's length, and the rates of its first and last step and of each at which the batch changes.
    """
    changes = {entry[0] for entry in plan.batches.entries if entry[0] <= plan.total_steps}
    steps = sorted({1, plan.total_steps, *changes})
    return {
        "steps": plan.total_steps,
        "tokens": plan.total_sequences * plan.seq_len,
        "unit": "tokens" if schedule.by_tokens else "steps",
        "at": {str(step): asdict(rates_at(step, plan, optimizer, schedule)) for step in steps},
    }


def learning_rate(done: int, total: int, peak: float, schedule: Schedule) -> float:
    """Learning rate after ``done`` of ``total``, both in steps or both in tokens, as the schedule is.

    A linear warm-up reaches ``peak`` at its end; what follows ends at ``peak * min_lr_ratio``. ``cosine`` is that of
    SGDR without restarts (Loshchilov and Hutter 2017). ``wsd`` stays at the peak and falls over the last part, linearly
    (Hu et al. 2024, MiniCPM) or by ``1 - sqrt`` of the way through it (Haegele et al. 2024).
    """
    warm = schedule.warmup_tokens or 0 if schedule.by_tokens else schedule.warmup_steps
    if done < warm:
        return peak * done / warm
    passed = (done - warm) / max(1, total - warm)
    match schedule.kind:
        case "constant":
            lost = 0.0
        case "linear":
            lost = passed
        case "cosine":
            lost = (1 - math.cos(math.pi * passed)) / 2
        case "wsd":
            length = (schedule.decay_tokens if schedule.by_tokens else schedule.decay_steps) or 1
            falling = max(0.0, (done - (total - length)) / length)
            lost = math.sqrt(falling) if schedule.decay == "sqrt" else falling
    return peak * (1 - lost * (1 - schedule.min_lr_ratio))


def beta2_of(batch_tokens: int, half_life: int) -> float:
    """The second beta with which a squared gradient counts half after ``half_life`` tokens.

    ``2 ** (-batch_tokens / half_life)``: what stays the same over batch sizes is the memory in tokens (Marek et al.
    2025, "Small batch size training for language models").
    """
    return float(2.0 ** (-batch_tokens / half_life))


def _betas_ramps(optimizer: Optimizer) -> tuple[Ramp | None, Ramp | None]:
    return optimizer.ramps.beta1, optimizer.ramps.beta2


def _ramped(value: float, ramp: Ramp | None, step: int, tokens: int) -> float:
    if ramp is None:
        return value
    passed = min(1.0, step / ramp.steps if ramp.steps is not None else tokens / (ramp.tokens or 1))
    return ramp.start + (value - ramp.start) * passed
