"""Near duplicates: MinHash signatures as datatrove makes them, and candidates that are verified before anything goes.

A document is dropped only if its true Jaccard similarity with one that *stays* reaches the threshold, shingles
counted as often as they occur: by sets alone, a page of one repeated sentence equals any other that holds it. There is
no chain from one near duplicate to the next, so a family of templated texts keeps its members that differ.
"""

import itertools
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from millstream.mixture.dedup import DUPLICATE_SCHEMA
from millstream.mixture.kernels import band_keys, minhash, shingles
from millstream.mixture.recipe import NearDedup
from millstream.mixture.words import split_words

MERSENNE = (1 << 61) - 1
BATCH = 4096
"""Documents whose words are held at once."""

COLUMNS = ("doc_key", "doc_id", "source", "locator", "order")
Bag = tuple[NDArray[np.uint64], NDArray[np.int64]]
"""Distinct shingles, sorted, and how often each occurs."""
EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)


def signatures(texts: pl.Series, near: NearDedup) -> NDArray[np.uint64]:
    """Signatures: uint64 (texts, bands * rows); all ones where a text is shorter than a shingle.

    The same numbers as datatrove's ``MinhashDedupSignature`` with its text normalisation and the same seed.
    """
    a, b = _permutations(near.seed, near.bands * near.rows)
    found = [np.empty((0, len(a)), np.uint64)]
    for words in split_words(_simplified(texts)):
        found.append(minhash(words.codes, words.starts, words.ends, words.bounds, near.n_grams, a, b))
    return np.concatenate(found)


def band_table(kept: Path, near: NearDedup) -> pl.DataFrame:
    """Documents of a read unit with one 64-bit key a band; texts shorter than a shingle are left out."""
    parts = []
    for batch in pl.read_parquet(kept, columns=[*COLUMNS, "text"]).iter_slices(BATCH):
        found = signatures(batch["text"], near)
        keys = band_keys(found, near.bands, near.rows)
        described = batch.select(COLUMNS).with_columns(
            pl.Series(f"band{n}", keys[:, n], dtype=pl.UInt64) for n in range(near.bands)
        )
        parts.append(described.filter(pl.Series(found[:, 0] != EMPTY)))
    schema = {name: DUPLICATE_SCHEMA[name] for name in COLUMNS}
    empty = pl.DataFrame(schema=schema | {f"band{n}": pl.UInt64 for n in range(near.bands)})
    return pl.concat([empty, *parts])


def near_duplicates(tables: Sequence[tuple[str, Path, Path]], near: NearDedup, gone: Sequence[Path]) -> pl.DataFrame:
    """Documents to drop because a near duplicate of them stays.

    Args:
        tables: (domain, band table, table of kept documents), domains in recipe order.
        near: the recipe's settings.
        gone: tables of documents that were dropped before.

    Returns:
        ``DUPLICATE_SCHEMA``, sorted by domain and ``doc_id``.
    """
    candidates = _colliding(tables, near, gone)
    bags = _shingle_bags(candidates, tables, near)
    bands = candidates.select(pl.col("^band.*$")).to_numpy()
    keys = candidates["doc_key"].to_list()
    least = Fraction(near.min_jaccard)
    stays: dict[tuple[int, int], list[int]] = {}
    rows: list[tuple[int, bytes, str]] = []
    for number in range(len(candidates)):
        places = [(band, int(key)) for band, key in enumerate(bands[number])]
        rivals = sorted({rival for place in places for rival in stays.get(place, ())})
        twin = next((r for r in rivals if _jaccard(bags[r], bags[number]) >= least), None)
        if twin is None:
            for place in places:
                stays.setdefault(place, []).append(number)
        else:
            similar = _jaccard(bags[twin], bags[number])
            rows.append((number, keys[twin], f"{similar.numerator}/{similar.denominator}"))
    found = candidates[[number for number, _, _ in rows]].with_columns(
        kept_key=pl.Series([key for _, key, _ in rows], dtype=pl.Binary),
        rule=pl.lit("near"),
        value=pl.Series([value for _, _, value in rows], dtype=pl.String),
        threshold=pl.lit(f"min_jaccard {near.min_jaccard}"),
    )
    return found.select(DUPLICATE_SCHEMA.names()).sort("domain", "doc_id")


def _colliding(tables: Sequence[tuple[str, Path, Path]], near: NearDedup, gone: Sequence[Path]) -> pl.DataFrame:
    """Documents that share a band with another, in the order in which they are preferred."""
    ranks = {domain: rank for rank, domain in enumerate(dict.fromkeys(domain for domain, _, _ in tables))}
    frames = [
        pl.scan_parquet(bands).with_columns(domain=pl.lit(domain), rank=pl.lit(ranks[domain], pl.Int32))
        for domain, bands, _ in tables
    ]
    documents = pl.concat(frames)
    if gone:
        dropped = pl.concat([pl.scan_parquet(path).select("domain", "doc_id") for path in gone])
        documents = documents.join(dropped, on=["domain", "doc_id"], how="anti")
    shared = pl.any_horizontal(pl.len().over(f"band{n}") > 1 for n in range(near.bands))
    return documents.filter(shared).collect().sort("rank", "order", "doc_id")


def _shingle_bags(candidates: pl.DataFrame, tables: Sequence[tuple[str, Path, Path]], near: NearDedup) -> list[Bag]:
    """The shingles of each candidate, from its text."""
    wanted = candidates.select("domain", "doc_id", number=pl.int_range(pl.len()))
    bags: list[Bag] = [(np.empty(0, np.uint64), np.empty(0, np.int64))] * len(candidates)
    for domain, _, kept in tables:
        own = wanted.filter(pl.col("domain") == domain).lazy()
        texts = pl.scan_parquet(kept).select("doc_id", "text").join(own, on="doc_id", how="inner").collect()
        numbers = iter(texts["number"].to_list())
        for words in split_words(_simplified(texts["text"])):
            for first, last in itertools.pairwise(words.bounds.tolist()):
                hashed = shingles(words.codes, words.starts[first:last], words.ends[first:last], near.n_grams)
                bags[next(numbers)] = np.unique(hashed, return_counts=True)
    return bags


def _jaccard(one: Bag, other: Bag) -> Fraction:
    _, at_one, at_other = np.intersect1d(one[0], other[0], assume_unique=True, return_indices=True)
    common = int(np.minimum(one[1][at_one], other[1][at_other]).sum())
    return Fraction(common, int(one[1].sum() + other[1].sum()) - common)


def _simplified(texts: pl.Series) -> pl.Series:
    from datatrove.utils.text import TextNormConfig, simplify_text

    config = TextNormConfig()
    return pl.Series([simplify_text(text, config) for text in texts], dtype=pl.String)


@lru_cache
def _permutations(seed: int, count: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    # numpy keeps the streams of RandomState as they are, and these are datatrove's parameters.
    generator = np.random.RandomState(seed)
    a = generator.randint(1, MERSENNE, dtype=np.uint64, size=count)
    return a, generator.randint(0, MERSENNE, dtype=np.uint64, size=count)
