"""Documents of corpora that were built before, for deduplication against them.

A corpus keeps no texts: they are decoded from its tokens, so near duplicates are compared with the text as tokenized.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from millstream.canonical import digest
from millstream.errors import RecipeError, UsageError
from millstream.mixture.documents import DOCUMENT_SCHEMA
from millstream.mixture.recipe import Corpus
from millstream.tokenize.decode import decoder
from millstream.tokenize.manifest import Manifest, Shard, check_size, read_manifest
from millstream.tokenize.work import Unit

VERSION = "earlier/1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Earlier:
    """A shard of an earlier corpus: ``label`` is what its domain is called here."""

    domain: str
    label: str
    key: str
    unit: Unit


def earlier_units(corpus: Corpus, base: Path, work: Path) -> list[Earlier]:
    """Units that make tables of documents from the shards of earlier corpora, held-out ones too.

    Raises:
        RecipeError: there is no corpus where the recipe says.
        InputError: a corpus is damaged.
    """
    with_text = corpus.dedup.near is not None or corpus.dedup.sentences is not None
    found = []
    for given in corpus.dedup.against:
        root = base / given
        try:
            manifest = read_manifest(root)
        except UsageError as error:
            raise RecipeError(f"corpus.dedup.against: {error}") from error
        for domain in manifest.domains:
            for shard in (*domain.shards, *([domain.holdout] if domain.holdout else [])):
                key = digest([VERSION, manifest.corpus_id, shard.tar.sha256, shard.documents.sha256, with_text])
                label = f"{manifest.build.get('name', given)}/{domain.name}"
                unit = Unit(
                    label=f"{given}: {shard.tar.path}",
                    folder=work / "earlier" / key,
                    work=partial(_table, root=root, manifest=manifest, shard=shard, with_text=with_text),
                )
                found.append(Earlier(domain=domain.name, label=label, key=key, unit=unit))
    return found


def _table(folder: Path, *, root: Path, manifest: Manifest, shard: Shard, with_text: bool) -> None:
    documents = pl.read_parquet(check_size(root, shard.documents))
    texts = list(_texts(root, manifest, shard, documents)) if with_text else [""] * len(documents)
    found = documents.with_columns(
        text=pl.Series(texts, dtype=pl.String), order=pl.int_range(pl.len(), dtype=pl.UInt64)
    )
    if "score" not in found.columns:
        found = found.with_columns(score=pl.lit(None, pl.Float64))
    found.select(pl.col(name).cast(kind) for name, kind in DOCUMENT_SCHEMA.items()).write_parquet(
        folder / "kept.parquet", compression="zstd", row_group_size=1 << 14
    )


def _texts(root: Path, manifest: Manifest, shard: Shard, documents: pl.DataFrame) -> Iterator[str]:
    decode = decoder(root, manifest)
    tar = check_size(root, shard.tar)
    chunks = {row["chunk"]: row for row in pl.read_parquet(check_size(root, shard.chunks)).iter_rows(named=True)}
    before = int(manifest.tokenizer.bos_id is not None)
    for (number,), members in documents.group_by("chunk", maintain_order=True):
        chunk = chunks[number]
        tokens: Any = np.memmap(
            tar, np.dtype(manifest.tokenizer.dtype), "r", offset=chunk["data_offset"], shape=(chunk["n_tokens"],)
        )
        for start, count in members.select("token_start", "n_tokens").iter_rows():
            first = start - chunk["token_start"]
            yield decode(tokens[first + before : first + count - 1].tolist())
