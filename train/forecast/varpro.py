"""Variable projection: least squares where most parameters are linear (Golub and Pereyra, 1973).

For given nonlinear parameters the linear ones are solved exactly, so that the search runs over one to four numbers
instead of three to eight, and a badly started search does not stall. The search is Levenberg and Marquardt's inside a
box, from the best points of a coarse grid.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Design = Callable[[Floats], Floats]
"""From nonlinear parameters (p,) to the columns (n, k) that the linear ones multiply."""

ROUNDS = 60
STARTS = 3
STEP = 1e-4
"""Of the box, for differences."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """A separable fit.

    ``nonlinear`` (p,), ``linear`` (k,), and of both together, nonlinear first, the standard errors ``errors`` (p + k,),
    infinite where the data say nothing. ``rms`` is the root mean square of the weighted residuals. ``condition`` is the
    condition number of the Jacobian with columns of length one: how many times a change in the losses is enlarged, at
    worst, in the parameters.
    """

    nonlinear: Floats
    linear: Floats
    errors: Floats
    rms: float
    condition: float


def fit_separable(
    design: Design,
    target: Floats,
    weights: Floats,
    box: Sequence[tuple[float, float]],
    *,
    positive: Sequence[bool],
    grid: int = 6,
) -> Fit:
    """Fit ``target`` by ``design(nonlinear) @ linear``.

    Args:
        design: columns for given nonlinear parameters.
        target: (n,).
        weights: (n,), of the residuals; one over the loss makes them relative.
        box: lowest and highest value of each nonlinear parameter; may be empty.
        positive: of each linear parameter, whether it must not be negative.
        grid: points an axis of the coarse search.
    """

    def solve(at: Floats) -> tuple[Floats, Floats]:
        columns = design(at)
        linear = _least_squares(columns * weights[:, None], target * weights, positive)
        return linear, (columns @ linear - target) * weights

    low, high = (np.array([ends[side] for ends in box]) for side in (0, 1))
    # Not from the box's own faces: there a column may vanish.
    inside = (np.arange(grid) + 0.5) / grid
    starts = [low + np.array(at) * (high - low) for at in product(inside, repeat=len(box))]
    starts.sort(key=lambda at: float(np.square(solve(at)[1]).sum()))
    found = [_descend(lambda at: solve(at)[1], at, low, high) for at in starts[: STARTS if len(box) > 1 else 1]]
    best = min(found, key=lambda at: float(np.square(solve(at)[1]).sum()))
    linear, residual = solve(best)
    errors, condition = _uncertainty(design, best, linear, weights, residual, low, high)
    rms = float(np.sqrt(np.square(residual).mean()))
    return Fit(nonlinear=best, linear=linear, errors=errors, rms=rms, condition=condition)


def _least_squares(columns: Floats, target: Floats, positive: Sequence[bool]) -> Floats:
    """Linear parameters; those that must be positive and are not are left out, the most negative first."""
    used = list(range(columns.shape[1]))
    linear = np.zeros(columns.shape[1])
    while used:
        # Columns of equal length: the solver's rank is then about directions, not about units.
        lengths = np.maximum(np.linalg.norm(columns[:, used], axis=0), 1e-300)
        solved = np.linalg.lstsq(columns[:, used] / lengths, target, rcond=None)[0] / lengths
        negative = [(value, n) for value, n in zip(solved.tolist(), used, strict=True) if positive[n] and value < 0]
        if not negative:
            linear[used] = solved
            break
        used.remove(min(negative)[1])
    return linear


def _descend(residuals: Callable[[Floats], Floats], start: Floats, low: Floats, high: Floats) -> Floats:
    """Levenberg and Marquardt's search from ``start``; steps end at the box."""
    at, damping = start, 1e-3
    now = residuals(at)
    for _ in range(ROUNDS if len(start) else 0):
        slope = _differences(residuals, at, low, high)
        square, pull = slope.T @ slope, slope.T @ now
        moved = False
        while damping < 1e8 and not moved:
            damped = square + damping * np.diag(np.diag(square) + 1e-12 * np.trace(square) + 1e-300)
            tried = np.clip(at - np.linalg.solve(damped, pull), low, high)
            then = residuals(tried)
            moved = bool(np.square(then).sum() < np.square(now).sum())
            damping = damping / 5 if moved else damping * 5
        if not moved:
            break
        gain = 1 - np.square(then).sum() / np.square(now).sum()
        at, now = tried, then
        if gain < 1e-9:
            break
    return at


def _differences(function: Callable[[Floats], Floats], at: Floats, low: Floats, high: Floats) -> Floats:
    """Jacobian (n, p) by central differences inside the box."""
    columns = []
    for number in range(len(at)):
        below, above = at.copy(), at.copy()
        reach = STEP * (high[number] - low[number])
        below[number] = max(low[number], at[number] - reach)
        above[number] = min(high[number], at[number] + reach)
        columns.append((function(above) - function(below)) / (above[number] - below[number]))
    return np.stack(columns, 1)


def _uncertainty(
    design: Design, at: Floats, linear: Floats, weights: Floats, residual: Floats, low: Floats, high: Floats
) -> tuple[Floats, float]:
    """Standard errors of all parameters, and the condition of the Jacobian."""
    columns = design(at) * weights[:, None]
    slopes = _differences(lambda p: (design(p) @ linear) * weights, at, low, high) if len(at) else columns[:, :0]
    jacobian = np.concatenate((slopes, columns), 1)
    count, parameters = jacobian.shape
    lengths = np.linalg.norm(jacobian, axis=0)
    if count < parameters or not lengths.all():
        return np.full(parameters, np.inf), np.inf
    singular, turned = np.linalg.svd(jacobian / lengths)[1:]
    condition = float(singular[0] / singular[-1]) if singular[-1] > 0 else np.inf
    if count == parameters or condition > 1 / np.finfo(np.float64).eps:
        return np.full(parameters, np.inf), condition
    spread = np.sqrt(np.square(residual).sum() / (count - parameters))
    return spread * np.sqrt(np.square(turned / singular[:, None]).sum(0)) / lengths, condition
