"""Which checkpoints a run continues from, keeps and removes, by what its ledger says.

Kept are the newest ones of the lineage, every k-th step where the recipe asks for it, and those that somebody pinned.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream.audit.change import checkpoint_at
from millstream.audit.ledger import Ledger
from millstream.audit.runs import Run, SavedCheckpoint, open_run
from millstream.errors import InputError, UsageError
from millstream.train.checkpoint_index import FOLDER, INDEX, check_files, digest_of, read_index, record_of


def newest_checkpoint(run: Run) -> SavedCheckpoint | None:
    """The newest checkpoint that the lineage may continue from; None where it has none.

    An older one is never taken by itself: that would throw away what was trained since, so somebody has to say it.

    Raises:
        InputError: the newest one was altered or is not there.
    """
    kept = [saved for saved in run.checkpoints if not run.given_up(saved)]
    if not kept:
        return None
    saved = max(kept, key=lambda c: (c.step, c.seq))
    folder = run.path / saved.path
    if (folder / INDEX).is_file() and digest_of(folder) == saved.digest:
        return saved
    found = "not the checkpoint that the ledger names" if folder.exists() else "missing"
    raise InputError(f"{folder}: {found}, and it is the newest; restore it, or {give_up(run, saved)}")


def checkpoint_to_read(run: Run, step: int | None) -> tuple[SavedCheckpoint, dict[str, Any]]:
    """A checkpoint of the lineage and its index, all digests checked; the newest one that is there where step is None.

    Raises:
        UsageError: there is none of that step; names those there are.
        InputError: a file is missing or altered.
    """
    if step is None:
        there = {c.step for c in run.checkpoints if not run.given_up(c) and (run.path / c.path / INDEX).is_file()}
        step = max(there, default=None)
    saved = checkpoint_at(run, step) if step else None
    if saved is None:
        raise UsageError(f"{run.path}: has no checkpoint yet")
    folder = run.path / saved.path
    index = read_index(folder)
    if digest_of(folder) != saved.digest:
        raise InputError(f"{folder}: not the checkpoint that the ledger names")
    check_files(folder, index)
    return saved, index


def give_up(run: Run, saved: SavedCheckpoint) -> str:
    """The command by which somebody goes back to the checkpoint before one."""
    older = {c.step for c in run.checkpoints if not run.given_up(c) and (run.path / c.path / INDEX).is_file()}
    to = max((step for step in older if step < saved.step), default=0)
    return f"give up the steps since an older one with 'millstream rollback {run.path} --to {to} --why ...'"


def adopt_unrecorded(run: Run, ledger: Ledger) -> Run:
    """Record checkpoints that became complete just before a crash, and read the run again.

    A checkpoint names the ledger's last record at the time when its state was taken, so it is known to belong here.

    Raises:
        InputError: a complete checkpoint was written under records that this ledger does not have, or was altered.
    """
    known = {c.path for c in run.checkpoints}
    for folder in sorted((run.path / FOLDER).glob("step-*")):
        if not (folder / INDEX).is_file() or str(folder.relative_to(run.path)) in known:
            continue
        index, body = read_index(folder), record_of(run.path, folder)
        head = index["head"]
        if not (head["seq"] < len(run.records) and run.records[head["seq"]].hash == head["hash"]):
            raise InputError(
                f"{folder}: a complete checkpoint of step {index['step']}, taken after a record that the ledger does "
                "not have; restore the ledger, or move the folder away"
            )
        if run.given_up(SavedCheckpoint(seq=head["seq"], **body)):
            remove(folder)
            continue
        check_files(folder, index)
        ledger.append("checkpoint", body | {"adopted": True})
    ledger.sync()
    return open_run(run.path)


def remove(folder: Path) -> None:
    """Remove a checkpoint; the index goes first, so that what is left of a removal cut short is none."""
    (folder / INDEX).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


@dataclass(kw_only=True)
class Shelf:
    """A run's checkpoints while it trains: those of the lineage, paths of those given up, and pinned paths by name."""

    run_dir: Path
    lineage: list[SavedCheckpoint]
    given_up: list[str]
    pins: dict[str, str]


def open_shelf(run: Run) -> Shelf:
    """The checkpoints that a run's ledger names, and nothing of what a crash left half written."""
    for path in (run.path / FOLDER).glob(".step-*.tmp"):
        shutil.rmtree(path, ignore_errors=True)
    return Shelf(
        run_dir=run.path,
        lineage=[c for c in run.checkpoints if not run.given_up(c)],
        given_up=[c.path for c in run.checkpoints if run.given_up(c)],
        pins={name: pin.path for name, pin in run.pins.items()},
    )


def prune(shelf: Shelf, keep: int, every: int | None) -> None:
    """Remove the checkpoints that are not kept.

    Args:
        shelf: what there is.
        keep: how many of the newest stay.
        every: steps that are a multiple of it stay as well.
    """
    lineage = sorted(shelf.lineage, key=lambda c: (c.step, c.seq))
    kept = {c.path for c in lineage[-keep:]} | {c.path for c in lineage if every and c.step % every == 0}
    kept |= set(shelf.pins.values())
    # A path that was given up may have been used again.
    for path in {c.path for c in lineage}.union(shelf.given_up) - kept:
        remove(shelf.run_dir / path)
