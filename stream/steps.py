"""Steps and global sequence indices: the batch schedule, independent of ranks and accumulation.

Step 1 is the first global batch. An entry ``(step, batch)`` holds from that step on.
"""

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from millstream.stream.permutation import U64


@dataclass(frozen=True, slots=True)
class BatchSchedule:
    """``entries``: (first step, sequences a step), steps rising from 1."""

    entries: tuple[tuple[int, int], ...]

    def first_indices(self) -> tuple[int, ...]:
        """Global index at which each entry begins."""
        firsts = [0]
        for (step, batch), (after, _) in zip(self.entries, self.entries[1:], strict=False):
            firsts.append(firsts[-1] + (after - step) * batch)
        return tuple(firsts)

    def batch(self, step: int) -> int:
        """Sequences of a step."""
        return self.entries[self._entry_of_step(step)][1]

    def span(self, step: int) -> tuple[int, int]:
        """Half-open range of global indices of a step."""
        at = self._entry_of_step(step)
        since, batch = self.entries[at]
        first = self.first_indices()[at] + (step - since) * batch
        return first, first + batch

    def locate(self, indices: U64) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Step and row in the step of each global index; both (n,)."""
        firsts = np.array(self.first_indices(), np.int64)
        index = indices.astype(np.int64)
        at = np.searchsorted(firsts, index, side="right") - 1
        steps, batches = (np.array(column, np.int64)[at] for column in zip(*self.entries, strict=True))
        steps_in, rows = np.divmod(index - firsts[at], batches)
        return steps + steps_in, rows

    def steps_within(self, sequences: int) -> int:
        """Whole steps that fit into a number of sequences."""
        firsts = self.first_indices()
        at = bisect_right(firsts, sequences) - 1
        since, batch = self.entries[at]
        return since - 1 + (sequences - firsts[at]) // batch

    def _entry_of_step(self, step: int) -> int:
        if step < 1:
            raise ValueError(f"steps count from 1, found {step}")
        return bisect_right(self.entries, step, key=lambda entry: entry[0]) - 1
