"""Which documents lie in a span of a domain's tokens: the document tables, joined to sequences."""

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from millstream.stream.corpora import Corpora
from millstream.stream.plan import Plan, Sequences
from millstream.stream.tables import rows_between, tables_of, touched
from millstream.stream.tombstones import buried, masked_targets

COLUMNS = ("doc_key", "doc_id", "source", "locator", "url", "licence", "n_tokens", "token_start")


def documents_of(corpora: Corpora, plan: Plan, located: Sequences, step: int) -> pl.DataFrame:
    """Documents that are targets in each sequence of a step; of the tables no more is held than is asked for.

    Returns:
        One row a stretch of a document in a sequence, in order: ``row`` (position in ``located``), ``domain`` (name),
        ``epoch``, the document's columns, ``first`` and ``last`` (targets of the sequence, from 0), ``tokens`` (their
        number, without those that are taken down) and ``from_token`` (where in the document the stretch begins).
    """
    frames = []
    tables = {i: [t for t in tables_of(corpora[i].manifest) if t.kind == "kept"] for i in plan.corpus_ids}
    for number, ring in enumerate(plan.rings):
        rows = np.flatnonzero(located.ring == number)
        if not rows.size:
            continue
        first_target = (located.start[rows] + 1) % ring.tokens
        spans = unwrap(rows, first_target, plan.seq_len, ring.tokens)
        starts, ends = (spans[name].to_numpy() for name in ("start", "end"))
        own = [t for t in tables[ring.corpus_id] if t.domain == ring.name and t.shard and t.shard.document_count]
        begins = np.array([t.shard.token_start for t in own if t.shard], np.int64)
        corpus = corpora[ring.corpus_id]
        read = [rows_between(corpus, own[n], starts, ends, COLUMNS) for n in touched(begins, starts, ends).tolist()]
        joined = overlaps(pl.concat(read), spans, COLUMNS)
        epochs = pl.Series(located.epoch)[joined["row"]]
        frames.append(joined.with_columns(domain=pl.lit(ring.name), epoch=epochs))
    found = pl.concat(frames).sort("row", "first", maintain_order=True)
    masked = masked_targets(buried(plan, located, slice(None), step), located.start.size, plan.seq_len)
    if masked is None:
        return found
    before = np.pad(masked.cumsum(1), ((0, 0), (1, 0)))
    row, first, last = (found[name].to_numpy() for name in ("row", "first", "last"))
    return found.with_columns(tokens=pl.col("tokens") - (before[row, last + 1] - before[row, first])).filter(
        pl.col("tokens") > 0
    )


def unwrap(rows: NDArray[np.intp], first: NDArray[np.int64], length: int, ring: int) -> pl.DataFrame:
    """Target spans as pieces that do not pass the ring's end.

    Args:
        rows: what each span is called, (n,).
        first: its first token in the ring, (n,).
        length: tokens of every span.
        ring: tokens of the ring.

    Returns:
        ``row``, ``start``, ``end`` (tokens of the ring) and ``at`` (the piece's first token, counted in its span).
    """
    pieces: list[tuple[int, int, int, int]] = []
    for row, start in zip(rows.tolist(), first.tolist(), strict=True):
        at = 0
        while at < length:
            begin = (start + at) % ring
            count = min(length - at, ring - begin)
            pieces.append((row, begin, begin + count, at))
            at += count
    return pl.DataFrame(
        pieces, schema={"row": pl.Int64, "start": pl.Int64, "end": pl.Int64, "at": pl.Int64}, orient="row"
    )


def overlaps(table: pl.DataFrame, spans: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Pairs of a document and a span that share tokens.

    Args:
        table: documents that lie end to end, with ``token_start`` and ``n_tokens``.
        spans: as from ``unwrap``.
        columns: of the documents, to take over.

    Returns:
        ``row``, those columns, and ``first``, ``last``, ``tokens``, ``from_token`` as of ``documents_of``.
    """
    starts = table["token_start"].to_numpy()
    ends = starts + table["n_tokens"].to_numpy()
    low = np.searchsorted(ends, spans["start"].to_numpy(), side="right")
    high = np.searchsorted(starts, spans["end"].to_numpy(), side="left")
    counts = high - low
    which = np.repeat(np.arange(len(spans)), counts)
    document = np.repeat(low, counts) + np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    pairs = pl.concat([spans[which], table[document]], how="horizontal")
    begin = pl.max_horizontal("start", "token_start")
    end = pl.min_horizontal("end", pl.col("token_start") + pl.col("n_tokens"))
    found: pl.DataFrame = pairs.select(
        "row",
        *columns,
        first=pl.col("at") + begin - pl.col("start"),
        last=pl.col("at") + end - pl.col("start") - 1,
        tokens=end - begin,
        from_token=begin - pl.col("token_start"),
    )
    return found
