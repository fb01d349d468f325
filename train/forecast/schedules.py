"""The loss curve as a function of the learning-rate schedule.

Annealing law (Tissue et al. 2024), ``S1`` the sum of the rates so far, ``S2`` the sum of a momentum over their drops:

    L(s) = E + A S1(s)^-a - C S2(s),    S2(s) = sum over drops d_k at k <= s of d_k (1 - m^(s - k)) / (1 - m)

Multi-power law (Luo et al. 2025), which replaces ``C S2`` by

    B sum_k d_k (1 - (1 + c r_k^-g S_k(s))^-b),    S_k(s) = S1(s) - S1(k), r_k the rate after the drop

Both are fitted by variable projection with relative residuals, every curve with the same weight. Rates are divided by
the peak, so that parameters are of order one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from millstream.train.forecast.varpro import Fit, Floats, fit_separable

Form = Literal["annealing", "multi-power"]
FORMS: tuple[Form, ...] = ("annealing", "multi-power")

MOST_KNOTS = 600
"""Knots that a schedule is thinned to: cost is knots times points."""

BOXES: dict[Form, tuple[tuple[float, float], ...]] = {
    # ln a; ln of the momentum's reach in steps, 20 to 50,000.
    "annealing": ((-2.5, 1.0), (3.0, 10.8)),
    # ln of a, c (per 1,000 steps at the peak rate), b and g.
    "multi-power": ((-2.5, 1.0), (-5.0, 5.0), (-2.5, 1.5), (-2.5, 1.0)),
}


@dataclass(frozen=True, slots=True)
class Rates:
    """A schedule: learning rate at rising steps, both (k,), linear in between; the first step is 0."""

    steps: Floats
    rate: Floats

    def area(self) -> Floats:
        """Sum of the rates up to each knot: (k,)."""
        inside = np.diff(self.steps) * (self.rate[1:] + self.rate[:-1]) / 2
        return np.concatenate(([0.0], np.cumsum(inside)))


@dataclass(frozen=True, slots=True)
class Curve:
    """Losses at steps, both (n,), under a schedule that covers them."""

    rates: Rates
    steps: Floats
    loss: Floats

    def first(self, share: float) -> "Curve":
        """The curve up to a share of its last step."""
        kept = self.steps <= share * self.steps[-1]
        return Curve(self.rates, self.steps[kept], self.loss[kept])


@dataclass(frozen=True, slots=True)
class ScheduleLaw:
    """A fitted law; ``peak`` is the rate that all rates are divided by."""

    form: Form
    peak: float
    fit: Fit

    def predict(self, rates: Rates, steps: Floats) -> Floats:
        """Losses at steps (n,) of a run with these rates."""
        return _columns(self.form, self.fit.nonlinear, rates, steps, self.peak) @ self.fit.linear


def thinned(steps: Floats, rate: Floats) -> Rates:
    """A schedule given at every step, with fewer knots where it is smooth: the corners stay."""
    if len(steps) <= MOST_KNOTS:
        return Rates(steps, rate)
    bend = np.abs(np.diff(rate, 2))
    corners = np.flatnonzero(bend > 1e-3 * rate.max()) + 1
    even = np.linspace(0, len(steps) - 1, MOST_KNOTS).astype(int)
    kept = np.unique(np.concatenate((even, corners, np.maximum(corners - 1, 0))))
    return Rates(steps[kept], rate[kept])


def fit_schedule(curves: Sequence[Curve], form: Form) -> ScheduleLaw:
    """Fit a law to whole curves of one model under one or several schedules."""
    peak = float(max(curve.rates.rate.max() for curve in curves))
    target = np.concatenate([curve.loss for curve in curves])
    share = np.concatenate([np.full(len(curve.loss), len(curve.loss) ** -0.5) for curve in curves])

    def design(at: Floats) -> Floats:
        return np.concatenate([_columns(form, at, curve.rates, curve.steps, peak) for curve in curves])

    scale = np.sqrt(len(target) / len(curves))
    fit = fit_separable(
        design,
        target,
        share * scale / target,
        BOXES[form],
        positive=(True, True, True),
        grid=6 if form == "annealing" else 3,
    )
    return ScheduleLaw(form, peak, fit)


def _columns(form: Form, at: Floats, rates: Rates, steps: Floats, peak: float) -> Floats:
    """What the linear parameters E, A and C (or B) multiply: (n, 3)."""
    area = rates.area() / peak
    so_far = np.interp(steps, rates.steps, area)
    power = np.exp(at[0])
    falls = np.flatnonzero(np.diff(rates.rate) < 0)
    drop = (rates.rate[falls] - rates.rate[falls + 1]) / peak
    if form == "annealing":
        reach = np.exp(at[1])
        since = np.maximum(0, steps[:, None] - (rates.steps[falls] + rates.steps[falls + 1]) / 2)
        gain = (drop * -np.expm1(-since / reach)).sum(1) * reach
    else:
        scale, decay, sharpness = np.exp(at[1:])
        since = np.maximum(0, so_far[:, None] - (area[falls] + area[falls + 1]) / 2) / 1000
        after = np.maximum(rates.rate[falls + 1] / peak, 1e-6)
        gain = (drop * (1 - (1 + scale * after**-sharpness * since) ** -decay)).sum(1)
    return np.stack((np.ones(len(steps)), (so_far / 1000) ** -power, -gain), 1)
