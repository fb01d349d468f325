"""The learning rate as a pure function of the step."""

import math

from millstream.mixture.training import Schedule


def learning_rate(step: int, total: int, peak: float, schedule: Schedule) -> float:
    """Learning rate of a step, from 1; ``total`` is the last step.

    A linear warm-up reaches ``peak`` at step ``warmup_steps``; what follows ends at ``peak * min_lr_ratio``.
    ``wsd`` stays at the peak and falls linearly over the last ``decay_steps`` (Hu et al. 2024, MiniCPM).
    """
    warm = schedule.warmup_steps
    if step < warm:
        return peak * step / warm
    done = (step - warm) / max(1, total - warm)
    match schedule.kind:
        case "constant":
            factor = 1.0
        case "linear":
            factor = 1 - done * (1 - schedule.min_lr_ratio)
        case "cosine":
            factor = schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * (1 + math.cos(math.pi * done)) / 2
        case "wsd":
            falling = max(0.0, (step - (total - (schedule.decay_steps or 1))) / (schedule.decay_steps or 1))
            factor = 1 - falling * (1 - schedule.min_lr_ratio)
    return peak * factor
