"""One record: a JSON line or object turned into a text and its metadata, or the reason why not.

Nothing is repaired in silence. ``orjson`` does the common case; what it refuses is looked at again with
the standard library, to tell a NaN in the metadata (kept, as null) from a lone surrogate or broken JSON.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

import orjson

from millstream.mixture.recipe import Source

BIG_NUMBER = re.compile(rb"[0-9.]{16,}")
"""Numbers that a double might not hold exactly; such lines keep their digits."""
SURROGATE = re.compile("[\ud800-\udfff]")
FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted:
    """A record with a text. ``record`` counts from 1; ``place`` is how a person finds it in the file."""

    record: int
    place: str
    text: str
    url: str | None = None
    licence: str | None = None
    metadata: str = "{}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejected:
    """A record that is no document, and why."""

    record: int
    place: str
    raw: bytes
    rule: str
    value: str
    threshold: str | None = None


def from_json(source: Source, record: int, place: str, raw: bytes) -> Accepted | Rejected:
    """Read one JSON object."""
    try:
        value = _slow(raw) if BIG_NUMBER.search(raw) else orjson.loads(raw)
    except (orjson.JSONDecodeError, ValueError, RecursionError):
        try:
            value = _slow(raw)
        except UnicodeDecodeError as error:
            return reject(record, place, raw, "invalid-utf8", f"byte {error.start}")
        except json.JSONDecodeError as error:
            return reject(record, place, raw, "malformed-json", f"column {error.colno}: {error.msg}")
        except RecursionError:
            return reject(record, place, raw, "malformed-json", "nested too deeply")
    return from_value(source, record, place, raw, value)


def from_value(source: Source, record: int, place: str, raw: bytes, value: Any) -> Accepted | Rejected:
    """Take the text and the metadata out of a parsed value."""
    if not isinstance(value, dict):
        return reject(record, place, raw, "not-an-object", type(value).__name__)
    fields = FIELD.findall(source.text) or [source.text]
    for field in fields:
        if not isinstance(value.get(field), str):
            # Numbers whose digits are kept are fragments of the line.
            kind = "number" if isinstance(value.get(field), orjson.Fragment) else type(value.get(field)).__name__
            found = kind if field in value else "missing"
            return reject(record, place, raw, "text-type", f"{field}: {found}")
    text = FIELD.sub(lambda m: value[m[1]], source.text) if FIELD.search(source.text) else value[source.text]
    metadata = {k: v for k, v in value.items() if k not in fields}
    try:
        packed = orjson.dumps(metadata).decode()
        text.encode()
    except (orjson.JSONEncodeError, UnicodeEncodeError):
        return reject(record, place, raw, "lone-surrogate", _surrogate_place(value))
    if not text.strip():
        return reject(record, place, raw, "empty-text", f"{len(text)} characters, all blank")
    return Accepted(
        record=record,
        place=place,
        text=text,
        url=_text_or_none(value, source.url),
        licence=_text_or_none(value, source.licence_field) or source.licence,
        metadata=packed,
    )


def reject(record: int, place: str, raw: bytes, rule: str, value: str, threshold: str | None = None) -> Rejected:
    """Shorthand for a rejected record."""
    return Rejected(record=record, place=place, raw=raw, rule=rule, value=value, threshold=threshold)


def _slow(raw: bytes) -> Any:
    """Parse with numbers kept as they are written, NaN and Infinity as null."""
    number = lambda text: orjson.Fragment(text)  # noqa: E731
    return json.loads(raw.decode("utf-8"), parse_int=number, parse_float=number, parse_constant=lambda _: None)


def _surrogate_place(value: dict[str, Any]) -> str:
    for field, inner in value.items():
        text = inner if isinstance(inner, str) else json.dumps(inner, ensure_ascii=False, default=str)
        if (found := SURROGATE.search(text)) is not None:
            return f"{field}: U+{ord(found[0]):04X} at character {found.start()}"
    return "in a field's name"


def _text_or_none(value: dict[str, Any], field: str | None) -> str | None:
    found = value.get(field) if field is not None else None
    return found if isinstance(found, str) and found else None
