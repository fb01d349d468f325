"""Alerts in the ledger, whoever is writing to it.

A watcher that finds the ledger free writes the record itself. While a run trains its processes hold the ledger, so the
watcher leaves the alert beside it, and training writes it with its next step:

    RUN/alerts/NAME.json   one alert that waits
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from millstream.audit.ledger import Ledger, open_ledger
from millstream.audit.runs import Run
from millstream.canonical import canonical_bytes
from millstream.errors import UsageError
from millstream.files import write_bytes

FOLDER = "alerts"
IDENTITY = ("step", "attempt", "detector", "name", "domain")
"""Fields that make two alerts the same one."""


def raise_alerts(run: Run, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Write alerts that the run does not have yet; returns those.

    Args:
        run: the run, as it was read.
        bodies: each with ``IDENTITY`` and whatever else a record may hold.
    """
    known = {identity(body) for body in alerts_of(run)}
    fresh = [body for body in bodies if identity(body) not in known]
    if not fresh:
        return []
    for body in fresh:
        line = canonical_bytes(body)
        write_bytes(run.path / FOLDER / f"{hashlib.sha256(line).hexdigest()[:32]}.json", line + b"\n")
    try:
        with open_ledger(run.path) as ledger:
            take_alerts(run.path, ledger)
    except UsageError:
        # Whoever holds the ledger takes them.
        pass
    return fresh


def take_alerts(run_dir: Path, ledger: Ledger) -> list[dict[str, Any]]:
    """Move alerts that wait into the ledger; returns their bodies, oldest step first."""
    waiting = _waiting(run_dir)
    for path, body in waiting:
        ledger.append("alert", body)
        path.unlink(missing_ok=True)
    return [body for _, body in waiting]


def alerts_of(run: Run) -> list[dict[str, Any]]:
    """Bodies of a run's alerts: those in the ledger, then those that wait."""
    return [r.body for r in run.records.of("alert")] + [body for _, body in _waiting(run.path)]


def identity(body: Mapping[str, Any]) -> tuple[Any, ...]:
    """What makes an alert the same one as another."""
    return tuple(body.get(name) for name in IDENTITY)


def _waiting(run_dir: Path) -> list[tuple[Path, dict[str, Any]]]:
    folder = run_dir / FOLDER
    if not folder.is_dir():
        return []
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            body = orjson.loads(path.read_bytes())
        except (OSError, orjson.JSONDecodeError):
            continue
        if isinstance(body, dict) and isinstance(body.get("step"), int):
            found.append((path, body))
    return sorted(found, key=lambda entry: entry[1]["step"])
