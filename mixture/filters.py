"""Filters over a batch of documents: what is kept, and for each document dropped the rule and the numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import polars as pl

from millstream.mixture.bad_words import bad_words, check_words
from millstream.mixture.datatrove_filter import check_class, edited, run_datatrove_filter, run_datatrove_formatter
from millstream.mixture.documents import DOCUMENT_SCHEMA, EXCLUSION_SCHEMA
from millstream.mixture.language import by_language, check_language
from millstream.mixture.native import judge, packages, require_packages
from millstream.mixture.pii import mask_pii
from millstream.mixture.rules import (
    BadWords,
    C4Quality,
    DatatroveFilter,
    DatatroveFormatter,
    Filter,
    Language,
    LengthFilter,
    Pii,
    ScoreFilter,
    SymbolFilter,
    UrlLists,
    WordRule,
)
from millstream.mixture.url_lists import check_lists, url_lists

VERSION = "filter/2"


@dataclass(frozen=True, slots=True)
class Filtered:
    """Documents that stay (``DOCUMENT_SCHEMA``) and exclusions (``EXCLUSION_SCHEMA``)."""

    kept: pl.DataFrame
    excluded: pl.DataFrame


def apply_filters(documents: pl.DataFrame, filters: Sequence[Filter], domain: str) -> Filtered:
    """Run filters in order; a document is dropped by the first that objects.

    Raises:
        InputError: a datatrove filter failed on a document; names it.
        SetupError: a filter needs a package that is not installed.
    """
    excluded = []
    for rule in filters:
        documents, dropped = _apply(documents, rule)
        excluded.append(exclusions(dropped, domain, "filter"))
    return Filtered(documents, pl.concat([pl.DataFrame(schema=EXCLUSION_SCHEMA), *excluded]))


def check_rule(rule: Filter) -> None:
    """Check that a rule can be applied here, before work starts.

    Raises:
        RecipeError: a datatrove class does not exist or does not take its parameters.
        InputError: a file of the rule does not hold what it should.
        SetupError: a package is not installed.
    """
    if isinstance(rule, DatatroveFilter | DatatroveFormatter):
        check_class(rule)
    elif isinstance(rule, UrlLists):
        check_lists(rule)
    elif isinstance(rule, BadWords):
        check_words(rule)
    elif isinstance(rule, Language):
        check_language(rule)
    elif not isinstance(rule, LengthFilter | SymbolFilter | ScoreFilter | Pii):
        require_packages(*packages(rule))


def libraries(rule: Filter) -> tuple[str, ...]:
    """Distributions other than Polars whose versions a rule's decisions may depend on."""
    if isinstance(rule, LengthFilter | SymbolFilter | ScoreFilter):
        return ()
    if isinstance(rule, DatatroveFormatter):
        return ("datatrove", "ftfy")
    if isinstance(rule, UrlLists):
        return ("datatrove", "tldextract")
    if isinstance(rule, Language):
        return ("fasttext-numpy2-wheel",)
    return ("datatrove",) if isinstance(rule, Pii | BadWords) else ("datatrove", "numba", "spacy")


def _apply(documents: pl.DataFrame, rule: Filter) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Documents that stay, and those dropped with ``rule``, ``value`` and ``threshold``."""
    if isinstance(rule, DatatroveFilter):
        return run_datatrove_filter(documents, rule)
    if isinstance(rule, DatatroveFormatter):
        return run_datatrove_formatter(documents, rule)
    judged = pl.concat([documents, _verdicts(documents, rule)], how="horizontal")
    dropped = judged.filter(pl.col("rule").is_not_null())
    kept = judged.filter(pl.col("rule").is_null())
    if "new" in kept.columns:
        return edited(kept, type(rule).__name__), dropped
    return kept.select(DOCUMENT_SCHEMA.names()), dropped


def _verdicts(
    documents: pl.DataFrame,
    rule: WordRule | C4Quality | LengthFilter | SymbolFilter | ScoreFilter | UrlLists | Pii | BadWords | Language,
) -> pl.DataFrame:
    """``rule``, ``value`` and ``threshold`` for each document, null where it stays; ``new`` where texts are edited."""
    if isinstance(rule, LengthFilter | SymbolFilter):
        return documents.select(_length(rule) if isinstance(rule, LengthFilter) else _symbols(rule))
    if isinstance(rule, ScoreFilter):
        return documents.select(_score(rule))
    if isinstance(rule, UrlLists):
        return url_lists(documents, rule)
    if isinstance(rule, Pii):
        return mask_pii(documents, rule)
    if isinstance(rule, BadWords):
        return bad_words(documents, rule)
    if isinstance(rule, Language):
        return by_language(documents, rule)
    return judge(documents, rule)


def exclusions(dropped: pl.DataFrame, domain: str, stage: str) -> pl.DataFrame:
    """Rows of ``EXCLUSION_SCHEMA`` from dropped documents that carry ``rule``, ``value`` and ``threshold``."""
    fixed = {"raw_sha256": None, "kept_key": None} if "kept_key" not in dropped.columns else {"raw_sha256": None}
    columns = {name: pl.lit(value, pl.Binary) for name, value in fixed.items()}
    return dropped.with_columns(domain=pl.lit(domain), stage=pl.lit(stage), **columns).select(
        pl.col(name).cast(kind) for name, kind in EXCLUSION_SCHEMA.items()
    )


def _length(rule: LengthFilter) -> list[pl.Expr]:
    chars = pl.col("text").str.len_chars()
    short = chars < rule.min_chars
    long = chars > rule.max_chars if rule.max_chars is not None else pl.lit(False)
    threshold = (
        pl.when(short).then(pl.lit(f"min_chars {rule.min_chars}")).otherwise(pl.lit(f"max_chars {rule.max_chars}"))
    )
    return _verdict("length", short | long, chars.cast(pl.String), threshold)


def _symbols(rule: SymbolFilter) -> list[pl.Expr]:
    most = Fraction(rule.max_ratio)
    chars = pl.col("text").str.len_chars().cast(pl.Int64)
    symbols = chars - pl.col("text").str.count_matches(r"[\p{L}\p{M}\p{N}\s]").cast(pl.Int64)
    # Compared as integers: a ratio in floating point may fall on either side of its threshold.
    over = symbols * most.denominator > chars * most.numerator
    return _verdict("symbols", over, pl.format("{}/{}", symbols, chars), pl.lit(f"max_ratio {rule.max_ratio}"))


def _score(rule: ScoreFilter) -> list[pl.Expr]:
    score = pl.col("score")
    low = (score < float(rule.min)) if rule.min is not None else pl.lit(False)
    high = (score > float(rule.max)) if rule.max is not None else pl.lit(False)
    threshold = pl.when(high).then(pl.lit(f"max {rule.max}")).otherwise(pl.lit(f"min {rule.min}"))
    return _verdict(
        "score",
        (low | high).fill_null(True),
        score.cast(pl.String).fill_null("no score"),
        threshold.fill_null("a score"),
    )


def _verdict(rule: str, drop: pl.Expr, value: pl.Expr, threshold: pl.Expr) -> list[pl.Expr]:
    return [
        pl.when(drop).then(pl.lit(rule)).alias("rule"),
        pl.when(drop).then(value).alias("value"),
        pl.when(drop).then(threshold).alias("threshold"),
    ]
