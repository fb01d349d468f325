"""What a run's ledger says, as its page needs it: steps as columns, and the stretches that they form."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.audit.ledger import Record
from millstream.audit.ledger_index import INF, NAN
from millstream.audit.runs import Run

Rows = NDArray[Any]
"""Rows of the ledger's index, (n,)."""


@dataclass(frozen=True)
class History:
    """A run as its ledger was when it was opened."""

    run: Run

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Of each step record its place in the ledger: (steps,)."""
        return self.run.steps.numbers

    @property
    def steps(self) -> Rows:
        """Every step record, in the ledger's order."""
        return self.run.steps.rows

    @property
    def superseded(self) -> NDArray[np.bool_]:
        """For each step record: whether the lineage went back to before it."""
        return self.run.steps.superseded

    @cached_property
    def _kept(self) -> NDArray[np.intp]:
        """Places of the learned steps in ``steps``, by step."""
        there = np.flatnonzero(~self.superseded)
        # The newest of each step: the first one from behind.
        _, newest = np.unique(self.steps["step"][there][::-1], return_index=True)
        kept: NDArray[np.intp] = there[::-1][newest]
        return kept

    @cached_property
    def learned(self) -> Rows:
        """The step records that the lineage keeps, by step."""
        kept: Rows = self.steps[self._kept]
        return kept

    def is_learned(self, step: int) -> bool:
        """Whether the lineage keeps a step."""
        at = int(self.learned["step"].searchsorted(step))
        return at < len(self.learned) and int(self.learned["step"][at]) == step

    def record_of(self, step: int) -> int:
        """Place in the ledger of a learned step's record."""
        return int(self.numbers[self._kept[self.learned["step"].searchsorted(step)]])

    @property
    def last_step(self) -> int:
        """The last step of the lineage, 0 before the first."""
        return self.run.last_step

    @cached_property
    def stretches(self) -> list[dict[str, Any]]:
        """Steps in a row that one attempt fed under one segment, in the ledger's order, those given up too.

        Each stretch has ``attempt``, ``segment``, ``first`` and ``last`` step, ``seq`` (the first one's record) and
        ``superseded``.
        """
        rows, gone = self.steps, self.superseded
        same = [rows[name][1:] == rows[name][:-1] for name in ("attempt", "segment")]
        same += [gone[1:] == gone[:-1], rows["step"][1:] == rows["step"][:-1] + 1]
        cuts = np.flatnonzero(~np.logical_and.reduce(same)) + 1
        return [
            {
                "attempt": int(rows["attempt"][part[0]]),
                "segment": int(rows["segment"][part[0]]),
                "first": int(rows["step"][part[0]]),
                "last": int(rows["step"][part[-1]]),
                "seq": int(self.numbers[part[0]]),
                "superseded": bool(gone[part[0]]),
            }
            for part in np.split(np.arange(len(rows)), cuts)
            if part.size
        ]

    def others(self) -> Iterator[Record]:
        """Every record that is no step."""
        records = self.run.records
        return records.read(np.flatnonzero(records.rows["kind"] != b"step").tolist())

    def step_at(self, seq: int) -> int:
        """The step that was recorded last before a record; 0 before the first."""
        before = int(self.numbers.searchsorted(seq))
        return int(self.steps["step"][before - 1]) if before else 0

    def line(self, seq: int) -> str:
        """A record's line in the ledger."""
        return self.text(seq, seq + 1).rstrip("\n")

    def text(self, first: int, end: int) -> str:
        """The lines of records ``first`` to ``end``, the last one left out."""
        ends = self.run.records.rows["end"]
        start = int(ends[first - 1]) if first else 0
        with self.run.records.path.open("rb") as file:
            file.seek(start)
            return file.read(int(ends[end - 1]) - start).decode()


def nats(rows: Rows) -> NDArray[np.float64]:
    """Losses of step records; NaN or infinity where they were no numbers."""
    loss = rows["loss"].astype(np.float64) / 1e6
    loss[rows["loss"] == NAN] = np.nan
    loss[rows["loss"] == INF] = np.inf
    return loss
