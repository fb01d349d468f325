"""The plan: the frozen, pure function from a global sequence index to a sequence of a domain.

    index -> phase -> window shuffle -> quota tree -> (domain, rank) -> epoch -> permutation -> tokens

and, for an audit, the same way back: a document's token span -> sequences -> ranks -> items ->
windows -> indices -> steps. Nothing is stored but the phases and a few numbers a domain, so a plan of
trillions of tokens is kilobytes long and any step is found in closed form.

A plan is changed in mid-run by ``millstream.stream.amend``, which leaves everything before a step as it
was; the plan then holds what it was changed to and the list of its amendments.
"""

from bisect import bisect_right
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.canonical import digest
from millstream.errors import UsageError
from millstream.stream import permutation, quota
from millstream.stream.keys import plan_keys
from millstream.stream.permutation import U64, distinct, invert_groups, permute_groups
from millstream.stream.quota import QuotaTree, build_tree
from millstream.stream.ring import Reads, Ring, document_reads, epoch_offset, order_key
from millstream.stream.steps import BatchSchedule, of_stretches

ALGORITHMS = {
    "order": permutation.ALGORITHM,
    "quota": quota.ALGORITHM,
    "window": "window/1",
    "ring": "ring/1",
}


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch ``[first, end)`` of global indices with one set of weights, one window, one batch."""

    number: int
    name: str
    first: int
    end: int
    window: int
    batch: int
    weights: dict[str, str]
    """As written in the recipe."""
    quotas: dict[str, int]
    exact: dict[str, int]
    cursors: dict[str, int]
    """Sequences of each domain consumed before the phase."""

    @property
    def length(self) -> int:
        """Sequences in the phase."""
        return self.end - self.first

    @cached_property
    def tree(self) -> QuotaTree:
        """The phase's quota tree."""
        return build_tree(self.quotas, self.exact, self.length)

    def taken(self, domain: str) -> int:
        """Sequences of a domain in the whole phase."""
        return quota.count(self.tree, domain, self.length)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tombstone:
    """Tokens ``[start, end)`` of a domain in a corpus that are not fed from ``from_step`` on.

    Positions never move: where such a token would stand, EOS is fed and nothing is to be predicted.
    """

    domain: str
    corpus_id: str
    start: int
    end: int
    from_step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Sequences:
    """Located sequences: parallel arrays (n,); ``domain`` counts in ``Plan.domains``, ``ring`` in ``Plan.rings``."""

    domain: NDArray[np.int64]
    ring: NDArray[np.int64]
    epoch: NDArray[np.int64]
    number: U64
    """Sequence of the ring's epoch."""
    start: NDArray[np.int64]
    """First token; the sequence wraps at the ring's end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exposures:
    """Where a token span is trained on: parallel arrays (n,), in order of global index."""

    index: U64
    step: NDArray[np.int64]
    row: NDArray[np.int64]
    epoch: NDArray[np.int64]
    phase: NDArray[np.int64]
    tokens: NDArray[np.int64]
    """Targets of the span in that sequence."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A frozen plan. Build one with ``millstream.stream.freeze.freeze_plan``."""

    mixture_digest: str
    seed: int
    seq_len: int
    rings: tuple[Ring, ...]
    """Of one domain: in the order in which they are used."""
    phases: tuple[Phase, ...]
    skips: tuple[tuple[int, int], ...] = ()
    """Half-open ranges of global indices, in order, each within a phase, that no step is made of."""
    tombstones: tuple[Tombstone, ...] = ()
    amendments: tuple[dict[str, Any], ...] = ()
    """What was changed in mid-run, as JSON values, in order of ``from_step``."""

    @cached_property
    def domains(self) -> tuple[str, ...]:
        """Names of the domains, in recipe order; domains that were added later follow."""
        return tuple(dict.fromkeys(ring.name for ring in self.rings))

    @cached_property
    def batches(self) -> BatchSchedule:
        """Which step is made of which global indices."""
        stretches = []
        for phase in self.phases:
            first = phase.first
            for skip_first, skip_end in self.skips:
                if phase.first <= skip_first < phase.end:
                    stretches.append((first, skip_first, phase.batch))
                    first = skip_end
            stretches.append((first, phase.end, phase.batch))
        return of_stretches(stretches)

    @cached_property
    def corpus_ids(self) -> tuple[str, ...]:
        """The corpora that the rings lie in, in the order in which they came."""
        return tuple(dict.fromkeys(ring.corpus_id for ring in self.rings))

    @cached_property
    def plan_id(self) -> str:
        """Digest of the mixture section, the corpora, the algorithms' versions and all amendments, as hex."""
        content = {"mixture": self.mixture_digest, "corpora": sorted(self.corpus_ids), "algorithms": ALGORITHMS}
        return digest(content | ({"amendments": list(self.amendments)} if self.amendments else {}))

    @property
    def total_sequences(self) -> int:
        """Sequences in the whole plan."""
        return self.phases[-1].end

    @cached_property
    def total_steps(self) -> int:
        """Steps in the whole plan."""
        return self.batches.steps_within(self.total_sequences)

    def pieces(self, domain: str) -> tuple[Ring, ...]:
        """The rings of a domain, in the order in which they are used; mostly one.

        Raises:
            UsageError: the plan has no such domain.
        """
        if domain not in self.domains:
            raise UsageError(f"the plan has no domain '{domain}'; it has {', '.join(self.domains)}")
        return tuple(ring for ring in self.rings if ring.name == domain)

    def batch_of(self, step: int) -> int:
        """Sequences of a step."""
        self._check_step(step)
        return self.batches.batch(step)

    def span(self, step: int) -> tuple[int, int]:
        """Half-open range of global indices of a step."""
        self._check_step(step)
        return self.batches.span(step)

    def phase_of_step(self, step: int) -> Phase:
        """The phase that a step lies in."""
        return self.phases[self._phase_at(self.span(step)[0])]

    def consumed(self, domain: str) -> int:
        """Sequences of a domain in the whole plan, skipped ones too."""
        last = self.phases[-1]
        return last.cursors.get(domain, 0) + last.taken(domain)

    def epochs(self, domain: str, consumed: int) -> float:
        """How often a domain was read through after ``consumed`` of its sequences."""
        ring = next(r for r in reversed(self.pieces(domain)) if r.running <= consumed)
        per_epoch = ring.tokens // self.seq_len
        return ring.epoch + ((consumed - ring.running) / per_epoch if per_epoch else 0)

    def locate(self, indices: U64) -> Sequences:
        """Sequences at the given global indices, each below ``total_sequences``."""
        return self._order(*self.running(indices))

    def running(self, indices: U64) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of the sequences at global indices the domain, a position in ``domains``, and its running index; both (n,).

        Raises:
            UsageError: the plan ends before one of them.
        """
        if indices.size and int(indices.max()) >= self.total_sequences:
            raise UsageError(f"the plan ends at sequence {self.total_sequences}, asked for {int(indices.max())}")
        domain = np.empty(indices.shape, np.int64)
        running = np.empty(indices.shape, np.int64)
        at = np.searchsorted([p.first for p in self.phases], indices.astype(np.int64), side="right") - 1
        for number in distinct(at)[0].tolist():
            chosen = np.flatnonzero(at == number)
            phase = self.phases[number]
            items = self._shuffle(phase, indices[chosen] - np.uint64(phase.first), permute_groups)
            leaf, rank = quota.place(phase.tree, items)
            of_ring = np.array([self.domains.index(name) for name in phase.tree.domains], np.int64)
            cursor = np.array([phase.cursors[name] for name in phase.tree.domains], np.int64)
            domain[chosen] = of_ring[leaf]
            running[chosen] = cursor[leaf] + rank.astype(np.int64)
        return domain, running

    def indices(self, domain: str, running: U64) -> tuple[U64, NDArray[np.int64]]:
        """Where a domain's sequences lie: the global index of each running index and the phase's number; both (n,).

        Raises:
            UsageError: the plan ends before one of them.
        """
        if running.size and int(running.max()) >= (consumed := self.consumed(domain)):
            raise UsageError(f"the plan reads {consumed} sequences of '{domain}', asked for {int(running.max())}")
        index = np.empty(running.shape, np.uint64)
        phases = np.empty(running.shape, np.int64)
        for number, phase in enumerate(self.phases):
            cursor = phase.cursors.get(domain, 0)
            inside = (running >= cursor) & (running < cursor + phase.taken(domain))
            if inside.any():
                items = quota.items_of(phase.tree, domain, running[inside] - np.uint64(cursor))
                index[inside] = self._shuffle(phase, items, invert_groups) + np.uint64(phase.first)
                phases[inside] = number
        return index, phases

    def exposures(self, domain: str, start: int, end: int, corpus_id: str | None = None) -> Exposures:
        """Every place in the plan where tokens ``[start, end)`` of a domain are targets.

        Args:
            domain: its name.
            start: position among the domain's tokens in the corpus.
            end: the position after the last.
            corpus_id: which corpus; may be left out where the domain lies in one alone.

        Raises:
            UsageError: the plan has no such domain, or it lies in several corpora.
        """
        pieces = self.pieces(domain)
        if corpus_id is None and len({ring.corpus_id for ring in pieces}) > 1:
            raise UsageError(f"domain '{domain}' lies in several corpora; say which one's tokens are meant")
        found = [self._ring_exposures(ring, start, end) for ring in pieces if corpus_id in (None, ring.corpus_id)]
        # Pieces follow one another in running index, not in global index: shuffled windows overlap at the border.
        return _in_order(found)

    def _ring_exposures(self, ring: Ring, start: int, end: int) -> Exposures:
        running, epoch, tokens = self._reads(ring, start, end)
        index, phases = self.indices(ring.name, running)
        step, row = self.batches.locate(index)
        for stone in self.tombstones:
            low, high = max(start, stone.start), min(end, stone.end)
            if (stone.domain, stone.corpus_id) == (ring.name, ring.corpus_id) and low < high:
                buried, _, lost = self._reads(ring, low, high)
                at = np.searchsorted(running, buried)
                tokens[at] -= np.where(step[at] >= stone.from_step, lost, 0)
        fed = np.flatnonzero((step > 0) & (tokens > 0))
        return Exposures(
            index=index[fed],
            step=step[fed],
            row=row[fed],
            epoch=epoch[fed],
            phase=phases[fed],
            tokens=tokens[fed],
        )

    def _reads(self, ring: Ring, start: int, end: int) -> tuple[U64, NDArray[np.int64], NDArray[np.int64]]:
        pieces = self.pieces(ring.name)
        later = pieces[pieces.index(ring) + 1 :]
        until = min([self.consumed(ring.name), *(r.running for r in later)])
        # A span beyond a limit is in no ring; one that straddles it cannot be, limits cut at documents.
        inside = end <= ring.tokens and start < end
        reads: Reads = document_reads(self.seed, self.seq_len, ring, start, end, until if inside else 0)
        return reads.running, reads.epoch, reads.tokens

    def _shuffle(self, phase: Phase, places: U64, move: Any) -> U64:
        """Window shuffle within a phase; ``move`` permutes (to items) or inverts (to places)."""
        window = np.uint64(phase.window)
        numbers, inside = np.divmod(places, window)
        used, group = distinct(numbers)
        keys = plan_keys(self.seed, "window", phase.number, last=used.tolist())
        sizes = np.minimum(phase.window, phase.length - used.astype(np.int64) * phase.window)
        moved: U64 = move(keys, sizes, group, inside)
        return numbers * window + moved

    def _order(self, domain: NDArray[np.int64], running: NDArray[np.int64]) -> Sequences:
        ring = self._ring_at(domain, running)
        per_epoch, tokens, begins, epochs = self._columns[:, ring]
        into, place = np.divmod(running - begins, per_epoch)
        epoch = epochs + into
        pairs, group = distinct(epoch * len(self.rings) + ring)
        named = [(self.rings[pair % len(self.rings)], pair // len(self.rings)) for pair in pairs.tolist()]
        number = permute_groups(
            [order_key(self.seed, r, e) for r, e in named],
            [r.tokens // self.seq_len for r, _ in named],
            group,
            place.astype(np.uint64),
        )
        offset = np.array([epoch_offset(self.seed, r, e) for r, e in named], np.int64)[group]
        start = (offset + number.astype(np.int64) * self.seq_len) % tokens
        return Sequences(domain=domain, ring=ring, epoch=epoch, number=number, start=start)

    @cached_property
    def _columns(self) -> NDArray[np.int64]:
        """Of each ring: sequences an epoch, tokens, first running index, first epoch; (4, rings)."""
        rows = [(r.tokens // self.seq_len, r.tokens, r.running, r.epoch) for r in self.rings]
        return np.array(rows, np.int64).reshape(len(rows), 4).T

    @cached_property
    def _rings_of(self) -> list[NDArray[np.intp]]:
        """Positions in ``rings``, a domain."""
        return [np.flatnonzero([ring.name == name for ring in self.rings]) for name in self.domains]

    def _ring_at(self, domain: NDArray[np.int64], running: NDArray[np.int64]) -> NDArray[np.int64]:
        ring = np.array([rings[0] for rings in self._rings_of], np.int64)[domain]
        for number, rings in enumerate(self._rings_of):
            if len(rings) > 1:
                chosen = np.flatnonzero(domain == number)
                ring[chosen] = rings[np.searchsorted(self._columns[2, rings], running[chosen], side="right") - 1]
        return ring

    def _phase_at(self, index: int) -> int:
        return bisect_right(self.phases, index, key=lambda phase: phase.first) - 1

    def _check_step(self, step: int) -> None:
        if not 1 <= step <= self.total_steps:
            raise UsageError(f"step {step} is outside the plan, which has steps 1 to {self.total_steps}")


def _in_order(found: list[Exposures]) -> Exposures:
    """Exposures of several rings as one, in order of global index."""
    order = np.argsort(np.concatenate([e.index for e in found]), kind="stable")
    return Exposures(**{f.name: np.concatenate([getattr(e, f.name) for e in found])[order] for f in fields(Exposures)})
