"""``export exposures``: every exposure of a run as one table, Parquet or CSV."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq

from millstream.audit.exposures import EXPOSURE_SCHEMA
from millstream.errors import UsageError
from millstream.files import replacing

ROWS = 1 << 17
"""Rows of a row group, about."""

TEXT_SCHEMA = pl.Schema({n: pl.String if t == pl.Binary else t for n, t in EXPOSURE_SCHEMA.items()})
"""As written: keys are hex, which every reader of tables can compare."""


def write_exposures(path: Path, slices: Iterable[pl.DataFrame]) -> int:
    """Write exposures to ``path``, ``.parquet`` or ``.csv``; returns their number.

    Args:
        path: the file; replaced when it is whole.
        slices: frames of ``EXPOSURE_SCHEMA``, as from ``exposure_slices``.

    Raises:
        UsageError: the name says neither.
        SetupError: the disk is full.
    """
    if path.suffix not in (".parquet", ".csv"):
        raise UsageError(f"{path}: expected a name that ends in .parquet or .csv")
    written = 0
    groups = _groups(slices)
    with replacing(path) as temporary:
        if path.suffix == ".csv":
            with temporary.open("wb") as file:
                file.write((",".join(TEXT_SCHEMA) + "\n").encode())
                for group in groups:
                    group.write_csv(file, include_header=False)
                    written += len(group)
            return written
        schema = pl.DataFrame(schema=TEXT_SCHEMA).to_arrow().schema
        with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
            for group in groups:
                writer.write_table(group.to_arrow().cast(schema))
                written += len(group)
    return written


def _groups(slices: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Slices joined to about ``ROWS`` rows, keys as text."""
    held: list[pl.DataFrame] = []
    for part in slices:
        held.append(part.select(EXPOSURE_SCHEMA.names()).with_columns(pl.col("doc_key").bin.encode("hex")))
        if sum(map(len, held)) >= ROWS:
            yield pl.concat(held)
            held = []
    if held:
        yield pl.concat(held)
