"""Shards: webdataset tars of whole documents, a document table and a chunk index beside each.

The bytes depend on the documents alone: fixed times and owners in the tar, fixed order everywhere.
Where a chunk's tokens begin is read back from the finished tar, never reckoned from header sizes.
"""

import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl
import webdataset
from numpy.typing import NDArray

from millstream.errors import InputError
from millstream.tokenize.manifest import DOCUMENT_COLUMNS, FileEntry, Shard, file_entry

VERSION = "shard/1"
ALIGNMENT = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardName:
    """Where a shard lies: ``stem`` is ``DOMAIN-00000`` or ``holdout-00000``."""

    domain: str
    stem: str
    number: int

    @property
    def prefix(self) -> str:
        """Prefix of the table's and the index's names."""
        return "holdout-" if self.stem.startswith("holdout") else ""


def shard_name(domain: str, number: int) -> ShardName:
    """Name of a training shard."""
    return ShardName(domain=domain, stem=f"{domain}-{number:05}", number=number)


def holdout_name(domain: str) -> ShardName:
    """Name of a domain's held-out shard."""
    return ShardName(domain=domain, stem="holdout-00000", number=0)


def write_shard(
    folder: Path, name: ShardName, documents: pl.DataFrame, tokens: NDArray[Any], token_start: int, chunk_bytes: int
) -> Shard:
    """Write a shard's three files into ``folder/DOMAIN``.

    Args:
        folder: where the domain's folder is, or will be.
        name: the shard's.
        documents: its documents in stream order, with ``n_tokens``.
        tokens: their tokens end to end, (sum of ``n_tokens``,).
        token_start: position of the first token in the domain.
        chunk_bytes: most bytes of tokens in a chunk of more than one document.
    """
    target = folder / name.domain
    target.mkdir(parents=True, exist_ok=True)
    counts = documents["n_tokens"].to_numpy()
    chunk_of = _chunks(counts, max(1, chunk_bytes // tokens.dtype.itemsize))
    starts = token_start + np.cumsum(counts) - counts
    table = documents.with_columns(
        token_start=pl.Series(starts, dtype=pl.Int64),
        shard=pl.lit(name.number, pl.Int32),
        chunk=pl.Series(chunk_of, dtype=pl.Int32),
    )
    scored = ["score"] if table["score"].is_not_null().any() else []
    table = table.select(*DOCUMENT_COLUMNS, *scored)
    tar = target / f"{name.stem}.tar"
    _write_tar(tar, name, table, tokens, token_start)
    number = f"{name.number:05}"
    documents_path = target / f"{name.prefix}documents-{number}.parquet"
    chunks_path = target / f"{name.prefix}chunks-{number}.parquet"
    table.write_parquet(documents_path, compression="zstd", row_group_size=1 << 16)
    _chunk_index(tar, name, table, tokens.dtype.itemsize).write_parquet(chunks_path, compression="zstd")
    entry = lambda path: file_entry(folder, path)  # noqa: E731
    return Shard(
        tar=entry(tar),
        documents=entry(documents_path),
        chunks=entry(chunks_path),
        token_start=token_start,
        tokens=int(counts.sum()),
        document_count=len(table),
    )


def shard_files(shard: Shard) -> tuple[FileEntry, FileEntry, FileEntry]:
    """A shard's files."""
    return shard.tar, shard.documents, shard.chunks


def _chunks(counts: NDArray[np.int64], most: int) -> NDArray[np.int32]:
    """Chunk number of each document: whole documents, at most ``most`` tokens unless one alone is longer."""
    chunk = np.empty(len(counts), np.int32)
    number, filled = 0, 0
    for at, count in enumerate(counts.tolist()):
        if filled and filled + count > most:
            number, filled = number + 1, 0
        chunk[at] = number
        filled += count
    return chunk


def _write_tar(path: Path, name: ShardName, table: pl.DataFrame, tokens: NDArray[Any], token_start: int) -> None:
    with path.open("wb") as file:
        writer = webdataset.TarWriter(file, encoder=False, user="", group="", mode=0o644, mtime=0)
        for number, members in _by_chunk(table):
            first, last = members["token_start"][0], members["token_start"][-1] + members["n_tokens"][-1]
            spans = zip(members["doc_key"], members["token_start"], members["n_tokens"], strict=True)
            about = {
                "domain": name.domain,
                "token_start": first,
                "documents": [{"key": key.hex(), "start": s - first, "end": s - first + n} for key, s, n in spans],
            }
            writer.write(
                {
                    "__key__": _key(name, number),
                    "tokens.npy": _npy(tokens[first - token_start : last - token_start]),
                    "json": orjson.dumps(about),
                }
            )
        writer.close()


def _by_chunk(table: pl.DataFrame) -> Iterator[tuple[int, pl.DataFrame]]:
    for (number,), members in table.group_by("chunk", maintain_order=True):
        yield int(str(number)), members


def _key(name: ShardName, chunk: int) -> str:
    stem = name.stem if not name.prefix else f"{name.domain}-{name.stem}"
    return f"{stem}-{chunk:06}"


def _npy(tokens: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(tokens), version=(1, 0), allow_pickle=False)
    return buffer.getvalue()


def _chunk_index(tar: Path, name: ShardName, table: pl.DataFrame, itemsize: int) -> pl.DataFrame:
    per_chunk = table.group_by("chunk", maintain_order=True).agg(
        pl.col("token_start").first(), pl.col("n_tokens").sum()
    )
    offsets = []
    with tarfile.open(tar) as opened:
        sizes = {m.name: (m.offset_data, m.size) for m in opened}
    for number, count in zip(per_chunk["chunk"], per_chunk["n_tokens"], strict=True):
        member = f"{_key(name, number)}.tokens.npy"
        begin, size = sizes[member]
        offset = begin + size - count * itemsize
        if offset % ALIGNMENT:
            raise InputError(f"{tar}: tokens of {member} begin at byte {offset}, not on a border of {ALIGNMENT}")
        offsets.append(offset)
    return per_chunk.select(
        pl.lit(name.number, pl.Int32).alias("shard"),
        pl.col("chunk").cast(pl.Int32),
        pl.Series("key", [_key(name, n) for n in per_chunk["chunk"]], dtype=pl.String),
        "token_start",
        "n_tokens",
        pl.Series("data_offset", offsets, dtype=pl.Int64),
    )
