"""A forecast on the record: written into a run's ledger before its first step, scored against what came.

A ``forecast`` record holds every curve in millionths of a nat, the ladder's digest, of every rung the id of its run and
the hash of its last record, and the digest of the code. A second record of that kind, with ``scored``, is the score.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from millstream.audit.heads import head_signer
from millstream.audit.ledger import Record, open_ledger
from millstream.audit.runs import Run, code_digest, open_run
from millstream.errors import UsageError
from millstream.train.forecast.next_size import LEVEL
from millstream.train.ladder.folder import FROZEN, Ladder
from millstream.train.ladder.forecasts import LadderForecast, SeriesForecast
from millstream.train.ladder.observe import measured
from millstream.train.metrics import current, read_metrics

FORMAT = "millstream-forecast/1"
METHOD = "ladder-law/1"
MICRO = 1_000_000

SCORES = {
    "name": pl.String,
    "domain": pl.String,
    "step": pl.Int64,
    "forecast": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "measured": pl.Float64,
    "error": pl.Float64,
    "inside": pl.Boolean,
    "pinball": pl.Float64,
}


@dataclass(frozen=True, kw_only=True)
class Registered:
    """A forecast as a ledger holds it; ``record`` is its record."""

    record: Record
    curves: tuple[SeriesForecast, ...]


@dataclass(frozen=True, kw_only=True)
class Score:
    """A forecast against what a run has measured so far.

    ``points`` (``SCORES``): every point measured; ``error`` is (forecast - measured) / measured, ``pinball`` the mean
    pinball loss of the band's ends and the forecast as quantiles 0.1, 0.5 and 0.9, in nats (Koenker and Bassett 1978).
    ``complete`` once the run is finished.
    """

    points: pl.DataFrame
    complete: bool

    @property
    def finals(self) -> pl.DataFrame:
        """The last point of each series."""
        return self.points.group_by("name", "domain", maintain_order=True).last()

    def summary(self) -> dict[str, Any]:
        """Points, how many lie inside the band, and of each metric over all domains the last error."""
        over_all = self.finals.filter(pl.col("domain").is_null())
        return {
            "points": len(self.points),
            "inside": int(self.points["inside"].sum()),
            "finals": len(self.finals),
            "finals_inside": int(self.finals["inside"].sum()),
            "error": dict(over_all.select("name", "error").iter_rows()),
        }


def register(run: Run, ladder: Ladder, forecast: LadderForecast, by: str) -> Record:
    """Write a forecast into a run's ledger, and sign a head over it.

    Raises:
        UsageError: a step was fed already, the run holds a forecast already, or was made by another recipe than the
            ladder's hero; or another process is writing to the run.
    """
    for section in FROZEN:
        if run.info["sections"].get(section) != ladder.hero.sections[section]:
            raise UsageError(f"{run.path}: has another '{section}' section than the hero of {ladder.path}")
    with open_ledger(run.path) as ledger:
        # Read again under the lock: it may have begun in between.
        run = open_run(run.path)
        if len(run.fed):
            raise UsageError(
                f"{run.path}: step {max(run.fed)} was fed already; a forecast is registered before the first step"
            )
        if registered(run) is not None:
            raise UsageError(f"{run.path}: holds a forecast already; it cannot be taken back or replaced")
        record = ledger.append("forecast", _body(ladder, forecast, by))
        head_signer(run, ledger)()
    return record


def registered(run: Run) -> Registered | None:
    """The forecast that a run's ledger holds, None where it holds none."""
    for record in run.records.of("forecast"):
        if record.body.get("format") == FORMAT:
            return Registered(record=record, curves=tuple(_curve(c) for c in record.body["series"]))
    return None


def score(run: Run, forecast: Registered, metrics: pl.DataFrame | None = None) -> Score:
    """Compare a forecast with what a run measured.

    Args:
        run: the run.
        forecast: its forecast.
        metrics: the run's numbers, as from ``current``; read from the run by default.
    """
    table = current(read_metrics(run.path)) if metrics is None else metrics
    total = run.plan.total_steps
    rows = []
    for curve in forecast.curves:
        found = measured(table, curve.series, curve.steps / total, total)
        for step, value, low, high, seen in zip(
            curve.steps.tolist(),
            curve.value.tolist(),
            curve.low.tolist(),
            curve.high.tolist(),
            found.tolist(),
            strict=True,
        ):
            if np.isfinite(seen):
                quantiles = {(1 - LEVEL) / 2: low, 0.5: value, (1 + LEVEL) / 2: high}
                name, domain = curve.series
                inside = low <= seen <= high
                numbers = (value, low, high, seen, value / seen - 1, inside, _pinball(quantiles, seen))
                rows.append((name, domain, int(step), *numbers))
    return Score(points=pl.DataFrame(rows, schema=SCORES, orient="row"), complete=run.finished)


def record_score(run: Run, forecast: Registered) -> Record | None:
    """Write a finished run's score into its ledger; None where it stands there already.

    Raises:
        UsageError: the run is not finished, or another process is writing to it.
    """
    if not run.finished:
        raise UsageError(
            f"{run.path}: is at step {run.last_step} of {run.plan.total_steps}; scored once it is finished"
        )
    if any("scored" in record.body for record in run.records.of("forecast")):
        return None
    result = score(run, forecast)
    body = {
        "scored": forecast.record.hash,
        "points": len(result.points),
        "inside": int(result.points["inside"].sum()),
        "finals": [
            {
                "name": row["name"],
                "domain": row["domain"],
                "forecast": round(row["forecast"] * MICRO),
                "measured": round(row["measured"] * MICRO),
                "inside": row["inside"],
                "pinball": round(row["pinball"] * MICRO),
            }
            for row in result.finals.iter_rows(named=True)
        ],
    }
    with open_ledger(run.path) as ledger:
        return ledger.append("forecast", body)


def _pinball(quantiles: Mapping[float, float], seen: float) -> float:
    return sum(max(q * (seen - at), (q - 1) * (seen - at)) for q, at in quantiles.items()) / len(quantiles)


def _body(ladder: Ladder, forecast: LadderForecast, by: str) -> dict[str, Any]:
    rungs = []
    for rung in ladder.rungs:
        run = ladder.run_of(rung)
        if run is not None and run.finished:
            rungs.append({"name": rung.name, "active": rung.active, "run": run.run_id, "head": run.records[-1].hash})
    return {
        "format": FORMAT,
        "method": METHOD,
        "ladder": ladder.digest,
        "rungs": rungs,
        "code": code_digest(),
        "level": str(LEVEL),
        "asymptote": "free" if forecast.asymptote is None else str(forecast.asymptote),
        "held": [forecast.held, forecast.tried],
        "series": [_curve_body(curve) for curve in forecast.curves],
        "by": by,
    }


def _curve_body(curve: SeriesForecast) -> dict[str, Any]:
    name, domain = curve.series
    columns = (np.rint(part * MICRO).astype(int).tolist() for part in (curve.value, curve.low, curve.high))
    points = [list(point) for point in zip(curve.steps.astype(int).tolist(), *columns, strict=True)]
    return {"name": name, "domain": domain, "points": points}


def _curve(body: Mapping[str, Any]) -> SeriesForecast:
    columns = np.array(body["points"], np.float64).reshape(len(body["points"]), 4).T
    value, low, high = columns[1:] / MICRO
    return SeriesForecast(series=(body["name"], body["domain"]), steps=columns[0], value=value, low=low, high=high)
