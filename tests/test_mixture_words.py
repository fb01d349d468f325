"""Words: the same as spaCy's, chunk by chunk, and compiled expressions that match as ``re`` does."""

import random  # noqa: TID251  fuzzed chunks, from a fixed seed
import re
from typing import Any

import numpy as np
import polars as pl
import pytest
import spacy
from hypothesis import given, settings
from hypothesis import strategies as st
from test_mixture_rules import fuzzed_texts, real_texts

from millstream.mixture.matching import NO_MATCH, match_at
from millstream.mixture.patterns import Unsupported, compile_patterns
from millstream.mixture.words import Splitter, split_words

ALPHABET = """a b c Z X 0 1 9 . , : ; ! ? ' " ( ) [ ] { } < > - _ / \\ # $ % & * + = @ ^ ~ | … — ’ ‘ “ ” € £ ° é ß и 你
😀 n't 's :) :-( a.m. U.S. http://
www. km $ ... -- 'em 8) ^_^ C++ ’’ .com x@y. 10.0.0.1 :80 ?q ): can't don’t ; 9am \u0301
IS_ALPHA ` °C. No. US$ 1,000 x=y a:b"""


def words_of(texts: list[str], splitter: Splitter = "spacy") -> list[list[str]]:
    found = []
    for words in split_words(pl.Series(texts, dtype=pl.String), splitter):
        joined = words.codes.tobytes().decode("utf-32-le")
        cut = [joined[a:b] for a, b in zip(words.starts.tolist(), words.ends.tolist(), strict=True)]
        found += [cut[a:b] for a, b in zip(words.bounds.tolist(), words.bounds[1:].tolist(), strict=False)]
    return found


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return spacy.blank("en").tokenizer


def chunks_of(texts: list[str]) -> list[str]:
    return sorted({chunk for text in texts for chunk in re.findall(r"[^\s\x1c-\x1f]+", text)})


def fuzzed_chunks() -> list[str]:
    chance = random.Random(1)
    pieces = ALPHABET.split()
    return ["".join(chance.choices(pieces, k=chance.randint(1, 14))) for _ in range(20_000)]


@pytest.mark.parametrize("texts", [real_texts, fuzzed_texts, fuzzed_chunks])
def test_words_are_those_of_spacy(texts: Any, tokenizer: Any) -> None:
    chunks = chunks_of(texts())
    for chunk, found in zip(chunks, words_of(chunks), strict=True):
        assert found == [token.text for token in tokenizer(chunk)], chunk


def test_special_cases_of_spacy_stay_whole(tokenizer: Any) -> None:
    cases = [case for case in tokenizer.rules if not any(c.isspace() for c in case)]
    wrapped = [w for case in cases for w in (case, f"({case})", f"x-{case}", f"{case}.", f'"{case},')]
    for chunk, found in zip(wrapped, words_of(wrapped), strict=True):
        assert found == [token.text for token in tokenizer(chunk)], chunk


def test_texts_keep_their_words_apart() -> None:
    assert words_of(["one two", "", "  ", "three,\n", "x"]) == [["one", "two"], [], [], ["three", ","], ["x"]]
    assert words_of([]) == []


def test_long_chunks_take_no_quadratic_time(tokenizer: Any) -> None:
    # Each of these would keep spaCy's own expressions busy for hours.
    for text in ("." * 2_000_000, "a:b." * 500_000, "(" * 300_000 + ")" * 300_000, "x" * 5_000_000):
        assert sum(map(len, words_of([text])[0])) == len(text)


# Kernels are compiled when first called.
@settings(deadline=None)
@given(st.text(st.sampled_from(" a_9é.,-!\n\u00a0你😀"), max_size=40))
def test_unicode_words_are_those_of_the_expression(text: str) -> None:
    assert words_of([text], "unicode") == [re.findall(r"\w+|[^\w\s]", text)]


PATTERNS = (
    r"\.\.+|--|—|\$|US\$|[ab]+",
    r"(?<=[0-9])(?:km|k|m²)$|\.\.+$|'s$|(?<=[a-z][A-Z])\.$",
    r"(?<=[a-c])(?:-|--|~)(?=[a-c])|x?y?z|\+(?![0-9])|[^a-z]b{1,3}c",
)


# Kernels are compiled when first called.
@settings(deadline=None)
@given(st.sampled_from(PATTERNS), st.text(st.sampled_from("abcxyz0A.-~$US'skm²+—"), max_size=14))
def test_programs_match_as_re_does(pattern: str, text: str) -> None:
    tables, programs, _ = compile_patterns({"it": pattern}, {"digits": np.arange(0x110000) < 5})
    classes = tables.classes[[ord(c) for c in text]]
    stack = np.empty((programs["it"].depth, 3), np.int64)
    for at in range(len(text)):
        expected = re.compile(pattern).match(text, at)
        found = match_at(programs["it"], tables.member, classes, 0, len(text), at, stack)
        assert found == (expected.end() if expected else NO_MATCH)


@pytest.mark.parametrize("pattern", [r"(a|bc)+", r"(a)\1", r"(?!ab)c", r"a*", r"\bx", r"a+?"])
def test_what_tables_cannot_say_is_refused(pattern: str) -> None:
    with pytest.raises(Unsupported):
        compile_patterns({"it": pattern}, {})
