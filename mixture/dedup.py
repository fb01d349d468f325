"""Exact deduplication over a whole recipe: one document of each text stays.

The one of the earliest domain in the recipe stays, then the one lowest in the keyed order: the same
one whatever the number of tasks. Keys are looked at one range of prefixes at a time, so memory is
bounded by the range, not by the corpus.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import polars as pl

VERSION = "dedup-exact/2"

DUPLICATE_SCHEMA = pl.Schema(
    {
        "doc_key": pl.Binary,
        "doc_id": pl.String,
        "source": pl.String,
        "locator": pl.String,
        "domain": pl.String,
        "order": pl.UInt64,
        "kept_key": pl.Binary,
        "rule": pl.String,
        "value": pl.String,
        "threshold": pl.String,
    }
)
"""Dropped duplicates: the document kept instead, and by which rule, measure and threshold."""


def duplicates(
    tables: Sequence[tuple[str, Path]],
    by: Literal["doc_key", "text_key"],
    prefixes: tuple[int, int],
    gone: Sequence[Path] = (),
) -> pl.DataFrame:
    """Documents to drop because an equal one stays.

    Args:
        tables: (domain, table of kept documents), domains in recipe order.
        by: the key that makes two documents equal.
        prefixes: half-open range of the key's first byte that is looked at.
        gone: tables of documents that were dropped before.

    Returns:
        ``DUPLICATE_SCHEMA``, sorted by domain and ``doc_id``; ``kept_key`` is the kept document's ``doc_key``.
    """
    ranks = {domain: rank for rank, domain in enumerate(dict.fromkeys(domain for domain, _ in tables))}
    first = pl.col(by).bin.slice(0, 1)
    low, high = bytes([prefixes[0]]), bytes([prefixes[1] - 1])
    columns = ["doc_key", "doc_id", "source", "locator", "order"] + (["text_key"] if by == "text_key" else [])
    frames = [
        pl.scan_parquet(path)
        .filter((first >= low) & (first <= high))
        .select(*columns, domain=pl.lit(domain), rank=pl.lit(ranks[domain], pl.Int32))
        for domain, path in tables
    ]
    candidates = pl.concat(frames)
    if gone:
        dropped = pl.concat([pl.scan_parquet(path).select("domain", "doc_id") for path in gone])
        candidates = candidates.join(dropped, on=["domain", "doc_id"], how="anti")
    found = candidates.collect().sort(by, "rank", "order", "doc_id")
    leader = found[by] != found[by].shift(1)
    return (
        found.with_columns(leader=leader.fill_null(True))
        .with_columns(kept_key=pl.when("leader").then("doc_key").forward_fill())
        .filter(~pl.col("leader"))
        .with_columns(rule=pl.lit("exact"), value=pl.lit("equal text"), threshold=pl.lit(None, pl.String))
        .select(DUPLICATE_SCHEMA.names())
        .sort("domain", "doc_id")
    )
