"""The documents of a run's corpora as the page looks them up: tables in tiles, and their keys by first byte.

    documents/CORPUS/DOMAIN/TILE   1,024 documents in stream order: where their tokens begin, id, URL, licence, key
    keys/XX                        every key that begins with the byte XX: kept, held out or excluded, and why
    keys/parts                     of each corpus the parts of its key trie that those keys are: they prove absence

Both ways of asking need no server: a step leads by the plan to tokens and by a table to documents; a text leads by its
key to a place in a table and by the plan to steps. A corpus of more documents than the limit is not published.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from millstream.audit.key_trie import root_of_keys
from millstream.audit.runs import Run
from millstream.canonical import digest
from millstream.errors import InputError
from millstream.stream.corpora import Corpora, Corpus
from millstream.stream.plan import Tombstone
from millstream.stream.roots import whole_file
from millstream.tokenize.manifest import DomainManifest, FileEntry, Shard
from millstream.train.page.write import publish

VERSION = 2
TILE = 1024
LIMIT = 500_000
"""Documents and exclusions above which they are not published."""
COLUMNS = ["doc_key", "text_key", "doc_id", "url", "licence", "n_tokens", "token_start"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """What the page can say of documents; ``tiles`` has the first token of each tile, by corpus and domain.

    ``mark`` changes with the files.
    """

    whole: bool
    documents: int
    excluded: int
    tiles: dict[str, dict[str, list[int]]]
    mark: str

    def to_json(self) -> dict[str, Any]:
        """As the page reads it."""
        return asdict(self)


def mark_of(run: Run, corpora: Corpora, limit: int) -> str:
    """Changes where the published documents would."""
    stones = [[s.domain, s.corpus_id, s.start, s.end] for s in run.plan.tombstones]
    return digest({"version": VERSION, "corpora": list(corpora), "stones": stones, "limit": limit})


def publish_documents(out: Path, run: Run, corpora: Corpora, limit: int = LIMIT) -> Published:
    """Write tables and keys anew.

    Raises:
        InputError: a table is missing or damaged.
    """
    mark = mark_of(run, corpora, limit)[:16]
    for folder in ("documents", "keys"):
        shutil.rmtree(out / "data" / folder, ignore_errors=True)
    manifests = [corpus.manifest for corpus in corpora.values()]
    documents = sum(d.documents + (d.holdout.document_count if d.holdout else 0) for m in manifests for d in m.domains)
    excluded = sum(sum(d.exclusions.values()) for m in manifests for d in m.domains)
    if not corpora or documents + excluded > limit:
        return Published(whole=False, documents=documents, excluded=excluded, tiles={}, mark=mark)
    tiles: dict[str, dict[str, list[int]]] = {}
    keys = _Keys()
    for number, (corpus_id, corpus) in enumerate(corpora.items()):
        own = tiles.setdefault(corpus_id, {})
        for domain in corpus.manifest.domains:
            stones = [s for s in run.plan.tombstones if (s.domain, s.corpus_id) == (domain.name, corpus_id)]
            own[domain.name] = _publish_domain(out, number, corpus, domain, stones, keys)
            if domain.holdout:
                keys.add_held_out(domain.name, _read(corpus, domain.holdout.documents, COLUMNS))
        for entry in corpus.manifest.exclusions:
            keys.add_excluded(_read(corpus, entry))
    keys.publish(out, len(corpora))
    return Published(whole=True, documents=documents, excluded=excluded, tiles=tiles, mark=mark)


def _publish_domain(
    out: Path, number: int, corpus: Corpus, domain: DomainManifest, stones: Sequence[Tombstone], keys: "_Keys"
) -> list[int]:
    """Write a domain's tiles; returns the first token of each."""
    firsts: list[int] = []
    for table in _tables(corpus, domain.shards):
        for begin in range(0, len(table), TILE):
            part = table[begin : begin + TILE]
            keys.add_kept(number, domain.name, len(firsts), part)
            publish(out, f"documents/{number}/{domain.name}/{len(firsts)}", _tile(part, stones))
            firsts.append(int(part["token_start"][0]))
    return firsts


def _tables(corpus: Corpus, shards: Sequence[Shard]) -> Iterator[pl.DataFrame]:
    for shard in shards:
        table = _read(corpus, shard.documents, COLUMNS)
        if len(table):
            yield table


def _read(corpus: Corpus, entry: FileEntry, columns: list[str] | None = None) -> pl.DataFrame:
    try:
        return pl.read_parquet(whole_file(corpus.root, entry), columns=columns)
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{corpus.root}/{entry.path}: damaged: {str(error).splitlines()[0]}") from error


def _tile(table: pl.DataFrame, stones: Sequence[Tombstone]) -> dict[str, Any]:
    """Documents as columns; of those that were taken down the key alone."""
    start, tokens = table["token_start"].to_numpy(), table["n_tokens"].to_numpy()
    gone = np.zeros(len(table), np.bool_)
    for stone in stones:
        gone |= (start < stone.end) & (start + tokens > stone.start)
    shown = table.with_columns(
        [pl.when(pl.lit(pl.Series(~gone))).then(pl.col(name)).alias(name) for name in ("doc_id", "url", "licence")]
    )
    licences = shown["licence"].unique().drop_nulls().sort().to_list()
    number: Mapping[str | None, int | None] = {name: n for n, name in enumerate(licences)} | {None: None}
    return {
        "first": int(start[0]),
        "tokens": tokens,
        "id": shown["doc_id"].to_list(),
        "url": shown["url"].to_list(),
        "licences": licences,
        "licence": [number[name] for name in shown["licence"]],
        "key": table["doc_key"].bin.encode("hex").to_list(),
        "gone": np.flatnonzero(gone),
    }


class _Keys:
    """Gathers keys, and writes them by their first byte."""

    def __init__(self) -> None:
        self._buckets: list[dict[str, list[list[Any]]]] = [
            {"kept": [], "held_out": [], "excluded": []} for _ in range(256)
        ]

    def add_kept(self, corpus: int, domain: str, tile: int, table: pl.DataFrame) -> None:
        """Add a tile's keys, as read and as tokenized: key, corpus, domain, tile, row."""
        for row, (read, tokenized) in enumerate(table.select("doc_key", "text_key").iter_rows()):
            for key in {read, tokenized}:
                self._buckets[key[0]]["kept"].append([key.hex(), corpus, domain, tile, row])

    def add_held_out(self, domain: str, table: pl.DataFrame) -> None:
        """Add held-out documents: key, domain, id."""
        for read, tokenized, doc_id in table.select("doc_key", "text_key", "doc_id").iter_rows():
            for key in {read, tokenized}:
                self._buckets[key[0]]["held_out"].append([key.hex(), domain, doc_id])

    def add_excluded(self, table: pl.DataFrame) -> None:
        """Add what was dropped: key, domain, id, stage, rule, value, threshold, key kept instead."""
        wanted = ("doc_key", "domain", "doc_id", "stage", "rule", "value", "threshold", "kept_key")
        for key, *said, kept in table.filter(pl.col("doc_key").is_not_null()).select(wanted).iter_rows():
            self._buckets[key[0]]["excluded"].append([key.hex(), *said, kept.hex() if kept else None])

    def publish(self, out: Path, corpora: int) -> None:
        """Write all 256 files, empty ones too: absence is an answer."""
        parts: list[list[tuple[int, str]]] = [[] for _ in range(corpora)]
        for first, bucket in enumerate(self._buckets):
            publish(out, f"keys/{first:02x}", {name: sorted(rows, key=str) for name, rows in bucket.items()})
            for number, part in enumerate(parts):
                own = sorted({bytes.fromhex(row[0]) for row in bucket["kept"] if row[1] == number})
                part.append((len(own), root_of_keys(own, 8).hex()))
        publish(out, "keys/parts", parts)
