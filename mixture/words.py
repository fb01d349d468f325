"""Words of texts: as spaCy and so datatrove cut English, or by Unicode alone.

spaCy's rules are compiled from its own expressions and special cases (``patterns``) and run over millions of
characters at once (``splitting``): the same words, many times faster, with no memo that would grow with the corpus.
What may be a web address is asked of spaCy's own expression.
"""

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from millstream.mixture.patterns import CODES, Program, Tables, compile_patterns
from millstream.mixture.rules import Splitter
from millstream.mixture.splitting import (
    ADDRESS,
    DONE,
    INFIX,
    Specials,
    special_hash,
    split_affixes,
    split_infixes,
    split_plainly,
)

NOT_SPACE = r"[^\s\x1c-\x1f]+"
"""Chunks: runs of what ``str.isspace`` is false for; Rust's ``\\s`` lacks the four separators."""
SLICE_CHARS = 4 << 20
"""Characters of text that are cut at once; a longer text is cut alone."""

USER = r"(?:\S+(?::\S*)?@)?"
"""The part of spaCy's expression for addresses that asks for an ``@``."""


@dataclass(frozen=True, slots=True)
class Words:
    """Words of several texts.

    ``codes`` uint32 and ``classes`` uint8 (characters,) hold the texts end to end; word ``i`` is ``codes[starts[i] :
    ends[i]]``; text ``t`` begins at ``offsets[t]`` and has the words ``bounds[t]`` to ``bounds[t + 1]``.
    ``plain`` and ``alpha``, bool (classes,): characters that are no punctuation, letters.
    """

    codes: NDArray[np.uint32]
    classes: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    bounds: NDArray[np.int64]
    offsets: NDArray[np.int64]
    plain: NDArray[np.bool_]
    alpha: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Rules:
    """Everything that decides how texts are cut; ``sets`` numbers the named sets of characters."""

    tables: Tables
    sets: dict[str, int]
    prefix: Program
    suffix: Program
    infix: Program
    specials: Specials
    tokenizer: Any
    """spaCy's own, which knows web addresses."""

    def __hash__(self) -> int:
        return id(self)


def split_words(texts: pl.Series, splitter: Splitter = "spacy") -> Iterator[Words]:
    """Cut texts into words, some megabytes of them at a time and in order."""
    sizes = texts.str.len_chars().to_numpy().astype(np.int64)
    first, filled = 0, 0
    for at, size in enumerate(sizes.tolist()):
        if filled and filled + size > SLICE_CHARS:
            yield _split(texts[first:at].to_list(), sizes[first:at], splitter)
            first, filled = at, 0
        filled += size
    if first < len(texts):
        yield _split(texts[first:].to_list(), sizes[first:], splitter)


def _split(texts: list[str], sizes: NDArray[np.int64], splitter: Splitter) -> Words:
    # A line feed is white space to both splitters, so no word reaches from one text into the next.
    joined = "\n".join(texts)
    codes = np.frombuffer(joined.encode("utf-32-le"), np.uint32)
    if splitter == "spacy":
        rules = spacy_rules()
        tables, sets = rules.tables, rules.sets
        classes = tables.classes[codes]
        starts, ends = _spacy(rules, joined, codes, classes)
    else:
        tables, sets = unicode_tables()
        classes = tables.classes[codes]
        starts, ends = split_plainly(classes, tables.member, sets["space"], sets["letters"])
    borders = np.concatenate([[0], np.cumsum(sizes + 1)])
    return Words(
        codes,
        classes,
        starts,
        ends,
        np.searchsorted(starts, borders).astype(np.int64),
        borders,
        tables.member[sets["plain"]],
        tables.member[sets["alpha"]],
    )


def _spacy(
    rules: Rules, joined: str, codes: NDArray[np.uint32], classes: NDArray[np.uint8]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    member, space = rules.tables.member, rules.sets["space"]
    starts, ends, left = split_affixes(codes, classes, member, space, rules.prefix, rules.suffix, rules.specials)
    asked = np.flatnonzero(left == ADDRESS)
    verdicts: dict[str, bool] = {}
    for number, low, high in zip(asked.tolist(), starts[asked].tolist(), ends[asked].tolist(), strict=True):
        piece = joined[low:high]
        if (verdict := verdicts.get(piece)) is None:
            verdict = verdicts[piece] = _is_address(rules.tokenizer, piece)
        left[number] = DONE if verdict else INFIX
    found: tuple[NDArray[np.int64], NDArray[np.int64]] = split_infixes(
        codes, classes, member, rules.infix, rules.specials, starts, ends, left
    )
    return found


def _is_address(tokenizer: Any, piece: str) -> bool:
    """What spaCy's expression says; without an ``@`` by a shorter one, which takes no quadratic time."""
    match = tokenizer.url_match if "@" in piece else _without_user(tokenizer.url_match.__self__)
    return match(piece) is not None


@lru_cache(1)
def _without_user(expression: Any) -> Any:
    import re

    return re.compile(expression.pattern.replace(USER, "", 1)).match


@lru_cache(1)
def unicode_tables() -> tuple[Tables, dict[str, int]]:
    """Classes of characters for the plain splitter, and the numbers of the sets that it asks for."""
    tables, _, sets = compile_patterns({}, _character_sets())
    return tables, sets


@lru_cache(1)
def spacy_rules() -> Rules:
    """SpaCy's rules for English, compiled.

    Raises:
        patterns.Unsupported: this release of spaCy has rules that cannot be compiled.
    """
    import spacy
    from spacy.pipeline import Sentencizer
    from spacy.tokenizer import Tokenizer

    language = spacy.blank("en")
    # Attributes of words (shape, lower case, ...) that no splitting rule asks for, and half the time.
    language.vocab.lex_attr_getters = {}
    tokenizer = language.tokenizer
    closing = np.zeros(CODES, np.bool_)
    closing[[ord(c) for c in Sentencizer.default_punct_chars]] = True
    tables, programs, sets = compile_patterns(
        {
            "prefix": tokenizer.prefix_search.__self__.pattern,
            "suffix": tokenizer.suffix_search.__self__.pattern,
            "infix": tokenizer.infix_finditer.__self__.pattern,
        },
        _character_sets() | {"closing": closing},
    )
    affixes_only = Tokenizer(
        language.vocab,
        prefix_search=tokenizer.prefix_search,
        suffix_search=tokenizer.suffix_search,
        infix_finditer=tokenizer.infix_finditer,
        url_match=tokenizer.url_match,
    )
    specials = _specials(tokenizer, affixes_only)
    return Rules(tables, sets, programs["prefix"], programs["suffix"], programs["infix"], specials, tokenizer)


def _character_sets() -> dict[str, NDArray[np.bool_]]:
    """Sets of characters that are asked for by name, bool (0x110000,) each."""
    from datatrove.utils.text import PUNCTUATION_SET

    every = [chr(code) for code in range(CODES)]
    plain = np.ones(CODES, np.bool_)
    plain[[ord(c) for c in PUNCTUATION_SET]] = False
    return {
        "space": np.array([c.isspace() for c in every]),
        "alpha": np.array([c.isalpha() for c in every]),
        "letters": np.array([c.isalnum() or c == "_" for c in every]),
        "plain": plain,
        "punctuation": np.array([unicodedata.category(c).startswith("P") for c in every]),
    }


def _specials(tokenizer: Any, affixes_only: Any) -> Specials:
    from spacy.symbols import ORTH

    cases = {text: rule for text, rule in tokenizer.rules.items() if not any(c.isspace() for c in text)}
    longest = max(map(len, cases))
    affixes = {
        text: [token.text for token in affixes_only(text)]
        for text in cases
        if tokenizer.find_prefix(text) or tokenizer.find_infix(text) or tokenizer.find_suffix(text)
    }
    most = max(map(len, [*cases.values(), *affixes.values()]))
    codes = np.zeros((len(cases), longest), np.uint32)
    sizes = np.array([len(text) for text in cases], np.int32)
    cuts = np.full((len(cases), most + 2), -1, np.int32)
    parts = np.full_like(cuts, -1)
    changes = np.zeros(len(cases), np.bool_)
    slots = np.full(1 << (4 * len(cases)).bit_length(), -1, np.int32)
    for number, (text, rule) in enumerate(cases.items()):
        pieces = [token[ORTH] for token in rule]
        codes[number, : len(text)] = [ord(c) for c in text]
        cuts[number, : len(pieces) + 1] = np.cumsum([0, *map(len, pieces)])
        if text in affixes:
            parts[number, : len(affixes[text]) + 1] = np.cumsum([0, *map(len, affixes[text])])
            changes[number] = affixes[text] != pieces
        slot = int(special_hash(codes[number], 0, len(text))) & (len(slots) - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = number
    firsts = {int(codes[number, 0]) for number in np.flatnonzero(changes)}
    begins = np.array([code in firsts for code in range(128)])
    return Specials(slots, codes, sizes, cuts, parts, changes, begins)
