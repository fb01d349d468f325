"""Steps and global sequence indices: the batch schedule, independent of ranks and accumulation.

Step 1 is the first global batch. An entry ``(step, batch, first)`` holds from that step on, whose first
sequence has the global index ``first``. Where an entry begins later than the one before it ends, the
sequences between were skipped.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from millstream.stream.permutation import U64


@dataclass(frozen=True, slots=True)
class BatchSchedule:
    """``entries``: (first step, sequences a step, first index); steps and indices rise, steps from 1."""

    entries: tuple[tuple[int, int, int], ...]

    def batch(self, step: int) -> int:
        """Sequences of a step."""
        return self.entries[self._entry_of_step(step)][1]

    def span(self, step: int) -> tuple[int, int]:
        """Half-open range of global indices of a step."""
        since, batch, first = self.entries[self._entry_of_step(step)]
        first += (step - since) * batch
        return first, first + batch

    def locate(self, indices: U64) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Step and row in the step of each global index; both (n,). Skipped sequences are in step 0."""
        steps, batches, firsts = (np.array(column, np.int64) for column in zip(*self.entries, strict=True))
        index = indices.astype(np.int64)
        at = np.searchsorted(firsts, index, side="right") - 1
        steps_in, rows = np.divmod(index - firsts[at], batches[at])
        found = steps[at] + steps_in
        skipped = found >= np.append(steps[1:], np.iinfo(np.int64).max)[at]
        return np.where(skipped, 0, found), np.where(skipped, 0, rows)

    def steps_within(self, sequences: int) -> int:
        """Whole steps that end at or before a global index."""
        at = bisect_right(self.entries, sequences, key=lambda entry: entry[2]) - 1
        since, batch, first = self.entries[at]
        steps = since - 1 + (sequences - first) // batch
        return min(steps, self.entries[at + 1][0] - 1) if at + 1 < len(self.entries) else steps

    def _entry_of_step(self, step: int) -> int:
        if step < 1:
            raise ValueError(f"steps count from 1, found {step}")
        return bisect_right(self.entries, step, key=lambda entry: entry[0]) - 1


def unbroken(batches: Iterable[tuple[int, int]]) -> BatchSchedule:
    """The schedule of (first step, sequences a step) entries, nothing skipped."""
    entries: list[tuple[int, int, int]] = []
    for step, batch in batches:
        since, before, first = entries[-1] if entries else (1, 0, 0)
        entries.append((step, batch, first + (step - since) * before))
    return BatchSchedule(tuple(entries))


def of_stretches(stretches: Iterable[tuple[int, int, int]]) -> BatchSchedule:
    """The schedule of index ranges ``(first, end, batch)``, each whole steps long, in order.

    Ranges that go on in one batch size are one entry.
    """
    entries: list[tuple[int, int, int]] = []
    step, reached = 1, 0
    for first, end, batch in stretches:
        if end > first:
            if not entries or entries[-1][1] != batch or first != reached:
                entries.append((step, batch, first))
            step, reached = step + (end - first) // batch, end
    return BatchSchedule(tuple(entries))
