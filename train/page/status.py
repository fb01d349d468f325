"""How a run stands: how far it is, whether it goes on, and when it will be done at the present rate."""

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.audit.ledger import FILE
from millstream.train.page.history import History, nats

QUIET = 120.0
"""Seconds without a record after which a run that nobody holds is taken to stand still."""


def status(history: History, rates: NDArray[np.float64]) -> dict[str, Any]:
    """The run's state in numbers.

    Args:
        history: its ledger.
        rates: tokens a second of its newest steps, (n,).
    """
    run, plan = history.run, history.run.plan
    learned, losses = history.learned, nats(history.learned)
    reached = plan.span(history.last_step)[1] if history.last_step else 0
    rate = float(np.median(rates)) if rates.size else 0.0
    tokens_left = sum(plan.seq_len * (end - first) for first, end in _left(history))
    newest = losses[-max(1, min(50, len(learned) // 50 or 1)) :]
    newest = newest[np.isfinite(newest)]
    written = (run.path / FILE).stat().st_mtime
    return {
        "state": _state(history, written),
        "step": history.last_step,
        "steps": plan.total_steps,
        "sequences": (sequences := int(learned["sequences"].sum(dtype=np.int64))),
        "tokens": sequences * plan.seq_len,
        "tokens_left": tokens_left,
        "index": reached,
        "loss": round(float(newest.mean()), 4) if newest.size else None,
        "tokens_per_s": round(rate, 1),
        "eta_s": round(tokens_left / rate) if rate and tokens_left else None,
        "created": run.info["created"],
        "written": datetime.fromtimestamp(written, UTC).isoformat(timespec="seconds"),
        "attempts": len(run.attempts),
        "ranks": run.attempts[-1].world if run.attempts else None,
        "superseded": int(history.superseded.sum()),
        "skipped_updates": int((learned["applied"] == 0).sum()),
        "alerts": len(list(run.records.of("alert"))),
        "not_finite": int((~np.isfinite(nats(history.steps))).sum()),
    }


def _left(history: History) -> list[tuple[int, int]]:
    """Index ranges of the steps to come: those of the batch schedule behind the last step."""
    plan = history.run.plan
    if history.run.finished:
        return []
    first = history.last_step + 1
    borders = [entry[0] for entry in plan.batches.entries if entry[0] > first]
    ends = [*(border - 1 for border in borders), plan.total_steps]
    return [(plan.span(a)[0], plan.span(b)[1]) for a, b in zip([first, *borders], ends, strict=True)]


def _state(history: History, written: float) -> str:
    if history.run.finished:
        return "finished"
    if not history.run.attempts:
        return "not begun"
    return "training" if is_held(history.run.path / FILE) or time.time() - written < QUIET else "stopped"


def is_held(path: Path) -> bool:
    """Whether a process of this machine holds the lock on a file; asked without taking the lock from a new owner."""
    try:
        found = path.stat()
        locks = Path("/proc/locks").read_text()
    except OSError:
        return False
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    return any("FLOCK" in line and "WRITE" in line and place in line.split() for line in locks.splitlines())
