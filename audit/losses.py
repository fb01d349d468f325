"""The loss of every sequence, beside the ledger: two bytes each, covered by the step's record.

``metrics/losses-ATTEMPT.f16`` holds an attempt's losses in nats as little-endian float16, step after step in the order
of the ledger, rows in the order of the step; nothing else. Where a step's losses lie follows from the attempt's step
records, whose ``losses`` is the SHA-256 of the step's bytes. Losses are written before their record and synced with it:
a crash may leave losses that no record names.
"""

import hashlib
import os
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from millstream.audit.records import FedStep, fed_step
from millstream.audit.runs import Run
from millstream.errors import InputError, SetupError

DTYPE = np.dtype("<f2")


class LossWriter:
    """Writes one attempt's losses."""

    def __init__(self, run_dir: Path, attempt: int) -> None:
        self.path = losses_file(run_dir, attempt)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: a failed write must not leave bytes behind that a later flush would bring out.
        self._file = self.path.open("wb", buffering=0)

    def add(self, losses: NDArray[np.float32]) -> str:
        """Append a step's losses, (rows,); returns the digest for its record.

        Raises:
            SetupError: the disk is full or fails; the file ends at the step before.
        """
        data = stored(losses)
        end = self._file.tell()
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._file.truncate(end)
            self._file.seek(end)
            raise SetupError(f"{self.path}: losses cannot be written: {error.strerror}") from error
        return hashlib.sha256(data).hexdigest()

    def sync(self) -> None:
        """Wait until all losses are on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def losses_file(run_dir: Path, attempt: int) -> Path:
    """Where an attempt's losses lie."""
    return run_dir / "metrics" / f"losses-{attempt:04}.f16"


def stored(losses: NDArray[np.floating[Any]]) -> bytes:
    """Losses as they are stored and hashed; what float16 cannot hold is infinite."""
    with np.errstate(over="ignore"):
        return losses.astype(DTYPE).tobytes()


def read_losses(run: Run, fed: FedStep) -> NDArray[np.float32]:
    """The loss of each row of a step in nats, (rows,).

    Raises:
        InputError: they were not recorded, or are missing or altered.
    """
    where = losses_file(run.path, fed.attempt)
    if fed.losses is None:
        raise InputError(f"{run.path}: the losses of single sequences were not recorded for step {fed.step}")
    own = (run.steps.rows["attempt"] == fed.attempt) & (run.steps.numbers < fed.seq)
    try:
        with where.open("rb") as file:
            file.seek(int(run.steps.rows["sequences"][own].sum()) * DTYPE.itemsize)
            data = file.read(fed.sequences * DTYPE.itemsize)
    except OSError as error:
        raise InputError(f"{where}: cannot be read: {error.strerror}") from error
    if (why := _wrong(fed, data)) is not None:
        raise InputError(f"{where}: {why}")
    return np.frombuffer(data, DTYPE).astype(np.float32)


def check_losses(run: Run) -> tuple[int, list[str]]:
    """Compare losses with the digests in their records; files that were removed are passed over.

    Returns:
        Steps looked at, and what was found wrong.
    """
    looked_at, findings = 0, []
    for attempt in run.attempts:
        path = losses_file(run.path, attempt.number)
        if not path.is_file():
            continue
        numbers = run.steps.numbers[run.steps.rows["attempt"] == attempt.number]
        with path.open("rb") as file:
            for fed in map(fed_step, run.records.read(numbers.tolist())):
                data = file.read(fed.sequences * DTYPE.itemsize)
                if fed.losses is None:
                    continue
                looked_at += 1
                # Of steps after the last checkpoint a power failure may keep the record and lose the losses.
                lost = len(data) < fed.sequences * DTYPE.itemsize and run.superseded(fed)
                if (why := _wrong(fed, data)) is not None and not lost:
                    findings.append(f"{path}: {why}")
    return looked_at, findings


def copy_losses(run: Run, new: Path, records: int) -> None:
    """Give a branch that shares the first ``records`` records their losses, as files of its own."""
    shared = run.steps.rows[run.steps.numbers < records]
    for attempt in np.unique(shared["attempt"]).tolist():
        path = losses_file(run.path, attempt)
        if path.is_file():
            losses_file(new, attempt).parent.mkdir(parents=True, exist_ok=True)
            with path.open("rb") as old, losses_file(new, attempt).open("wb") as file:
                left = int(shared["sequences"][shared["attempt"] == attempt].sum()) * DTYPE.itemsize
                while left > 0 and (data := old.read(min(left, 1 << 20))):
                    left -= file.write(data)


def _wrong(fed: FedStep, data: bytes) -> str | None:
    if len(data) < fed.sequences * DTYPE.itemsize:
        return f"short: {len(data) // DTYPE.itemsize} of the {fed.sequences} losses of step {fed.step} are there"
    if hashlib.sha256(data).hexdigest() != fed.losses:
        return f"altered: the losses of step {fed.step} (attempt {fed.attempt}) are not those that its record covers"
    return None
