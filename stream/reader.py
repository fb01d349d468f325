"""Batches of tokens for any step, rank and world size.

The global batch of a step depends on the plan alone. Rank ``r`` of ``W`` takes the contiguous rows
``r * B / W`` to ``(r + 1) * B / W`` of it; micro-batches follow in order. A restart needs nothing but
the next step.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from millstream.errors import UsageError
from millstream.stream.buffers import Allocate, Buffers
from millstream.stream.corpora import Corpora, Corpus, corpora_of, open_corpus
from millstream.stream.permutation import U64
from millstream.stream.plan import Plan, Sequences
from millstream.stream.prefetch import read_ahead
from millstream.stream.ranges import Tokens
from millstream.stream.remote import StoreSettings
from millstream.stream.roots import Root
from millstream.stream.shards import open_domain
from millstream.stream.store import Store
from millstream.stream.stretches import Places, Readers, Stretch, copy_rows, find_places, stretches
from millstream.stream.tombstones import buried, bury
from millstream.tokenize.manifest import Manifest

if TYPE_CHECKING:
    import polars as pl

AHEAD = 2
"""Batches that are read from a store before they are asked for."""


class Batch(NamedTuple):
    """The rows of one step that belong to one rank.

    A named tuple, since a frozen data class takes as long to make as a row takes to copy.
    """

    step: int
    first_index: int
    """Global index of row 0 of the whole step."""
    first_row: int
    """Row of the whole step at which this rank's rows begin."""
    indices: U64
    """Global sequence indices, (rows,)."""
    domains: NDArray[np.int64]
    """Positions in ``Plan.domains``, (rows,)."""
    tokens: NDArray[Any]
    """(rows, seq_len + 1): inputs and, shifted by one, targets; in the corpus's dtype unless another was asked for."""
    buried: NDArray[np.int64]
    """Stretches that are not fed any more, EOS in their place, as from ``tombstones.buried``: (m, 3); mostly none."""


@dataclass(frozen=True)
class Stream:
    """A plan over its opened corpora."""

    plan: Plan
    corpora: Corpora
    readers: Readers

    @property
    def manifest(self) -> Manifest:
        """The manifest of the corpus that the run began with; its tokenizer is every corpus's."""
        return next(iter(self.corpora.values())).manifest

    def batch(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """The rows of a step for one rank.

        Raises:
            UsageError: the step is outside the plan or its batch does not divide by the world size.
            InputError: a shard is missing, short or altered in size.
            SetupError: an object store did not deliver within the retry budget.
        """
        (stretch,) = stretches(self.plan, range(step, step + 1), rank, world)
        return self._copy(stretch, self._places(stretch.located), 0, Buffers(self.readers[0].dtype, 1))

    def iterate(
        self,
        first: int = 1,
        last: int | None = None,
        rank: int = 0,
        world: int = 1,
        *,
        stride: int = 1,
        ahead: int | None = None,
        dtype: DTypeLike | None = None,
        allocate: Allocate = np.empty,
    ) -> Iterator[Batch]:
        """Batches of steps ``first``, ``first + stride``, ... up to ``last``; the fast way to read.

        The memory of a batch is used again once nobody holds its ``tokens``, a view or a tensor over them; whoever
        copies from it in the background holds on to it until that is done. Closing the iterator stops its thread;
        errors are those of ``batch``, each in its batch's turn.

        Args:
            first: step to begin with.
            last: the last step, by default the plan's.
            rank: whose rows.
            world: number of ranks.
            stride: between steps.
            ahead: batches that a thread reads before they are asked for; by default 2 from a store and 0 from a
                local folder. No more than that are held beside the consumer's own.
            dtype: of the tokens, by default the corpus's. Converting while copying costs little.
            allocate: makes the memory of the tokens; ``torch_data.page_locked`` where they go to a GPU.
        """
        steps = range(first, (self.plan.total_steps if last is None else last) + 1, stride)
        remote = any(isinstance(reader.root, Store) for reader in self.readers)
        depth = (AHEAD if remote else 0) if ahead is None else ahead
        if not depth:
            return self._batches(steps, rank, world, dtype, 2, allocate)
        stop = Event()
        batches = self._until(stop)._batches(steps, rank, world, dtype, depth + 3, allocate)
        # Threads that hand over one small batch at a time do little else.
        several = 1 if remote else max(1, depth // 2)
        return _one_by_one(read_ahead(_grouped(batches, several), depth // several, stop))

    def read(self, located: Sequences) -> Tokens:
        """Tokens of located sequences, as they lie in the corpora: (n, seq_len + 1)."""
        out = np.empty((located.start.size, self.plan.seq_len + 1), self.readers[0].dtype)
        if located.start.size:
            copy_rows(self.readers, located, self._places(located), slice(0, located.start.size), out)
        return out

    def documents(self, step: int) -> "pl.DataFrame":
        """Documents that are targets in a step, as from ``documents.documents_of``."""
        # Whoever only reads tokens, in a forked worker perhaps, does without Polars and its threads.
        from millstream.stream.documents import documents_of

        located = self.plan.locate(np.arange(*self.plan.span(step), dtype=np.uint64))
        return documents_of(self.corpora, self.plan, located, step)

    def _batches(
        self, steps: range, rank: int, world: int, dtype: DTypeLike | None, most: int, allocate: Allocate
    ) -> Iterator[Batch]:
        buffers = Buffers(self.readers[0].dtype if dtype is None else np.dtype(dtype), most, allocate)
        mapped = all(isinstance(reader.root, Path) for reader in self.readers)
        for stretch in stretches(self.plan, steps, rank, world):
            # Shards of a store come into the cache as they are wanted, so their places are found a step at a time.
            places = self._places(stretch.located) if mapped else None
            for at in range(len(stretch.steps)):
                yield self._copy(stretch, places, at, buffers)

    def _places(self, located: Sequences) -> Places:
        return find_places(self.readers, located, self.plan.seq_len + 1)

    def _copy(self, stretch: Stretch, places: Places | None, at: int, buffers: Buffers) -> Batch:
        rows = slice(at * stretch.rows, (at + 1) * stretch.rows)
        located = stretch.located
        if places is None:
            located = Sequences(**{name: getattr(located, name)[rows] for name in Sequences.__slots__})
            places, rows = self._places(located), slice(0, stretch.rows)
        tokens = buffers.take((stretch.rows, self.plan.seq_len + 1))
        copy_rows(self.readers, located, places, rows, tokens)
        gone = buried(self.plan, located, rows, stretch.steps[at])
        if len(gone):
            bury(tokens, gone, self.manifest.tokenizer.eos_id)
        return Batch(
            stretch.steps[at],
            stretch.firsts[at],
            stretch.first_row,
            stretch.indices[at * stretch.rows : (at + 1) * stretch.rows],
            located.domain[rows],
            tokens,
            gone,
        )

    def _until(self, stop: Event) -> "Stream":
        """The same stream, whose waiting for a store ends when ``stop`` is set."""
        roots = {id(r.root): r.root.until(stop) for r in self.readers if isinstance(r.root, Store)}
        readers = tuple(replace(r, root=roots[id(r.root)]) if id(r.root) in roots else r for r in self.readers)
        return replace(self, readers=readers)


def open_stream(
    plan: Plan, corpora: Root | str | Iterable[Root | str | Corpus], settings: StoreSettings | None = None
) -> Stream:
    """Open the corpora that a plan was made for.

    Args:
        plan: the plan.
        corpora: where they lie, in any order: local folders, or any fsspec URLs. A plan that no new data was added to
            has one.
        settings: how a store is read; nothing of it concerns a local folder.

    Raises:
        UsageError: there is no corpus at a place.
        InputError: a corpus is another one than the plan was made for.
        SetupError: a store is not reached, or a package for it is missing.
    """
    places = [corpora] if isinstance(corpora, str | Path | Store) else corpora
    given = [place if isinstance(place, Corpus) else open_corpus(place, settings) for place in places]
    chosen = corpora_of(plan, given)
    readers = []
    for ring in plan.rings:
        corpus = chosen[ring.corpus_id]
        dtype = corpus.manifest.tokenizer.dtype
        readers.append(open_domain(corpus.root, corpus.manifest.domain(ring.name), dtype, ring.tokens))
    return Stream(plan, chosen, tuple(readers))


def _grouped(batches: Iterator[Batch], size: int) -> Iterator[list[Batch]]:
    while group := list(islice(batches, size)):
        yield group


def _one_by_one(groups: Iterator[list[Batch]]) -> Iterator[Batch]:
    with closing(groups):  # type: ignore[type-var]
        for group in groups:
            yield from group


def check_batches(plan: Plan, world: int, micro_batch: int) -> None:
    """Check that every batch of the plan divides among the ranks and their micro-batches.

    Raises:
        UsageError: names the step, the batch and the nearest batches that would do.
    """
    unit = world * micro_batch
    for step, batch, _ in plan.batches.entries:
        if batch % unit:
            lower = batch // unit * unit
            near = f"{lower} or {lower + unit}" if lower else str(unit)
            raise UsageError(
                f"from step {step} a batch holds {batch} sequences, which is no multiple of {world} ranks x "
                f"micro_batch {micro_batch}; use {near}, or another micro_batch"
            )
