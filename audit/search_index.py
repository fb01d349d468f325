"""A full-text index of a corpus, made on request: words -> documents, by Tantivy, beside the corpus.

Corpora store no text, so documents are decoded from their tokens: what is found is the text as it was trained on.
Words are runs of letters, digits and marks in lower case, cut after 64 characters; where a script sets no spaces, each
character is a word. ``CORPUS/search`` holds Tantivy's files and, written last, ``search.json``: corpus id, share,
documents. Held-out documents are indexed too; documents that were left out have no text any more.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl

from millstream.canonical import canonical_bytes
from millstream.errors import InputError, SetupError, UsageError
from millstream.files import write_bytes
from millstream.stream.corpora import Corpus
from millstream.stream.ranges import StoredDomain
from millstream.stream.roots import Root, whole_file
from millstream.stream.shards import DomainReader, open_domain, open_holdout
from millstream.stream.tables import Table, lookup_folder, tables_of
from millstream.tokenize.decode import decoder, decoder_of

FORMAT = "millstream-search/1"
FOLDER = "search"
INFO = "search.json"
TEXT, PLACE = "text", "place"
TOKENS_AT_ONCE = 1 << 20
HEAP = 1 << 28
"""Bytes that documents take before they are written out."""

Progress = Callable[[str, int, int], None]
ReadTexts = Callable[[Table, Sequence[int], Sequence[int]], list[str]]

_UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchIndex:
    """An opened index; ``share`` of the documents are in it."""

    folder: Path
    share: float
    documents: int
    index: Any


def words_of(texts: pl.Series) -> pl.Series:
    """Texts as their words, one space between two."""
    spaced = texts.str.to_lowercase().str.replace_all(_UNSPACED, " ${0} ")
    apart = spaced.str.replace_all(r"[^\p{L}\p{N}\p{M}_]+", " ").str.strip_chars(" ")
    return apart.str.replace_all(r"([^ ]{64})[^ ]+", "${1}")


def search_folder(corpus: Corpus) -> Path:
    """Where the index of a corpus lies, as of ``lookup_folder``."""
    return lookup_folder(corpus).with_name(FOLDER)


def open_search(corpus: Corpus) -> SearchIndex:
    """The index of a corpus.

    Raises:
        UsageError: there is none, or it is of another corpus; says how to make it.
        SetupError: Tantivy is not installed.
    """
    folder = search_folder(corpus)
    about = _read_info(corpus)
    if about is None:
        raise UsageError(
            f"{folder}: no full-text index of this corpus; make it: millstream audit index {corpus.root} --words"
        )
    return SearchIndex(
        folder=folder,
        share=float(about["share"]),
        documents=about["documents"],
        index=_tantivy().Index.open(str(folder)),
    )


def index_words(corpus: Corpus, share: float = 1.0, progress: Progress = lambda *_: None) -> int:
    """Make the index of a corpus, unless it is there; returns the number of documents in it.

    Args:
        corpus: where it lies.
        share: of the documents, chosen by their keys, for corpora whose index would be too large.
        progress: is told how far it is.

    Raises:
        UsageError: the share is not above 0 and at most 1.
        InputError: a table or shard is missing or damaged.
        SetupError: Tantivy is not installed, or the disk is full.
    """
    if not 0 < share <= 1:
        raise UsageError(f"a share of the documents is above 0 and at most 1, not {share}")
    tantivy = _tantivy()
    known = _read_info(corpus)
    if known is not None and float(known["share"]) == share:
        return int(known["documents"])
    folder = search_folder(corpus)
    folder.parent.mkdir(parents=True, exist_ok=True)
    schema = tantivy.SchemaBuilder()
    schema.add_text_field(TEXT, stored=False, tokenizer_name="whitespace", index_option="position")
    schema.add_unsigned_field(PLACE, stored=True)
    tables = [(number, t) for number, t in enumerate(tables_of(corpus.manifest)) if t.kind != "excluded"]
    count, read = 0, text_reader(corpus)
    for left_over in folder.parent.glob(".search-*"):
        # Of a process that was killed.
        shutil.rmtree(left_over, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".search-", dir=folder.parent) as temporary:
        beginning = Path(temporary) / "whole"
        beginning.mkdir()
        try:
            writer = tantivy.Index(schema.build(), path=str(beginning)).writer(HEAP, 1)
            for done, (number, table) in enumerate(tables):
                progress("words", done, len(tables))
                for rows, texts in _texts(corpus, table, share, read):
                    for row, words in zip(rows, words_of(texts).to_list(), strict=True):
                        document = tantivy.Document()
                        document.add_text(TEXT, words)
                        document.add_unsigned(PLACE, (number << 32) + row)
                        writer.add_document(document)
                    count += len(rows)
            writer.commit()
            writer.wait_merging_threads()
        except (ValueError, OSError) as error:
            raise SetupError(f"{folder}: the index cannot be written: {str(error).splitlines()[0]}") from error
        progress("words", len(tables), len(tables))
        about = {"format": FORMAT, "corpus_id": corpus.manifest.corpus_id, "share": repr(share), "documents": count}
        write_bytes(beginning / INFO, canonical_bytes(about) + b"\n")
        shutil.rmtree(folder, ignore_errors=True)
        beginning.rename(folder)
    return count


def text_reader(corpus: Corpus) -> ReadTexts:
    """A function from documents of a table, by first tokens and numbers of tokens, to their texts.

    The text is what was tokenized: without BOS and EOS, and after any edits.
    """
    manifest = corpus.manifest
    if isinstance(corpus.root, Path):
        decode = decoder(corpus.root, manifest)
    else:
        decode = decoder_of(corpus.root.read(manifest.tokenizer.file))
    before = 0 if manifest.tokenizer.bos_id is None else 1
    readers: dict[tuple[str, str], DomainReader | StoredDomain | None] = {}

    def read(table: Table, starts: Sequence[int], counts: Sequence[int]) -> list[str]:
        where = (table.kind, table.domain)
        if where not in readers:
            domain, dtype = manifest.domain(table.domain), manifest.tokenizer.dtype
            kept = table.kind == "kept"
            readers[where] = (
                open_domain(corpus.root, domain, dtype, domain.tokens)
                if kept
                else open_holdout(corpus.root, domain, dtype)
            )
        reader = readers[where]
        assert reader is not None
        spans = ((start + before, start + count - 1) for start, count in zip(starts, counts, strict=True))
        return [decode(reader.span(start, end).tolist()) for start, end in spans]

    return read


def _texts(corpus: Corpus, table: Table, share: float, read: ReadTexts) -> Iterator[tuple[list[int], pl.Series]]:
    """Rows of a table and their texts, about ``TOKENS_AT_ONCE`` tokens at a time."""
    rows = read_table(corpus.root, table, ["doc_key", "token_start", "n_tokens"])
    key = np.frombuffer(b"".join(key[:8] for key in rows["doc_key"].to_list()), ">u8")
    chosen = (
        np.flatnonzero(key < np.uint64(min(int(share * 2.0**64), (1 << 64) - 1))) if share < 1 else np.arange(len(rows))
    )
    starts, counts = (rows[name].to_numpy()[chosen] for name in ("token_start", "n_tokens"))
    ends = np.cumsum(counts)
    at = 0
    while at < len(chosen):
        until = max(at + 1, int(np.searchsorted(ends, ends[at] - counts[at] + TOKENS_AT_ONCE, side="right")))
        part = slice(at, until)
        yield (
            chosen[part].tolist(),
            pl.Series(read(table, starts[part].tolist(), counts[part].tolist()), dtype=pl.String),
        )
        at = until


def read_table(root: Root, table: Table, columns: list[str]) -> pl.DataFrame:
    """Columns of a table.

    Raises:
        InputError: it is missing or damaged.
    """
    try:
        return pl.read_parquet(whole_file(root, table.file), columns=columns)
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{root}/{table.file.path}: damaged: {str(error).splitlines()[0]}") from error


def _read_info(corpus: Corpus) -> dict[str, Any] | None:
    try:
        raw = orjson.loads((search_folder(corpus) / INFO).read_bytes())
        fits = raw["format"] == FORMAT and raw["corpus_id"] == corpus.manifest.corpus_id
        return dict(raw) if fits else None
    except (OSError, orjson.JSONDecodeError, TypeError, KeyError):
        return None


def _tantivy() -> Any:
    try:
        import tantivy
    except ImportError as error:
        raise SetupError("searching for words needs the package tantivy: pip install 'millstream[search]'") from error
    return tantivy
