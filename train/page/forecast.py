"""The forecast that a run's ledger holds, and the runs of the ladder that it was made from, as the page draws them."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from millstream.audit.runs import Run
from millstream.train.ladder.folder import Ladder
from millstream.train.ladder.observe import BINNED, BINS
from millstream.train.ladder.registered import MICRO, Registered, registered
from millstream.train.metrics import SCHEMA, current, read_live
from millstream.train.page.series import slug_of
from millstream.train.page.write import rounded

RUNG_POINTS = 200


def forecast_of(run: Run, ladder: Ladder | None = None) -> dict[str, Any] | None:
    """What was registered, curve by curve, and its score where the ledger has it; None where nothing was.

    ``curves`` are of series by slug, those of domains with the domain's name. ``ladder`` has the losses of the rungs,
    each over the run's steps by how far it was on its own way.
    """
    found = registered(run)
    if found is None:
        return None
    body = found.record.body
    return {
        "seq": found.record.seq,
        "hash": found.record.hash,
        "by": body["by"],
        "level": body["level"],
        "held": body["held"],
        "rungs": [{"name": r["name"], "active": r["active"], "run": r["run"]} for r in body["rungs"]],
        "curves": _curves(run, found),
        "score": _score(run, found),
        "ladder": _ladder(run, ladder) if ladder is not None else [],
    }


def _curves(run: Run, found: Registered) -> list[dict[str, Any]]:
    total = run.plan.total_steps
    curves = []
    for curve in found.curves:
        name, domain = curve.series
        # A mean over a part of the way stands in its middle, an evaluation where it was made.
        half = total / BINS / 2 if name in BINNED else 0
        columns = {"loss": curve.value, "low": curve.low, "high": curve.high}
        curves.append(
            {"slug": slug_of(name, domains=domain is not None), "domain": domain, "steps": rounded(curve.steps - half)}
            | {key: rounded(values) for key, values in columns.items()}
        )
    return curves


def _score(run: Run, found: Registered) -> dict[str, Any] | None:
    """The newest score of this forecast, errors relative to what was measured."""
    for record in reversed(list(run.records.of("forecast"))):
        if record.body.get("scored") == found.record.hash:
            finals = [
                {
                    "name": final["name"],
                    "domain": final["domain"],
                    "forecast": final["forecast"] / MICRO,
                    "measured": final["measured"] / MICRO,
                    "error": round(final["forecast"] / final["measured"] - 1, 6),
                    "inside": final["inside"],
                }
                for final in record.body["finals"]
            ]
            return {
                "seq": record.seq,
                "points": record.body["points"],
                "inside": record.body["inside"],
                "finals": finals,
            }
    return None


def _ladder(run: Run, ladder: Ladder) -> list[dict[str, Any]]:
    lines = []
    for rung in ladder.rungs:
        own = ladder.run_of(rung)
        if own is not None and own.last_step:
            steps, losses = _losses(own.path, rung.steps)
            lines.append({"name": rung.name, "steps": rounded(steps * run.plan.total_steps), "loss": rounded(losses)})
    return lines


def _losses(run_dir: Path, steps: int) -> tuple[Any, Any]:
    """Mean loss over parts of a run's way: fractions of it and losses, (points,) each."""
    wanted = (pl.col("name") == "loss") & pl.col("domain").is_null()
    paths = sorted((run_dir / "metrics").glob("*-*-*.parquet"))
    closed = [pl.scan_parquet(paths, schema=SCHEMA).filter(wanted).collect()] if paths else []
    rows = current(pl.concat([*closed, read_live(run_dir / "metrics" / "live.jsonl").filter(wanted)]))
    wide = max(1, -(-steps // RUNG_POINTS))
    binned = rows.filter(pl.col("value").is_finite()).group_by((pl.col("step") - 1) // wide).agg(pl.col("value").mean())
    binned = binned.sort("step")
    return (binned["step"].to_numpy() + 0.5) * wide / steps, np.asarray(binned["value"].to_numpy(), np.float64)
