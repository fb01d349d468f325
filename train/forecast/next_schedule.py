"""A run under a schedule that was not tried: its whole loss curve, and a band.

The forecast is the annealing law's. The band is the root of the sum of three squares, as shares of the loss:

- calibration: the law is fitted on the first half of every curve and forecasts the rest; the 80% quantile of the
  absolute errors over that doubling. A schedule that was not tried counts as one doubling, a longer run as as many as
  its sum of rates is beyond the longest tried.
- form: the difference to the multi-power law, fitted on the same curves.
- noise: 1.28 standard deviations of the fit's residuals.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from millstream.train.forecast.next_size import LEVEL, NORMAL
from millstream.train.forecast.schedules import Curve, Rates, ScheduleLaw, fit_schedule
from millstream.train.forecast.varpro import Floats


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedules:
    """What known curves say about other schedules: both laws, and the relative error of one doubling."""

    annealing: ScheduleLaw
    multi_power: ScheduleLaw
    doubling: float
    longest: float
    """Largest sum of rates of a known curve."""

    def forecast(self, rates: Rates, steps: Floats) -> tuple[Floats, Floats]:
        """Losses at steps and half-widths of the 80% band, both (n,)."""
        value = self.annealing.predict(rates, steps)
        other = self.multi_power.predict(rates, steps)
        beyond = np.interp(steps, rates.steps, rates.area()) / self.longest
        calibration = self.doubling * np.maximum(1.0, np.log2(np.maximum(beyond, 1e-9))) * value
        noise = NORMAL * self.annealing.fit.rms * value
        return value, np.sqrt(calibration**2 + (value - other) ** 2 + noise**2)


def learn_schedules(curves: Sequence[Curve]) -> Schedules:
    """Fit both laws to the curves of one model, and calibrate."""
    law = fit_schedule([curve.first(0.5) for curve in curves], "annealing")
    errors = []
    for curve in curves:
        rest = curve.steps > 0.5 * curve.steps[-1]
        errors.append(np.abs(law.predict(curve.rates, curve.steps[rest]) / curve.loss[rest] - 1))
    longest = max(float(np.interp(c.steps[-1], c.rates.steps, c.rates.area())) for c in curves)
    return Schedules(
        annealing=fit_schedule(curves, "annealing"),
        multi_power=fit_schedule(curves, "multi-power"),
        doubling=float(np.quantile(np.concatenate(errors), LEVEL)),
        longest=longest,
    )
