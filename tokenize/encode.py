"""The build's second half, as units of work: encoding ranges of the order, then writing shards.

    encode  (domain, range of the order)  -> documents.parquet, tokens.npy
    shards  (domain, shard)               -> tar, document table, chunk index

A range is a power-of-two part of the 64-bit order hash, so ranges join into shards and shards into ranges
without sorting again.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from millstream.canonical import digest
from millstream.errors import InputError
from millstream.mixture.documents import DOCUMENT_SCHEMA, held_out
from millstream.mixture.recipe import Corpus, Domain, TokenizerFile, TrainedTokenizer
from millstream.tokenize.curate import ReadUnit, check_conserved
from millstream.tokenize.tokenizer import encoder_of
from millstream.tokenize.work import Unit

VERSION = "encode/2"
RANGE_BYTES = 32 << 20
"""Mean bytes of text in a range."""
SAMPLE, SAMPLE_CHARS = 64, 4000
"""Documents of a range on which the fast engine is compared with tokenizers', and characters of each."""
SLICE_BYTES = 4 << 20
"""Text handed to the tokenizer at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """A domain's ranges: unit ``i`` of ``n`` holds the documents whose order's top bits are ``i``."""

    domain: str
    units: tuple[Unit, ...]
    key: str


def order_range(number: int, parts: int) -> tuple[int, int]:
    """First and last order hash of a part; ``parts`` is a power of two."""
    width = (1 << 64) // parts
    return number * width, (number + 1) * width - 1


def survivors(reads: Sequence[ReadUnit], domain: str, gone: Sequence[Path], columns: Sequence[str]) -> pl.LazyFrame:
    """A domain's documents that deduplication leaves."""
    frames = [pl.scan_parquet(read.kept).select(columns) for read in reads if read.domain == domain]
    documents = pl.concat(frames)
    if gone:
        dropped = pl.concat([pl.scan_parquet(path) for path in gone]).filter(pl.col("domain") == domain)
        documents = documents.join(dropped.select("doc_id"), on="doc_id", how="anti")
    return documents


def first_texts(reads: Sequence[ReadUnit], domain: str, gone: Sequence[Path], count: int) -> pl.DataFrame:
    """``doc_id`` and ``text`` of a domain's first documents in stream order."""
    order = survivors(reads, domain, gone, ["doc_id", "order"]).sort("order", "doc_id").head(count).collect()
    return _texts_up_to(reads, domain, gone, order)


def encode_units(
    corpus: Corpus,
    domain: Domain,
    reads: Sequence[ReadUnit],
    gone: Sequence[Path],
    tokenizer: Path,
    tokenizer_id: str,
    work: Path,
) -> Encoded:
    """Units that encode a domain."""
    own = [read for read in reads if read.domain == domain.name]
    sizes = survivors(reads, domain.name, gone, ["doc_id", "n_bytes"]).select(
        pl.col("n_bytes").sum(), pl.col("doc_id").sort().str.join("\n").alias("ids")
    )
    # The survivors themselves, not the key of the pass that chose them: another domain's change that drops
    # nothing here redoes nothing here.
    size, ids = sizes.collect().row(0)
    parts = 1 << max(0, (int(size or 0) // RANGE_BYTES).bit_length())
    key = digest(
        {
            "version": VERSION,
            "domain": domain.name,
            "reads": [read.key for read in own],
            "survivors": digest(ids or ""),
            "tokenizer": tokenizer_id,
            "seed": corpus.seed,
            "holdout": str(domain.holdout),
            "parts": parts,
        }
    )
    settings = corpus.tokenizer
    units = [
        Unit(
            label=f"{domain.name} {number + 1} of {parts}",
            folder=work / "encode" / f"{key}-{number:05}",
            work=partial(
                encode_range,
                reads=own,
                domain=domain.name,
                gone=tuple(gone),
                bounds=order_range(number, parts),
                settings=settings,
                tokenizer=tokenizer,
                seed=corpus.seed,
                holdout=domain.holdout,
            ),
        )
        for number in range(parts)
    ]
    return Encoded(domain=domain.name, units=tuple(units), key=key)


def encode_range(
    folder: Path,
    *,
    reads: Sequence[ReadUnit],
    domain: str,
    gone: Sequence[Path],
    bounds: tuple[int, int],
    settings: TrainedTokenizer | TokenizerFile,
    tokenizer: Path,
    seed: int,
    holdout: Decimal,
) -> None:
    """Encode the documents of one range, in order; held-out ones are marked."""
    # Tasks are the parallelism here; threads of the library inside each would only contend.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    low, high = (pl.lit(bound, pl.UInt64) for bound in bounds)
    chosen = survivors(reads, domain, gone, DOCUMENT_SCHEMA.names()).filter(pl.col("order").is_between(low, high))
    documents = chosen.collect().sort("order", "doc_id")
    sample = documents["text"].gather_every(max(1, len(documents) // SAMPLE)).to_list()
    encoder = encoder_of(settings, tokenizer).checked_on([text[:SAMPLE_CHARS] for text in sample])
    tokens: list[np.ndarray[Any, Any]] = []
    counts: list[np.ndarray[Any, Any]] = []
    for texts in _slices(documents):
        encoded, lengths = encoder.encode(texts)
        tokens.append(encoded)
        counts.append(lengths)
    n_tokens = np.concatenate(counts) if counts else np.empty(0, np.int64)
    out = np.concatenate(tokens) if tokens else np.empty(0, encoder.dtype)
    check_conserved(f"{domain}: encoding", len(documents), len(n_tokens))
    if (ends := int((out == encoder.eos).sum())) != len(documents):
        raise InputError(
            f"{domain}: the tokenizer gives the id of EOS inside a text ({ends} in {len(documents)} documents), so "
            "documents could not be told apart; name another token as 'eos'"
        )
    marked = documents.drop("text").with_columns(
        n_tokens=pl.Series(n_tokens, dtype=pl.Int64),
        held_out=pl.Series([held_out(seed, key, holdout) for key in documents["doc_key"]], dtype=pl.Boolean),
    )
    marked.write_parquet(folder / "documents.parquet", compression="zstd")
    np.save(folder / "tokens.npy", out, allow_pickle=False)


def sample_texts(
    corpus: Corpus, reads: Sequence[ReadUnit], gone: Sequence[Path], settings: TrainedTokenizer
) -> list[str]:
    """Text to train a tokenizer on: each domain's first documents in stream order, none held out."""
    texts: list[str] = []
    for domain in corpus.split_domains:
        if settings.domains and domain.name not in settings.domains:
            continue
        order = survivors(reads, domain.name, gone, ["doc_id", "doc_key", "order", "n_bytes"]).collect()
        order = order.sort("order", "doc_id")
        free = [not held_out(corpus.seed, key, domain.holdout) for key in order["doc_key"]]
        order = order.filter(pl.Series(free, dtype=pl.Boolean))
        # A text longer than the sample must not keep those after it out.
        order = order.filter(pl.col("n_bytes") <= settings.sample_bytes)
        order = order.filter(pl.col("n_bytes").cum_sum() <= settings.sample_bytes)
        texts += _texts_up_to(reads, domain.name, gone, order)["text"].to_list()
    return texts


def _texts_up_to(reads: Sequence[ReadUnit], domain: str, gone: Sequence[Path], order: pl.DataFrame) -> pl.DataFrame:
    """``doc_id`` and ``text`` of some of a domain's first documents (``doc_id``, ``order``), in stream order."""
    # By a bound that the reader of the files applies: a join would load the whole domain's text first.
    last = pl.lit(order["order"].max(), pl.UInt64)
    texts = survivors(reads, domain, gone, ["doc_id", "order", "text"]).filter(pl.col("order") <= last).collect()
    wanted = texts.join(order.select("doc_id"), on="doc_id", how="semi")
    return wanted.sort("order", "doc_id").select("doc_id", "text")


def read_range(unit: Unit) -> tuple[pl.DataFrame, np.ndarray[Any, Any]]:
    """A finished unit's documents and tokens; the tokens are mapped, not read."""
    return pl.read_parquet(unit.folder / "documents.parquet"), np.load(unit.folder / "tokens.npy", mmap_mode="r")


def _slices(documents: pl.DataFrame) -> list[list[str]]:
    if documents.is_empty():
        return []
    number = (documents["n_bytes"].cum_sum() - documents["n_bytes"]) // SLICE_BYTES
    return [part["text"].to_list() for part in documents.with_columns(slice=number).partition_by("slice")]
