"""Duplicates, as units of work: exact ones over ranges of keys, near ones over MinHash bands, then cluster by cluster.

    dedup     range of keys                 -> dropped.parquet
    bands     a table of documents          -> bands.parquet
    pairs     range of band keys            -> pairs.parquet
    clusters  all pairs                     -> clusters.parquet
    near      some of the clusters          -> dropped.parquet

No unit holds more than its range: only the clusters are found at once, from pairs of numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import polars as pl
import pyarrow.parquet as pq

from millstream.canonical import digest
from millstream.errors import InputError
from millstream.mixture import dedup
from millstream.mixture.dedup import Table
from millstream.mixture.recipe import Corpus, Keep, NearDedup
from millstream.tokenize.curate import ReadUnit, library_version
from millstream.tokenize.earlier import Earlier
from millstream.tokenize.work import Unit

Key = Literal["doc_key", "text_key"]
NEAR_VERSION = "minhash/2"
DOCUMENTS_A_RANGE = 2_000_000
"""Documents whose keys are compared at once."""
MEMBERS_A_UNIT = 50_000
"""Members of clusters that are compared by their texts at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """A table of documents, and the key of what made it."""

    table: Table
    key: str


def known_tables(corpus: Corpus, reads: Sequence[ReadUnit], earlier: Sequence[Earlier]) -> list[Known]:
    """All documents that are compared: those of earlier corpora, then the recipe's, by order of domains."""
    by_domain = corpus.dedup.scope == "domain"
    found = [
        Known(
            table=Table(
                domain=each.label,
                group=each.domain if by_domain else "",
                rank=-1,
                kept=each.unit.folder / "kept.parquet",
                earlier=True,
            ),
            key=each.key,
        )
        for each in earlier
    ]
    for rank, domain in enumerate(corpus.split_domains):
        group = domain.name if by_domain else ""
        for read in reads:
            if read.domain == domain.name:
                table = Table(domain=domain.name, group=group, rank=rank, kept=read.kept)
                found.append(Known(table=table, key=read.key))
    return found


def identity(known: Sequence[Known]) -> list[list[str | int]]:
    """What decides a comparison of tables, for a unit's key."""
    return [[each.table.domain, each.table.group, each.table.rank, each.key] for each in known]


def dedup_units(corpus: Corpus, known: Sequence[Known], work: Path, by: Key, gone: Sequence[Path]) -> list[Unit]:
    """Units of a pass of exact deduplication: one a range of key prefixes."""
    if not corpus.dedup.exact:
        return []
    ranges = key_ranges(sum(pq.read_metadata(each.table.kept).num_rows for each in known))
    key = digest(
        {
            "version": dedup.VERSION,
            "by": by,
            "tables": identity(known),
            "keep": corpus.dedup.keep,
            "gone": [path.parent.name for path in gone],
            "ranges": len(ranges),
        }
    )
    tables = [each.table for each in known]
    return [
        Unit(
            label=f"{by} {n + 1} of {len(ranges)}",
            folder=work / "dedup" / f"{key}-{n:03}",
            work=partial(_dedup, tables=tables, by=by, prefixes=prefixes, gone=tuple(gone), keep=corpus.dedup.keep),
        )
        for n, prefixes in enumerate(ranges)
    ]


def key_ranges(keys: int) -> list[tuple[int, int]]:
    """Half-open ranges of a key's first byte, so that each holds about ``DOCUMENTS_A_RANGE`` keys or fewer."""
    ranges = min(256, 1 << max(0, (keys // DOCUMENTS_A_RANGE).bit_length()))
    width = 256 // ranges
    return [(n * width, (n + 1) * width) for n in range(ranges)]


def band_units(near: NearDedup, known: Sequence[Known], work: Path) -> tuple[list[Unit], list[Known]]:
    """Units that compute MinHash bands, one a table, and the tables with them."""
    settings = [near.n_grams, near.bands, near.rows, near.seed]
    libraries = {name: library_version(name) for name in ("datatrove", "spacy")}
    units, banded = [], []
    for each in known:
        key = digest([NEAR_VERSION, settings, libraries, each.key])
        folder = work / "bands" / key
        work_of = partial(_bands, kept=each.table.kept, near=near)
        units.append(Unit(label=f"bands of {each.table.domain}", folder=folder, work=work_of))
        banded.append(Known(table=replace(each.table, bands=folder / "bands.parquet"), key=key))
    return units, banded


def pair_units(near: NearDedup, banded: Sequence[Known], work: Path) -> list[Unit]:
    """Units that find documents with a band in common."""
    ranges = key_ranges(sum(pq.read_metadata(each.table.kept).num_rows for each in banded))
    key = digest([NEAR_VERSION, identity(banded), near.bands, len(ranges)])
    tables = [each.table for each in banded]
    return [
        Unit(
            label=f"pairs {n + 1} of {len(ranges)}",
            folder=work / "pairs" / f"{key}-{n:03}",
            work=partial(_pairs, tables=tables, near=near, prefixes=prefixes),
        )
        for n, prefixes in enumerate(ranges)
    ]


def cluster_unit(pairs: Sequence[Unit], work: Path) -> Unit:
    """The unit that puts pairs together."""
    key = digest([NEAR_VERSION, [unit.folder.name for unit in pairs]])
    paths = [unit.folder / "pairs.parquet" for unit in pairs]
    return Unit(label="clusters", folder=work / "clusters" / key, work=partial(_clusters, pairs=paths))


def near_units(
    corpus: Corpus, near: NearDedup, banded: Sequence[Known], clusters: Unit, gone: Sequence[Path], work: Path
) -> list[Unit]:
    """Units that compare the texts of clusters' members."""
    path = clusters.folder / "clusters.parquet"
    parts = 1 + pq.read_metadata(path).num_rows // MEMBERS_A_UNIT
    made_from = {
        "version": NEAR_VERSION,
        "near": near.model_dump(mode="json", exclude={"max_removed"}),
        "keep": corpus.dedup.keep,
        "clusters": clusters.folder.name,
        "gone": [path.parent.name for path in gone],
        "parts": parts,
    }
    key = digest(made_from)
    tables = [each.table for each in banded]
    return [
        Unit(
            label=f"near duplicates {n + 1} of {parts}",
            folder=work / "dedup" / f"{key}-{n:03}",
            work=partial(
                _near,
                tables=tables,
                clusters=path,
                part=(n, parts),
                near=near,
                gone=tuple(gone),
                keep=corpus.dedup.keep,
            ),
        )
        for n in range(parts)
    ]


def check_removed(near: NearDedup, reads: Sequence[ReadUnit], gone: Sequence[Path]) -> None:
    """Stop where near duplicates take more of a source than the recipe allows.

    Raises:
        InputError: names the source, the share and the limit; templated sources can vanish almost whole.
    """
    kept = pl.concat([pl.scan_parquet(read.kept).select("source") for read in reads])
    total = dict(kept.group_by("source").len().collect().rows())
    dropped = pl.concat([pl.scan_parquet(path).select("source") for path in gone]).collect()
    for source, removed in dropped.group_by("source").len().sort("source").rows():
        if removed > near.max_removed * total[source]:
            raise InputError(
                f"near duplicates would remove {removed} of the {total[source]} documents of source '{source}', more "
                f"than max_removed {near.max_removed}; raise it, raise min_jaccard, or look at the source"
            )


def has_edits(reads: Sequence[ReadUnit]) -> bool:
    """Whether any text was changed after it was read, so that texts may be equal where keys are not."""
    frames = [pl.scan_parquet(read.kept).select(edited=pl.col("edits").list.len() > 0) for read in reads]
    return bool(pl.concat(frames).select(pl.col("edited").any()).collect().item())


def _dedup(
    folder: Path,
    *,
    tables: Sequence[Table],
    by: Key,
    prefixes: tuple[int, int],
    gone: Sequence[Path],
    keep: Keep,
) -> None:
    dedup.duplicates(tables, by, prefixes, gone, keep).write_parquet(folder / "dropped.parquet", compression="zstd")


def _bands(folder: Path, *, kept: Path, near: NearDedup) -> None:
    from millstream.mixture.minhash import band_table

    band_table(kept, near).write_parquet(folder / "bands.parquet", compression="zstd")


def _pairs(folder: Path, *, tables: Sequence[Table], near: NearDedup, prefixes: tuple[int, int]) -> None:
    from millstream.mixture.minhash import collisions

    collisions(tables, near, prefixes).write_parquet(folder / "pairs.parquet", compression="zstd")


def _clusters(folder: Path, *, pairs: Sequence[Path]) -> None:
    from millstream.mixture.minhash import clusters

    clusters(pairs).write_parquet(folder / "clusters.parquet", compression="zstd")


def _near(
    folder: Path,
    *,
    tables: Sequence[Table],
    clusters: Path,
    part: tuple[int, int],
    near: NearDedup,
    gone: Sequence[Path],
    keep: Keep,
) -> None:
    from millstream.mixture.minhash import near_duplicates

    number, parts = part
    members = pl.scan_parquet(clusters).filter(pl.col("cluster") % parts == number).collect()
    found = near_duplicates(tables, members, near, gone, keep)
    found.write_parquet(folder / "dropped.parquet", compression="zstd")
