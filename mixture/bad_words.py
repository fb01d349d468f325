"""Documents with words of a list, with datatrove's C4 definitions; a share of them may be kept.

datatrove downloads its lists and draws what it keeps from a generator, so that a decision depends on the documents
before. Here the list is the recipe's, and a keyed hash of the document's own key decides.
"""

import hashlib
import re
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

import polars as pl

from millstream.errors import InputError
from millstream.mixture.rule_files import Stamp, entries, stamps
from millstream.mixture.rules import BadWords

UNSPACED = ("ja", "th", "zh")
HINT_CHARS = 50_000
"""Longest list that Polars gets as one regular expression."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What is looked for: datatrove's pattern, and a wider one for Polars (or the words alone)."""

    words: tuple[str, ...]
    pattern: re.Pattern[str]
    hint: str | None


def bad_words(documents: pl.DataFrame, rule: BadWords) -> pl.DataFrame:
    """The word found in each document that is dropped: ``rule``, ``value``, ``threshold``, else null."""
    wanted = _wanted(rule, stamps(rule))
    # Lower case as Python has it: what it makes of a letter decides.
    lower = pl.Series([text.lower() for text in documents["text"]], dtype=pl.String)
    hits = lower.str.contains(wanted.hint) if wanted.hint else lower.str.contains_any(list(wanted.words))
    found: list[str | None] = [None] * len(documents)
    for row in hits.arg_true():
        match = wanted.pattern.search(lower[row])
        if match is not None and not _stays(rule, documents["doc_key"][row] if rule.keep_fraction else b""):
            found[row] = match[match.re.groups]
    dropped = pl.col("value").is_not_null()
    return pl.DataFrame({"value": found}, schema={"value": pl.String}).select(
        rule=pl.when(dropped).then(pl.lit("document_removed_with_badwords")),
        value="value",
        threshold=pl.when(dropped).then(pl.lit(f"keep_fraction {rule.keep_fraction}")),
    )


def check_words(rule: BadWords) -> None:
    """Read the list of a rule once, before work starts.

    Raises:
        InputError: it is not UTF-8 or holds no word.
    """
    _wanted(rule, stamps(rule))


def _stays(rule: BadWords, doc_key: bytes) -> bool:
    word = hashlib.sha256(f"bad-words/v1\0{rule.seed}\0".encode() + doc_key).digest()[:8]
    return int.from_bytes(word, "big") < rule.keep_fraction * Decimal(2**64)


@lru_cache(8)
def _wanted(rule: BadWords, _: tuple[Stamp, ...]) -> Wanted:
    from datatrove.pipeline.filters.c4_filters import _BADWORDS_ALLOWLIST

    words = tuple(sorted(set(entries(rule.words, comments=False)).difference(*_BADWORDS_ALLOWLIST.values())))
    if not words:
        given = f"{rule.words}: " if isinstance(rule.words, str) else ""
        raise InputError(f"{given}the rule 'bad-words' has no word to look for")
    escaped = "|".join(re.escape(word) for word in words)
    if rule.language in UNSPACED:
        return Wanted(words=words, pattern=re.compile(escaped), hint=None)
    # ASCII alone bounds a word in the hint, since Rust and Python differ on other word characters.
    wide = "|".join(pl.escape_regex(word) for word in words)
    edge = "[^0-9A-Za-z_]"
    hint = f"(?:^|{edge})(?:{wide})(?:{edge}|$)" if len(wide) <= HINT_CHARS else None
    return Wanted(words=words, pattern=re.compile(rf"(?:\W|^)({escaped})(?:\W|$)"), hint=hint)
