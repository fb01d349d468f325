"""Printing: tables for people, JSON for machines, and document text made harmless for terminals."""

import dataclasses
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import orjson
from rich.console import Console
from rich.markup import escape
from rich.table import Table

WIDE = 160
"""Columns where the output is no terminal: a pipe has no width that a table must keep to."""

console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)

_KEEP = {"\n", "\t"}


def harmless(text: str) -> str:
    """Text in which control, format and unassigned characters are written as escapes.

    A document must not move the cursor, set the window's title, turn the writing direction or look
    like our own output.
    """
    return "".join(
        c if c in _KEEP or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Cn") else f"\\u{ord(c):04x}"
        for c in text
    )


def line(text: str) -> None:
    """Print one line as it is: no markup, control characters escaped."""
    console.print(harmless(text), markup=False, emoji=False, overflow="ignore", no_wrap=True, crop=False)


def table(title: str | None, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table; numbers are set right, with separators for thousands."""
    rows = [list(row) for row in rows]
    shown = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold", title_style="bold")
    for number, name in enumerate(columns):
        numeric = any(isinstance(row[number], int | float) for row in rows)
        shown.add_column(name, justify="right" if numeric else "left", overflow="fold", min_width=min(len(name), 12))
    for row in rows:
        shown.add_row(*(_cell(value) for value in row))
    console.print(shown)


def json(value: Any) -> None:
    """Print one JSON value on stdout; dataclasses become objects, bytes hex."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY
    sys.stdout.buffer.write(orjson.dumps(_plain(value), option=options) + b"\n")
    sys.stdout.buffer.flush()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}"
    return escape(harmless(str(value)).replace("\n", "\\n"))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, bytes):
        return value.hex()
    return value
