"""The field's rules in columns: one entry for each, over a vocabulary kept between batches."""

import importlib.util
from functools import lru_cache

import polars as pl

from millstream.errors import SetupError
from millstream.mixture.rules import C4Quality, FinewebQuality, GopherQuality, GopherRepetition, Splitter, WordRule
from millstream.mixture.words import Vocabulary

STOP_WORDS = GopherQuality(rule="gopher-quality").stop_words


def judge(documents: pl.DataFrame, rule: WordRule | C4Quality) -> pl.DataFrame:
    """What a rule says of each document: ``rule``, ``value``, ``threshold``, null where it does not object.

    Rules that edit add ``new``, the text that is left.

    Raises:
        SetupError: spaCy or numba is not installed.
    """
    require_packages(*packages(rule))
    # Imported when asked for: numba takes its time, and both are an extra.
    from millstream.mixture import c4, gopher

    if isinstance(rule, C4Quality):
        return c4.c4_quality(documents, rule)
    if isinstance(rule, GopherQuality):
        return gopher.gopher_quality(documents, rule, _vocabulary(rule.stop_words, rule.words))
    if isinstance(rule, GopherRepetition):
        return gopher.gopher_repetition(documents, rule, _vocabulary(STOP_WORDS, rule.words))
    assert isinstance(rule, FinewebQuality)
    return gopher.fineweb_quality(documents, rule, _vocabulary(STOP_WORDS, rule.words))


def packages(rule: WordRule | C4Quality) -> tuple[str, ...]:
    """Packages that a rule needs."""
    plain = not isinstance(rule, C4Quality) and rule.words == "unicode"
    return ("numba",) if plain else ("spacy", "numba")


def require_packages(*packages: str) -> None:
    """Check that what the rules need is installed, before work starts.

    Raises:
        SetupError: spaCy or numba is not installed.
    """
    for package in packages or ("spacy", "numba"):
        if importlib.util.find_spec(package) is None:
            raise SetupError(f"rules that count words need {package}: pip install 'millstream[filters]'")


@lru_cache
def _vocabulary(stop_words: tuple[str, ...], splitter: Splitter) -> Vocabulary:
    """One memo a process, list of stop words and splitter."""
    return Vocabulary(stop_words, splitter)
