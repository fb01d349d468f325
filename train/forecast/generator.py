"""Loss curves made by a known law, for machines without the public ones and for tests that must know the truth.

Curves follow the annealing law with noise that is correlated from point to point, and each is off by a little of its
own; spikes have the shape of the one that BLOOM's chronicles describe: up within a few steps, down over tens.
"""

from collections.abc import Sequence

import numpy as np

from millstream.train.forecast.next_size import Ladder
from millstream.train.forecast.schedules import Curve, Rates
from millstream.train.forecast.varpro import Floats

WARMUP, PEAK, EVERY = 2160, 3e-4, 128


def generated_schedules(names: Sequence[str], seed: int) -> dict[str, Curve]:
    """A curve for each schedule: ``KIND_STEPS``, ``wsd_DECAY_STEPS`` or ``wsdcon_RATE`` (after step 8,000, in 1e-5)."""
    return {name: _curve(_rates(name), seed, number) for number, name in enumerate(names)}


def generated_ladder(ratios: Sequence[str], series: int) -> Ladder:
    """Final losses of four sizes at ratios such as ``2xC``, by Chinchilla's form with noise; 1xC twice."""
    size: list[float] = []
    group: list[int] = []
    losses: list[Floats] = []
    for number, active in enumerate((1.9e8, 3.7e8, 7.6e8, 1.28e9)):
        for place, name in [*enumerate(ratios), (list(ratios).index("1xC"), "1xC")]:
            tokens = 20 * active * float(name.removesuffix("xC"))
            kinds = np.arange(series) / series
            level = (1.2 + kinds) + (300 + 100 * kinds) * active**-0.33 + 400 * tokens ** -(0.27 + 0.03 * kinds)
            noise = noise_of(series, 1000 * number + len(size), 0.0, 0.002)
            size.append(active)
            group.append(place)
            losses.append(level * (1 + noise))
    return Ladder(size=np.array(size), group=np.array(group), losses=np.array(losses))


def noise_of(count: int, seed: int, memory: float, spread: float) -> Floats:
    """Normal noise (count,) with standard deviation ``spread`` and autocorrelation ``memory`` from point to point."""
    fresh = np.random.Generator(np.random.Philox(seed)).normal(0.0, spread * np.sqrt(1 - memory**2), count)
    kept = memory ** np.arange(min(count, 400))
    return np.convolve(fresh, kept)[:count]


def spike(steps: Floats, at: int, height: float, rise: int = 4, fall: int = 30) -> Floats:
    """What a spike adds to a loss: nothing before ``at``, ``height`` after ``rise`` steps, decaying over ``fall``."""
    since = steps - at
    up = np.clip(since / rise, 0, 1)
    return height * up * np.exp(-np.maximum(0, since - rise) / fall)


def _curve(rates: Rates, seed: int, number: int) -> Curve:
    steps = np.arange(WARMUP + EVERY // 2, rates.steps[-1], EVERY)
    so_far = np.interp(steps, rates.steps, rates.area()) / PEAK / 1000
    falls = np.flatnonzero(np.diff(rates.rate) < 0)
    since = np.maximum(0, steps[:, None] - rates.steps[falls])
    drops = (rates.rate[falls] - rates.rate[falls + 1]) / PEAK
    annealed = (drops * -np.expm1(-since / 1000)).sum(1)
    loss = 2.9 + 0.05 * seed + 0.55 * so_far**-0.5 - 0.4 * annealed
    # Two runs differ by more than their noise from point to point.
    offset = noise_of(1, 1000 + 100 * seed + number, 0.0, 0.0015)
    return Curve(rates, steps, loss * (1 + offset + noise_of(len(steps), 100 * seed + number, 0.6, 0.0007)))


def _rates(name: str) -> Rates:
    kind, *numbers = name.split("_")
    last = 16_000 if kind == "wsdcon" else int(numbers[-1])
    steps = np.concatenate((np.arange(0, WARMUP, 240), np.arange(WARMUP, last, EVERY), [last])).astype(float)
    done = np.clip((steps - WARMUP) / (last - WARMUP), 0, 1)
    match kind:
        case "constant":
            factor = np.ones(len(steps))
        case "cosine":
            factor = 0.1 + 0.9 * (1 + np.cos(np.pi * done)) / 2
        case "wsdcon":
            factor = np.where(steps > 8000, int(numbers[0]) / 30, 1.0)
        case _:
            falling = np.clip((steps - int(numbers[0])) / (last - int(numbers[0])), 0, 1)
            factor = 0.1**falling if kind == "wsd" else 1 - 0.9 * falling
    return Rates(steps, PEAK * np.minimum(1, steps / WARMUP) * factor)
