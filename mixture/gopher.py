"""Gopher's quality and repetition rules (Rae et al. 2021, section A1) and FineWeb's (Penedo et al. 2024).

The definitions are datatrove's, and so are the decisions, on every document; each is measured in columns instead of
document by document. A rule gives the number that it compared and its threshold.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from millstream.mixture.kernels import repetition, word_hashes
from millstream.mixture.rules import FinewebQuality, GopherQuality, GopherRepetition
from millstream.mixture.words import Vocabulary

SPACE = "".join(chr(c) for c in range(0x110000) if chr(c).isspace())
"""What ``str.strip`` strips."""
_IN_LINE = r"[\t\r\x0b\x0c \x1c-\x1f\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]*"
LINE_END = r"\r\n|[\n\r\x0b\x0c\x1c-\x1e\x{85}\x{2028}\x{2029}]"
"""Where ``str.splitlines`` cuts."""


@dataclass(frozen=True, slots=True)
class Check:
    """A rule, whether it objects, the measured value, and the threshold as written in the recipe."""

    rule: str
    objects: pl.Expr
    value: pl.Expr
    threshold: str


QUALITY = (
    ("gopher_short_doc", "plain", operator.lt, "min_doc_words"),
    ("gopher_long_doc", "plain", operator.gt, "max_doc_words"),
    ("gopher_below_avg_threshold", "mean", operator.lt, "min_avg_word_length"),
    ("gopher_above_avg_threshold", "mean", operator.gt, "max_avg_word_length"),
    ("gopher_too_many_hashes", "hashes", operator.gt, "max_symbol_word_ratio"),
    ("gopher_too_many_ellipsis", "ellipses", operator.gt, "max_symbol_word_ratio"),
    ("gopher_too_many_bullets", "bullets", operator.gt, "max_bullet_lines_ratio"),
    ("gopher_too_many_end_ellipsis", "endings", operator.gt, "max_ellipsis_lines_ratio"),
    ("gopher_below_alpha_threshold", "letters", operator.lt, "max_non_alpha_words_ratio"),
    ("gopher_enough_stop_words", "stops", operator.lt, "min_stop_words"),
)
"""Gopher's quality rules in datatrove's order: name, measure, what breaks the rule, field of the recipe."""


def gopher_quality(documents: pl.DataFrame, rule: GopherQuality, vocabulary: Vocabulary) -> pl.DataFrame:
    """The first quality rule that each document breaks: ``rule``, ``value``, ``threshold``, null where none."""
    counted = _with_words(documents, vocabulary)
    text = pl.col("text")
    lines = pl.col("lines")
    ends = lines.str.count_matches("\n", literal=True) + (~lines.str.ends_with("\n") & (lines != "")).cast(pl.UInt32)
    measured = counted.with_columns(lines=text.str.replace_all(LINE_END, "\n")).with_columns(
        mean=pl.col("plain_chars") / pl.col("plain"),
        hashes=text.str.count_matches("#", literal=True) / pl.col("words"),
        ellipses=(text.str.count_matches("...", literal=True) + text.str.count_matches("…", literal=True))
        / pl.col("words"),
        bullets=lines.str.count_matches(rf"(?m)^{_IN_LINE}[•\-]") / ends,
        endings=lines.str.count_matches(rf"(?m)(\.\.\.|…){_IN_LINE}$") / ends,
        letters=pl.col("alpha") / pl.col("words"),
        stops=pl.col("stop").bitwise_count_ones(),
    )
    checks = [
        Check(name, breaks(pl.col(measure), getattr(rule, field)), pl.col(measure), f"{field} {getattr(rule, field)}")
        for name, measure, breaks, field in QUALITY
        # As in datatrove, a limit of None or 0 turns a rule off.
        if getattr(rule, field)
    ]
    return measured.select(_first(checks))


def fineweb_quality(documents: pl.DataFrame, rule: FinewebQuality, vocabulary: Vocabulary) -> pl.DataFrame:
    """The first FineWeb rule that each document breaks; columns as ``gopher_quality``."""
    from datatrove.utils.text import TERMINAL_PUNCTUATION

    stops = list(rule.stop_chars or TERMINAL_PUNCTUATION)
    numbered = documents.with_columns(doc=pl.int_range(pl.len(), dtype=pl.UInt32))
    lines = _exploded(numbered, pl.col("text").str.split("\n")).filter(pl.col("part").str.strip_chars(SPACE) != "")
    shape = lines.group_by("doc").agg(
        lines=pl.len(),
        ended=pl.any_horizontal(*(pl.col("part").str.ends_with(c) for c in stops)).sum()
        if any(len(c) > 1 for c in stops)
        else pl.col("part").str.tail(1).is_in(stops).sum(),
        short=(pl.col("part").str.len_chars() <= rule.short_line_length).sum(),
    )
    repeated = _repeats(lines).select("doc", "repeated_chars")
    measured = numbered.join(shape, on="doc", how="left", maintain_order="left").join(
        repeated, on="doc", how="left", maintain_order="left"
    )
    breaks = pl.col("text").str.count_matches("\n", literal=True)
    ended = pl.col("ended") / pl.col("lines")
    dry = (ended < rule.line_punct_thr) & ~((pl.col("ended") == 0) & pl.lit(rule.line_punct_exclude_zero))
    short = pl.col("short") / pl.col("lines")
    copied = pl.col("repeated_chars") / (pl.col("text").str.len_chars() - breaks)
    checks = [
        Check("empty", pl.col("lines").is_null(), pl.lit(0), "at least one line"),
        Check("line_punct_ratio", dry, ended, f"line_punct_thr {rule.line_punct_thr}"),
        Check("short_line_ratio", short > rule.short_line_thr, short, f"short_line_thr {rule.short_line_thr}"),
        Check(
            "char_dup_ratio",
            copied > rule.char_duplicates_ratio,
            copied,
            f"char_duplicates_ratio {rule.char_duplicates_ratio}",
        ),
    ]
    listed = breaks / pl.col("words")
    last = Check("list_ratio", listed > rule.new_line_ratio, listed, f"new_line_ratio {rule.new_line_ratio}")
    verdict = measured.select("doc", *_first(checks))
    return _then(verdict, numbered, lambda rest: _with_words(rest, vocabulary).select(_first([last])))


def gopher_repetition(documents: pl.DataFrame, rule: GopherRepetition, vocabulary: Vocabulary) -> pl.DataFrame:
    """The first repetition rule that each document breaks; columns as ``gopher_quality``."""
    text = pl.col("text")
    numbered = documents.with_columns(doc=pl.int_range(pl.len(), dtype=pl.UInt32), chars=text.str.len_chars())
    for name, parts in (
        ("para", text.str.strip_chars(SPACE).str.split(r"\n{2,}", literal=False)),
        ("line", text.str.split(r"\n+", literal=False)),
    ):
        counted = _repeats(_exploded(numbered, parts)).select("doc", pl.exclude("doc").name.prefix(f"{name}_"))
        numbered = numbered.join(counted, on="doc", how="left", maintain_order="left")
    checks = [Check("empty", pl.col("chars") == 0, pl.lit(0), "some text")]
    for name in ("para", "line"):
        share = pl.col(f"{name}_repeated") / pl.col(f"{name}_parts")
        copied = pl.col(f"{name}_repeated_chars") / pl.col("chars")
        for kind, measure in (("frac", share), ("char_frac", copied)):
            limit = getattr(rule, f"dup_{name}_{kind}")
            if limit:
                field = f"dup_{name}_{kind}"
                checks.append(Check(field, measure > limit, measure, f"{field} {limit}"))
    verdict = numbered.select("doc", *_first(checks))
    return _then(verdict, numbered, lambda rest: _ngram_verdicts(rest, rule, vocabulary))


def _ngram_verdicts(numbered: pl.DataFrame, rule: GopherRepetition, vocabulary: Vocabulary) -> pl.DataFrame:
    words = vocabulary.words(vocabulary.chunks(numbered), len(numbered))
    top, repeated = list(rule.top_n_grams), list(rule.dup_n_grams)
    found = repetition(
        words.ids,
        words.starts,
        numbered["chars"].to_numpy().astype(np.int64),
        vocabulary.lengths,
        word_hashes(vocabulary.pool, vocabulary.pool_ends),
        np.array([n for n, _ in top], np.int64),
        np.array([limit for _, limit in top], np.float64),
        np.array([n for n, _ in repeated], np.int64),
        np.array([limit for _, limit in repeated], np.float64),
    )
    names = [f"top_{n}_gram" for n, _ in top] + [f"duplicated_{n}_n_grams" for n, _ in repeated]
    limits = [f"top_n_grams {n}: {limit}" for n, limit in top] + [f"dup_n_grams {n}: {limit}" for n, limit in repeated]
    rows: list[tuple[Any, Any, Any]] = [
        (names[r], f"{count / chars:.6g}", limits[r]) if r >= 0 else (None, None, None)
        for (r, count), chars in zip(found.tolist(), numbered["chars"], strict=True)
    ]
    return pl.DataFrame(rows, schema=dict.fromkeys(("rule", "value", "threshold"), pl.String), orient="row")


def _then(verdict: pl.DataFrame, numbered: pl.DataFrame, judge: Callable[[pl.DataFrame], pl.DataFrame]) -> pl.DataFrame:
    """Verdicts, where there is none yet completed by ``judge``: words are split for what is left alone."""
    undecided = verdict["rule"].is_null()
    rest = numbered.filter(undecided).drop("doc")
    if rest.is_empty():
        return verdict.drop("doc")
    late = judge(rest).with_columns(doc=verdict.filter(undecided)["doc"])
    joined = verdict.join(late, on="doc", how="left", maintain_order="left", suffix="_late")
    return joined.select(pl.coalesce(name, f"{name}_late").alias(name) for name in ("rule", "value", "threshold"))


def _with_words(documents: pl.DataFrame, vocabulary: Vocabulary) -> pl.DataFrame:
    """Documents with ``doc`` and the sums of what is known of their chunks."""
    counts = pl.col("words", "plain", "plain_chars", "alpha").sum()
    sums = vocabulary.chunks(documents).group_by("doc").agg(counts, pl.col("stop").bitwise_or())
    numbered = documents.with_columns(doc=pl.int_range(pl.len(), dtype=pl.UInt32))
    joined = numbered.join(sums, on="doc", how="left", maintain_order="left")
    return joined.with_columns(pl.col("words", "plain", "plain_chars", "alpha", "stop").fill_null(0))


def _exploded(numbered: pl.DataFrame, parts: pl.Expr) -> pl.DataFrame:
    return numbered.select("doc", part=parts).explode("part")


def _repeats(parts: pl.DataFrame) -> pl.DataFrame:
    """Per document: ``parts``, ``repeated`` (after the first of each) and their characters."""
    equal = parts.group_by("doc", "part").agg(count=pl.len())
    return equal.group_by("doc").agg(
        parts=pl.col("count").sum(),
        repeated=(pl.col("count") - 1).sum(),
        repeated_chars=((pl.col("count") - 1) * pl.col("part").str.len_chars()).sum(),
    )


def _first(checks: Sequence[Check]) -> list[pl.Expr]:
    """The first check that objects, as columns ``rule``, ``value``, ``threshold``."""

    def of_first(pick: Callable[[Check], pl.Expr]) -> pl.Expr:
        chosen: Any = pl
        for check in checks:
            chosen = chosen.when(check.objects).then(pick(check))
        picked: pl.Expr = chosen.otherwise(pl.lit(None, pl.String))
        return picked

    return [
        of_first(lambda check: pl.lit(check.rule)).alias("rule"),
        of_first(lambda check: _number(check.value)).alias("value"),
        of_first(lambda check: pl.lit(check.threshold)).alias("threshold"),
    ]


def _number(value: pl.Expr) -> pl.Expr:
    return value.cast(pl.Float64).round_sig_figs(6).cast(pl.String).str.strip_suffix(".0")
