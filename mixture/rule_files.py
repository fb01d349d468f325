"""Files that rules name: found from the recipe's folder, known by their content, read as lists."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from millstream.errors import InputError
from millstream.files import sha256_file
from millstream.mixture.rules import BadWords, Filter, Language, UrlLists

FIELDS: dict[type, tuple[str, ...]] = {
    UrlLists: ("domains", "urls", "banned_words", "banned_subwords", "soft_banned_words"),
    BadWords: ("words",),
    Language: ("model",),
}
"""Fields of a rule in which a string is the path of a file."""

Stamp = tuple[str, int, int]
"""Path, time and size of a file."""


def located(rule: Filter, base: Path) -> Filter:
    """The rule with the paths of its files found from ``base``.

    Raises:
        InputError: a file is missing.
    """
    found = {name: base / path for name, path in _paths(rule).items()}
    for name, path in found.items():
        if not path.is_file():
            raise InputError(f"{path}: the file that '{name}' of the rule '{rule.rule}' names is missing")
    return rule.model_copy(update={name: str(path) for name, path in found.items()}) if found else rule


def described(rule: Filter) -> dict[str, Any]:
    """A located rule as plain values, with the digests of its files in place of their paths."""
    return rule.model_dump(mode="json") | {name: {"sha256": sha} for name, sha in digests(rule).items()}


def digests(rule: Filter) -> dict[str, str]:
    """SHA-256 of a located rule's files by field."""
    return {name: _sha256(stamp) for name, stamp in zip(_paths(rule), stamps(rule), strict=True)}


def stamps(rule: Filter) -> tuple[Stamp, ...]:
    """What changes when a located rule's files do: a key for what is made of them."""
    paths = [Path(path) for path in _paths(rule).values()]
    return tuple((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in paths)


def entries(given: str | tuple[str, ...], *, comments: bool = True) -> list[str]:
    """Entries given one by one or by a file's path: lines without blanks around, none of them empty.

    Args:
        given: the entries, or the path.
        comments: leave out what begins with ``#``.

    Raises:
        InputError: the file is not UTF-8.
    """
    try:
        lines = Path(given).read_text("utf-8").split("\n") if isinstance(given, str) else given
    except UnicodeDecodeError as error:
        raise InputError(f"{given}: not UTF-8 at byte {error.start}") from error
    return [line.strip() for line in lines if line.strip() and not (comments and line.startswith("#"))]


def _paths(rule: Filter) -> dict[str, str]:
    values = {name: getattr(rule, name) for name in FIELDS.get(type(rule), ())}
    return {name: value for name, value in values.items() if isinstance(value, str)}


@lru_cache
def _sha256(stamp: Stamp) -> str:
    return sha256_file(Path(stamp[0]))
