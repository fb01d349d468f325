"""Finding documents in a corpus: kept, held out or left out, by key, id, URL or text."""

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from millstream.audit.lookup_index import By, open_lookup
from millstream.errors import InputError
from millstream.mixture.documents import document_key
from millstream.stream.corpora import Corpus
from millstream.stream.roots import Root, whole_file
from millstream.stream.tables import Table, rows_at, tables_of
from millstream.tokenize.manifest import DOCUMENT_COLUMNS, Manifest


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What to look for; ``by`` says which columns hold it."""

    by: By
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
    return Question(by="key", value=document_key(_text(path)))


def questions_from_file(path: Path) -> dict[str, Question]:
    """Ask for a file's text as it is, and as it may have been read: by what was changed, ``""`` for nothing.

    A text that stood in a field of a record has no byte order mark and often no newline at its end, its copy in a file
    has; one in a file of its own keeps the newline, its copy elsewhere may not.

    Raises:
        InputError: the file cannot be read or is not UTF-8.
    """
    text = _text(path)
    plain = text.removeprefix("\ufeff")
    stripped = plain.rstrip("\r\n")
    texts = {
        "": text,
        "without its byte order mark": plain,
        "without the newline at its end": stripped,
        "with a newline at its end": stripped + "\n",
        "without the blank space around it": plain.strip(),
    }
    first: dict[str, str] = {}
    for change, changed in texts.items():
        if changed not in first.values():
            first[change] = changed
    return {change: Question(by="key", value=document_key(changed)) for change, changed in first.items()}


def _text(path: Path) -> str:
    try:
        # newline='' would be lost on read_text: bytes keep a lone CR as it is.
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}") from error


def find(root: Root, manifest: Manifest, asked: Question) -> Found:
    """Look a document up in every table of a corpus, by its lookup index where it has one.

    A key is compared with both the text as read and the text as tokenized.

    Raises:
        InputError: a table or the index is missing or damaged.
    """
    corpus = Corpus(root, manifest)
    tables = tables_of(manifest)
    index = open_lookup(corpus)
    frames: dict[str, list[pl.DataFrame]] = {"kept": [], "held out": [], "excluded": []}
    if index is None:
        for table in tables:
            frames[table.kind].append(_scan(root, table, asked))
    else:
        rows: dict[int, set[int]] = defaultdict(set)
        for place, row in index.places(asked.by, asked.value):
            rows[place].add(row)
        for place in sorted(rows):
            found = rows_at(corpus, tables[place], sorted(rows[place]))
            frames[tables[place].kind].append(_matching(tables[place], asked, found.lazy()).collect())
    kept, held_out, excluded = (pl.concat(found) if found else pl.DataFrame() for found in frames.values())
    return Found(kept=kept, held_out=held_out, excluded=excluded)


def _scan(root: Root, table: Table, asked: Question) -> pl.DataFrame:
    stored = whole_file(root, table.file)
    try:
        return _matching(table, asked, pl.scan_parquet(stored)).collect()
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{root}/{table.file.path}: damaged: {str(error).splitlines()[0]}") from error


def _matching(table: Table, asked: Question, rows: pl.LazyFrame) -> pl.LazyFrame:
    """Those of a table's rows that match."""
    if table.kind == "excluded":
        return rows.filter(_in_exclusions(asked))
    return rows.select(DOCUMENT_COLUMNS).filter(_in_table(asked)).with_columns(domain=pl.lit(table.domain))


def _in_table(asked: Question) -> pl.Expr:
    if asked.by == "key":
        return (pl.col("doc_key") == asked.value) | (pl.col("text_key") == asked.value)
    return pl.col("doc_id" if asked.by == "id" else "url") == asked.value


def _in_exclusions(asked: Question) -> pl.Expr:
    if asked.by == "url":
        return pl.lit(False)
    return pl.col("doc_key" if asked.by == "key" else "doc_id") == asked.value
