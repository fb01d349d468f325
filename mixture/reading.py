r"""Files to documents: bounded batches of kept and dropped records, none of them silent.

    stored bytes -> decompressed blocks -> lines, rows or files -> records -> frames

JSON lines are split on ``\\n`` as bytes and parsed one by one: readers that parse a whole file stop at its
first bad byte, lose fields first seen late, or turn a lone surrogate into something else.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from millstream.errors import InputError
from millstream.mixture.decompress import TruncatedError, blocks, stem
from millstream.mixture.documents import (
    DOCUMENT_SCHEMA,
    EXCLUSION_SCHEMA,
    document_id,
    document_key,
    order_hash,
    printable_path,
)
from millstream.mixture.extract import extract
from millstream.mixture.recipe import Source
from millstream.mixture.records import Accepted, Rejected, from_json, from_value, reject
from millstream.mixture.sources import SourceFile, read_file

VERSION = "read/2"
BATCH_BYTES = 32 << 20
BATCH_RECORDS = 1 << 16
ROWS = 1024

JSON_SUFFIXES = (".jsonl", ".ndjson")

Records = Iterator[Accepted | Rejected]


@dataclass(frozen=True, slots=True)
class Batch:
    """Documents (``DOCUMENT_SCHEMA``) and exclusions (``EXCLUSION_SCHEMA``) of a part of a file."""

    kept: pl.DataFrame
    excluded: pl.DataFrame


def read_documents(source: Source, file: SourceFile, *, domain: str, seed: int) -> Iterator[Batch]:
    """Read one file in batches of about 32 MiB of text, or of 65,536 records.

    Args:
        source: how to read it.
        file: the file.
        domain: domain that the records belong to, written into the exclusions.
        seed: the corpus's, for the order of documents.

    Raises:
        InputError: the file is cut off, damaged or lacks the text column, and the source says ``on_bad_file:
            stop``. With ``skip`` what was readable is kept and one exclusion records the file.
    """
    path = printable_path(file.path)
    kept: list[Accepted] = []
    rejected: list[Rejected] = []
    size = 0
    for record in _records(source, file, path):
        if isinstance(record, Accepted):
            kept.append(record)
            size += len(record.text) + len(record.metadata)
        else:
            rejected.append(record)
        if size >= BATCH_BYTES or len(kept) + len(rejected) >= BATCH_RECORDS:
            yield _batch(source, path, domain, seed, kept, rejected)
            kept, rejected, size = [], [], 0
    yield _batch(source, path, domain, seed, kept, rejected)


def _records(source: Source, file: SourceFile, path: str) -> Records:
    kind, read = _reader(source, file.path)
    last = 0
    with read_file(file) as stored:
        try:
            for record in read(source, path, stored, file.path):
                last = record.record
                yield record
        except (TruncatedError, pa.ArrowException, OSError) as error:
            message = " ".join(str(error).split())
            if source.on_bad_file == "stop":
                raise InputError(f"{source.name}: {path}: damaged {kind} after record {last}: {message}") from error
            yield reject(last + 1, path, b"", "damaged-file", message)


def _reader(source: Source, path: str) -> tuple[str, Callable[[Source, str, Any, str], Records]]:
    bare = stem(path)
    if source.format == "parquet" or (source.format == "auto" and bare.endswith(".parquet")):
        return "Parquet file", _parquet
    lines = bare.endswith(JSON_SUFFIXES) or path.endswith((".json.gz", ".json.zst"))
    if source.extract == "whole" and (source.format == "jsonl" or (source.format == "auto" and lines)):
        return "JSON lines", _json_lines
    return "text file", _text


def _json_lines(source: Source, path: str, stored: Any, name: str) -> Records:
    for number, line in enumerate(_lines(blocks(stored, name)), 1):
        raw = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if raw.strip():
            yield from_json(source, number, f"{path}:{number}", raw)


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    r"""Lines without their ``\\n``; a last line need not end with one."""
    pending: list[bytes] = []
    for block in pieces:
        first, *rest = block.split(b"\n")
        pending.append(first)
        for line in rest:
            yield b"".join(pending)
            pending = [line]
    yield b"".join(pending)


def _text(source: Source, path: str, stored: Any, name: str) -> Records:
    yield from extract(source, path, b"".join(blocks(stored, name)))


def _parquet(source: Source, path: str, stored: Any, name: str) -> Records:
    table = pq.ParquetFile(stored)
    names = table.schema_arrow.names
    if source.text not in names:
        raise InputError(f"{source.name}: {path}: has no column '{source.text}'; it has {', '.join(names)}")
    number = 0
    for batch in table.iter_batches(batch_size=ROWS):
        others = batch.drop_columns([source.text]).to_pylist()
        for text, other in zip(_text_column(batch.column(source.text)), others, strict=True):
            number += 1
            place = f"{path}:{number}"
            raw = orjson.dumps(other, default=str)
            if isinstance(text, bytes):
                try:
                    text = text.decode("utf-8")
                except UnicodeDecodeError as error:
                    yield reject(number, place, text, "invalid-utf8", f"byte {error.start}")
                    continue
            # Through JSON, so that dates and decimals in the metadata are plain values as everywhere.
            yield from_value(source, number, place, raw, orjson.loads(raw) | {source.text: text})


def _text_column(column: Any) -> list[Any]:
    """Values of the text column; strings as bytes, since Arrow does not check that they are UTF-8."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        binary = pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary()
        return list(column.view(binary).to_pylist())
    return list(column.to_pylist())


def _batch(source: Source, path: str, domain: str, seed: int, kept: list[Accepted], rejected: list[Rejected]) -> Batch:
    ids = [document_id(source.name, path, r.record) for r in kept]
    keys = [document_key(r.text) for r in kept]
    documents = pl.DataFrame(
        {
            "doc_key": keys,
            "text_key": keys,
            "doc_id": ids,
            "source": [source.name] * len(kept),
            "locator": [r.place for r in kept],
            "url": [r.url for r in kept],
            "licence": [r.licence for r in kept],
            "edits": [[] for _ in kept],
            "n_bytes": [len(r.text.encode()) for r in kept],
            "score": [None] * len(kept),
            "metadata": [r.metadata for r in kept],
            "order": [order_hash(seed, i) for i in ids],
            "text": [r.text for r in kept],
        },
        schema=DOCUMENT_SCHEMA,
    )
    excluded = pl.DataFrame(
        {
            "doc_key": [None] * len(rejected),
            "doc_id": [document_id(source.name, path, r.record) for r in rejected],
            "source": [source.name] * len(rejected),
            "locator": [r.place for r in rejected],
            "raw_sha256": [hashlib.sha256(r.raw).digest() for r in rejected],
            "domain": [domain] * len(rejected),
            "stage": ["read"] * len(rejected),
            "rule": [r.rule for r in rejected],
            "value": [r.value for r in rejected],
            "threshold": [r.threshold for r in rejected],
            "kept_key": [None] * len(rejected),
        },
        schema=EXCLUSION_SCHEMA,
    )
    return Batch(documents, excluded)
