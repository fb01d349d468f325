"""Fits and forecasts: parameters of a known law come back, bands say what is not known, public curves are forecast."""

import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from millstream.train.forecast.digits import supported
from millstream.train.forecast.generator import generated_ladder, generated_schedules
from millstream.train.forecast.next_schedule import learn_schedules
from millstream.train.forecast.next_size import Ladder, forecast_size, replicate_noise
from millstream.train.forecast.scaling import fit_chinchilla, fit_ladder
from millstream.train.forecast.schedules import Curve, Rates, fit_schedule, thinned
from millstream.train.forecast.varpro import fit_separable

CURVES = Path(__file__).parent.parent.parent / "shared" / "curves"
SIZES = np.array([2e8, 4e8, 8e8, 1.6e9])


def test_an_exact_law_comes_back_with_its_errors() -> None:
    x = np.linspace(1, 9, 40)
    fit = fit_separable(
        lambda p: np.stack((np.ones_like(x), x ** -p[0]), 1),
        2 + 3 * x**-0.7,
        np.ones_like(x),
        ((0.05, 2.0),),
        positive=(True, True),
    )
    np.testing.assert_allclose([*fit.nonlinear, *fit.linear], [0.7, 2, 3], rtol=1e-5)
    assert fit.rms < 1e-6
    assert fit.errors.max() < 1e-4


def test_a_parameter_that_must_be_positive_is_left_out_rather_than_negative() -> None:
    x = np.linspace(1, 5, 20)
    fit = fit_separable(
        lambda p: np.stack((np.ones_like(x), x), 1), 1 - 0.2 * x, np.ones_like(x), (), positive=(True, True)
    )
    assert fit.linear[1] == 0
    np.testing.assert_allclose(fit.linear[0], (1 - 0.2 * x).mean())


def test_standard_errors_are_those_of_linear_regression() -> None:
    x = np.linspace(0, 1, 30)
    y = 1 + 2 * x + np.sin(50 * x) * 0.1
    fit = fit_separable(lambda p: np.stack((np.ones_like(x), x), 1), y, np.ones_like(x), (), positive=(False, False))
    columns = np.stack((np.ones_like(x), x), 1)
    spread = np.square(columns @ fit.linear - y).sum() / 28
    expected = np.sqrt(np.diag(spread * np.linalg.inv(columns.T @ columns)))
    np.testing.assert_allclose(fit.errors, expected, rtol=1e-9)


def test_chinchillas_form_comes_back_from_a_grid_of_sizes_and_tokens() -> None:
    size, tokens = (a.ravel() for a in np.meshgrid(SIZES, np.array([5e9, 2e10, 8e10])))
    fit = fit_chinchilla(size, tokens, 1.7 + 400 * size**-0.34 + 410 * tokens**-0.28)
    assert fit.asymptote == pytest.approx(1.7, rel=1e-3)
    np.testing.assert_allclose(fit.exponents, (0.34, 0.28), rtol=1e-2)


def test_a_ladder_cannot_tell_size_from_tokens_and_the_condition_says_so() -> None:
    def condition(size: NDArray[np.float64], tokens: NDArray[np.float64]) -> float:
        loss = 1.7 + 400 * size**-0.34 + 410 * tokens**-0.28
        return fit_chinchilla(size, tokens, loss, asymptote=1.7).fit.condition

    apart, along = condition(np.repeat(SIZES, 2), np.tile([1e10, 8e10], 4)), condition(SIZES, 20 * SIZES)
    assert along > 30 * apart


@pytest.mark.parametrize("asymptote", [None, 1.5])
def test_the_ladder_law_comes_back_for_each_ratio(asymptote: float | None) -> None:
    size, group = np.tile(SIZES, 2), np.repeat([0, 1], 4)
    loss = 1.5 + np.where(group == 0, 60, 50) * size**-0.2
    law = fit_ladder(size, loss, group, asymptote)
    assert law.exponent == pytest.approx(0.2, rel=1e-3)
    assert law.predict(3.2e9, 1) == pytest.approx(1.5 + 50 * 3.2e9**-0.2, rel=1e-5)


def test_the_band_is_made_of_errors_on_sizes_left_out() -> None:
    loss = 1.5 + 60 * SIZES**-0.2
    ladder = Ladder(size=SIZES, group=np.zeros(4, int), losses=loss[:, None])
    exact = forecast_size(ladder, 3.2e9, asymptotes=np.array([1.5]))
    assert exact.value[0] == pytest.approx(1.5 + 60 * 3.2e9**-0.2, rel=1e-6)
    assert exact.calibrated
    # The law with another E than the truth's errs on the sizes left out, and the band knows.
    wrong = forecast_size(ladder, 3.2e9, asymptotes=np.array([0.8]))
    assert wrong.calibration[0] > 3 * exact.calibration[0]
    assert abs(wrong.value[0] - exact.value[0]) < wrong.half[0]
    # Twice as far is twice as wide.
    further = forecast_size(ladder, 6.4e9, asymptotes=np.array([0.8]))
    assert further.calibration[0] / further.value[0] == pytest.approx(2 * wrong.calibration[0] / wrong.value[0])


def test_two_sizes_give_a_band_that_is_marked_as_not_calibrated() -> None:
    ladder = Ladder(size=SIZES[:2], group=np.zeros(2, int), losses=np.array([[3.2], [3.0]]))
    made = forecast_size(ladder, 8e8)
    assert not made.calibrated
    assert made.half[0] >= made.sensitivity[0] > 0
    assert (np.diff(made.by_asymptote[:, 0]) > 0).all()


def test_replicates_measure_noise() -> None:
    ladder = Ladder(size=np.array([1e8, 1e8, 2e8]), group=np.zeros(3, int), losses=np.array([[3.0], [3.03], [2.8]]))
    assert replicate_noise(ladder)[0] == pytest.approx(np.std([3.0, 3.03], ddof=1) / 3.015)


def test_the_annealing_law_comes_back() -> None:
    steps = np.arange(0, 6001, dtype=float)
    rate = 1e-3 * np.minimum(1, steps / 100) * np.where(steps > 4000, 1 - (steps - 4000) / 2200, 1)
    rates = thinned(steps, rate)
    assert len(rates.steps) <= 620
    at = np.arange(200, 6001, 50, dtype=float)
    so_far = np.interp(at, rates.steps, rates.area()) / 1e-3 / 1000
    drops, since = np.diff(rates.rate) / -1e-3, at[:, None] - (rates.steps[1:] + rates.steps[:-1]) / 2
    gain = (np.maximum(drops, 0) * -np.expm1(-np.maximum(0, since) / 500)).sum(1)
    loss = 2.5 + 0.6 * so_far**-0.5 - 0.3 * gain
    law = fit_schedule([Curve(rates, at, loss)], "annealing")
    np.testing.assert_allclose(np.exp(law.fit.nonlinear), (0.5, 500), rtol=0.01)
    np.testing.assert_allclose(law.predict(rates, at), loss, rtol=1e-4)


def test_two_curves_forecast_other_schedules() -> None:
    curves = generated_schedules(("cosine_24000", "constant_24000", "constant_72000", "wsdcon_9"), 0)
    known = learn_schedules([curves["cosine_24000"], curves["constant_24000"]])
    for name in ("constant_72000", "wsdcon_9"):
        curve = curves[name]
        value, half = known.forecast(curve.rates, curve.steps)
        assert abs(value[-1] / curve.loss[-1] - 1) < 0.005
        assert abs(value[-1] - curve.loss[-1]) < half[-1]
        assert (half > 0).all()


def test_generated_curves_are_the_same_for_the_same_seed() -> None:
    first, again, other = (generated_schedules(("constant_24000",), seed)["constant_24000"] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.loss, again.loss)
    assert (first.loss != other.loss).any()
    assert generated_ladder(("1xC", "2xC"), 3).losses.shape == (12, 3)


def test_schedules_may_be_flat() -> None:
    rates = Rates(np.array([0.0, 100, 5000]), np.array([0, 1e-3, 1e-3]))
    at = np.arange(150, 5000, 50, dtype=float)
    law = fit_schedule([Curve(rates, at, 2 + at**-0.5)], "annealing")
    assert np.isfinite(law.predict(rates, at)).all()
    assert not np.isfinite(law.fit.errors).all()


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (2.3456, 0.0412, "2.35 ± 0.04"),
        (2.3456, 0.0962, "2.3 ± 0.1"),
        (1234.5, 96.2, "1200 ± 100"),
        (0.3, 0.7, "0 ± 0.7"),
        (0.3, float("inf"), "not determined"),
        (0.25, 0.0, "0.25"),
    ],
)
def test_no_digit_is_shown_that_the_fit_does_not_support(value: float, error: float, shown: str) -> None:
    assert supported(value, error) == shown


@pytest.mark.skipif(not CURVES.is_dir(), reason="the public curves are not here")
def test_public_curves_are_forecast_within_the_bars(capsys: pytest.CaptureFixture[str]) -> None:
    sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
    import forecast

    ladder = forecast.olmo_ladder(CURVES / "olmo-ladder")
    errors, inside, chinchilla = forecast.next_sizes(ladder)
    assert np.abs(errors).mean() <= 1.5
    assert np.abs(errors).mean() < np.abs(chinchilla).mean()
    assert 0.7 <= np.mean(inside) <= 0.9
