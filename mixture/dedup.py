"""Exact deduplication over a whole recipe: one document of each text stays.

Which one is the recipe's to say (``keep``); in the end the keyed order decides, so it is the same one whatever the
number of tasks. Keys are looked at one range of prefixes at a time: memory is bounded by the range, not by the corpus.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import polars as pl

from millstream.mixture.recipe import Keep

VERSION = "dedup-exact/3"

DUPLICATE_SCHEMA = pl.Schema(
    {
        "doc_key": pl.Binary,
        "doc_id": pl.String,
        "source": pl.String,
        "locator": pl.String,
        "domain": pl.String,
        "order": pl.UInt64,
        "kept_key": pl.Binary,
        "kept_id": pl.String,
        "kept_domain": pl.String,
        "rule": pl.String,
        "value": pl.String,
        "threshold": pl.String,
    }
)
"""Dropped duplicates: the document kept instead, and by which rule, measure and threshold."""

COLUMNS = ("doc_key", "doc_id", "source", "locator", "order", "n_bytes", "score")
"""What is known of a document when it is compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Kept documents of a read unit, or of an earlier corpus, as deduplication sees them.

    ``group``: documents are compared within it; ``rank``: place of the domain in the recipe; ``earlier``: the documents
    are in a corpus that was built before, and stay whatever comes; ``bands``: their MinHash bands, where there are any.
    """

    domain: str
    group: str
    rank: int
    kept: Path
    earlier: bool = False
    bands: Path | None = None

    def labels(self) -> dict[str, pl.Expr]:
        """Columns that say where a row comes from."""
        return {
            "domain": pl.lit(self.domain),
            "group": pl.lit(self.group),
            "rank": pl.lit(self.rank, pl.Int32),
            "earlier": pl.lit(self.earlier),
        }


def preferred(documents: pl.DataFrame, keep: Keep, first: Sequence[str] = ()) -> pl.DataFrame:
    """Sort documents so that of several duplicates the one that is to stay comes first."""
    by = {"first": [], "longest": [-pl.col("n_bytes")], "best": [-pl.col("score")]}[keep]
    return documents.sort(*first, ~pl.col("earlier"), *by, "rank", "order", "doc_id", nulls_last=True)


def duplicates(
    tables: Sequence[Table],
    by: Literal["doc_key", "text_key"],
    prefixes: tuple[int, int],
    gone: Sequence[Path] = (),
    keep: Keep = "first",
) -> pl.DataFrame:
    """Documents to drop because an equal one stays.

    Args:
        tables: the documents.
        by: the key that makes two documents equal.
        prefixes: half-open range of the key's first byte that is looked at.
        gone: tables of documents that were dropped before.
        keep: which of several stays.

    Returns:
        ``DUPLICATE_SCHEMA``, sorted by domain and ``doc_id``; ``kept_key`` is the kept document's ``doc_key``.
    """
    first = pl.col(by).bin.slice(0, 1)
    low, high = bytes([prefixes[0]]), bytes([prefixes[1] - 1])
    columns = [*COLUMNS, *(["text_key"] if by == "text_key" else [])]
    frames = [
        pl.scan_parquet(table.kept).filter((first >= low) & (first <= high)).select(*columns, **table.labels())
        for table in tables
    ]
    found = preferred(without(pl.concat(frames), gone).collect(), keep, first=("group", by))
    leader = (found[by] != found[by].shift(1)) | (found["group"] != found["group"].shift(1))
    kept = {f"kept_{name}": pl.when("leader").then(column).forward_fill() for name, column in KEPT.items()}
    return (
        found.with_columns(leader=leader.fill_null(True))
        .with_columns(**kept)
        .filter(~pl.col("leader") & ~pl.col("earlier"))
        .with_columns(rule=pl.lit("exact"), value=pl.lit("equal text"), threshold=pl.lit(None, pl.String))
        .select(DUPLICATE_SCHEMA.names())
        .sort("domain", "doc_id")
    )


KEPT = {"key": "doc_key", "id": "doc_id", "domain": "domain"}


def without(documents: pl.LazyFrame, gone: Sequence[Path]) -> pl.LazyFrame:
    """Documents that were not dropped before."""
    if not gone:
        return documents
    dropped = pl.concat([pl.scan_parquet(path).select("domain", "doc_id") for path in gone])
    return documents.join(dropped, on=["domain", "doc_id"], how="anti")
