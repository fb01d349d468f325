"""Batches of tokens for any step, rank and world size.

The global batch of a step depends on the plan alone. Rank ``r`` of ``W`` takes the contiguous rows
``r * B / W`` to ``(r + 1) * B / W`` of it; micro-batches follow in order. A restart needs nothing but
the next step.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from threading import Event

import numpy as np
from numpy.typing import NDArray

from millstream.errors import InputError, UsageError
from millstream.stream.permutation import U64
from millstream.stream.plan import Plan, Sequences
from millstream.stream.prefetch import read_ahead
from millstream.stream.ranges import StoredDomain, Tokens, gather_rows
from millstream.stream.remote import StoreSettings
from millstream.stream.roots import Root, open_root, read_corpus
from millstream.stream.shards import DomainReader, open_domain
from millstream.stream.store import Store
from millstream.tokenize.manifest import Manifest

AHEAD = 2
"""Batches that are read before they are asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """The rows of one step that belong to one rank."""

    step: int
    first_index: int
    """Global index of row 0 of the whole step."""
    first_row: int
    """Row of the whole step at which this rank's rows begin."""
    indices: U64
    """Global sequence indices, (rows,)."""
    domains: NDArray[np.int64]
    """Positions in ``Plan.domains``, (rows,)."""
    tokens: Tokens
    """(rows, seq_len + 1), in the corpus's dtype: inputs and, shifted by one, targets."""


@dataclass(frozen=True)
class Stream:
    """A plan over an opened corpus."""

    plan: Plan
    manifest: Manifest
    readers: tuple[DomainReader | StoredDomain, ...]

    def batch(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """The rows of a step for one rank.

        Raises:
            UsageError: the step is outside the plan or its batch does not divide by the world size.
            InputError: a shard is missing, short or altered in size.
            SetupError: an object store did not deliver within the retry budget.
        """
        first, end = self.plan.span(step)
        size = end - first
        if size % world or not 0 <= rank < world:
            raise UsageError(f"the batch of step {step} ({size} sequences) does not divide among {world} ranks")
        rows = size // world
        indices = np.arange(first + rank * rows, first + (rank + 1) * rows, dtype=np.uint64)
        located = self.plan.locate(indices)
        return Batch(
            step=step,
            first_index=first,
            first_row=rank * rows,
            indices=indices,
            domains=located.domain,
            tokens=self.read(located),
        )

    def iterate(
        self,
        first: int = 1,
        last: int | None = None,
        rank: int = 0,
        world: int = 1,
        *,
        stride: int = 1,
        ahead: int | None = None,
    ) -> Iterator[Batch]:
        """Batches of steps ``first``, ``first + stride``, ... up to ``last``.

        From a store they are read ahead in a thread, ``ahead`` of them (by default 2); a local corpus is read when
        asked, unless ``ahead`` is given. No more than that are held beside the consumer's own. Closing the iterator
        stops the thread; errors are those of ``batch``, each in its batch's turn.
        """
        steps = range(first, (self.plan.total_steps if last is None else last) + 1, stride)
        remote = any(isinstance(reader.root, Store) for reader in self.readers)
        depth = (AHEAD if remote else 0) if ahead is None else ahead
        if not depth:
            return (self.batch(step, rank, world) for step in steps)
        stop = Event()
        stream = self._until(stop)
        return read_ahead(steps, lambda step: stream.batch(step, rank, world), depth, stop)

    def read(self, located: Sequences) -> Tokens:
        """Tokens of located sequences: (n, seq_len + 1)."""
        out = np.empty((located.start.size, self.plan.seq_len + 1), self.readers[0].dtype)
        stored = []
        for domain in np.unique(located.domain).tolist():
            rows = np.flatnonzero(located.domain == domain)
            reader = self.readers[domain]
            if isinstance(reader, StoredDomain):
                stored.append((reader, located.start[rows], rows))
            else:
                reader.gather(located.start[rows], out.shape[1], out, rows)
        if stored:
            gather_rows(stored, out)
        return out

    def _until(self, stop: Event) -> "Stream":
        """The same stream, whose waiting for a store ends when ``stop`` is set."""
        readers = tuple(replace(r, root=r.root.until(stop)) if isinstance(r.root, Store) else r for r in self.readers)
        return replace(self, readers=readers)


def open_stream(plan: Plan, corpus_root: Root | str, settings: StoreSettings | None = None) -> Stream:
    """Open the corpus that a plan was made for.

    Args:
        plan: the plan.
        corpus_root: a local folder, or any fsspec URL.
        settings: how a store is read; nothing of it concerns a local folder.

    Raises:
        UsageError: there is no corpus at this place.
        InputError: the corpus is another one than the plan was made for.
        SetupError: the store is not reached, or a package for it is missing.
    """
    corpus_root = open_root(corpus_root, settings)
    manifest = read_corpus(corpus_root)
    wanted = {ring.corpus_id for ring in plan.rings}
    if wanted != {manifest.corpus_id}:
        found, expected = manifest.corpus_id, ", ".join(sorted(wanted))
        raise InputError(f"{corpus_root}: holds corpus {found[:16]}, the plan was made for {expected[:16]}")
    dtype = manifest.tokenizer.dtype
    readers = tuple(open_domain(corpus_root, manifest.domain(ring.name), dtype, ring.tokens) for ring in plan.rings)
    return Stream(plan, manifest, readers)


def check_batches(plan: Plan, world: int, micro_batch: int) -> None:
    """Check that every batch of the plan divides among the ranks and their micro-batches.

    Raises:
        UsageError: names the step, the batch and the nearest batches that would do.
    """
    unit = world * micro_batch
    for step, batch in plan.batches.entries:
        if batch % unit:
            lower = batch // unit * unit
            near = f"{lower} or {lower + unit}" if lower else str(unit)
            raise UsageError(
                f"from step {step} a batch holds {batch} sequences, which is no multiple of {world} ranks x "
                f"micro_batch {micro_batch}; use {near}, or another micro_batch"
            )
