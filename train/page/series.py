"""The run's numbers as the page draws them: averages over bins of 1, 4, 16, ... steps, in tiles.

    metrics/*.parquet + live.jsonl -> chunks of 4,096 steps -> tiles of every level -> data/series/NAME/LEVEL-TILE.js

A bin of level ``l`` is ``4^l`` steps wide. Numbers of the whole run are kept from level 0 on, with the least and the
most in each bin; numbers of domains are kept from the level on at which a run has at most ``MOST_BINS`` bins. A chunk
is aggregated anew only where its files or its place in the lineage changed, so a page that follows a run
reads the newest files alone, and at most one chunk is in memory.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import polars as pl
import pyarrow.parquet as pq
from numpy.typing import NDArray

from millstream.canonical import digest
from millstream.errors import InputError
from millstream.train.metrics import SCHEMA, read_live
from millstream.train.page.write import publish, rounded, write_changed

VERSION = 2
CHUNK = 4096
FACTOR = 4
LEVELS = 7
"""From 0 to 6, where a chunk is one bin."""
TILE = 4096
"""Bins of a tile of one series."""
DOMAIN_TILE = 256
"""Bins of a tile of all domains."""
MOST_BINS = 8192
OVERVIEW = 1024
"""Levels end where the whole run has at most so many bins."""
SPARSE = 4
"""A tile in which less than one bin of so many holds a number lists their places."""
COUNTED = {"sequences"}
"""Numbers that are nought at a step that does not name them."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Name:
    """A published series: a number of the run, or of each domain. Levels ``base`` to ``top`` are published."""

    slug: str
    name: str
    domains: bool
    base: int
    top: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Extent:
    """What decides how series are cut: the run's length in steps, and its domains."""

    steps: int
    domains: tuple[str, ...]

    @property
    def base(self) -> int:
        """First level of the numbers of domains."""
        return next(n for n in range(LEVELS) if self.steps <= MOST_BINS * FACTOR**n or n == LEVELS - 1)

    @property
    def top(self) -> int:
        """Last level of all numbers."""
        return next(n for n in range(LEVELS) if self.steps <= OVERVIEW * FACTOR**n or n == LEVELS - 1)


class Source(NamedTuple):
    """A closed file of numbers."""

    size: int
    attempt: int
    first: int
    last: int


Sources = dict[str, Source]
"""By file name."""


class Series:
    """Publishes a run's numbers, and later what changed of them. Use from one thread."""

    def __init__(self, run_dir: Path, out: Path) -> None:
        self.folder = run_dir / "metrics"
        self.cache = run_dir / ".page" / "series"
        self.out = out
        self._files: Sources = {}
        index = self.cache / "index.json"
        self._index: dict[str, Any] = orjson.loads(index.read_bytes()) if index.is_file() else {}

    def update(self, extent: Extent, stretches: Sequence[tuple[int, int, int]]) -> list[Name]:
        """Bring all tiles up to date with the lineage's stretches (attempt, first step, last step)."""
        last = max((step for _, _, step in stretches), default=0)
        frame = digest({"v": VERSION, "base": extent.base, "top": extent.top, "out": str(self.out.resolve())})
        if self._index.get("frame") != frame:
            self._index = {"frame": frame, "chunks": {}}
        # The tail before the files: what is folded meanwhile is then seen twice, not missed.
        live = read_live(self.folder / "live.jsonl")
        files = self._sources()
        live = live.filter(pl.col("step") > _folded(files, live))
        known: dict[str, Any] = self._index["chunks"]
        chunks = -(-last // CHUNK)
        for gone in [n for n in known if int(n) >= chunks]:
            (self.cache / f"{gone}.npz").unlink(missing_ok=True)
            del known[gone]
        changed = []
        for number in range(chunks):
            mark = self._mark(number, files, live, stretches, len(extent.domains))
            entry = known.get(str(number), {"revision": 0})
            if entry.get("mark") != mark:
                held = self._aggregate(number, files, live, stretches, extent)
                known[str(number)] = {"mark": mark, "revision": entry["revision"] + 1, "names": held}
                changed.append(number)
        names = self._names(extent)
        for name in names:
            for level, tile in sorted(_tiles_of(name, changed)):
                self._publish_tile(name, level, tile, chunks, len(extent.domains))
        if changed:
            write_changed(self.cache / "index.json", orjson.dumps(self._index))
        return names

    @property
    def revisions(self) -> list[int]:
        """How often each chunk was aggregated: a tile's version is the sum over its chunks."""
        chunks: dict[str, Any] = self._index.get("chunks", {})
        return [chunks[str(n)]["revision"] for n in range(len(chunks))]

    def recent(self, slug: str, steps: int) -> Floats:
        """Newest values of a number of the run, at most ``steps`` and a chunk's: (n,), without gaps."""
        chunks = len(self._index.get("chunks", {}))
        values = [self._load(n, f"{slug}|0") for n in range(max(0, chunks - 1 - steps // CHUNK), chunks)]
        found = [v[0] for v in values if v is not None]
        joined = np.concatenate(found) if found else np.empty(0)
        return joined[np.isfinite(joined)][-steps:]

    def newest_by_domain(self, slug: str, bins: int, level: int, domains: int) -> Floats:
        """Mean of each domain's newest ``bins`` bins of a level that hold a number: (domains,), NaN where none does."""
        out = np.full(domains, np.nan)
        left = np.full(domains, bins)
        total, count = np.zeros(domains), np.zeros(domains)
        for number in reversed(range(len(self._index.get("chunks", {})))):
            held = self._load(number, f"{slug}|{level}")
            if held is not None:
                mean, weight = (_wide(part, domains) for part in held)
                there = (weight > 0).astype(np.int64)
                newest = np.cumsum(there[:, ::-1], 1)[:, ::-1]
                used = weight * there * (newest <= left[:, None])
                total += np.nansum(mean * used, 1)
                count += used.sum(1)
                left = np.maximum(0, left - there.sum(1))
            if not left.any():
                break
        np.divide(total, count, out=out, where=count > 0)
        return out

    def _sources(self) -> Sources:
        """The closed files; footers are read once."""
        there = {p.name: p.stat().st_size for p in self.folder.glob("*-*-*.parquet")} if self.folder.is_dir() else {}
        self._files = {n: v for n, v in self._files.items() if there.get(n) == v.size}
        for name in there.keys() - self._files.keys():
            first, last = _steps_of(self.folder / name)
            self._files[name] = Source(there[name], int(name.split("-")[1]), first, last)
        return self._files

    def _mark(
        self,
        chunk: int,
        files: Sources,
        live: pl.DataFrame,
        stretches: Sequence[tuple[int, int, int]],
        domains: int,
    ) -> str:
        first, last = chunk * CHUNK + 1, (chunk + 1) * CHUNK
        own = sorted((n, v.size) for n, v in files.items() if v.first <= last and v.last >= first)
        tail = live["step"].max() if len(live) else None
        beyond = tail if isinstance(tail, int) and first <= tail <= last else 0
        lineage = [(a, max(s, first), min(e, last)) for a, s, e in stretches if s <= last and e >= first]
        return digest([own, beyond, lineage, domains])

    def _aggregate(
        self,
        chunk: int,
        files: Sources,
        live: pl.DataFrame,
        stretches: Sequence[tuple[int, int, int]],
        extent: Extent,
    ) -> list[list[Any]]:
        """Aggregate a chunk into its file of the cache; returns what it holds, as (name, of domains)."""
        first, last = chunk * CHUNK + 1, (chunk + 1) * CHUNK
        paths = [self.folder / n for n, v in sorted(files.items()) if v.first <= last and v.last >= first]
        parts = [pl.scan_parquet(paths, schema=SCHEMA)] if paths else []
        lineage = pl.any_horizontal(
            [pl.lit(False)]
            + [
                (pl.col("attempt") == a) & pl.col("step").is_between(max(s, first), min(e, last))
                for a, s, e in stretches
                if s <= last and e >= first
            ]
        )
        rows = pl.concat([*parts, live.lazy()]).filter(lineage)
        arrays: dict[str, Floats] = {}
        names: list[list[Any]] = []
        whole = rows.filter(pl.col("domain").is_null()).select("name", pl.col("step") - first, "value").collect()
        trained = np.zeros(CHUNK)
        for (name,), part in sorted(whole.partition_by("name", as_dict=True).items()):
            values = np.full(CHUNK, np.nan)
            values[part["step"].to_numpy()] = part["value"].to_numpy()
            if name == "loss":
                # A step whose loss was no number was fed all the same.
                trained[part["step"].to_numpy()] = 1
            values[~np.isfinite(values)] = np.nan
            held = np.stack([values, values, values, np.isfinite(values).astype(np.float64)])
            arrays |= {f"{slug_of(str(name))}|{level}": part for level, part in _levels(held, 0, _coarser)}
            names.append([name, False])
        wide = FACTOR**extent.base
        binned = (
            rows.filter(pl.col("domain").is_not_null(), pl.col("value").is_finite())
            .group_by("name", "domain", (pl.col("step") - first) // wide)
            .agg(pl.col("value").sum().alias("sum"), pl.len().alias("count"))
            .collect(engine="streaming")
        )
        number = {name: n for n, name in enumerate(extent.domains)}
        for (name,), part in sorted(binned.partition_by("name", as_dict=True).items()):
            own = part.filter(pl.col("domain").is_in(extent.domains))
            at = (own["domain"].replace_strict(number, return_dtype=pl.Int64).to_numpy(), own["step"].to_numpy())
            held = np.zeros((2, len(number), CHUNK // wide))
            held[0][at], held[1][at] = own["sum"].to_numpy(), own["count"].to_numpy()
            if name in COUNTED:
                held[1] = trained.reshape(-1, wide).sum(1)
            with np.errstate(invalid="ignore", divide="ignore"):
                held[0] = np.where(held[1] > 0, held[0] / held[1], np.nan)
            slug = slug_of(str(name), domains=True)
            arrays |= {f"{slug}|{level}": part for level, part in _levels(held, extent.base, _coarser_by_domain)}
            names.append([name, True])
        self.cache.mkdir(parents=True, exist_ok=True)
        temporary = self.cache / f".{chunk}.npz"
        narrow: dict[str, Any] = {name: array.astype(np.float32) for name, array in arrays.items()}
        np.savez(temporary, **narrow)
        temporary.replace(self.cache / f"{chunk}.npz")
        return names

    def _names(self, extent: Extent) -> list[Name]:
        held = {(str(n), bool(d)) for entry in self._index["chunks"].values() for n, d in entry["names"]}
        return [
            Name(
                slug=slug_of(name, domains=domains),
                name=name,
                domains=domains,
                base=extent.base if domains else 0,
                top=max(extent.top, extent.base),
            )
            for name, domains in sorted(held)
        ]

    def _publish_tile(self, name: Name, level: int, tile: int, chunks: int, domains: int) -> None:
        bins = CHUNK // FACTOR**level
        size = DOMAIN_TILE if name.domains else TILE
        parts = []
        for number in range(tile * size // bins, min(chunks, -(-(tile + 1) * size // bins))):
            held = self._load(number, f"{name.slug}|{level}")
            shape = (2, domains, bins) if name.domains else (4, bins)
            if held is None:
                held = np.full(shape, np.nan)
                held[-1] = 0
            elif name.domains:
                held = np.stack([_wide(part, domains) for part in held])
            parts.append(held)
        if not parts:
            return
        offset = tile * size % bins if size < bins else 0
        joined = np.concatenate(parts, axis=-1)[..., offset : offset + size]
        joined[0] = np.where(joined[-1] > 0, joined[0], np.nan)
        there = (joined[-1] > 0).any(0) if name.domains else joined[-1] > 0
        if not there.any():
            return
        used = int(np.flatnonzero(there)[-1]) + 1
        value = _domain_tile(joined[0, :, :used]) if name.domains else _tile(joined[:, :used], level)
        publish(self.out, f"series/{name.slug}/{level}-{tile}", value)

    def _load(self, chunk: int, key: str) -> Floats | None:
        path = self.cache / f"{chunk}.npz"
        with np.load(path, allow_pickle=False) as held:
            return held[key].astype(np.float64) if key in held else None


def slug_of(name: str, *, domains: bool = False) -> str:
    """A series' name as part of a path."""
    return re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-")[:80] + ("-by-domain" if domains else "")


def _steps_of(path: Path) -> tuple[int, int]:
    """First and last step of a file of numbers, from its footer where that has them."""
    try:
        meta = pq.read_metadata(path)
        column = meta.schema.to_arrow_schema().get_field_index("step")
        stats = [meta.row_group(n).column(column).statistics for n in range(meta.num_row_groups)]
        if stats and all(s is not None and s.has_min_max for s in stats):
            return min(s.min for s in stats), max(s.max for s in stats)
        steps = pl.read_parquet(path, columns=["step"])["step"]
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{path}: damaged: {str(error).splitlines()[0]}") from error
    return (int(steps[0]), int(steps[-1])) if len(steps) else (1, 0)


def _folded(files: Sources, live: pl.DataFrame) -> int:
    """Last step of the tail's attempt that lies in a closed file already."""
    attempts = set(live["attempt"].unique())
    return max((file.last for file in files.values() if file.attempt in attempts), default=0)


def _levels(held: Floats, base: int, coarser: Callable[[Floats], Floats]) -> Iterator[tuple[int, Floats]]:
    """A chunk's bins at level ``base``, and at every level above."""
    for level in range(base, LEVELS):
        yield level, held
        held = coarser(held) if level < LEVELS - 1 else held


def _coarser(held: Floats) -> Floats:
    """Mean, least, most and count of each four bins: (4, n) -> (4, n / 4)."""
    mean, low, high, count = held.reshape(4, -1, FACTOR)
    total = count.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        averaged = np.where(total > 0, np.nansum(mean * count, 1) / total, np.nan)
    return np.stack([averaged, np.fmin.reduce(low, 1), np.fmax.reduce(high, 1), total])


def _coarser_by_domain(held: Floats) -> Floats:
    """Mean and count of each four bins: (2, domains, n) -> (2, domains, n / 4)."""
    mean, count = held.reshape(2, held.shape[1], -1, FACTOR)
    total = count.sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.stack([np.where(total > 0, np.nansum(mean * count, -1) / total, np.nan), total])


def _wide(values: Floats, domains: int) -> Floats:
    """Rows for domains that came in after a chunk was aggregated."""
    missing = domains - len(values)
    return np.concatenate([values, np.zeros((missing, values.shape[1]))]) if missing > 0 else values[:domains]


def _tiles_of(name: Name, chunks: Sequence[int]) -> set[tuple[int, int]]:
    """(level, tile) of every tile that holds steps of some chunks."""
    size = DOMAIN_TILE if name.domains else TILE
    return {(level, tile) for level in range(name.base, name.top + 1) for tile in _touched(chunks, level, size)}


def _touched(chunks: Sequence[int], level: int, size: int) -> Iterator[int]:
    bins = CHUNK // FACTOR**level
    for chunk in chunks:
        yield from range(chunk * bins // size, ((chunk + 1) * bins - 1) // size + 1)


def _tile(held: Floats, level: int) -> dict[str, Any]:
    """A tile as JSON: ``mean``, and above level 0 ``min`` and ``max``; ``at`` lists the bins where most are empty."""
    there = np.flatnonzero(held[-1] > 0)
    sparse = len(there) * SPARSE < held.shape[1]
    columns = ("mean", "min", "max") if level else ("mean",)
    picked = held[:, there] if sparse else held
    value = {name: rounded(picked[n]) for n, name in enumerate(columns)}
    return {"at": there, **value} if sparse else value


def _domain_tile(mean: Floats) -> dict[str, Any]:
    return {"mean": list(rounded(mean))}
