"""Duplicates, as units of work: exact ones over ranges of keys, near ones over MinHash bands.

dedup   range of keys  -> dropped.parquet
bands   a read unit    -> bands.parquet
near    all bands      -> dropped.parquet
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import polars as pl
import pyarrow.parquet as pq

from millstream.canonical import digest
from millstream.errors import InputError
from millstream.mixture import dedup
from millstream.mixture.recipe import Corpus, NearDedup
from millstream.tokenize.curate import ReadUnit, library_version
from millstream.tokenize.work import Unit

Key = Literal["doc_key", "text_key"]
NEAR_VERSION = "minhash/1"
DOCUMENTS_A_RANGE = 2_000_000
"""Documents whose keys are compared at once."""


def dedup_units(corpus: Corpus, reads: Sequence[ReadUnit], work: Path, by: Key, gone: Sequence[Path]) -> list[Unit]:
    """Units of a pass of exact deduplication: one a range of key prefixes."""
    if not corpus.dedup.exact:
        return []
    documents = sum(pq.read_metadata(read.kept).num_rows for read in reads)
    ranges = min(256, 1 << max(0, (documents // DOCUMENTS_A_RANGE).bit_length()))
    key = digest(
        {
            "version": dedup.VERSION,
            "by": by,
            "reads": [[read.domain, read.key] for read in reads],
            "domains": [d.name for d in corpus.domains],
            "gone": [path.parent.name for path in gone],
            "ranges": ranges,
        }
    )
    tables = [(domain.name, read.kept) for domain in corpus.domains for read in reads if read.domain == domain.name]
    width = 256 // ranges
    return [
        Unit(
            label=f"{by} {n + 1} of {ranges}",
            folder=work / "dedup" / f"{key}-{n:03}",
            work=partial(_dedup, tables=tables, by=by, prefixes=(n * width, (n + 1) * width), gone=tuple(gone)),
        )
        for n in range(ranges)
    ]


def band_units(near: NearDedup, reads: Sequence[ReadUnit], work: Path) -> list[Unit]:
    """Units that compute MinHash bands: one a read unit, in their order."""
    settings = [near.n_grams, near.bands, near.rows, near.seed]
    libraries = {name: library_version(name) for name in ("datatrove", "numba", "spacy")}
    return [
        Unit(
            label=f"bands of {read.unit.label}",
            folder=work / "bands" / digest([NEAR_VERSION, settings, libraries, read.key]),
            work=partial(_bands, kept=read.kept, near=near),
        )
        for read in reads
    ]


def near_unit(
    corpus: Corpus, near: NearDedup, reads: Sequence[ReadUnit], bands: Sequence[Unit], gone: Sequence[Path], work: Path
) -> Unit:
    """The unit that finds near duplicates among all documents."""
    made_from = {
        "version": NEAR_VERSION,
        "near": near.model_dump(mode="json"),
        "bands": [[read.domain, unit.folder.name] for read, unit in zip(reads, bands, strict=True)],
        "domains": [d.name for d in corpus.domains],
        "gone": [path.parent.name for path in gone],
    }
    tables = [
        (domain.name, unit.folder / "bands.parquet", read.kept)
        for domain in corpus.domains
        for read, unit in zip(reads, bands, strict=True)
        if read.domain == domain.name
    ]
    return Unit(
        label="near duplicates",
        folder=work / "dedup" / digest(made_from),
        work=partial(_near, tables=tables, near=near, gone=tuple(gone)),
    )


def check_removed(near: NearDedup, reads: Sequence[ReadUnit], gone: Path) -> None:
    """Stop where near duplicates take more of a source than the recipe allows.

    Raises:
        InputError: names the source, the share and the limit; templated sources can vanish almost whole.
    """
    kept = pl.concat([pl.scan_parquet(read.kept).select("source") for read in reads])
    total = dict(kept.group_by("source").len().collect().rows())
    for source, removed in pl.read_parquet(gone).group_by("source").len().sort("source").rows():
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
    tables: Sequence[tuple[str, Path]],
    by: Key,
    prefixes: tuple[int, int],
    gone: Sequence[Path],
) -> None:
    dedup.duplicates(tables, by, prefixes, gone).write_parquet(folder / "dropped.parquet", compression="zstd")


def _bands(folder: Path, *, kept: Path, near: NearDedup) -> None:
    from millstream.mixture.minhash import band_table

    band_table(kept, near).write_parquet(folder / "bands.parquet", compression="zstd")


def _near(folder: Path, *, tables: Sequence[tuple[str, Path, Path]], near: NearDedup, gone: Sequence[Path]) -> None:
    from millstream.mixture.minhash import near_duplicates

    near_duplicates(tables, near, gone).write_parquet(folder / "dropped.parquet", compression="zstd")
