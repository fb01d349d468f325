"""The field's rules in columns: one entry for each."""

import importlib.util

import polars as pl

from millstream.errors import SetupError
from millstream.mixture.rules import C4Quality, FinewebQuality, GopherQuality, GopherRepetition, WordRule


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
        return gopher.gopher_quality(documents, rule)
    if isinstance(rule, GopherRepetition):
        return gopher.gopher_repetition(documents, rule)
    assert isinstance(rule, FinewebQuality)
    return gopher.fineweb_quality(documents, rule)


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
