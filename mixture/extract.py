"""Documents inside a text file: the whole of it, its sections, its docstrings, or JSON values."""

import ast
import re
import warnings
from collections.abc import Iterator
from itertools import pairwise

import orjson

from millstream.mixture.recipe import Source
from millstream.mixture.records import Accepted, Rejected, from_value, reject


def extract(source: Source, path: str, data: bytes) -> Iterator[Accepted | Rejected]:
    """Documents of one text file, in the order in which they stand."""
    if source.extract == "json-values":
        yield from _json_values(source, path, data)
        return
    try:
        text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    except UnicodeDecodeError as error:
        yield reject(1, path, data, "invalid-utf8", f"byte {error.start}")
        return
    try:
        pieces = _PIECES[source.extract](source, path, text)
    except (SyntaxError, RecursionError, ValueError) as error:
        yield reject(1, path, data, "python-syntax", str(error))
        return
    for record, (place, piece) in enumerate(pieces, 1):
        if not piece.strip():
            yield reject(record, place, piece.encode(), "empty-text", f"{len(piece)} characters, all blank")
        elif len(piece) < source.min_chars:
            yield reject(record, place, piece.encode(), "short-piece", str(len(piece)), str(source.min_chars))
        else:
            yield Accepted(record=record, place=place, text=piece, licence=source.licence)


def _whole(source: Source, path: str, text: str) -> list[tuple[str, str]]:
    return [(path, text)]


def _sections(source: Source, path: str, text: str) -> list[tuple[str, str]]:
    starts = [m.start() for m in re.finditer(source.section or "", text)]
    bounds = [0, *(s for s in starts if s > 0), len(text)]
    pieces = [(start, text[start:end].strip()) for start, end in pairwise(bounds)]
    return [(f"{path}:{text.count(chr(10), 0, start) + 1}", piece) for start, piece in pieces if piece] or [(path, "")]


def _docstrings(source: Source, path: str, text: str) -> list[tuple[str, str]]:
    with warnings.catch_warnings():
        # Sources may warn about their own escapes; that is not ours to report.
        warnings.simplefilter("ignore")
        tree = ast.parse(text)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring is not None:
                found.append((node.body[0].lineno, docstring))
    return [(f"{path}:{number}", docstring) for number, docstring in sorted(found)]


def _json_values(source: Source, path: str, data: bytes) -> Iterator[Accepted | Rejected]:
    try:
        values = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        yield reject(1, path, data, "malformed-json", str(error))
        return
    if not isinstance(values, dict | list):
        yield reject(1, path, data, "not-an-object", type(values).__name__)
        return
    entries = values.items() if isinstance(values, dict) else enumerate(values, 1)
    for record, (key, value) in enumerate(entries, 1):
        yield from_value(source, record, f"{path}#{key}", orjson.dumps(value), value)


_PIECES = {"whole": _whole, "sections": _sections, "docstrings": _docstrings}
