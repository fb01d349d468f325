"""An incident bundle: what is known of a step that went wrong, in one folder.

    RUN/incidents/step-00000118/incident.json   all of it
    RUN/incidents/step-00000118/incident.md     the same for a person

It decides nothing: it names the documents, the checkpoint and the commands, and people choose.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from millstream.audit.alerts import alerts_of
from millstream.audit.document import hex_keys
from millstream.audit.runs import Run, SavedCheckpoint
from millstream.audit.spike import By, SpikeAudit, audit_spike
from millstream.files import write_bytes
from millstream.stream.corpora import Corpora
from millstream.stream.reader import open_stream
from millstream.train.metrics import current, read_metrics
from millstream.train.watch.readings import readings

FORMAT = "millstream-incident/1"
AROUND = 16
"""Steps before and after whose numbers are told."""
SHOWN = ("loss", "grad_norm", "lr", "expert_load_max", "loading_s", "step_s")
WINDOW = 8
"""Tokens that two sequences must have in common in a row to count as alike there."""
COMMON = 8
"""A stretch in more sequences than these is boilerplate: it makes no two of them alike."""
ALIKE = 0.5
"""Share of a sequence's stretches that another must hold."""
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, kw_only=True)
class Incident:
    """A step that went wrong.

    ``alerts`` are those of the steps around it; ``alike`` pairs of the batch's rows with the share of stretches that
    they have in common; ``numbers`` a list a metric over ``steps``. ``checkpoint`` is the newest before the step that
    may be gone back to, None where that is the beginning.
    """

    run: Run
    spike: SpikeAudit
    alerts: list[dict[str, Any]]
    alike: list[tuple[int, int, float]]
    steps: list[int]
    numbers: dict[str, list[float | None]]
    checkpoint: SavedCheckpoint | None

    @property
    def step(self) -> int:
        """The step."""
        return self.spike.fed.step

    def commands(self) -> dict[str, str]:
        """What a person may run next, by purpose."""
        path, step = shlex.quote(str(self.run.path)), self.step
        back = self.checkpoint.step if self.checkpoint is not None else 0
        why = f'--why "incident at step {step}"'
        return {
            "look at the documents": f"millstream audit spike {path} {step} --by excess",
            "replay the step's data": f"millstream audit replay {path} {step} --check -o step-{step}.npy",
            "train the steps again, on the side": f"millstream branch {path} again-{step} --at {back} {why}",
            "go back": f"millstream rollback {path} --to {back} {why}",
            "and then pass over the data": f"millstream amend {path} --from {back + 1} --skip {step - back} {why}",
        }


def incident_of(run: Run, corpora: Corpora, step: int, by: By = "excess", most: int = 20) -> Incident:
    """Gather what is known of a step.

    Args:
        run: the run.
        corpora: its corpora.
        step: which step.
        by: what documents are ranked by.
        most: documents that are told.

    Raises:
        UsageError: the step was not fed.
        InputError: its losses were not recorded, or are altered.
    """
    spike = audit_spike(run, corpora, step, by=by, most=most)
    tokens = open_stream(run.plans[spike.fed.segment], corpora.values()).batch(step).tokens
    found = readings(current(read_metrics(run.path, max(1, step - AROUND))), run.plan.total_steps)
    near = found.steps <= step + AROUND
    numbers = {name: _plain(found.column(name)[near]) for name in SHOWN if (name, None) in found.columns}
    there = [c for c in run.checkpoints if c.step < step and not run.given_up(c) and (run.path / c.path).is_dir()]
    return Incident(
        run=run,
        spike=spike,
        alerts=[a for a in alerts_of(run) if abs(int(a["step"]) - step) <= AROUND],
        alike=alike_rows(tokens),
        steps=found.steps[near].tolist(),
        numbers=numbers,
        checkpoint=max(there, key=lambda saved: saved.step, default=None),
    )


def alike_rows(tokens: NDArray[Any]) -> list[tuple[int, int, float]]:
    """Pairs of rows that share much: of their stretches of ``WINDOW`` tokens at least ``ALIKE``.

    Args:
        tokens: (rows, length).

    Returns:
        (row, later row, share of the stretches of the one that has fewer), most alike first.
    """
    rows, length = tokens.shape
    if length < WINDOW or rows < 2:
        return []
    wide = tokens.astype(np.uint64)
    hashed = np.zeros((rows, length - WINDOW + 1), np.uint64)
    for place in range(WINDOW):
        hashed = (hashed ^ wide[:, place : place + hashed.shape[1]]) * MULTIPLIER
        hashed ^= hashed >> np.uint64(29)
    owner = np.repeat(np.arange(rows), hashed.shape[1])
    order = np.lexsort((owner, hashed.ravel()))
    keys, owner = hashed.ravel()[order], owner[order]
    once = np.concatenate(([True], (keys[1:] != keys[:-1]) | (owner[1:] != owner[:-1])))
    keys, owner = keys[once], owner[once]
    distinct = np.bincount(owner, minlength=rows)
    begins = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    sizes = np.diff(np.append(begins, len(keys)))
    shared: dict[tuple[int, int], int] = {}
    for size in range(2, COMMON + 1):
        members = owner[begins[sizes == size][:, None] + np.arange(size)]
        for one in range(size):
            for other in range(one + 1, size):
                pairs, counts = np.unique(members[:, [one, other]], axis=0, return_counts=True)
                for (a, b), count in zip(pairs.tolist(), counts.tolist(), strict=True):
                    shared[a, b] = shared.get((a, b), 0) + count
    share = [(a, b, count / int(min(distinct[a], distinct[b]))) for (a, b), count in shared.items()]
    return sorted((pair for pair in share if pair[2] >= ALIKE), key=lambda pair: (-pair[2], pair[:2]))


def write_incident(incident: Incident, folder: Path, most: int = 20) -> None:
    """Write a bundle into a folder."""
    content = incident_json(incident, most)
    write_bytes(folder / "incident.json", orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")
    write_bytes(folder / "incident.md", incident_text(content).encode())


def incident_json(incident: Incident, most: int = 20) -> dict[str, Any]:
    """A bundle as JSON values."""
    spike, saved = incident.spike, incident.checkpoint
    return {
        "format": FORMAT,
        "run": incident.run.name,
        "run_id": incident.run.run_id,
        "step": incident.step,
        "attempt": spike.fed.attempt,
        "segment": spike.fed.segment,
        "phase": spike.phase,
        "loss": spike.loss if np.isfinite(spike.loss) else None,
        "alerts": incident.alerts,
        "domains": spike.domains.to_dicts(),
        "documents": [hex_keys(row) for row in spike.documents.head(most).to_dicts()],
        "alike": [{"row": a, "other": b, "share": round(share, 4)} for a, b, share in incident.alike],
        "steps": incident.steps,
        "numbers": incident.numbers,
        "checkpoint": {"step": saved.step, "path": saved.path, "digest": saved.digest} if saved else {"step": 0},
        "commands": incident.commands(),
    }


def incident_text(content: Mapping[str, Any]) -> str:
    """A bundle for a person, Markdown."""
    lines = [
        f"# {content['run']}: step {content['step']}",
        "",
        f"Loss {_number(content['loss'])}, phase {content['phase']}, attempt {content['attempt']}. "
        f"Checkpoint to return to: step {content['checkpoint']['step']}.",
        "",
        "## Alerts",
        *([f"- step {a['step']}, {a['detector']}: {a['text']}" for a in content["alerts"]] or ["None around it."]),
        "",
        "## Mix against plan",
        *_table(content["domains"], ("domain", "planned", "sequences", "loss", "usual")),
        "",
        "## Documents, by what they added to the loss",
        *_table(content["documents"], ("doc_id", "domain", "share", "excess", "loss", "earlier", "last_step")),
        "",
        "## Rows of the batch that are alike",
        *([f"- {p['row']} and {p['other']}: {100 * p['share']:.0f}%" for p in content["alike"][:20]] or ["None."]),
        "",
        "## What to run",
        *[f"- {purpose}: `{command}`" for purpose, command in content["commands"].items()],
    ]
    # Names of documents may hold anything: nothing in a text for a terminal may move its cursor.
    return "".join(c if c == "\n" or c.isprintable() else f"\\u{ord(c):04x}" for c in "\n".join(lines)) + "\n"


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[str]:
    cells = [[str(_number(row[name])).replace("|", "\\|").replace("\n", " ") for name in columns] for row in rows]
    return [f"| {' | '.join(line)} |" for line in (columns, ["---"] * len(columns), *cells)]


def _number(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else value


def _plain(values: NDArray[np.float64]) -> list[float | None]:
    return [value if np.isfinite(value) else None for value in values.tolist()]
