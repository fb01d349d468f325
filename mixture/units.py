"""Numbers as people write them in recipes: ``18.75T`` tokens, ``256MiB``, exact decimals."""

import re
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

_COUNT = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_BYTES = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_NUMBER = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+]?[0-9]+)?)\s*([A-Za-z]*)\s*")


def _scaled(value: Any, units: dict[str, int], example: str) -> int:
    if isinstance(value, bool):
        raise ValueError(f"expected a number such as {example}, found {value}")
    if isinstance(value, int):
        return value
    match = _NUMBER.fullmatch(str(value))
    if match is None or match[2] not in units:
        raise ValueError(f"expected a number such as {example}, found {str(value)!r}")
    exact = Decimal(match[1].replace("_", "")) * units[match[2]]
    if exact != int(exact):
        raise ValueError(f"{str(value)!r} is not a whole number")
    return int(exact)


def parse_count(value: Any) -> int:
    """Read a whole number with an optional suffix k, M, B or T (powers of 1,000)."""
    return _scaled(value, _COUNT, "800k, 18.75T or 120000")


def parse_bytes(value: Any) -> int:
    """Read a size in bytes with an optional suffix (kB, MB, GB, KiB, MiB, GiB, ...)."""
    return _scaled(value, _BYTES, "256MiB or 1000000")


def parse_decimal(value: Any) -> Decimal:
    """Read a decimal number exactly, without passing through binary floating point."""
    if isinstance(value, bool):
        raise ValueError(f"expected a decimal number, found {value}")
    try:
        # A float reaches this only from Python callers; its shortest form is what they wrote.
        exact = Decimal(repr(value) if isinstance(value, float) else str(value))
    except InvalidOperation:
        raise ValueError(f"expected a decimal number, found {str(value)!r}") from None
    if not exact.is_finite():
        raise ValueError(f"expected a finite number, found {value}")
    return exact


def decimal_text(value: Decimal) -> str:
    """The one spelling of a decimal: no exponent, no trailing zeros."""
    text = f"{value:f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) or "0"


Count = Annotated[int, BeforeValidator(parse_count)]
Size = Annotated[int, BeforeValidator(parse_bytes)]
Exact = Annotated[Decimal, BeforeValidator(parse_decimal), PlainSerializer(decimal_text, return_type=str)]
