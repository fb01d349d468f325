"""The lookup index of a corpus: from a key, an id or a URL to the rows of the tables that hold it, in two small reads.

An entry is the first 64 bits of a hash and the place of a row; whoever reads the row sees whether it was meant. It is
derived from the tables alone and proves nothing: that a text is absent is proved by the key trie. On disk, in
``CORPUS/lookup``, apart from the manifest, so that a corpus of an earlier release gets it without being built again:

    index.json          corpus id, number of entries, ``bits``; written last
    entries.bin         (hash, place) as two u64 each, sorted; a place is (table << 32) + row
    buckets.bin         u64 (2^bits + 1): where the entries of each beginning of ``bits`` bits begin
    table-NNNNN.arrow   the tables in pieces, as of ``millstream.stream.tables``

Tables are numbered in the order of ``tables_of``. The hash of a key is its own beginning; that of an id or a URL the
beginning of SHA-256 over ``id`` or ``url``, a zero byte and the text; all big-endian.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from millstream.canonical import canonical_bytes
from millstream.errors import InputError
from millstream.files import write_bytes
from millstream.stream.corpora import Corpus
from millstream.stream.tables import (
    FORMAT,
    INDEX,
    lookup_folder,
    read_about,
    scan_table,
    tables_digest,
    tables_of,
    write_pieces,
)

ENTRIES, BUCKETS = "entries.bin", "buckets.bin"
BUCKET = 128
"""Entries of a bucket, about."""
PART = 1 << 20
"""Entries that are sorted in memory, about."""
MOST_PARTS = 12

By = Literal["key", "id", "url"]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class LookupIndex:
    """An index that fits its corpus."""

    folder: Path
    bits: int

    def places(self, by: By, value: str | bytes) -> list[tuple[int, int]]:
        """Table and row of every row that may hold a value.

        Raises:
            InputError: the index is damaged.
        """
        wanted = hash_of(by, value)
        first, end = np.frombuffer(
            self._read(BUCKETS, wanted >> 64 - self.bits if self.bits else 0, 2, 8), "<u8"
        ).tolist()
        entries = np.frombuffer(self._read(ENTRIES, first, end - first, 16), "<u8").reshape(-1, 2)
        found = entries[entries[:, 0] == np.uint64(wanted), 1].tolist()
        return [(place >> 32, place & 0xFFFFFFFF) for place in found]

    def _read(self, name: str, at: int, count: int, size: int) -> bytes:
        with (self.folder / name).open("rb") as file:
            data = os.pread(file.fileno(), count * size, at * size)
        if len(data) != count * size:
            raise InputError(
                f"{self.folder / name}: short; remove the folder, and 'millstream audit index' makes it anew"
            )
        return data


def hash_of(by: By, value: str | bytes) -> int:
    """The 64 bits that a value is found by."""
    if by == "key":
        assert isinstance(value, bytes)
        return int.from_bytes(value[:8], "big")
    assert isinstance(value, str)
    return int.from_bytes(hashlib.sha256(f"{by}\0{value}".encode()).digest()[:8], "big")


def open_lookup(corpus: Corpus) -> LookupIndex | None:
    """The index of a corpus; None where there is none, or one of another corpus."""
    about = read_about(corpus)
    return LookupIndex(folder=lookup_folder(corpus), bits=int(about["bits"])) if about is not None else None


def index_lookups(corpus: Corpus, progress: Progress = lambda *_: None) -> int:
    """Write the index of a corpus, unless it is there; returns the number of new entries.

    Holds a table and a part of the entries in memory.

    Raises:
        InputError: a table is missing or damaged.
        SetupError: the disk is full.
    """
    if open_lookup(corpus) is not None:
        return 0
    folder = lookup_folder(corpus)
    folder.parent.mkdir(parents=True, exist_ok=True)
    manifest = corpus.manifest
    documents = sum(d.documents + sum(d.exclusions.values()) for d in manifest.domains)
    bits = min((3 * documents // BUCKET).bit_length(), 32)
    shift = min(bits, (3 * documents // PART).bit_length(), MOST_PARTS)
    for left_over in folder.parent.glob(".lookup-*"):
        # Of a process that was killed.
        shutil.rmtree(left_over, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".lookup-", dir=folder.parent) as temporary:
        beginning = Path(temporary) / "whole"
        beginning.mkdir()
        _divide(beginning, _entries(corpus, progress), shift)
        count = _join(beginning, bits, shift)
        tables = tables_of(manifest)
        for table in tables:
            progress("index rows", table.place, len(tables))
            write_pieces(beginning, corpus, table)
        progress("index rows", len(tables), len(tables))
        about = {
            "format": FORMAT,
            "corpus_id": manifest.corpus_id,
            "tables": tables_digest(manifest),
            "bits": bits,
            "entries": count,
        }
        write_bytes(beginning / INDEX, canonical_bytes(about) + b"\n")
        shutil.rmtree(folder, ignore_errors=True)
        beginning.rename(folder)
    return count


def _entries(corpus: Corpus, progress: Progress) -> Iterator[NDArray[np.uint64]]:
    """Entries of each table: (n, 2)."""
    tables = tables_of(corpus.manifest)
    for table in tables:
        progress("index", table.place, len(tables))
        row = 0
        for batch in scan_table(corpus, table, ("doc_key", "text_key", "doc_id", "url")):
            yield _of_batch(batch, (table.place << 32) + row)
            row += batch.num_rows
    progress("index", len(tables), len(tables))


def _of_batch(batch: Any, first: int) -> NDArray[np.uint64]:
    places = np.arange(first, first + batch.num_rows, dtype=np.uint64)
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    read = columns["doc_key"]
    given: list[tuple[By, list[Any]]] = [("key", read), ("id", columns["doc_id"]), ("url", columns.get("url", []))]
    if "text_key" in columns:
        # Mostly the same as the other key.
        given.append(("key", [t if t != r else None for t, r in zip(columns["text_key"], read, strict=True)]))
    found = []
    for by, values in given:
        hashes = [None if value is None else hash_of(by, value) for value in values]
        chosen = np.flatnonzero([value is not None for value in hashes])
        kept = np.array([value for value in hashes if value is not None], np.uint64)
        found.append(np.stack((kept, places[chosen]), axis=1))
    return np.concatenate(found)


def _divide(folder: Path, batches: Iterator[NDArray[np.uint64]], shift: int) -> None:
    """Spread entries over files by the first bits of their hashes."""
    for batch in batches:
        part = (batch[:, 0] >> np.uint64(64 - shift)).astype(np.int64) if shift else np.zeros(len(batch), np.int64)
        order = np.argsort(part, kind="stable")
        borders = np.searchsorted(part[order], np.arange((1 << shift) + 1))
        for number in np.flatnonzero(np.diff(borders)).tolist():
            with (folder / f"part-{number}").open("ab") as file:
                file.write(batch[order[borders[number] : borders[number + 1]]].tobytes())


def _join(folder: Path, bits: int, shift: int) -> int:
    """Sort each part and write them one after another; returns the number of entries."""
    counts = np.zeros((1 << bits) + 1, np.uint64)
    total = 0
    with (folder / ENTRIES).open("wb") as file:
        for number in range(1 << shift):
            path = folder / f"part-{number}"
            if not path.exists():
                continue
            entries = np.fromfile(path, "<u8").reshape(-1, 2)
            path.unlink()
            entries = entries[np.lexsort((entries[:, 1], entries[:, 0]))]
            file.write(entries.tobytes())
            buckets = entries[:, 0] >> np.uint64(64 - bits) if bits else np.zeros(len(entries), np.uint64)
            own, count = np.unique(buckets, return_counts=True)
            counts[own.astype(np.int64) + 1] += count.astype(np.uint64)
            total += len(entries)
    np.cumsum(counts, out=counts)
    counts.astype("<u8").tofile(folder / BUCKETS)
    return total
