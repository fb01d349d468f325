"""The tables of a corpus that documents are looked up in, and rows of them.

A Parquet table is read by groups of 65,536 rows, so a few rows from everywhere cost as much as all of them. Beside a
corpus that was indexed, in ``CORPUS/lookup``, every table lies once more in pieces of ``PIECE`` rows: any row is then
a read of some kilobytes. Pieces are derived from the tables alone and prove nothing.

    index.json            corpus id, digest of the tables; written last
    table-00012.arrow     table 12 of ``tables_of`` as an Arrow file, a record batch a piece; the schema's metadata
                          holds under ``firsts`` the first token of each piece (i64, little-endian), where rows have one
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from millstream.errors import InputError
from millstream.stream.corpora import Corpus
from millstream.stream.permutation import distinct
from millstream.stream.roots import whole_file
from millstream.tokenize.manifest import FileEntry, Manifest, Shard

FORMAT = "millstream-lookup/2"
FOLDER = "lookup"
INDEX = "index.json"
FIRSTS = b"firsts"
PIECE = 256
GROUP = 1 << 16
"""Rows of a Parquet table that are held at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table of documents: ``kind`` says which; ``place`` counts the tables of the corpus."""

    place: int
    kind: Literal["kept", "held out", "excluded"]
    domain: str
    file: FileEntry
    shard: Shard | None
    """None for a table of exclusions."""


def tables_of(manifest: Manifest) -> list[Table]:
    """All tables of a corpus: documents of all shards, held-out ones, exclusions."""
    held = [(domain.name, domain.holdout) for domain in manifest.domains if domain.holdout]
    shards = [("kept", domain.name, shard) for domain in manifest.domains for shard in domain.shards]
    shards += [("held out", name, shard) for name, shard in held]
    tables = [
        Table(place=place, kind=kind, domain=domain, file=shard.documents, shard=shard)  # type: ignore[arg-type]
        for place, (kind, domain, shard) in enumerate(shards)
    ]
    return tables + [
        Table(place=len(tables) + number, kind="excluded", domain="", file=entry, shard=None)
        for number, entry in enumerate(manifest.exclusions)
    ]


def tables_digest(manifest: Manifest) -> str:
    """Digest of all tables as they are now: one that was redacted is another table, of the same corpus."""
    return hashlib.sha256("".join(table.file.sha256 for table in tables_of(manifest)).encode()).hexdigest()


def lookup_folder(corpus: Corpus) -> Path:
    """Where the indexes of a corpus lie: beside it, or for one in a store below ``indexes`` of the current folder."""
    if isinstance(corpus.root, Path):
        return corpus.root / FOLDER
    return Path("indexes") / corpus.manifest.corpus_id[:16] / FOLDER


def read_about(corpus: Corpus) -> dict[str, Any] | None:
    """What the indexes of a corpus say of themselves; None where there are none, or those of other tables."""
    try:
        raw = orjson.loads((lookup_folder(corpus) / INDEX).read_bytes())
        fits = raw["format"] == FORMAT and raw["tables"] == tables_digest(corpus.manifest)
        fits = fits and raw["corpus_id"] == corpus.manifest.corpus_id
        return dict(raw) if fits and isinstance(raw["bits"], int) else None
    except (OSError, orjson.JSONDecodeError, TypeError, KeyError):
        return None


def scan_table(corpus: Corpus, table: Table, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """A table's rows in order, ``GROUP`` at a time; of the columns those that it has.

    Raises:
        InputError: it is missing or damaged.
    """
    try:
        with pq.ParquetFile(whole_file(corpus.root, table.file)) as file:
            chosen = None if columns is None else [name for name in columns if name in file.schema_arrow.names]
            yield from file.iter_batches(GROUP, columns=chosen, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{corpus.root}/{table.file.path}: damaged: {str(error).splitlines()[0]}") from error


def write_pieces(folder: Path, corpus: Corpus, table: Table) -> None:
    """Write a table's pieces into a folder.

    Raises:
        InputError: the table is missing or damaged.
    """
    schema, firsts = None, []
    for batch in scan_table(corpus, table):
        schema = batch.schema
        if table.shard is not None:
            firsts.append(batch["token_start"].to_numpy()[::PIECE])
    if schema is None:
        return
    metadata = {FIRSTS: np.concatenate(firsts).astype("<i8").tobytes()} if firsts else {}
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(_pieces_file(folder, table), schema.with_metadata(metadata), options=options) as writer:
        for batch in scan_table(corpus, table):
            for at in range(0, batch.num_rows, PIECE):
                writer.write_batch(batch.slice(at, PIECE).replace_schema_metadata(metadata))


def touched(firsts: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which of consecutive stretches, given by their first tokens, share tokens with a span.

    The last one is taken to have no end.
    """
    low = np.maximum(np.searchsorted(firsts, starts, side="right") - 1, 0)
    high = np.searchsorted(firsts, ends, side="left")
    some = low < high
    inside = np.bincount(low[some], minlength=len(firsts) + 1) - np.bincount(high[some], minlength=len(firsts) + 1)
    return np.flatnonzero(np.cumsum(inside)[:-1])


def rows_at(corpus: Corpus, table: Table, rows: Sequence[int], columns: Sequence[str] | None = None) -> pl.DataFrame:
    """Rows of a table by their numbers, which rise.

    Args:
        corpus: whose table it is.
        table: which.
        rows: (n,).
        columns: which; by default all that it has.

    Raises:
        InputError: the table or its pieces are missing or damaged.
    """
    numbers = np.asarray(rows, np.int64)
    if read_about(corpus) is not None:
        pieces, inside = np.divmod(numbers, PIECE)
        own = distinct(pieces)[0]
        found = _read_pieces(corpus, table, own, columns)
        # As a list: Polars imports all of numpy.ma to look at an array.
        return found.select(pl.all().gather((np.searchsorted(own, pieces) * PIECE + inside).tolist()))
    frames: list[pl.DataFrame] = []
    first = 0
    for batch in scan_table(corpus, table, columns):
        here = numbers[(numbers >= first) & (numbers < first + batch.num_rows)] - first
        # Taken by Arrow, whose rows are copies: those of Polars hold on to the whole batch's text.
        frames.append(_frame([batch.take(pa.array(here))], batch.schema))
        first += batch.num_rows
    return pl.concat(frames)


def rows_between(
    corpus: Corpus, table: Table, starts: NDArray[np.int64], ends: NDArray[np.int64], columns: Sequence[str]
) -> pl.DataFrame:
    """Documents that share tokens with a span, in order, and maybe others among them.

    Args:
        corpus: whose table it is.
        table: of documents that lie end to end.
        starts: first token of each span, (n,).
        ends: the one after its last, (n,).
        columns: ``token_start`` among them.

    Raises:
        InputError: the table or its pieces are missing or damaged.
    """
    if read_about(corpus) is not None:
        return _read_pieces(corpus, table, lambda firsts: touched(firsts, starts, ends), columns)
    found = []
    for batch in scan_table(corpus, table, columns):
        here = touched(batch["token_start"].to_numpy(), starts, ends)
        found.append(_frame([batch.take(pa.array(here))], batch.schema))
    return pl.concat(found)


def _pieces_file(folder: Path, table: Table) -> Path:
    return folder / f"table-{table.place:05}.arrow"


def _read_pieces(
    corpus: Corpus,
    table: Table,
    chosen: NDArray[np.int64] | Callable[[NDArray[np.int64]], NDArray[np.int64]],
    columns: Sequence[str] | None,
) -> pl.DataFrame:
    """Pieces of these numbers, or of those that a function chooses by the pieces' first tokens, end to end."""
    path = _pieces_file(lookup_folder(corpus), table)
    try:
        # Not mapped: a read ahead of a page costs more than the pieces that are wanted.
        with pa.OSFile(str(path)) as opened:
            schema = pa.ipc.open_file(opened).schema
            names = schema.names if columns is None else columns
            options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(name) for name in names])
            file = pa.ipc.open_file(opened, options=options)
            if callable(chosen):
                chosen = chosen(np.frombuffer((schema.metadata or {})[FIRSTS], "<i8"))
            return _frame([file.get_batch(number) for number in chosen.tolist()], file.schema).select(names)
    except (pa.ArrowException, OSError, KeyError, ValueError, pl.exceptions.PolarsError) as error:
        raise InputError(
            f"{path}: damaged: {str(error).splitlines()[0]}; remove the folder, and 'millstream audit index' makes it "
            "anew"
        ) from error


def _frame(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(pa.Table.from_batches(batches, schema.remove_metadata())))
