"""Sentences that stand elsewhere already: found over the whole recipe and cut out of the text.

C4's rule (Raffel et al. 2020) as datatrove has it: spans of some sentences in a row, compared after text normalisation;
of equal spans one stays. Sentences are those of spaCy's sentencizer.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from millstream.mixture.datatrove_filter import edited
from millstream.mixture.dedup import Table, preferred
from millstream.mixture.kernels import sentence_starts
from millstream.mixture.recipe import Keep, SentenceDedup
from millstream.mixture.words import spacy_rules, split_words

VERSION = "sentences/1"

SPAN_SCHEMA = pl.Schema(
    {
        "key": pl.UInt64,
        "row": pl.UInt32,
        "number": pl.UInt32,
        "doc_key": pl.Binary,
        "doc_id": pl.String,
        "order": pl.UInt64,
        "n_bytes": pl.Int64,
        "score": pl.Float64,
    }
)
"""Spans of sentences: the hash of what they say, the document's row in its table, and the first sentence's number."""

REMOVED_SCHEMA = pl.Schema(
    {
        "doc_key": pl.Binary,
        "doc_id": pl.String,
        "domain": pl.String,
        "first_char": pl.Int64,
        "end_char": pl.Int64,
        "kept_key": pl.Binary,
    }
)
"""Stretches cut out of texts: characters of the text before the cut, and a document in which the sentences stay."""


@dataclass(frozen=True, slots=True)
class Sentences:
    """Sentences of one text: where each begins and ends, in characters, and its words."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    words: NDArray[np.int64]


def split_sentences(texts: pl.Series) -> Iterator[Sentences]:
    """The sentences of each text, in order; as datatrove's ``split_into_sentences`` for English."""
    rules = spacy_rules()
    member = rules.tables.member
    for w in split_words(texts):
        first, bounds = sentence_starts(
            w.codes,
            w.classes,
            w.starts,
            w.ends,
            w.bounds,
            member[rules.sets["closing"]],
            member[rules.sets["punctuation"]],
        )
        last = np.append(first[1:], len(w.starts)) - 1
        for text, (a, b) in enumerate(itertools.pairwise(bounds.tolist())):
            if a == b:
                yield Sentences(first[:0], first[:0], first[:0])
                continue
            own = last[a:b].copy()
            own[-1] = w.bounds[text + 1] - 1
            yield Sentences(w.starts[first[a:b]] - w.offsets[text], w.ends[own] - w.offsets[text], own - first[a:b] + 1)


def span_table(kept: pl.DataFrame, settings: SentenceDedup) -> pl.DataFrame:
    """Every span of sentences of some documents (with their ``row``): ``SPAN_SCHEMA``."""
    from datatrove.utils.text import TextNormConfig, simplify_text

    config, n = TextNormConfig(), settings.sentences
    rows: list[int] = []
    numbers: list[int] = []
    keys: list[int] = []
    for place, (text, found) in enumerate(zip(kept["text"], split_sentences(kept["text"]), strict=True)):
        ends = zip(found.starts.tolist(), found.ends.tolist(), strict=True)
        simple = [simplify_text(text[a:b], config) for a, b in ends]
        for number in range(len(simple) - n + 1):
            if found.words[number : number + n].sum() >= settings.min_words:
                rows.append(place)
                numbers.append(number)
                joined = " ".join(simple[number : number + n]).encode()
                keys.append(int.from_bytes(blake2b(joined, digest_size=8).digest(), "little"))
    # Without the texts: a row stands here once a span.
    described = kept.select("row", "doc_key", "doc_id", "order", "n_bytes", "score")[rows]
    return described.with_columns(
        key=pl.Series(keys, dtype=pl.UInt64), number=pl.Series(numbers, dtype=pl.UInt32)
    ).select(pl.col(name).cast(kind) for name, kind in SPAN_SCHEMA.items())


def repeated_spans(
    tables: Sequence[Table], spans: Sequence[Path], prefixes: tuple[int, int], keep: Keep
) -> pl.DataFrame:
    """Spans to cut because an equal one stays: ``table`` (number), ``row``, ``number`` and ``kept_key``.

    ``prefixes``: half-open range of a key's first byte that is looked at.
    """
    low, high = (pl.lit(bound << 56, pl.UInt64) for bound in (prefixes[0], prefixes[1] - 1))
    last = high + pl.lit((1 << 56) - 1, pl.UInt64)
    frames = [
        pl.scan_parquet(path)
        .filter(pl.col("key").is_between(low, last))
        .with_columns(**table.labels(), table=pl.lit(number, pl.Int32))
        for number, (table, path) in enumerate(zip(tables, spans, strict=True))
    ]
    found = pl.concat(frames).filter(pl.len().over("group", "key") > 1).collect()
    ranked = preferred(found.sort("number"), keep, first=("group", "key")).with_columns(
        leader=(pl.col("key") != pl.col("key").shift(1)).fill_null(True)
        | (pl.col("group") != pl.col("group").shift(1)).fill_null(True)
    )
    kept = pl.when("leader").then("doc_key").forward_fill().alias("kept_key")
    return (
        ranked.with_columns(kept)
        .filter(~pl.col("leader") & ~pl.col("earlier"))
        .select("table", "row", "number", "kept_key")
        .sort("table", "row", "number")
    )


def cut_sentences(
    documents: pl.DataFrame, cuts: pl.DataFrame, settings: SentenceDedup, domain: str
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Cut repeated spans out of documents.

    Args:
        documents: the documents with spans to cut (``DOCUMENT_SCHEMA``), with their ``row``.
        cuts: ``row``, ``number`` and ``kept_key`` of the spans, sorted by row and number.
        settings: the recipe's.
        domain: the documents' domain.

    Returns:
        The documents that stay, those with too little left (with ``rule``, ``value``, ``threshold``, ``kept_key``), and
        what was cut (``REMOVED_SCHEMA``).
    """
    spans = {row: part for (row,), part in cuts.partition_by("row", as_dict=True).items()}
    texts: list[str] = []
    removed: list[tuple[bytes, str, str, int, int, bytes]] = []
    kept_keys: list[bytes] = []
    shown = documents.select("row", "text", "doc_key", "doc_id").iter_rows()
    for (row, text, doc_key, doc_id), found in zip(shown, split_sentences(documents["text"]), strict=True):
        numbers, keys = spans[row]["number"].to_list(), spans[row]["kept_key"].to_list()
        pieces, at = [], 0
        for first, last, key in _merged(numbers, keys, settings.sentences):
            begin = int(found.starts[first])
            end = int(found.starts[last]) if last < len(found.starts) else len(text)
            pieces.append(text[at:begin])
            removed.append((doc_key, doc_id, domain, begin, end, key))
            at = end
        texts.append("".join([*pieces, text[at:]]).rstrip() if at else text)
        kept_keys.append(keys[0])
    after = documents.with_columns(new=pl.Series(texts, dtype=pl.String))
    counts = np.concatenate([np.diff(w.bounds) for w in split_words(after["new"])] or [np.empty(0, np.int64)])
    few = pl.Series(counts < max(1, settings.min_doc_words), dtype=pl.Boolean)
    dropped = documents.with_columns(
        kept_key=pl.Series(kept_keys, dtype=pl.Binary),
        rule=pl.lit("sentences"),
        value=pl.Series([f"{count} words left" for count in counts.tolist()], dtype=pl.String),
        threshold=pl.lit(f"min_doc_words {settings.min_doc_words}"),
    ).filter(few)
    table = pl.DataFrame(removed, schema=REMOVED_SCHEMA, orient="row")
    return edited(after.filter(~few), "SentenceDedup"), dropped, table


def _merged(numbers: Sequence[int], keys: Sequence[bytes], n: int) -> Iterator[tuple[int, int, bytes]]:
    """Stretches of sentences, half-open, that spans of ``n`` cover together."""
    first, last, key = numbers[0], numbers[0] + n, keys[0]
    for number, other in zip(numbers[1:], keys[1:], strict=True):
        if number > last:
            yield first, last, key
            first, key = number, other
        last = number + n
    yield first, last, key
