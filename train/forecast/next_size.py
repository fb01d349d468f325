"""The next size of a ladder: its loss, and a band from how the ladder's own sizes would have been forecast.

A band is the root of the sum of three squares, all as shares of the loss:

- calibration: the largest size is left out and forecast from the smaller ones, as often as two remain; the 80% quantile
  of the absolute errors, each divided by ln(N left out / largest N kept), times that distance of the target. Errors are
  pooled over series (domains, evaluations), since one series has only one or two.
- asymptote: half the difference of the forecasts with E at 0.3 and at 0.7 of the smallest loss.
- noise: 1.28 standard deviations, of replicates (same size, other seed) or of the fit's residuals, whichever is larger.

With two sizes nothing can be left out: the first part is missing, and the band is marked as not calibrated.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from millstream.train.forecast.scaling import ASYMPTOTE, ASYMPTOTES, LadderLaw, fit_ladder
from millstream.train.forecast.varpro import Floats

LEVEL = 0.8
NORMAL = 1.2816
"""Standard deviations that hold 80% of a normal distribution."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ladder:
    """Runs of one recipe: active parameters ``size`` (n,), ratio ``group`` (n,), ``losses`` (n, series)."""

    size: Floats
    group: NDArray[np.int64]
    losses: Floats

    def below(self, size: float) -> "Ladder":
        """The runs that are smaller."""
        kept = self.size < size
        return Ladder(size=self.size[kept], group=self.group[kept], losses=self.losses[kept])

    @property
    def sizes(self) -> list[float]:
        """The distinct sizes, rising."""
        return sorted(set(self.size.tolist()))


@dataclass(frozen=True, kw_only=True, slots=True)
class NextSize:
    """A forecast for every series: all (series,).

    ``half`` is the 80% band's half-width in nats, made of ``calibration``, ``sensitivity`` and ``noise``.
    ``by_asymptote`` (shares of E, series) are the forecasts at ``ASYMPTOTES``.
    """

    size: float
    group: int
    value: Floats
    half: Floats
    calibration: Floats
    sensitivity: Floats
    noise: Floats
    by_asymptote: Floats
    laws: tuple[LadderLaw, ...]
    calibrated: bool


def forecast_size(
    ladder: Ladder,
    size: float,
    group: int = 0,
    asymptotes: Floats | None = None,
    pools: NDArray[np.int64] | None = None,
) -> NextSize:
    """Forecast every series of a ladder at a size.

    Args:
        ladder: at least two sizes.
        size: active parameters of the run to forecast.
        group: its ratio of tokens to parameters, as in ``ladder.group``.
        asymptotes: E of each series in nats, (series,); half of its smallest loss by default, NaN for a free E.
        pools: number of the pool of each series, (series,): errors calibrate their own pool. One pool by default.
    """
    lowest = ladder.losses.min(0)
    fixed = ASYMPTOTE * lowest if asymptotes is None else asymptotes
    laws = _fit(ladder, fixed)
    value = np.array([law.predict(size, group) for law in laws])
    table = np.array([_values(_fit(ladder, share * lowest), size, group) for share in ASYMPTOTES])
    rates = _rolling_errors(ladder, fixed / lowest)
    distance = abs(np.log(size / ladder.sizes[-1]))
    pool = np.zeros(len(value), np.int64) if pools is None else pools
    quantile = np.zeros(len(value))
    for number in set(pool.tolist()) if len(rates) else ():
        quantile[pool == number] = _quantile(rates[:, pool == number].ravel())
    calibration = quantile * distance * value
    sensitivity = np.abs(table[-1] - table[0]) / 2
    noise = NORMAL * np.maximum(replicate_noise(ladder), [law.fit.rms for law in laws]) * value
    return NextSize(
        size=size,
        group=group,
        value=value,
        half=np.sqrt(calibration**2 + sensitivity**2 + noise**2),
        calibration=calibration,
        sensitivity=sensitivity,
        noise=noise,
        by_asymptote=table,
        laws=laws,
        calibrated=len(rates) > 0,
    )


def replicate_noise(ladder: Ladder) -> Floats:
    """Relative standard deviation between runs of one size and ratio, (series,); zero where there are none."""
    squares, freedom = np.zeros(ladder.losses.shape[1]), 0
    for pair in set(zip(ladder.size.tolist(), ladder.group.tolist(), strict=True)):
        same = ladder.losses[(ladder.size == pair[0]) & (ladder.group == pair[1])]
        squares += np.square(same / same.mean(0) - 1).sum(0)
        freedom += len(same) - 1
    return np.sqrt(squares / freedom) if freedom else squares


def _fit(ladder: Ladder, asymptotes: Floats) -> tuple[LadderLaw, ...]:
    return tuple(
        fit_ladder(ladder.size, loss, ladder.group, None if np.isnan(level) else float(level))
        for loss, level in zip(ladder.losses.T, asymptotes, strict=True)
    )


def _values(laws: tuple[LadderLaw, ...], size: float, group: int) -> list[float]:
    return [law.predict(size, group) for law in laws]


def _rolling_errors(ladder: Ladder, shares: Floats) -> Floats:
    """Absolute relative errors a unit of ln(size), of every run whose size two smaller ones forecast: (m, series)."""
    errors: list[Floats] = []
    for size in ladder.sizes[2:]:
        smaller = ladder.below(size)
        laws = _fit(smaller, shares * smaller.losses.min(0))
        distance = np.log(size / smaller.sizes[-1])
        for row in np.flatnonzero(ladder.size == size).tolist():
            group = int(ladder.group[row])
            if group in smaller.group:
                forecast = np.array(_values(laws, size, group))
                errors.append(np.abs(forecast / ladder.losses[row] - 1) / distance)
    return np.array(errors)


def _quantile(errors: Floats) -> float:
    """The 80% quantile that split conformal prediction asks for: of n errors the ceil((n + 1) 0.8)-th."""
    place = min(len(errors), int(np.ceil((len(errors) + 1) * LEVEL)))
    return float(np.sort(errors)[place - 1])
