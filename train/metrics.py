"""The run's numbers: Parquet files in long form, with a live tail that survives a crash.

    metrics/SEGMENT-ATTEMPT-NNNN.parquet   closed every ``PART_STEPS`` steps
    metrics/live.jsonl                     the steps since; folded into a file by the next start

The key of a value is (segment, attempt, step, name, domain). W&B, plots and pages read these files.
"""

from dataclasses import dataclass
from pathlib import Path

import orjson
import polars as pl

from millstream.files import replacing

PART_STEPS = 50

SCHEMA = pl.Schema(
    {
        "segment": pl.Int32,
        "attempt": pl.Int32,
        "step": pl.Int64,
        "name": pl.String,
        "domain": pl.String,
        "value": pl.Float64,
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """One number of a step; ``domain`` where it belongs to one."""

    name: str
    value: float
    domain: str | None = None


class MetricsWriter:
    """Writes one attempt's numbers. Use from one process."""

    def __init__(self, run_dir: Path, attempt: int) -> None:
        self.folder = run_dir / "metrics"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.attempt = attempt
        self._live = self.folder / "live.jsonl"
        fold_live(self.folder)
        self._steps = 0

    def add(self, step: int, segment: int, values: list[Value]) -> None:
        """Append a step's numbers."""
        line = {
            "segment": segment,
            "attempt": self.attempt,
            "step": step,
            "values": [[v.name, v.domain, v.value] for v in values],
        }
        with self._live.open("ab") as file:
            file.write(orjson.dumps(line) + b"\n")
        self._steps += 1
        if self._steps % PART_STEPS == 0:
            fold_live(self.folder)

    def close(self) -> None:
        """Close the last file."""
        fold_live(self.folder)


def read_metrics(run_dir: Path, since: int = 1) -> pl.DataFrame:
    """All numbers of a run (``SCHEMA``), those of superseded steps too, sorted by attempt and step.

    Args:
        run_dir: the run's folder.
        since: only of this step and later ones; files that hold none of them are passed over by their statistics.
    """
    folder = run_dir / "metrics"
    later = pl.col("step") >= since
    paths = sorted(folder.glob("*-*-*.parquet"))
    parts = [pl.scan_parquet(paths, schema=SCHEMA).filter(later).collect()] if paths else []
    live = read_live(folder / "live.jsonl").filter(later)
    return pl.concat([pl.DataFrame(schema=SCHEMA), *parts, live]).sort("attempt", "step", maintain_order=True)


def current(metrics: pl.DataFrame) -> pl.DataFrame:
    """Only the numbers of steps that no later attempt went back to or before."""
    began = metrics.group_by("attempt").agg(pl.col("step").min().alias("first")).sort("attempt")
    later = began.select("attempt", pl.col("first").shift(-1).reverse().cum_min().reverse().alias("later"))
    joined = metrics.join(later, on="attempt", how="left")
    return joined.filter(pl.col("later").is_null() | (pl.col("step") < pl.col("later"))).drop("later").sort("step")


def fold_live(folder: Path) -> None:
    """Turn the live tail into a Parquet file of its own."""
    live = folder / "live.jsonl"
    rows = read_live(live)
    for (segment, attempt), part in rows.group_by("segment", "attempt", maintain_order=True):
        number = len(list(folder.glob(f"{segment}-{attempt}-*.parquet")))
        with replacing(folder / f"{segment}-{attempt}-{number:04}.parquet") as temporary:
            part.write_parquet(temporary)
    live.unlink(missing_ok=True)


def read_live(path: Path) -> pl.DataFrame:
    """The live tail as a table (``SCHEMA``), without a last line that a crash cut short."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        lines = []
    rows = []
    for line in lines:
        # A crash may have cut the last line short.
        if line.endswith(b"\n"):
            entry = orjson.loads(line)
            key = (entry["segment"], entry["attempt"], entry["step"])
            # JSON has no NaN: orjson wrote it as null.
            rows += [(*key, name, domain, float("nan") if v is None else v) for name, domain, v in entry["values"]]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")
