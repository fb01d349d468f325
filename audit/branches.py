"""Branches: another course from a checkpoint of a run, in a run folder of its own.

A branch's ledger begins with the very records of the run that it leaves, up to its checkpoint, so both are
continuations of one chain: audits of a branch answer for the steps before it too, and need nothing of the
run it came from. A control is a branch that repeats steps of the run, to see whether they come out alike.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from millstream.audit.change import Reason, checkpoint_at
from millstream.audit.corpora import open_corpora
from millstream.audit.heads import head_signer
from millstream.audit.ledger import FILE, move_ledger, open_ledger
from millstream.audit.losses import copy_losses
from millstream.audit.replay import stored_leaves
from millstream.audit.runs import Run, code_digest, environment, is_run, open_run, place_of
from millstream.errors import InputError, UsageError


def branch_run(path: Path, new: Path, at: int, given: Reason, *, accept: bool = False) -> None:
    """Make a run that goes on from a run's checkpoint, and record it in both.

    Args:
        path: the run.
        new: the branch's folder.
        at: the checkpoint's step; 0 begins with the run's first plan.
        given: why, and by whom.
        accept: leave a control, which is no source of a lineage unless somebody says so.

    Raises:
        UsageError: there is no such checkpoint, the folder is in use, or the run is a control.
    """
    with open_ledger(path) as ledger:
        run = open_run(path)
        if run.is_control and not accept:
            raise UsageError(f"{path}: is a control; say --accept to let a lineage come from it")
        _fork(run, new, at, {**asdict(given), "name": new.name})
        head = open_run(new).records[-1]
        place = os.path.relpath(new.resolve(), path.resolve())
        body = {"at": at, "to": place, "name": new.name, "head": head.prev, **asdict(given)}
        ledger.append("branch", body)
        head_signer(run, ledger)()


def control_run(path: Path, at: int, by: str) -> Path:
    """A folder in which steps after a checkpoint can be trained once more, by the plans they had; returns it.

    Raises:
        UsageError: there is no such checkpoint.
    """
    run = open_run(path)
    number = 1 + len(list((path / "controls").glob("*")))
    new = path / "controls" / f"{number:04}"
    shared = _fork(run, new, at, {"why": "control", "by": by, "name": f"control-{number:04}", "control": True})
    with open_ledger(new) as ledger:
        for record in run.records[shared:]:
            if record.kind == "segment":
                ledger.append("segment", {name: v for name, v in record.body.items() if name != "corpora"})
    return new


def compare_control(path: Path, new: Path, at: int) -> dict[str, Any]:
    """Compare what a control was fed and lost with the run, record the outcome there, and return it.

    ``roots`` and ``losses`` count the steps at which they differ, ``loss_difference`` is the largest, in millionths.
    Steps that held a document that is redacted by now are counted in ``redacted`` and not compared.

    Raises:
        InputError: the control has a step that the run does not have.
    """
    with open_ledger(path) as ledger:
        run, control = open_run(path), open_run(new)
        pairs = [(run.learned(step), control.learned(step)) for step in range(at + 1, control.last_step + 1)]
        whole = [(a, b) for a, b in pairs if a is not None and b is not None]
        if not whole or len(whole) < len(pairs):
            raise InputError(f"{path}: has no steps after {at} that its control could be compared with")
        kept = {record for record, _ in stored_leaves(run)}
        redacted = [a.step for a, _ in whole if a.seq in kept]
        whole = [(a, b) for a, b in whole if a.seq not in kept]
        roots = [a.step for a, b in whole if a.root != b.root]
        losses = [a.step for a, b in whole if a.loss != b.loss]
        both = [abs(a.loss - b.loss) for a, b in whole if isinstance(a.loss, int) and isinstance(b.loss, int)]
        outcome = {
            "control": os.path.relpath(new.resolve(), path.resolve()),
            "at": at,
            "steps": len(whole),
            **({"redacted": len(redacted)} if redacted else {}),
            "roots": len(roots),
            "losses": len(losses),
            "first_difference": min([*roots, *losses], default=0),
            "loss_difference": max(both, default=0),
            "code": code_digest(),
            "same_code": code_digest() == run.info["code"]["digest"],
            "versions": environment()["libraries"],
        }
        ledger.append("control", outcome)
        head_signer(run, ledger)()
    return outcome


def branches_of(run: Run) -> Iterator[Run]:
    """The branches that a run's ledger names and that lie where they were made."""
    for record in run.records.of("branch"):
        if "to" in record.body:
            place = run.path / str(record.body["to"])
            if is_run(place):
                yield open_run(place)


def controls_of(run: Run) -> Iterator[Run]:
    """The controls that lie below a run."""
    for place in sorted((run.path / "controls").glob("*")):
        if is_run(place):
            yield open_run(place)


def _fork(run: Run, new: Path, at: int, about: dict[str, Any]) -> int:
    """Copy a run up to a checkpoint into a new folder, whose ledger gets its name last; returns the records shared."""
    if new.exists() and any(new.iterdir()):
        raise UsageError(f"{new}: holds something already; give the branch another folder")
    saved = checkpoint_at(run, at)
    first_attempt = next((r.seq for r in run.records.of("attempt")), len(run.records))
    last = first_attempt - 1 if saved is None else saved.seq
    new.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(run.path / "run.json", new / "run.json")
    if saved is not None:
        shutil.copytree(run.path / saved.path, new / saved.path, copy_function=_link)
        _copy_metrics(run, new, at, sum(r.seq <= last for r in run.records.of("attempt")))
        copy_losses(run, new, last + 1)
    beginning = new / ".start"
    beginning.mkdir()
    with (run.path / FILE).open("rb") as old, (beginning / FILE).open("wb") as file:
        for _ in range(last + 1):
            file.write(old.readline())
    corpora = [place_of(new, corpus) for corpus in open_corpora(run).values()]
    with open_ledger(beginning) as ledger:
        ledger.append("branch", about | {"at": at, "of": run.run_id, "corpora": corpora})
        # What left the corpora since cannot be derived in the steps that are shared either.
        for record in run.records.of("redaction"):
            if record.seq > last:
                shared = [entry for entry in record.body["leaves"] if entry["record"] <= last]
                ledger.append("redaction", record.body | {"leaves": shared})
    move_ledger(beginning, new)
    beginning.rmdir()
    return last + 1


def _link(source: str, target: str) -> None:
    """Checkpoints are never written to again, so one copy on the disk serves both runs."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _copy_metrics(run: Run, new: Path, at: int, attempts: int) -> None:
    """The numbers of the steps that the branch shares, as files of its own."""
    (new / "metrics").mkdir()
    for path in sorted((run.path / "metrics").glob("*-*-*.parquet")):
        shared = pl.read_parquet(path).filter(pl.col("step") <= at, pl.col("attempt") <= attempts)
        if len(shared):
            shared.write_parquet(new / "metrics" / path.name)
    live = run.path / "metrics" / "live.jsonl"
    for line in live.read_bytes().splitlines(keepends=True) if live.exists() else []:
        if line.endswith(b"\n") and (entry := orjson.loads(line))["step"] <= at and entry["attempt"] <= attempts:
            with (new / "metrics" / live.name).open("ab") as file:
                file.write(line)
