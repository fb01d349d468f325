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

from millstream.mixture.dedup import COLUMNS, DUPLICATE_SCHEMA, Table, preferred, without
from millstream.mixture.documents import DOCUMENT_SCHEMA
from millstream.mixture.kernels import band_keys, components, minhash, shingles
from millstream.mixture.recipe import Keep, NearDedup
from millstream.mixture.words import split_words

MERSENNE = (1 << 61) - 1
BATCH = 4096
"""Documents whose words are held at once."""

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
    schema = {name: DOCUMENT_SCHEMA[name] for name in COLUMNS}
    empty = pl.DataFrame(schema=schema | {f"band{n}": pl.UInt64 for n in range(near.bands)})
    return pl.concat([empty, *parts])


def collisions(tables: Sequence[Table], near: NearDedup, prefixes: tuple[int, int]) -> pl.DataFrame:
    """Pairs of documents that share a band.

    Args:
        tables: the documents and their bands.
        near: the recipe's settings.
        prefixes: half-open range of a band key's first byte that is looked at.

    Returns:
        UInt64 columns ``one`` (the first document with a key) and ``other``; a document's number is that of its table
        times 2^32 plus its row.
    """
    low, high = (pl.lit(bound << 56, pl.UInt64) for bound in (prefixes[0], prefixes[1] - 1))
    last = high + pl.lit((1 << 56) - 1, pl.UInt64)
    pairs = [pl.DataFrame(schema={"one": pl.UInt64, "other": pl.UInt64})]
    for band in range(near.bands):
        frames = [
            pl.scan_parquet(table.bands or "")
            .select(key=f"band{band}", other=pl.int_range(pl.len(), dtype=pl.UInt64) + pl.lit(number << 32, pl.UInt64))
            .filter(pl.col("key").is_between(low, last))
            .with_columns(group=pl.lit(table.group))
            for number, table in enumerate(tables)
        ]
        members = pl.concat(frames).collect()
        one = pl.col("other").min().over("group", "key")
        pairs.append(members.select(one.alias("one"), "other").filter(pl.col("one") != pl.col("other")))
    return pl.concat(pairs).unique(maintain_order=False).sort("one", "other")


def clusters(pairs: Sequence[Path]) -> pl.DataFrame:
    """Documents that hang together by pairs: UInt64 ``document`` and ``cluster``, its smallest document; sorted."""
    edges = pl.concat([pl.read_parquet(path) for path in pairs])
    documents = pl.concat([edges["one"].rename("document"), edges["other"].rename("document")]).unique().sort()
    numbers = documents.to_numpy()
    root = components(
        np.searchsorted(numbers, edges["one"].to_numpy()),
        np.searchsorted(numbers, edges["other"].to_numpy()),
        len(numbers),
    )
    return pl.DataFrame({"document": documents, "cluster": numbers[root]})


def near_duplicates(
    tables: Sequence[Table], members: pl.DataFrame, near: NearDedup, gone: Sequence[Path], keep: Keep = "first"
) -> pl.DataFrame:
    """Documents to drop because a near duplicate of them stays.

    Args:
        tables: the documents and their bands.
        members: whole clusters of documents, as from ``clusters``.
        near: the recipe's settings.
        gone: tables of documents that were dropped before.
        keep: which of several stays.

    Returns:
        ``DUPLICATE_SCHEMA``, sorted by domain and ``doc_id``.
    """
    candidates = _candidates(tables, members, gone, keep)
    bags = _shingle_bags(candidates, tables, near)
    bands = candidates.select(pl.col("^band.*$")).to_numpy()
    groups, earlier = candidates["group"].to_list(), candidates["earlier"].to_list()
    stays: dict[tuple[int, int, str], list[int]] = {}
    rows: list[tuple[int, int, str, str]] = []
    for number in range(len(candidates)):
        places = [(band, int(key), groups[number]) for band, key in enumerate(bands[number])]
        rivals = sorted({rival for place in places for rival in stays.get(place, ())})
        alike = ((rival, _alike(bags[rival], bags[number], near)) for rival in rivals if not earlier[number])
        twin = next(((rival, *found) for rival, found in alike if found is not None), None)
        if twin is None:
            for place in places:
                stays.setdefault(place, []).append(number)
        else:
            rows.append((number, *twin))
    kept = candidates[[twin for _, twin, _, _ in rows]]
    found = candidates[[number for number, _, _, _ in rows]].with_columns(
        kept["doc_key"].alias("kept_key"),
        kept["doc_id"].alias("kept_id"),
        kept["domain"].alias("kept_domain"),
        rule=pl.lit("near"),
        value=pl.Series([value for _, _, value, _ in rows], dtype=pl.String),
        threshold=pl.Series([threshold for _, _, _, threshold in rows], dtype=pl.String),
    )
    return found.select(DUPLICATE_SCHEMA.names()).sort("domain", "doc_id")


def _candidates(tables: Sequence[Table], members: pl.DataFrame, gone: Sequence[Path], keep: Keep) -> pl.DataFrame:
    """What is known of the members of clusters, in the order in which they are preferred."""
    wanted = members.select(table=pl.col("document") // (1 << 32), row=pl.col("document") % (1 << 32))
    frames = []
    # One table after the other: all bands at once would be the whole corpus's.
    for number, table in enumerate(tables):
        rows = wanted.filter(pl.col("table") == number).select("row")
        described = pl.read_parquet(table.bands or "").with_row_index("row")
        members_here = described.with_columns(pl.col("row").cast(pl.UInt64)).join(rows, on="row", how="semi")
        frames.append(members_here.drop("row").with_columns(**table.labels(), table=pl.lit(number, pl.Int32)))
    return preferred(without(pl.concat(frames).lazy(), gone).collect(), keep)


def _shingle_bags(candidates: pl.DataFrame, tables: Sequence[Table], near: NearDedup) -> list[Bag]:
    """The shingles of each candidate, from its text."""
    wanted = candidates.select("table", "doc_id", number=pl.int_range(pl.len()))
    bags: list[Bag] = [(np.empty(0, np.uint64), np.empty(0, np.int64))] * len(candidates)
    for table, described in enumerate(tables):
        own = wanted.filter(pl.col("table") == table).select("doc_id", "number").lazy()
        texts = pl.scan_parquet(described.kept).select("doc_id", "text").join(own, on="doc_id", how="inner").collect()
        numbers = iter(texts["number"].to_list())
        for words in split_words(_simplified(texts["text"])):
            for first, last in itertools.pairwise(words.bounds.tolist()):
                hashed = shingles(words.codes, words.starts[first:last], words.ends[first:last], near.n_grams)
                bags[next(numbers)] = np.unique(hashed, return_counts=True)
    return bags


def _alike(one: Bag, other: Bag, near: NearDedup) -> tuple[str, str] | None:
    """How alike a document (``other``) is to one that stays, and the threshold that it reaches, if any."""
    _, at_one, at_other = np.intersect1d(one[0], other[0], assume_unique=True, return_indices=True)
    common = int(np.minimum(one[1][at_one], other[1][at_other]).sum())
    size, own = int(one[1].sum()), int(other[1].sum())
    jaccard = Fraction(common, size + own - common)
    if jaccard >= Fraction(near.min_jaccard):
        return f"{jaccard.numerator}/{jaccard.denominator}", f"min_jaccard {near.min_jaccard}"
    held = Fraction(common, own)
    if near.min_containment is not None and held >= Fraction(near.min_containment):
        return f"{held.numerator}/{held.denominator}", f"min_containment {near.min_containment}"
    return None


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
