"""Numbers with the digits that their uncertainty supports."""

import math


def supported(value: float, error: float) -> str:
    """A number rounded to the first digit of its error, with it: ``2.31 ± 0.04``; words where nothing is supported.

    Args:
        value: the number.
        error: its half-width or standard error, in the same unit.
    """
    if not math.isfinite(error) or not math.isfinite(value):
        return "not determined"
    if error <= 0:
        return f"{value:.6g}"
    places = -math.floor(math.log10(error))
    # 0.096 rounds to 0.10: one place fewer.
    if round(error, places) >= 10 ** (1 - places):
        places -= 1
    if abs(value) < error:
        return f"0 ± {_rounded(error, places)}"
    return f"{_rounded(value, places)} ± {_rounded(error, places)}"


def _rounded(value: float, places: int) -> str:
    return f"{round(value, places):.{max(0, places)}f}"
