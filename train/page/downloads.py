"""Files beside the page, for who wants to compute with a run's record rather than look at it."""

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl

from millstream.audit.ledger import FILE
from millstream.canonical import canonical_bytes
from millstream.stream.plan_json import plan_to_json
from millstream.train.page.history import History, nats
from millstream.train.page.write import write_changed

ABOUT = {
    "run.json": "recipe, first plan, code and environment, frozen at the start",
    "ledger.jsonl": "the whole record, one line a record",
    "recipe.yaml": "the recipe, every default filled in",
    "plan.json": "the plan in force",
    "mixture.csv": "planned and realised sequences, a line a phase and domain",
    "steps.csv": "every step that was fed: attempt, loss, index range, whether the lineage keeps it",
}
STEPS_AT_ONCE = 1 << 16


def write_downloads(out: Path, history: History, mixture: pl.DataFrame, recipe: str) -> list[dict[str, Any]]:
    """Write what changed; returns name, size and purpose of each file."""
    folder = out / "downloads"
    folder.mkdir(parents=True, exist_ok=True)
    run = history.run
    write_changed(folder / "run.json", (run.path / "run.json").read_bytes())
    _append(run.path / FILE, folder / FILE, int(run.records.rows["end"][-1]))
    write_changed(folder / "recipe.yaml", recipe.encode())
    write_changed(folder / "plan.json", canonical_bytes(plan_to_json(run.plan)) + b"\n")
    write_changed(folder / "mixture.csv", mixture.write_csv().encode())
    _write_steps(folder / "steps.csv", history)
    return [{"name": name, "bytes": (folder / name).stat().st_size, "about": about} for name, about in ABOUT.items()]


def _append(source: Path, target: Path, end: int) -> None:
    """Make ``target`` the first ``end`` bytes of a file that only grows."""
    have = target.stat().st_size if target.exists() else 0
    if have > end or not _same_tail(source, target, have):
        target.unlink(missing_ok=True)
        have = 0
    with source.open("rb") as old, target.open("ab") as new:
        old.seek(have)
        left = end - have
        while left > 0 and (block := old.read(min(left, 1 << 20))):
            new.write(block)
            left -= len(block)


def _same_tail(source: Path, target: Path, end: int) -> bool:
    """Whether two files have the same bytes before ``end``, as far as the last few tell: each record is chained."""
    if not end:
        return True
    with source.open("rb") as one, target.open("rb") as other:
        for file in (one, other):
            file.seek(max(0, end - 4096))
        return one.read(min(end, 4096)) == other.read(4096)


def _write_steps(path: Path, history: History) -> None:
    marker = history.run.path / ".page" / "steps.json"
    mark = orjson.dumps([str(path.resolve()), len(history.steps), int(history.superseded.sum())])
    if path.exists() and marker.exists() and marker.read_bytes() == mark:
        return
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        for first in range(0, max(1, len(history.steps)), STEPS_AT_ONCE):
            rows = history.steps[first : first + STEPS_AT_ONCE]
            columns = {name: rows[name] for name in ("step", "attempt", "segment", "first_index", "sequences")}
            columns |= {"loss": nats(rows), "applied": rows["applied"].astype(np.bool_)}
            table = pl.DataFrame(columns | {"superseded": history.superseded[first : first + STEPS_AT_ONCE]})
            file.write(table.write_csv(include_header=first == 0, float_precision=6).encode())
    temporary.replace(path)
    write_changed(marker, mark)
