"""Loss against size: Chinchilla's form, and the law along a ladder of one recipe.

Chinchilla (Hoffmann et al. 2022, approach 3), N active parameters and D tokens:

    L(N, D) = E + A N^-a + B D^-b

A ladder holds D / N. On it the two terms cannot be told apart, and one power remains; runs with other ratios D / N
have a factor of their own (Chinchilla's form with a = b):

    L_m(N) = E + K_m N^-g

Both are fitted by variable projection with relative residuals. ``E`` is free, or fixed: with two or three sizes the
losses do not determine it, and a free fit runs to zero.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from millstream.train.forecast.varpro import Fit, Floats, fit_separable

ASYMPTOTE = 0.5
"""Share of the smallest observed loss that E is fixed at. Published E lie at 0.5 to 0.7 of it: Hoffmann et al. 1.69
below losses of 2 to 3, Marin's large runs 1.5 below 2.2."""

ASYMPTOTES = (0.3, 0.4, 0.5, 0.6, 0.7)
"""Shares that the sensitivity table tries."""

EXPONENT = (0.02, 1.2)


@dataclass(frozen=True, slots=True)
class LadderLaw:
    """``E + K_m N^-g``; ``unit`` is the size that N is divided by."""

    asymptote: float
    exponent: float
    factors: Floats
    unit: float
    fit: Fit

    def predict(self, size: float, group: int = 0) -> float:
        """Loss of a size on the ladder of a ratio."""
        return float(self.asymptote + self.factors[group] * (size / self.unit) ** -self.exponent)


@dataclass(frozen=True, slots=True)
class Chinchilla:
    """``E + A N^-a + B D^-b``; N and D are divided by ``units``."""

    asymptote: float
    exponents: tuple[float, float]
    factors: tuple[float, float]
    units: tuple[float, float]
    fit: Fit

    def predict(self, size: Floats, tokens: Floats) -> Floats:
        """Losses of sizes and tokens, (n,)."""
        of_size = self.factors[0] * (size / self.units[0]) ** -self.exponents[0]
        of_tokens = self.factors[1] * (tokens / self.units[1]) ** -self.exponents[1]
        return np.asarray(self.asymptote + of_size + of_tokens)


def fit_ladder(
    size: Floats, loss: Floats, group: NDArray[np.int64] | None = None, asymptote: float | None = None
) -> LadderLaw:
    """Fit the law of a ladder.

    Args:
        size: active parameters, (n,).
        loss: nats, (n,).
        group: which ratio of tokens to parameters a run has, (n,), from 0 without gaps; one by default.
        asymptote: E; free when None.
    """
    group = np.zeros(len(size), np.int64) if group is None else group
    unit = float(np.exp(np.log(size).mean()))
    own = (group[:, None] == np.arange(int(group.max()) + 1)).astype(np.float64)

    def design(at: Floats) -> Floats:
        powers = own * (size / unit)[:, None] ** -at[0]
        return powers if asymptote is not None else np.concatenate((np.ones((len(size), 1)), powers), 1)

    free = asymptote is None
    fit = fit_separable(
        design, loss - (asymptote or 0.0), 1 / loss, (EXPONENT,), positive=[True] * (own.shape[1] + free), grid=40
    )
    level = float(fit.linear[0]) if asymptote is None else asymptote
    return LadderLaw(level, float(fit.nonlinear[0]), fit.linear[1:] if free else fit.linear, unit, fit)


def fit_chinchilla(size: Floats, tokens: Floats, loss: Floats, asymptote: float | None = None) -> Chinchilla:
    """Fit Chinchilla's form to runs whose ratios of tokens to parameters differ; all (n,)."""
    units = (float(np.exp(np.log(size).mean())), float(np.exp(np.log(tokens).mean())))

    def design(at: Floats) -> Floats:
        columns = [(size / units[0]) ** -at[0], (tokens / units[1]) ** -at[1]]
        return np.stack(columns if asymptote is not None else [np.ones(len(size)), *columns], 1)

    free = asymptote is None
    fit = fit_separable(
        design, loss - (asymptote or 0.0), 1 / loss, (EXPONENT, EXPONENT), positive=[True] * (2 + free), grid=12
    )
    level = float(fit.linear[0]) if asymptote is None else asymptote
    first, second = fit.linear[-2:].tolist()
    alpha, beta = fit.nonlinear.tolist()
    return Chinchilla(level, (alpha, beta), (first, second), units, fit)
