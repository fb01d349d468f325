"""Gopher's quality and repetition rules (Rae et al. 2021, section A1) and FineWeb's (Penedo et al. 2024).

The definitions are datatrove's, and so are the decisions, on every document; each is measured in columns instead of
document by document. A rule gives the number that it compared and its threshold.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from millstream.mixture.kernels import count_words, repetition
from millstream.mixture.rules import FinewebQuality, GopherQuality, GopherRepetition, Splitter
from millstream.mixture.words import split_words

Side = Literal["below", "above"]
"""Where values lie, seen from a limit, that are dropped."""
SPACE = "".join(chr(c) for c in range(0x110000) if chr(c).isspace())
"""What ``str.strip`` strips."""
_IN_LINE = r"[\t\r\x0b\x0c \x1c-\x1f\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]*"
LINE_END = r"\r\n|[\n\r\x0b\x0c\x1c-\x1e\x{85}\x{2028}\x{2029}]"
"""Where ``str.splitlines`` cuts."""


@dataclass(frozen=True, slots=True)
class Check:
    """A rule, whether it objects, the measured value, the recipe's field and limit, and the side that is dropped."""

    rule: str
    objects: pl.Expr
    value: pl.Expr
    field: str
    limit: float | None = None
    side: Side = "above"

    @property
    def threshold(self) -> str:
        """The threshold as it is recorded."""
        return self.field if self.limit is None else f"{self.field} {self.limit}"


QUALITY: tuple[tuple[str, str, Side, str], ...] = (
    ("gopher_short_doc", "plain", "below", "min_doc_words"),
    ("gopher_long_doc", "plain", "above", "max_doc_words"),
    ("gopher_below_avg_threshold", "mean", "below", "min_avg_word_length"),
    ("gopher_above_avg_threshold", "mean", "above", "max_avg_word_length"),
    ("gopher_too_many_hashes", "hashes", "above", "max_symbol_word_ratio"),
    ("gopher_too_many_ellipsis", "ellipses", "above", "max_symbol_word_ratio"),
    ("gopher_too_many_bullets", "bullets", "above", "max_bullet_lines_ratio"),
    ("gopher_too_many_end_ellipsis", "endings", "above", "max_ellipsis_lines_ratio"),
    ("gopher_below_alpha_threshold", "letters", "below", "max_non_alpha_words_ratio"),
    ("gopher_enough_stop_words", "stops", "below", "min_stop_words"),
)
"""Gopher's quality rules in datatrove's order: name, measure, the side that is dropped, field of the recipe."""


def gopher_quality(documents: pl.DataFrame, rule: GopherQuality) -> pl.DataFrame:
    """The first quality rule that each document breaks: ``rule``, ``value``, ``threshold``, null where none."""
    measured, checks = quality_checks(documents, rule)
    return measured.select(_first(checks))


def quality_checks(documents: pl.DataFrame, rule: GopherQuality) -> tuple[pl.DataFrame, list[Check]]:
    """Documents with what is measured of them, and the checks over it."""
    counted = _with_words(documents, rule.stop_words, rule.words)
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
    # As in datatrove, a limit of None or 0 turns a rule off.
    asked = [(name, measure, side, field, getattr(rule, field)) for name, measure, side, field in QUALITY]
    return measured, [_check(name, pl.col(m), side, field, limit) for name, m, side, field, limit in asked if limit]


def fineweb_quality(documents: pl.DataFrame, rule: FinewebQuality) -> pl.DataFrame:
    """The first FineWeb rule that each document breaks; columns as ``gopher_quality``."""
    measured, checks = line_checks(documents, rule)
    verdict = measured.select("doc", *_first(checks))

    def listed(rest: pl.DataFrame) -> pl.DataFrame:
        counted, last = list_checks(rest, rule)
        return counted.select(_first(last))

    return _then(verdict, measured, listed)


def line_checks(documents: pl.DataFrame, rule: FinewebQuality) -> tuple[pl.DataFrame, list[Check]]:
    """Documents with what is measured of their lines, and FineWeb's checks over it."""
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
    return measured, [
        Check("empty", pl.col("lines").is_null(), pl.lit(0), "at least one line"),
        Check("line_punct_ratio", dry, ended, "line_punct_thr", rule.line_punct_thr, "below"),
        _check("short_line_ratio", short, "above", "short_line_thr", rule.short_line_thr),
        _check("char_dup_ratio", copied, "above", "char_duplicates_ratio", rule.char_duplicates_ratio),
    ]


def list_checks(documents: pl.DataFrame, rule: FinewebQuality) -> tuple[pl.DataFrame, list[Check]]:
    """Documents with their words counted, and FineWeb's check of line breaks over it."""
    listed = pl.col("text").str.count_matches("\n", literal=True) / pl.col("words")
    check = _check("list_ratio", listed, "above", "new_line_ratio", rule.new_line_ratio)
    return _with_words(documents, (), rule.words), [check]


def gopher_repetition(documents: pl.DataFrame, rule: GopherRepetition) -> pl.DataFrame:
    """The first repetition rule that each document breaks; columns as ``gopher_quality``."""
    measured, checks = repeat_checks(documents, rule)
    verdict = measured.select("doc", *_first(checks))
    return _then(verdict, measured, lambda rest: _ngram_verdicts(rest, rule))


def repeat_checks(documents: pl.DataFrame, rule: GopherRepetition) -> tuple[pl.DataFrame, list[Check]]:
    """Documents with what is measured of repeated lines and paragraphs, and the checks over it."""
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
        for field, measure in ((f"dup_{name}_frac", share), (f"dup_{name}_char_frac", copied)):
            if limit := getattr(rule, field):
                checks.append(_check(field, measure, "above", field, limit))
    return numbered, checks


def ngram_shares(documents: pl.DataFrame, rule: GopherRepetition) -> list[tuple[str, str, float, NDArray[np.float64]]]:
    """Every n-gram rule with its field, limit and share of each document's characters; documents have ``chars``."""
    found = []
    for field, sizes in (("top_n_grams", rule.top_n_grams), ("dup_n_grams", rule.dup_n_grams)):
        for n, limit in sizes:
            # With a limit below nothing every text breaks the one rule asked for, and its count is told.
            alone = {"top_n_grams": (), "dup_n_grams": ()} | {field: ((n, -1.0),)}
            counts = _ngram_chars(documents, rule.model_copy(update=alone))[:, 1]
            name = f"top_{n}_gram" if field == "top_n_grams" else f"duplicated_{n}_n_grams"
            shares = np.where(counts < 0, np.nan, counts) / np.maximum(1, documents["chars"].to_numpy())
            found.append((name, f"{field} {n}:", limit, shares))
    return found


def _check(rule: str, value: pl.Expr, side: Side, field: str, limit: float) -> Check:
    # Polars puts NaN, the mean of nothing, above all numbers; it breaks no rule.
    numbers = value.cast(pl.Float64)
    objects = numbers < limit if side == "below" else (numbers > limit) & numbers.is_not_nan()
    return Check(rule, objects, value, field, limit, side)


def _ngram_verdicts(numbered: pl.DataFrame, rule: GopherRepetition) -> pl.DataFrame:
    top, repeated = list(rule.top_n_grams), list(rule.dup_n_grams)
    names = [f"top_{n}_gram" for n, _ in top] + [f"duplicated_{n}_n_grams" for n, _ in repeated]
    limits = [f"top_n_grams {n}: {limit}" for n, limit in top] + [f"dup_n_grams {n}: {limit}" for n, limit in repeated]
    rows: list[tuple[Any, Any, Any]] = [
        (names[r], f"{count / of:.6g}", limits[r]) if r >= 0 else (None, None, None)
        for (r, count), of in zip(_ngram_chars(numbered, rule).tolist(), numbered["chars"].to_list(), strict=True)
    ]
    return pl.DataFrame(rows, schema=dict.fromkeys(("rule", "value", "threshold"), pl.String), orient="row")


def _ngram_chars(numbered: pl.DataFrame, rule: GopherRepetition) -> NDArray[np.int64]:
    """First n-gram rule that each document breaks and its characters: (documents, 2), as ``kernels.repetition``."""
    top, repeated = list(rule.top_n_grams), list(rule.dup_n_grams)
    chars = numbered["chars"].to_numpy().astype(np.int64)
    parts, first = [np.empty((0, 2), np.int64)], 0
    for words in split_words(numbered["text"], rule.words):
        texts = len(words.bounds) - 1
        part = repetition(
            words.codes,
            words.starts,
            words.ends,
            words.bounds,
            chars[first : first + texts],
            np.array([n for n, _ in top], np.int64),
            np.array([limit for _, limit in top], np.float64),
            np.array([n for n, _ in repeated], np.int64),
            np.array([limit for _, limit in repeated], np.float64),
        )
        parts.append(part)
        first += texts
    return np.concatenate(parts)


def _then(verdict: pl.DataFrame, numbered: pl.DataFrame, judge: Callable[[pl.DataFrame], pl.DataFrame]) -> pl.DataFrame:
    """Verdicts, where there is none yet completed by ``judge``: words are split for what is left alone."""
    undecided = verdict["rule"].is_null()
    rest = numbered.filter(undecided).drop("doc")
    if rest.is_empty():
        return verdict.drop("doc")
    late = judge(rest).with_columns(doc=verdict.filter(undecided)["doc"])
    joined = verdict.join(late, on="doc", how="left", maintain_order="left", suffix="_late")
    return joined.select(pl.coalesce(name, f"{name}_late").alias(name) for name in ("rule", "value", "threshold"))


def _with_words(documents: pl.DataFrame, stop_words: Sequence[str], splitter: Splitter) -> pl.DataFrame:
    """Documents with what is counted of their words."""
    stops = np.zeros((len(stop_words), 1 + max(map(len, stop_words), default=0)), np.uint32)
    for number, word in enumerate(stop_words):
        stops[number, : len(word)] = [ord(c) for c in word]
    counts, bits = [np.empty((0, 4), np.int64)], [np.empty(0, np.uint64)]
    for w in split_words(documents["text"], splitter):
        found = count_words(w.codes, w.classes, w.starts, w.ends, w.bounds, w.plain, w.alpha, stops)
        counts.append(found[0])
        bits.append(found[1])
    counted = np.concatenate(counts)
    names = ("words", "plain", "plain_chars", "alpha")
    return documents.with_columns(
        *(pl.Series(name, counted[:, number]) for number, name in enumerate(names)),
        pl.Series("stop", np.concatenate(bits)),
    )


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
