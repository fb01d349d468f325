"""What a ladder says about its hero: every loss at every fraction of the way, with bands.

At each fraction the rungs' losses are taken as those of one recipe at that progress, and forecast to the hero's size
(``forecast/next_size.py``): so warm-up, decay and the mixture's phases are in the forecast as they were in the rungs.
The loss over all domains, which is steadier than its parts, is calibrated by its own errors, the domains by theirs.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from millstream.train.forecast.next_size import Ladder as Sizes
from millstream.train.forecast.next_size import NextSize, forecast_size
from millstream.train.forecast.scaling import ASYMPTOTE
from millstream.train.forecast.varpro import Floats
from millstream.train.ladder.folder import Entry
from millstream.train.ladder.observe import Observed, Series

Pools = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SeriesForecast:
    """One loss: at ``steps`` of the hero (points,) its ``value``, ``low`` and ``high`` end of the band, nats."""

    series: Series
    steps: Floats
    value: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, kw_only=True)
class LadderForecast:
    """A hero's forecast.

    ``final`` holds, of each metric, the fit at its end, in the order of ``Observed.series``. Of ``tried`` losses of
    rungs that were left out, ``held`` lay in the band that the smaller rungs gave. ``asymptote`` is the share of the
    smallest loss that E is fixed at, None where it is free.
    """

    curves: tuple[SeriesForecast, ...]
    final: dict[str, NextSize]
    held: int
    tried: int
    asymptote: float | None


def forecast_hero(observed: Observed, hero: Entry, asymptote: float | None = ASYMPTOTE) -> LadderForecast:
    """Forecast the hero from its rungs.

    Args:
        observed: what the rungs measured; at least two sizes.
        hero: the hero.
        asymptote: share of the smallest loss, 0 to 1, that E is fixed at; free where None.
    """
    curves: list[SeriesForecast] = []
    final: dict[str, NextSize] = {}
    held, tried = 0, 0
    for name, fractions in observed.fractions.items():
        pools = np.array([int(domain is None) for _, domain in observed.series[name]])
        made = [_forecast(observed.at(name, point), hero.active, asymptote, pools) for point in range(len(fractions))]
        steps = np.maximum(1, np.rint(fractions * hero.steps))
        for number, which in enumerate(observed.series[name]):
            value, half = (np.array([getattr(m, part)[number] for m in made]) for part in ("value", "half"))
            curves.append(SeriesForecast(series=which, steps=steps, value=value, low=value - half, high=value + half))
        final[name] = made[-1]
        inside = _left_out(observed.at(name, len(fractions) - 1), asymptote, pools)
        held, tried = held + int(inside.sum()), tried + inside.size
    return LadderForecast(curves=tuple(curves), final=final, held=held, tried=tried, asymptote=asymptote)


def _forecast(sizes: Sizes, active: float, asymptote: float | None, pools: Pools) -> NextSize:
    lowest = sizes.losses.min(0)
    levels = np.full(len(lowest), np.nan) if asymptote is None else asymptote * lowest
    return forecast_size(sizes, active, asymptotes=levels, pools=pools)


def _left_out(sizes: Sizes, asymptote: float | None, pools: Pools) -> NDArray[np.bool_]:
    """Whether each loss of a rung lay in the band of the smaller ones: (runs left out, series)."""
    found = []
    for size in sizes.sizes[2:]:
        made = _forecast(sizes.below(size), size, asymptote, pools)
        found += [np.abs(losses - made.value) <= made.half for losses in sizes.losses[sizes.size == size]]
    return np.array(found)
