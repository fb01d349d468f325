"""Takedowns in the stream: which tokens of a batch are not fed any more, as the plan's tombstones say."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.stream.permutation import distinct
from millstream.stream.plan import Plan, Sequences, Tombstone

NONE: NDArray[np.int64] = np.empty((0, 3), np.int64)
NONE.flags.writeable = False


def buried(plan: Plan, located: Sequences, rows: slice, step: int) -> NDArray[np.int64]:
    """Stretches of a step's rows that lie under tombstones.

    Args:
        plan: the plan.
        located: sequences of any steps.
        rows: which of them are the step's.
        step: tombstones count from their own step on.

    Returns:
        int64 (m, 3): row, and the half-open range of its tokens (0 to seq_len, inputs and last target), in order; no
        two of a row touch.
    """
    stones = [stone for stone in plan.tombstones if stone.from_step <= step]
    if not stones:
        return NONE
    found: list[tuple[int, int, int]] = []
    at, starts = located.ring[rows], located.start[rows]
    for number in distinct(at)[0].tolist():
        ring = plan.rings[number]
        own = [s for s in stones if (s.domain, s.corpus_id) == (ring.name, ring.corpus_id)]
        if own:
            chosen = np.flatnonzero(at == number)
            found += _overlaps(chosen, starts[chosen], plan.seq_len + 1, own, ring.tokens)
    return _joined(found) if found else NONE


def bury(tokens: NDArray[Any], stretches: NDArray[np.int64], eos: int) -> None:
    """Write EOS over stretches of rows, in place."""
    for row, first, end in stretches.tolist():
        tokens[row, first:end] = eos


def masked_targets(stretches: NDArray[np.int64], rows: int, seq_len: int) -> NDArray[np.bool_] | None:
    """Targets that count for no loss: bool (rows, seq_len), or None where all count."""
    if not len(stretches):
        return None
    masked = np.zeros((rows, seq_len), np.bool_)
    for row, first, end in stretches.tolist():
        # Target i is token i + 1.
        masked[row, max(first - 1, 0) : end - 1] = True
    return masked


def _overlaps(
    rows: NDArray[np.intp], starts: NDArray[np.int64], length: int, stones: Sequence[Tombstone], tokens: int
) -> list[tuple[int, int, int]]:
    """Row and range of each overlap of a sequence, round the ring's end, with a tombstone; stones are disjoint."""
    ordered = sorted(stones, key=lambda stone: stone.start)
    firsts = np.array([stone.start for stone in ordered], np.int64)
    ends = np.array([stone.end for stone in ordered], np.int64)
    found = []
    # A sequence is one token longer than an epoch's share, so it may pass the ring's end more than once.
    for turn in range(int((starts.max() + length - 1) // tokens) + 1):
        low = np.searchsorted(ends, starts - turn * tokens, side="right")
        high = np.searchsorted(firsts, starts - turn * tokens + length, side="left")
        for place in np.flatnonzero(high > low).tolist():
            begin = int(starts[place]) - turn * tokens
            for stone in range(int(low[place]), int(high[place])):
                first, end = max(int(firsts[stone]) - begin, 0), min(int(min(ends[stone], tokens)) - begin, length)
                if first < end:
                    found.append((int(rows[place]), first, end))
    return found


def _joined(found: list[tuple[int, int, int]]) -> NDArray[np.int64]:
    joined: list[tuple[int, int, int]] = []
    for row, first, end in sorted(found):
        if joined and joined[-1][0] == row and first <= joined[-1][2]:
            joined[-1] = (row, joined[-1][1], max(end, joined[-1][2]))
        else:
            joined.append((row, first, end))
    return np.array(joined, np.int64)
