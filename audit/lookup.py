"""Finding documents in a corpus: kept, held out or left out, by key, id, URL or text."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import polars as pl

from millstream.errors import InputError
from millstream.mixture.documents import document_key
from millstream.stream.roots import Root, whole_file
from millstream.tokenize.manifest import DOCUMENT_COLUMNS, FileEntry, Manifest, Shard


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What to look for; ``by`` says which columns hold it."""

    by: Literal["key", "id", "url"]
    value: str | bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Everything a corpus says about the documents that were asked for.

    ``kept`` and ``held_out`` have the document table's columns and ``domain``; ``excluded`` those of the
    exclusions.
    """

    kept: pl.DataFrame
    held_out: pl.DataFrame
    excluded: pl.DataFrame


def question(text: str) -> Question:
    """Read a question as people type it: 64 hex digits are a key, ``://`` a URL, else a ``doc_id``."""
    if re.fullmatch(r"[0-9a-fA-F]{64}", text):
        return Question(by="key", value=bytes.fromhex(text))
    return Question(by="url" if "://" in text else "id", value=text)


def question_from_file(path: Path) -> Question:
    """Ask for the document whose text a file holds.

    Raises:
        InputError: the file cannot be read or is not UTF-8.
    """
    try:
        # newline='' would be lost on read_text: bytes keep a lone CR as it is.
        return Question(by="key", value=document_key(path.read_bytes().decode("utf-8")))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}") from error


def find(root: Root, manifest: Manifest, asked: Question) -> Found:
    """Look a document up in every table of a corpus.

    A key is compared with both the text as read and the text as tokenized.
    """
    kept = [(d.name, shard) for d in manifest.domains for shard in d.shards]
    held_out = [(d.name, d.holdout) for d in manifest.domains if d.holdout]
    if asked.by == "key":
        in_table = (pl.col("doc_key") == asked.value) | (pl.col("text_key") == asked.value)
        in_exclusions = pl.col("doc_key") == asked.value
    else:
        in_table = pl.col("doc_id" if asked.by == "id" else "url") == asked.value
        in_exclusions = pl.col("doc_id") == asked.value if asked.by == "id" else pl.lit(False)
    excluded = [_scan(root, entry, in_exclusions) for entry in manifest.exclusions]
    return Found(
        kept=_matching(root, kept, in_table),
        held_out=_matching(root, held_out, in_table),
        excluded=pl.concat(excluded).collect() if excluded else pl.DataFrame(),
    )


def _matching(root: Root, shards: list[tuple[str, Shard]], predicate: pl.Expr) -> pl.DataFrame:
    frames = [
        _scan(root, shard.documents, predicate, DOCUMENT_COLUMNS).with_columns(domain=pl.lit(name))
        for name, shard in shards
    ]
    return pl.concat(frames).collect() if frames else pl.DataFrame()


def _scan(root: Root, entry: FileEntry, predicate: pl.Expr, columns: tuple[str, ...] = ()) -> pl.LazyFrame:
    """Rows of a table; one from a store is filtered at once, so that no more than one is in memory."""
    table = pl.scan_parquet(whole_file(root, entry))
    matching = (table.select(*columns) if columns else table).filter(predicate)
    return matching if isinstance(root, Path) else matching.collect().lazy()
