"""The page's numbers against the same averages worked out plainly: at every level, over rollbacks, piece by piece."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from millstream.train.metrics import PART_STEPS, SCHEMA, MetricsWriter, Value
from millstream.train.page.series import DOMAIN_TILE, TILE, Extent, Series, slug_of

STEPS = 9_000
DOMAINS = ("law", "news", "verse")
Stretches = list[tuple[int, int, int]]


def write(run: Path, attempt: int, first: int, last: int, *, seed: int = 1) -> None:
    """An attempt's numbers in closed files: loss at every step, a held-out one now and then, two numbers of domains."""
    rng = np.random.default_rng(seed + attempt)
    folder = run / "metrics"
    folder.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(first, last + 1, PART_STEPS)):
        rows: list[tuple[Any, ...]] = []
        for step in range(start, min(start + PART_STEPS, last + 1)):
            key = (0, attempt, step)
            rows.append((*key, "loss", None, float(rng.normal(3, 1)) if step % 501 else float("nan")))
            if step % 700 == 0:
                rows.append((*key, "loss_held_out", None, float(rng.normal(3, 1))))
            for name in DOMAINS:
                if rng.random() < 0.6:
                    rows.append((*key, "loss", name, float(rng.normal(2, 1))))
                    rows.append((*key, "sequences", name, float(rng.integers(1, 9))))
        frame = pl.DataFrame(rows, schema=SCHEMA, orient="row")
        frame.write_parquet(folder / f"0-{attempt}-{number:04}.parquet")


def tile(out: Path, slug: str, level: int, number: int) -> dict[str, Any] | None:
    path = out / "data" / "series" / slug / f"{level}-{number}.js"
    if not path.exists():
        return None
    text = path.read_text()
    value: dict[str, Any] = json.loads(text[text.index("'") + 1 : text.rindex("'")])
    return value


def shown(out: Path, series: Any, level: int, what: str = "mean") -> Any:
    """All bins of a level, NaN where there is no number: (bins,) or (domains, bins)."""
    size = DOMAIN_TILE if series.domains else TILE
    bins = -(-STEPS // 4**level)
    lines = np.full((len(DOMAINS) if series.domains else 1, bins), np.nan)
    for number in range(-(-bins // size)):
        found = tile(out, series.slug, level, number)
        if found is None:
            continue
        # At level 0 a bin is one step, which is its own least and most.
        rows = found.get(what, found["mean"])
        for line, values in enumerate(rows if series.domains else [rows]):
            at = np.array(found.get("at", range(len(values)))) + number * size
            lines[line, at] = np.array(values, np.float64)
    return lines if series.domains else lines[0]


def plainly(run: Path, stretches: Stretches, name: str, domain: str | None) -> Any:
    """A number by step, of the lineage: (steps,)."""
    rows = pl.read_parquet(sorted((run / "metrics").glob("*-*-*.parquet")))
    rows = rows.filter((pl.col("name") == name) & pl.col("domain").eq_missing(pl.lit(domain, pl.String)))
    values = np.full(STEPS, np.nan)
    for attempt, first, last in stretches:
        own = rows.filter((pl.col("attempt") == attempt) & pl.col("step").is_between(first, last))
        values[own["step"].to_numpy() - 1] = own["value"].to_numpy()
    return values


def binned(values: Any, level: int, what: str = "mean") -> Any:
    wide = 4**level
    padded = np.concatenate([values, np.full(-len(values) % wide, np.nan)]).reshape(-1, wide)
    there = np.isfinite(padded).any(1)
    out = np.full(len(padded), np.nan)
    out[there] = {"mean": np.nanmean, "min": np.nanmin, "max": np.nanmax}[what](padded[there], axis=1)
    return out


def check(run: Path, out: Path, names: Any, stretches: Stretches) -> None:
    by_slug = {series.slug: series for series in names}
    assert set(by_slug) == {"loss", "loss_held_out", "loss-by-domain", "sequences-by-domain"}
    trained = np.arange(STEPS) < max(last for _, _, last in stretches)
    for series in names:
        assert (series.base, series.top) == ((1, 2) if series.domains else (0, 2))
        for level in range(series.base, series.top + 1):
            if not series.domains:
                values = plainly(run, stretches, series.name, None)
                for what in ("mean", "min", "max"):
                    found = shown(out, series, level, what)
                    np.testing.assert_allclose(found, binned(values, level, what), rtol=1e-4, atol=1e-9)
                continue
            for line, domain in enumerate(DOMAINS):
                values = plainly(run, stretches, series.name, domain)
                if series.name == "sequences":
                    # A domain that a step was not made of gave it nothing.
                    values = np.where(trained & np.isnan(values), 0, np.where(trained, values, np.nan))
                found = shown(out, series, level)[line]
                np.testing.assert_allclose(found, binned(values, level), rtol=1e-4, atol=1e-9)


def test_every_level_is_the_average_of_the_lineage(tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "page"
    extent = Extent(steps=STEPS, domains=DOMAINS)
    write(run, 1, 1, 5_000)
    series = Series(run, out)
    check(run, out, series.update(extent, [(1, 1, 5_000)]), [(1, 1, 5_000)])
    before = series.revisions
    # Back to step 4,600, on to 6,000: what attempt 1 had after 4,600 is no more.
    write(run, 2, 4_601, 6_000)
    lineage = [(1, 1, 4_600), (2, 4_601, 6_000)]
    check(run, out, series.update(extent, lineage), lineage)
    assert series.revisions[0] == before[0]
    assert series.revisions[1] == before[1] + 1
    again = Series(run, out)
    written = {p: p.stat().st_mtime_ns for p in (out / "data").rglob("*.js")}
    names = again.update(extent, lineage)
    assert {p: p.stat().st_mtime_ns for p in (out / "data").rglob("*.js")} == written
    assert again.revisions == series.revisions
    other = Series(run, tmp_path / "elsewhere")
    other.update(extent, lineage)
    for path in written:
        assert (tmp_path / "elsewhere" / path.relative_to(out)).read_bytes() == path.read_bytes()
    recent = again.recent("loss", 30)
    np.testing.assert_allclose(recent, plainly(run, lineage, "loss", None)[5_970:6_000], rtol=1e-6)
    assert slug_of("grad_norm/layer 3") == "grad_norm-layer-3"
    assert len(names) == 4


def test_the_live_tail_is_shown_and_seen_once(tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "page"
    extent = Extent(steps=400, domains=DOMAINS)
    writer = MetricsWriter(run, 1)
    for step in range(1, 121):
        writer.add(step, 0, [Value(name="loss", value=float(step))])
    assert (run / "metrics" / "live.jsonl").exists()
    series = Series(run, out)
    series.update(extent, [(1, 1, 120)])
    found = tile(out, "loss", 0, 0)
    assert found is not None
    assert found["mean"] == list(range(1, 121))
    writer.close()
    series.update(extent, [(1, 1, 120)])
    assert tile(out, "loss", 0, 0) == found
    assert series.recent("loss", 3).tolist() == pytest.approx([118, 119, 120])
