"""How unusual a number is, by what came before it: every function is causal, ``f(x)[t]`` depends on ``x[:t + 1]``."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from millstream.train.forecast.varpro import Floats

Flags = NDArray[np.bool_]
Counts = NDArray[np.int64]

TO_NORMAL = 1.4826
"""Median absolute deviation to standard deviation, of a normal distribution."""
CLIP = 3.0
"""Deviations that enter an exponential mean at most."""
BLOCK = 8192


def off_trend(values: Floats, window: int) -> Floats:
    """Each value less the line through the ``window`` values before it, extrapolated: (n,).

    Values that are NaN are passed over, not counted. NaN where too few came before.
    """
    # What each of the window's values weighs in the line at the place after them.
    place = np.arange(window) - (window - 1) / 2
    weight = 1 / window + place * (window + 1) / 2 / np.square(place).sum()
    return _off(values, weight, 0)


def off_level(values: Floats, window: int, lag: int) -> Floats:
    """Each value less the mean of ``window`` values that lie ``lag`` before it; as ``off_trend`` else."""
    return _off(values, np.full(window, 1 / window), lag)


def _off(values: Floats, weight: Floats, lag: int) -> Floats:
    known = np.flatnonzero(np.isfinite(values))
    off, back = np.full(len(values), np.nan), len(weight) + lag
    if len(known) > back:
        kept = values[known]
        expected = sliding_window_view(kept, len(weight))[: len(kept) - back] @ weight
        off[known[back:]] = kept[back:] - expected
    return off


def usual_spread(off: Floats, window: int, least: int) -> Floats:
    """Robust spread of the ``window`` deviations before each one: (n,).

    1.4826 times their median absolute value; NaN until there are ``least`` of them, and where the deviation is NaN.
    """
    known = np.flatnonzero(np.isfinite(off))
    spread = np.full(len(off), np.nan)
    spread[known] = TO_NORMAL * median_before(np.abs(off[known]), window, least)
    return spread


def robust_z(off: Floats, window: int, least: int) -> Floats:
    """Each deviation over the usual spread before it: (n,)."""
    return off / np.maximum(usual_spread(off, window, least), np.finfo(np.float64).tiny)


def median_before(values: Floats, window: int, least: int) -> Floats:
    """Median of the up to ``window`` values before each one, NaN where there are fewer than ``least``: (n,)."""
    medians = np.full(len(values), np.nan)
    for row in range(least, min(window, len(values))):
        medians[row] = np.median(values[:row])
    views = sliding_window_view(values, window)[:-1] if len(values) > window else np.zeros((0, window))
    # A block at a time: the views have as many values as rows times columns.
    for at in range(0, len(views), BLOCK):
        medians[window + at : window + at + BLOCK] = np.median(views[at : at + BLOCK], axis=1)
    return medians


def ema_z(values: Floats, memory: float, least: int) -> Floats:
    """Each value's distance from the exponential mean before it, in exponential standard deviations: (n,).

    As ZClip has it (Kumar et al. 2025); a value far off enters mean and variance as if ``CLIP`` deviations off.
    """
    z = np.full(len(values), np.nan)
    mean, variance, count = 0.0, 0.0, 0
    for number, value in enumerate(values.tolist()):
        if not np.isfinite(value):
            continue
        if count < least:
            # The plain mean and variance of the first values (Welford 1962).
            count += 1
            step = value - mean
            mean += step / count
            variance += (step * (value - mean) - variance) / count
            continue
        spread = max(variance, 1e-24) ** 0.5
        z[number] = (value - mean) / spread
        entered = mean + np.clip(z[number], -CLIP, CLIP) * spread
        variance = memory * variance + (1 - memory) * (entered - mean) ** 2
        mean = memory * mean + (1 - memory) * entered
    return z


def cusum(z: Floats, allowance: float, cap: float) -> Floats:
    """Page's cumulative sum of deviations upwards (Page 1954), (n,): what exceeds ``allowance``, at most ``cap`` each.

    It begins again at zero where a number is NaN.
    """
    total, sums = 0.0, np.zeros(len(z))
    for number, value in enumerate(z.tolist()):
        total = max(0.0, total + min(value, cap) - allowance) if np.isfinite(value) else total
        sums[number] = total
    return sums


def in_a_row(flags: Flags) -> Counts:
    """How many of the values up to each one, in a row, are true: (n,)."""
    place = np.arange(1, len(flags) + 1)
    return np.asarray(place - np.maximum.accumulate(np.where(flags, 0, place)))
