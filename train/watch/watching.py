"""Watching a run: every detector over what its folder holds, and the alerts that this makes.

    ledger, metrics/ -> readings -> detectors -> alarms -> alerts (ledger, command, webhook, exit code)

Nothing of the run's processes is asked, so it is the same while a run trains, after it, and on a copy of its folder.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from millstream.audit.runs import Run
from millstream.stream.corpora import Corpus
from millstream.train.ladder.folder import Ladder
from millstream.train.metrics import current, read_metrics
from millstream.train.watch.alarms import Alarm, Settings
from millstream.train.watch.detectors import STATISTICAL
from millstream.train.watch.exact import plan_check, rate_check, repeats, replay_check, skipped_updates
from millstream.train.watch.ladder_checks import envelopes_of, off_forecast, outside_envelope
from millstream.train.watch.readings import readings

HISTORY = 1024
"""Steps before the first new one that the detectors are shown: more than any of them looks back."""


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What a run is watched with: ``corpora`` and a number of steps to ``replay`` from them, and its ``ladder``."""

    settings: Settings = field(default_factory=Settings)
    corpora: Mapping[str, Corpus] | None = None
    replay: int = 0
    ladder: Ladder | None = None


def alarms_of(run: Run, watch: Watch, since: int = 1) -> list[Alarm]:
    """Everything that the detectors find in a run from step ``since`` on, by step.

    Args:
        run: the run.
        watch: what to watch with.
        since: first step that is judged; those before are looked at as history.
    """
    settings = watch.settings
    first = max(1, since - HISTORY)
    metrics = current(read_metrics(run.path, first))
    found = readings(metrics, run.plan.total_steps)
    alarms = [alarm for detect in STATISTICAL for alarm in detect(found, settings)]
    for check in (plan_check, rate_check, skipped_updates, repeats):
        alarms += check(run, found)
    alarms += off_forecast(run, metrics if first == 1 else current(read_metrics(run.path)), settings)
    if watch.ladder is not None:
        alarms += outside_envelope(found, envelopes_of(watch.ladder), settings)
    if watch.replay and watch.corpora is not None:
        alarms += replay_check(run, watch.corpora, found, watch.replay)
    return sorted((a for a in alarms if a.step >= since), key=lambda alarm: (alarm.step, alarm.detector))


def idle(run: Run, settings: Settings, now: float | None = None) -> list[Alarm]:
    """An alarm where a run that is being trained has made no step for long.

    Args:
        run: the run; its processes hold its ledger.
        settings: thresholds.
        now: seconds since 1970; the clock's by default.
    """
    live = [path for path in (run.path / "metrics").glob("*") if path.is_file()]
    if not live or not run.last_step:
        return []
    found = readings(current(read_metrics(run.path, max(1, run.last_step - settings.spread))), run.plan.total_steps)
    usual = float(np.nanmedian(found.column("step_s"))) if np.isfinite(found.column("step_s")).any() else 0.0
    waited = (time.time() if now is None else now) - max(path.stat().st_mtime for path in live)
    limit = max(settings.idle_s, settings.idle_steps * usual)
    if waited <= limit:
        return []
    text = f"no step for {waited:.0f} s; a step takes {usual:.2g} s"
    return [Alarm(step=run.last_step, detector="stall", name="step", domain=None, value=waited, limit=limit, text=text)]


def alert_body(run: Run, alarm: Alarm) -> dict[str, Any]:
    """An alarm as the ledger holds it: numbers as decimal text, since a ledger has no floats."""
    fed = run.learned(alarm.step)
    return {
        "step": alarm.step,
        "attempt": fed.attempt if fed is not None else len(run.attempts),
        "detector": alarm.detector,
        "name": alarm.name,
        "domain": alarm.domain,
        "value": f"{alarm.value:.6g}",
        "limit": f"{alarm.limit:.6g}",
        "text": alarm.text,
        "by": "watch",
    }


def bundle_place(run: Run, step: int) -> Path:
    """Where the incident bundle of a step lies."""
    return run.path / "incidents" / f"step-{step:08}"
