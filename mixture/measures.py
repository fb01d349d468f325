"""What a rule measures of each document, whatever it decides: the ground to choose thresholds on."""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from millstream.mixture.gopher import Check, Side, line_checks, list_checks, ngram_shares, quality_checks, repeat_checks
from millstream.mixture.rules import (
    Filter,
    FinewebQuality,
    GopherQuality,
    GopherRepetition,
    LengthFilter,
    ScoreFilter,
    SymbolFilter,
)


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of each document, and the limit that a rule sets it.

    ``values`` float64 (documents,), NaN where there is none; those on the ``side`` of ``limit`` are dropped.
    """

    rule: str
    field: str
    limit: float
    side: Side
    values: NDArray[np.float64]

    @property
    def dropped(self) -> NDArray[np.bool_]:
        """Which documents the limit drops, (documents,)."""
        found: NDArray[np.bool_] = self.values < self.limit if self.side == "below" else self.values > self.limit
        return found


def measure(documents: pl.DataFrame, rule: Filter) -> list[Measure]:
    """All numbers that a rule looks at; none for rules that do not count (C4's, and datatrove's own classes)."""
    if isinstance(rule, GopherQuality):
        framed = [quality_checks(documents, rule)]
    elif isinstance(rule, GopherRepetition):
        measured, checks = repeat_checks(documents, rule)
        grams = [
            Measure(name, field, limit, "above", values) for name, field, limit, values in ngram_shares(measured, rule)
        ]
        return [*_measures(measured, checks), *grams]
    elif isinstance(rule, FinewebQuality):
        framed = [line_checks(documents, rule), list_checks(documents, rule)]
    else:
        return _simple(documents, rule)
    return [found for measured, checks in framed for found in _measures(measured, checks)]


def _measures(measured: pl.DataFrame, checks: list[Check]) -> list[Measure]:
    return [
        Measure(check.rule, check.field, check.limit, check.side, _numbers(measured, check.value))
        for check in checks
        if check.limit is not None
    ]


def _simple(documents: pl.DataFrame, rule: Filter) -> list[Measure]:
    text = pl.col("text")
    chars = text.str.len_chars().cast(pl.Int64)
    if isinstance(rule, LengthFilter):
        most = (
            []
            if rule.max_chars is None
            else [Measure("length", "max_chars", rule.max_chars, "above", _numbers(documents, chars))]
        )
        return [Measure("length", "min_chars", rule.min_chars, "below", _numbers(documents, chars)), *most]
    if isinstance(rule, SymbolFilter):
        share = 1 - text.str.count_matches(r"[\p{L}\p{M}\p{N}\s]") / chars
        return [Measure("symbols", "max_ratio", float(rule.max_ratio), "above", _numbers(documents, share))]
    if isinstance(rule, ScoreFilter):
        values = _numbers(documents, pl.col("score"))
        limits: list[tuple[str, Side, object]] = [("min", "below", rule.min), ("max", "above", rule.max)]
        return [Measure("score", f, float(str(limit)), side, values) for f, side, limit in limits if limit is not None]
    return []


def _numbers(frame: pl.DataFrame, value: pl.Expr) -> NDArray[np.float64]:
    return frame.select(value.cast(pl.Float64).alias("value"))["value"].fill_null(float("nan")).to_numpy()
