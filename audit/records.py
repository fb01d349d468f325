"""The records of a ledger, read from the file one by one as they are asked for."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from millstream.audit import ledger_index
from millstream.audit.ledger import FILE, Record, parse_record
from millstream.audit.ledger_index import Rows, known_rows, scan_rows, unpack
from millstream.errors import InputError, UsageError

BACK = ("attempt", "rollback", "branch")
"""Kinds of records that let a lineage go on after an earlier step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FedStep:
    """A step record: what one attempt fed to the engine. ``seq`` is the record's place in the ledger."""

    seq: int
    step: int
    attempt: int
    segment: int
    first_index: int
    sequences: int
    tokens: int
    root: str
    update_applied: bool
    loss: int | str
    losses: str | None = None
    """SHA-256 of the losses of its sequences (``millstream.audit.losses``), None where they were not recorded."""


class Records(Sequence[Record]):
    """All records in order; ``rows`` are their rows of the index, (records,)."""

    def __init__(self, run_dir: Path, rows: Rows) -> None:
        self.path = run_dir / FILE
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> Record: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Record, ...]: ...
    def __getitem__(self, at: int | slice) -> Record | tuple[Record, ...]:
        if isinstance(at, slice):
            return tuple(self.read(range(*at.indices(len(self)))))
        if not -len(self) <= at < len(self):
            raise IndexError(f"the ledger has {len(self)} records, asked for {at}")
        return next(self.read([at % len(self)]))

    def __iter__(self) -> Iterator[Record]:
        return self.read(range(len(self)))

    def of(self, *kinds: str) -> Iterator[Record]:
        """The records of some kinds, in order."""
        return self.read(np.flatnonzero(np.isin(self.rows["kind"], [kind.encode() for kind in kinds])).tolist())

    def read(self, numbers: Iterable[int]) -> Iterator[Record]:
        """The records of these numbers.

        Raises:
            InputError: a line is not that record.
        """
        with self.path.open("rb") as file:
            at = 0
            for number in numbers:
                start, end = int(self.rows["end"][number - 1]) if number else 0, int(self.rows["end"][number])
                if at != start:
                    file.seek(start)
                at = end
                record = parse_record(file.read(end - start), f"{self.path}:{number + 1}")
                if record.seq != number:
                    raise InputError(
                        f"{self.path}:{number + 1}: holds record {record.seq}; run 'millstream audit verify'"
                    )
                yield record


class Fed(Mapping[int, Sequence[FedStep]]):
    """Step records by step, in the order in which they were fed."""

    def __init__(self, records: Records) -> None:
        self._records = records
        numbers = np.flatnonzero(records.rows["kind"] == b"step")
        steps = records.rows["step"][numbers].astype(np.int64)
        order = np.argsort(steps, kind="stable")
        self._steps, self._numbers = steps[order], numbers[order]

    def __getitem__(self, step: int) -> list[FedStep]:
        first, end = np.searchsorted(self._steps, (step, step + 1)).tolist()
        if first == end:
            raise KeyError(step)
        return [fed_step(record) for record in self._records.read(self._numbers[first:end].tolist())]

    def __iter__(self) -> Iterator[int]:
        return iter(np.unique(self._steps).tolist())

    def __len__(self) -> int:
        return len(np.unique(self._steps))


@dataclass(frozen=True)
class Returns:
    """Where a lineage went back: numbers of the records, and the step after which it went on from there on."""

    numbers: NDArray[np.int64]
    lowest: NDArray[np.int64]
    """Of each record and all later ones the lowest step."""

    def after(self, number: int, step: int) -> bool:
        """Whether some record after this one went back to before a step."""
        at = bisect_right(self.numbers, number)
        return at < len(self.numbers) and bool(self.lowest[at] < step)


@dataclass(frozen=True)
class StepRows:
    """All step records as arrays, in the order of the ledger: (steps,)."""

    numbers: NDArray[np.int64]
    """Of the records."""
    rows: Rows
    superseded: NDArray[np.bool_]

    @cached_property
    def last_learned(self) -> int:
        """The last step that is not superseded, 0 for none."""
        return int(self.rows["step"][~self.superseded].max(initial=0))


def open_records(run_dir: Path) -> Records:
    """The records of a run's ledger; an incomplete last line is left out.

    Raises:
        UsageError: there is no ledger here.
        InputError: a line that the index does not have is not a record; names the line.
    """
    try:
        file = (run_dir / FILE).open("rb")
    except OSError as error:
        raise UsageError(f"{run_dir}: no run here (no {FILE})") from error
    with file:
        known = known_rows(run_dir / ledger_index.FILE, file)
        rest = unpack(scan_rows(file, known, str(run_dir / FILE)))
    return Records(run_dir, np.concatenate([known, rest]) if len(rest) else known)


def scan_records(run_dir: Path) -> Records:
    """The records as the ledger itself has them, whatever its index says; errors as of ``open_records``."""
    with (run_dir / FILE).open("rb") as file:
        return Records(run_dir, unpack(scan_rows(file, np.empty(0, ledger_index.ROW), str(run_dir / FILE))))


def index_fits(records: Records) -> bool:
    """Whether what lies in the index is what the records give, as far as it goes."""
    found = ledger_index.mapped_rows(records.path.with_name(ledger_index.FILE))
    return found.tobytes() == records.rows[: len(found)].tobytes()


def fed_step(record: Record) -> FedStep:
    """What a step record says."""
    given = {name: record.body[name] for name in FedStep.__slots__ if name not in ("seq", "losses")}
    return FedStep(seq=record.seq, losses=record.body.get("losses"), **given)


def returns_of(records: Records) -> Returns:
    """Where the lineage went back, as the records tell it."""
    numbers = np.flatnonzero(np.isin(records.rows["kind"], [kind.encode() for kind in BACK]))
    steps = records.rows["step"][numbers].astype(np.int64)
    # The record of a branch in the run that it left changes nothing there.
    own = np.array([r.kind != "branch" or "of" in r.body for r in records.read(numbers.tolist())], np.bool_)
    numbers, steps = numbers[own], steps[own]
    return Returns(numbers, np.minimum.accumulate(steps[::-1])[::-1])


def step_rows(records: Records, returns: Returns) -> StepRows:
    """All steps as arrays."""
    numbers = np.flatnonzero(records.rows["kind"] == b"step")
    rows = records.rows[numbers]
    at = np.searchsorted(returns.numbers, numbers, side="right")
    lowest = np.append(returns.lowest, np.iinfo(np.int64).max)[at]
    return StepRows(numbers, rows, lowest < rows["step"])
