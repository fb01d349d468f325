"""Many steps found at once: where every row of a stretch of steps lies, before any token is copied.

Found singly, the places of eight sequences cost more than the copies of their tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.errors import UsageError
from millstream.stream.permutation import U64
from millstream.stream.plan import Plan, Sequences
from millstream.stream.ranges import StoredDomain, Tokens, gather_rows
from millstream.stream.shards import DomainReader

Readers = tuple[DomainReader | StoredDomain, ...]
"""One a ring of the plan."""

ROWS = 1 << 13
"""Sequences that are found at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Steps of one batch size, and the rows of one rank in them, row after row."""

    steps: range
    rows: int
    """Of one step and the rank."""
    firsts: list[int]
    """Global index of row 0 of each whole step."""
    first_row: int
    """Row of a whole step at which the rank's rows begin."""
    indices: U64
    located: Sequences


def stretches(plan: Plan, steps: range, rank: int, world: int) -> Iterator[Stretch]:
    """The steps in stretches of one batch size and at most about ``ROWS`` rows; as they are asked for.

    Raises:
        UsageError: a step is outside the plan or its batch does not divide by the world size.
    """
    at = 0
    while at < len(steps):
        size = plan.batch_of(steps[at])
        part = steps[at : at + max(1, ROWS * world // size)]
        while not _even(plan, part, size):
            part = part[: (len(part) + 1) // 2] if len(part) > 2 else part[:1]
        yield _stretch(plan, part, rank, world)
        at += len(part)


def _even(plan: Plan, steps: range, size: int) -> bool:
    """True for one step, and for steps of one batch size with nothing skipped between them."""
    if len(steps) == 1:
        return True
    first, last = steps[0], steps[-1]
    if last > plan.total_steps or plan.batch_of(last) != size:
        return False
    return plan.span(last)[0] - plan.span(first)[0] == size * (last - first)


def _stretch(plan: Plan, steps: range, rank: int, world: int) -> Stretch:
    first, end = plan.span(steps[0])
    size = end - first
    if size % world or not 0 <= rank < world:
        raise UsageError(f"the batch of step {steps[0]} ({size} sequences) does not divide among {world} ranks")
    rows = size // world
    firsts = np.arange(len(steps), dtype=np.uint64) * np.uint64(steps.step * size) + np.uint64(first)
    indices: U64 = np.add.outer(firsts, np.arange(rank * rows, (rank + 1) * rows, dtype=np.uint64)).ravel()
    return Stretch(
        steps=steps,
        rows=rows,
        firsts=firsts.tolist(),
        first_row=rank * rows,
        indices=indices,
        located=plan.locate(indices),
    )


@dataclass(frozen=True, slots=True)
class Places:
    """Where rows lie in mapped shards, one entry a row; ``None`` for a row that has to be put together."""

    tokens: list[Tokens | None]
    first: list[int]


def find_places(readers: Readers, located: Sequences, length: int) -> Places:
    """Find rows of ``length`` tokens; those that lie in a store, or across a border, have no place."""
    shards: list[Tokens | None] = []
    numbers = np.full(located.start.size, -1, np.int64)
    firsts = np.zeros(located.start.size, np.int64)
    for ring in np.flatnonzero(np.bincount(located.ring, minlength=len(readers))).tolist():
        reader = readers[ring]
        if isinstance(reader, DomainReader):
            rows = np.flatnonzero(located.ring == ring)
            own, firsts[rows] = reader.find(located.start[rows], length)
            numbers[rows] = np.where(own < 0, -1, own + len(shards))
            used = set(own.tolist())
            shards += [reader.shard(n).tokens if n in used else None for n in range(len(reader.shards))]
    # What lies nowhere has number -1, the last.
    shards.append(None)
    return Places([shards[n] for n in numbers.tolist()], firsts.tolist())


def copy_rows(readers: Readers, located: Sequences, places: Places, rows: slice, out: NDArray[Any]) -> None:
    """Copy rows of located sequences: ``out`` (rows, length), converting where its dtype is wider."""
    length = out.shape[1]
    rest = []
    for row, (shard, first) in enumerate(zip(places.tokens[rows], places.first[rows], strict=True)):
        if shard is None:
            rest.append(row)
        else:
            out[row] = shard[first : first + length]
    if rest:
        _put_together(readers, located, rows.start, rest, out)


def _put_together(readers: Readers, located: Sequences, start: int, rows: list[int], out: NDArray[Any]) -> None:
    """Fill rows of ``out`` that lie across a border, or in a store."""
    stored: dict[int, list[int]] = {}
    for row in rows:
        ring = int(located.ring[start + row])
        reader = readers[ring]
        if isinstance(reader, DomainReader):
            reader.fill(int(located.start[start + row]), out[row])
        else:
            stored.setdefault(ring, []).append(row)
    if stored:
        _copy_stored(readers, located.start[start : start + len(out)], stored, out)


def _copy_stored(readers: Readers, starts: NDArray[np.int64], rows_of: dict[int, list[int]], out: NDArray[Any]) -> None:
    """Rows by byte range, all those of one store together."""
    by_store: dict[int, list[Any]] = {}
    for ring, rows in rows_of.items():
        reader, chosen = readers[ring], np.array(rows)
        by_store.setdefault(id(reader.root), []).append((reader, starts[chosen], chosen))
    dtype = readers[0].dtype
    fetched = out if out.dtype == dtype else np.empty(out.shape, dtype)
    for wanted in by_store.values():
        gather_rows(wanted, fetched)
    if fetched is not out:
        chosen = np.concatenate([rows for wanted in by_store.values() for _, _, rows in wanted])
        out[chosen] = fetched[chosen]
