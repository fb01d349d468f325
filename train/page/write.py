"""The page's data files: ``data/NAME.js``, each of which hands one text to the page.

    page.loaded("series/loss/0-3", '{"mean":[2.31,2.30]}')

A page that is opened from a disk may not fetch, but may load scripts from beside it. The value is a text that the page
parses, not an object: a key such as ``__proto__`` stays data, large values are read faster, and nothing in it is code.
"""

from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

DIGITS = 5
"""Significant digits of a number on the page; charts show no more."""

# The backslash first. One replacement after the other: a translation table takes ten times as long over a ledger.
_ESCAPES = (("\\", "\\\\"), ("'", "\\'"), ("\n", "\\n"), ("\r", "\\r"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029"))


def publish(out: Path, name: str, value: Any) -> bool:
    """Write a JSON value as ``data/NAME.js``; true where the file changed."""
    encoded = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
    return publish_text(out, name, encoded.decode())


def publish_text(out: Path, name: str, text: str) -> bool:
    """Write a text as ``data/NAME.js``; true where the file changed."""
    return write_changed(out / "data" / f"{name}.js", script(name, text).encode())


def script(name: str, text: str) -> str:
    """The file that hands a text to the page."""
    for sign, escaped in _ESCAPES:
        text = text.replace(sign, escaped)
    return f"page.loaded(\"{name}\",'{text}')\n"


def write_changed(path: Path, data: bytes) -> bool:
    """Write a file whole or not at all, unless it holds these bytes; true where it did not.

    Not synced to the disk: all of a page can be made again.
    """
    if path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(data)
    temporary.replace(path)
    return True


def rounded(values: NDArray[Any]) -> NDArray[np.float64]:
    """Numbers to ``DIGITS`` significant digits; NaN stays."""
    wide = values.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        places = DIGITS - 1 - np.floor(np.log10(np.abs(wide)))
        places = np.where(np.isfinite(places), np.clip(places, -300, 300), 0)
        scale = 10.0 ** np.abs(places)
        return np.where(places >= 0, np.round(wide * scale) / scale, np.round(wide / scale) * scale)
