"""The build's end: shards, exclusions and the manifest, written into the corpus folder itself.

Each shard has a mark below ``.work`` that names what it was made from and the digests of its files. The
mark is removed before the files are touched and written after them, so a half-written shard is never
taken for a finished one.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl

from millstream.canonical import digest
from millstream.files import replacing, write_bytes
from millstream.mixture.documents import EXCLUSION_SCHEMA
from millstream.mixture.filters import exclusions as exclusion_rows
from millstream.mixture.recipe import Corpus
from millstream.tokenize import shards
from millstream.tokenize.curate import ReadUnit
from millstream.tokenize.encode import Encoded, order_range, read_range
from millstream.tokenize.manifest import DomainManifest, FileEntry, Shard, file_entry
from millstream.tokenize.shards import ShardName, holdout_name, shard_files, shard_name, write_shard
from millstream.tokenize.work import Unit


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """A shard to be written: its name, its part of the order, its first token, and what decides its bytes."""

    name: ShardName
    bounds: tuple[int, int]
    token_start: int
    held_out: bool
    key: str


def place_shards(encoded: Encoded, itemsize: int, corpus: Corpus) -> list[Placed]:
    """Shards of a domain: the smallest power of two of them with a mean of at most ``shard_bytes``."""
    frames = [
        pl.scan_parquet(u.folder / "documents.parquet").select("order", "n_tokens", "held_out") for u in encoded.units
    ]
    documents = pl.concat(frames).collect()
    training = documents.filter(~pl.col("held_out"))
    total = int(training["n_tokens"].sum())
    parts = 1
    while total * itemsize > parts * corpus.shard_bytes:
        parts *= 2
    made_from = {"version": shards.VERSION, "encoded": encoded.key, "parts": parts, "chunk_bytes": corpus.chunk_bytes}
    placed, start = [], 0
    for number in range(parts):
        low, high = order_range(number, parts)
        inside = pl.col("order").is_between(pl.lit(low, pl.UInt64), pl.lit(high, pl.UInt64))
        name = shard_name(encoded.domain, number)
        key = digest(made_from | {"shard": number})
        placed.append(Placed(name=name, bounds=(low, high), token_start=start, held_out=False, key=key))
        start += int(training.filter(inside)["n_tokens"].sum())
    if bool(documents["held_out"].any()):
        key = digest(made_from | {"shard": "holdout"})
        name = holdout_name(encoded.domain)
        placed.append(Placed(name=name, bounds=order_range(0, 1), token_start=0, held_out=True, key=key))
    return placed


def shard_units(root: Path, encoded: Encoded, placed: Sequence[Placed], chunk_bytes: int) -> list[Unit]:
    """Units that write the shards of a domain; a unit whose files are gone or of another size is to be redone."""
    units = []
    for place in placed:
        folder = root / ".work" / "shards" / f"{encoded.domain}.{place.name.stem}.{place.key[:32]}"
        if folder.exists() and not _intact(root, read_mark(folder)):
            _forget(folder)
        units.append(
            Unit(
                label=place.name.stem,
                folder=folder,
                work=partial(_write, root=root, encoded=encoded, place=place, chunk_bytes=chunk_bytes),
            )
        )
    return units


def read_mark(folder: Path) -> Shard:
    """The shard that a finished unit wrote."""
    raw = orjson.loads((folder / "shard.json").read_bytes())
    return Shard(**{**raw, **{name: FileEntry(**raw[name]) for name in ("tar", "documents", "chunks")}})


def domain_manifest(root: Path, name: str, units: Sequence[Unit], excluded: pl.DataFrame) -> DomainManifest:
    """Describe a domain from the files that were written; checks that every record is accounted for."""
    written = [read_mark(unit.folder) for unit in units]
    training = tuple(s for s in written if not Path(s.tar.path).name.startswith("holdout-"))
    held_out = [s for s in written if Path(s.tar.path).name.startswith("holdout-")]
    by_rule = excluded.group_by("stage", "rule").len().sort("stage", "rule")
    documents = sum(s.document_count for s in training)
    sizes = [
        pl.scan_parquet(root / s.documents.path).select(pl.col("n_bytes").sum()).collect().item() for s in training
    ]
    return DomainManifest(
        name=name,
        tokens=sum(s.tokens for s in training),
        documents=documents,
        bytes=sum(size or 0 for size in sizes),
        shards=training,
        holdout=held_out[0] if held_out else None,
        read=documents + sum(s.document_count for s in held_out) + len(excluded),
        exclusions={f"{stage}/{rule}": n for stage, rule, n in by_rule.rows()},
    )


def collect_exclusions(domain: str, reads: Sequence[ReadUnit], gone: Sequence[Path]) -> pl.DataFrame:
    """Everything that was dropped from a domain, sorted by ``doc_id``."""
    frames = [pl.read_parquet(read.excluded) for read in reads if read.domain == domain]
    for path in gone:
        duplicates = pl.read_parquet(path).filter(pl.col("domain") == domain)
        frames.append(exclusion_rows(duplicates, domain, "dedup"))
    return pl.concat([pl.DataFrame(schema=EXCLUSION_SCHEMA), *frames]).sort("doc_id", "stage")


def write_exclusions(root: Path, domain: str, excluded: pl.DataFrame) -> FileEntry:
    """Write a domain's exclusions."""
    path = root / "exclusions" / f"{domain}.parquet"
    with replacing(path) as temporary:
        excluded.write_parquet(temporary, compression="zstd", row_group_size=1 << 16)
    return file_entry(root, path)


def write_duplicates(root: Path, gone: Sequence[Path], removed: Sequence[Path]) -> list[FileEntry]:
    """Write which document stays for each duplicate that was dropped, and what was cut out of texts."""
    columns = ["doc_key", "doc_id", "domain", "kept_key", "kept_id", "kept_domain", "rule", "value"]
    tables = []
    if gone:
        dropped = pl.concat([pl.scan_parquet(path) for path in gone]).select(columns).sort("domain", "doc_id").collect()
        parts = pl.col("value").str.extract_groups(r"^(\d+)/(\d+)$")
        similarity = parts.struct[0].cast(pl.Float64) / parts.struct[1].cast(pl.Float64)
        tables.append(("documents", dropped.with_columns(similarity=similarity.fill_null(1.0))))
    if removed:
        cut = pl.concat([pl.scan_parquet(path) for path in removed]).sort("domain", "doc_id", "first_char").collect()
        tables.append(("sentences", cut))
    entries = []
    for name, table in tables:
        if table.is_empty():
            continue
        path = root / "duplicates" / f"{name}.parquet"
        with replacing(path) as temporary:
            table.write_parquet(temporary, compression="zstd", row_group_size=1 << 16)
        entries.append(file_entry(root, path))
    return entries


def _write(folder: Path, *, root: Path, encoded: Encoded, place: Placed, chunk_bytes: int) -> None:
    for other in (root / ".work" / "shards").glob(f"{encoded.domain}.{place.name.stem}.*"):
        _forget(other)
    documents, tokens = _gather(encoded, place)
    shard = write_shard(folder, place.name, documents, tokens, place.token_start, chunk_bytes)
    (root / encoded.domain).mkdir(parents=True, exist_ok=True)
    for entry in shard_files(shard):
        (folder / entry.path).replace(root / entry.path)
    (folder / encoded.domain).rmdir()
    write_bytes(folder / "shard.json", orjson.dumps(asdict(shard)))


def _gather(encoded: Encoded, place: Placed) -> tuple[pl.DataFrame, np.ndarray[Any, Any]]:
    """Documents and tokens of a shard, from the ranges that it touches."""
    tables, pieces = [], []
    parts = len(encoded.units)
    for number, unit in enumerate(encoded.units):
        low, high = order_range(number, parts)
        if high < place.bounds[0] or low > place.bounds[1]:
            continue
        documents, tokens = read_range(unit)
        first, last = (pl.lit(bound, pl.UInt64) for bound in place.bounds)
        wanted = documents.select(
            (pl.col("order").is_between(first, last) & (pl.col("held_out") == place.held_out)).alias("wanted")
        )["wanted"]
        tables.append(documents.filter(wanted))
        pieces.append(tokens[np.repeat(wanted.to_numpy(), documents["n_tokens"].to_numpy())])
    return pl.concat(tables), np.concatenate(pieces)


def _intact(root: Path, shard: Shard) -> bool:
    paths = [(root / entry.path, entry.bytes) for entry in shard_files(shard)]
    return all(path.is_file() and path.stat().st_size == size for path, size in paths)


def _forget(folder: Path) -> None:
    (folder / "shard.json").unlink(missing_ok=True)
    folder.rmdir()
