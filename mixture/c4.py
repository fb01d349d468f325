"""C4's quality rules (Raffel et al. 2020), with datatrove's definitions and decisions, in columns.

Lines are dropped and documents too; what is left of a document is its new text.
"""

from functools import lru_cache
from typing import Any

import polars as pl

from millstream.mixture.gopher import LINE_END, SPACE
from millstream.mixture.rules import C4Quality
from millstream.mixture.words import NOT_SPACE

CITATION = r"\[\d*\]|\[edit\]|\[citation needed\]"


def c4_quality(documents: pl.DataFrame, rule: C4Quality) -> pl.DataFrame:
    """Verdicts and new texts: ``rule``, ``value``, ``threshold`` (null where kept) and ``new``."""
    numbered = documents.select(doc=pl.int_range(pl.len(), dtype=pl.UInt32), text=pl.col("text"))
    lines = _kept_lines(_lines(numbered, rule), rule)
    fatal = (
        lines.filter(pl.col("fatal").is_not_null()).group_by("doc", maintain_order=True).agg(pl.col("fatal").first())
    )
    kept = lines.filter(pl.col("fatal").is_null() & ~pl.col("dropped"))
    texts = kept.group_by("doc", maintain_order=True).agg(lines=pl.col("line"), kept=pl.len())
    judged = numbered.select("doc").join(fatal, on="doc", how="left", maintain_order="left")
    judged = judged.join(texts, on="doc", how="left", maintain_order="left").with_columns(pl.col("kept").fill_null(0))
    few = _too_few_sentences(judged, rule.min_num_sentences)
    judged = judged.join(few, on="doc", how="left", maintain_order="left")
    sentences = pl.col("sentences").is_not_null()
    return judged.select(
        rule=pl.coalesce("fatal", pl.when(sentences).then(pl.lit("too_few_sentences"))),
        value=pl.when(pl.col("fatal").is_null()).then(pl.col("sentences").cast(pl.String)).otherwise(pl.lit("found")),
        threshold=pl.when(pl.col("fatal").is_null() & sentences).then(
            pl.lit(f"min_num_sentences {rule.min_num_sentences}")
        ),
        new=pl.col("lines").list.join("\n").str.strip_chars(SPACE).fill_null(""),
    )


def _lines(numbered: pl.DataFrame, rule: C4Quality) -> pl.DataFrame:
    """Stripped lines, in order, without those that hold too long a word; ``words`` counted before edits."""
    split = pl.col("text").str.split(LINE_END, literal=False)
    lines = numbered.select("doc", line=split).explode("line").with_columns(pl.col("line").str.strip_chars(SPACE))
    if rule.max_word_length != -1:
        # Only a long line can hold a long word; those few are looked at one by one.
        long = lines["line"].str.len_chars() > rule.max_word_length
        limit = rule.max_word_length
        bad = (
            [
                is_long and any(len(word) > limit for word in (line or "").split())
                for line, is_long in zip(lines["line"], long, strict=True)
            ]
            if long.any()
            else None
        )
        if bad is not None:
            lines = lines.filter(~pl.Series(bad))
    lines = lines.with_columns(words=pl.col("line").str.count_matches(NOT_SPACE))
    return lines.with_columns(pl.col("line").str.replace_all(CITATION, "")) if rule.remove_citations else lines


def _kept_lines(lines: pl.DataFrame, rule: C4Quality) -> pl.DataFrame:
    """Lines that count: ``fatal`` names the rule that drops their document, ``dropped`` marks those left out."""
    from datatrove.pipeline.filters.c4_filters import POLICY_SUBSTRINGS

    line, lower = pl.col("line"), pl.col("lower")
    if rule.filter_no_terminal_punct:
        lines = lines.filter(line.str.contains(r"""[.?!"']$""") & ~line.str.ends_with("..."))
    lines = lines.filter(pl.col("words") >= rule.min_words_per_line).with_columns(lower=line.str.to_lowercase())
    never = pl.lit(False)
    lorem = lower.str.contains("lorem ipsum", literal=True) if rule.filter_lorem_ipsum else never
    script = lower.str.contains("javascript", literal=True) if rule.filter_javascript else never
    bracket = line.str.contains("{", literal=True) if rule.filter_curly_bracket else never
    policy = lower.str.contains_any(POLICY_SUBSTRINGS) if rule.filter_policy else never
    return lines.with_columns(
        fatal=pl.when(lorem).then(pl.lit("lorem_ipsum")).when(bracket & ~script).then(pl.lit("curly_bracket")),
        dropped=script | policy,
    )


def _too_few_sentences(judged: pl.DataFrame, least: int) -> pl.DataFrame:
    """Documents with fewer sentences than asked for, and how many they have.

    A kept line holds at least one sentence, so only documents with fewer lines than that are cut into sentences.
    """
    found: list[tuple[int, int]] = []
    if least != -1:
        unclear = judged.filter(pl.col("fatal").is_null() & (pl.col("kept") < least)).select("doc", "lines")
        for doc, lines in unclear.iter_rows():
            sentences = sum(len(_sentences()(line)) for line in lines or ())
            if sentences < least:
                found.append((doc, sentences))
    return pl.DataFrame(found, schema={"doc": pl.UInt32, "sentences": pl.Int64}, orient="row")


@lru_cache(1)
def _sentences() -> Any:
    from datatrove.utils.text import split_into_sentences

    return lambda line: split_into_sentences(line, "eng")
