"""The plan: the frozen, pure function from a global sequence index to a sequence of a domain.

    index -> phase -> window shuffle -> quota tree -> (domain, rank) -> epoch -> permutation -> tokens

and, for an audit, the same way back: a document's token span -> sequences -> ranks -> items ->
windows -> indices -> steps. Nothing is stored but the phases and a few numbers a domain, so a plan of
trillions of tokens is kilobytes long and any step is found in closed form.
"""

from bisect import bisect_right
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.canonical import digest
from millstream.errors import InputError, UsageError
from millstream.stream import permutation, quota
from millstream.stream.keys import plan_key
from millstream.stream.permutation import U64, distinct, invert_groups, permute_groups
from millstream.stream.quota import QuotaTree, build_tree
from millstream.stream.ring import Ring, document_reads, epoch_offset, order_key
from millstream.stream.steps import BatchSchedule

FORMAT = "millstream-plan/1"
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
class Sequences:
    """Located sequences: parallel arrays (n,); ``domain`` counts in ``Plan.domains``."""

    domain: NDArray[np.int64]
    epoch: NDArray[np.int64]
    number: U64
    """Sequence of the epoch's ring."""
    start: NDArray[np.int64]
    """First token; the sequence wraps at the domain's end."""


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
    phases: tuple[Phase, ...]
    batches: BatchSchedule

    @cached_property
    def domains(self) -> tuple[str, ...]:
        """Names of the rings, in recipe order."""
        return tuple(ring.name for ring in self.rings)

    @property
    def plan_id(self) -> str:
        """Digest of the mixture section, the corpora and the algorithms' versions, as hex."""
        corpora = sorted({ring.corpus_id for ring in self.rings})
        return digest({"mixture": self.mixture_digest, "corpora": corpora, "algorithms": ALGORITHMS})

    @property
    def total_sequences(self) -> int:
        """Sequences in the whole plan."""
        return self.phases[-1].end

    @cached_property
    def total_steps(self) -> int:
        """Steps in the whole plan."""
        return self.batches.steps_within(self.total_sequences)

    def ring(self, domain: str) -> Ring:
        """The ring of a domain."""
        if domain not in self.domains:
            raise UsageError(f"the plan has no domain '{domain}'; it has {', '.join(self.domains)}")
        return self.rings[self.domains.index(domain)]

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
        """Sequences of a domain in the whole plan."""
        last = self.phases[-1]
        return last.cursors.get(domain, 0) + last.taken(domain)

    def locate(self, indices: U64) -> Sequences:
        """Sequences at the given global indices, each below ``total_sequences``."""
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
        return self._order(domain, running)

    def exposures(self, domain: str, start: int, end: int) -> Exposures:
        """Every place in the plan where tokens ``[start, end)`` of a domain are targets."""
        ring = self.ring(domain)
        # A span beyond a limit is in no ring; one that straddles it cannot be, limits cut at documents.
        consumed = self.consumed(domain) if end <= ring.tokens and start < end else 0
        reads = document_reads(self.seed, self.seq_len, ring, start, end, consumed)
        index = np.empty(reads.running.shape, np.uint64)
        phases = np.empty(reads.running.shape, np.int64)
        for number, phase in enumerate(self.phases):
            cursor = phase.cursors.get(domain, 0)
            inside = (reads.running >= cursor) & (reads.running < cursor + phase.taken(domain))
            if inside.any():
                items = quota.items_of(phase.tree, domain, reads.running[inside] - np.uint64(cursor))
                index[inside] = self._shuffle(phase, items, invert_groups) + np.uint64(phase.first)
                phases[inside] = number
        order = np.argsort(index, kind="stable")
        step, row = self.batches.locate(index[order])
        return Exposures(
            index=index[order],
            step=step,
            row=row,
            epoch=reads.epoch[order],
            phase=phases[order],
            tokens=reads.tokens[order],
        )

    def _shuffle(self, phase: Phase, places: U64, move: Any) -> U64:
        """Window shuffle within a phase; ``move`` permutes (to items) or inverts (to places)."""
        window = np.uint64(phase.window)
        numbers, inside = np.divmod(places, window)
        used, group = distinct(numbers)
        keys = [plan_key(self.seed, "window", phase.number, k) for k in used.tolist()]
        sizes = [min(phase.window, phase.length - k * phase.window) for k in used.tolist()]
        moved: U64 = move(keys, sizes, group, inside)
        return numbers * window + moved

    def _order(self, domain: NDArray[np.int64], running: NDArray[np.int64]) -> Sequences:
        per_epoch = np.array([ring.tokens // self.seq_len for ring in self.rings], np.int64)
        epoch, place = np.divmod(running, per_epoch[domain])
        pairs, group = distinct(epoch * len(self.rings) + domain)
        named = [(self.rings[pair % len(self.rings)], pair // len(self.rings)) for pair in pairs.tolist()]
        number = permute_groups(
            [order_key(self.seed, ring, e) for ring, e in named],
            [ring.tokens // self.seq_len for ring, _ in named],
            group,
            place.astype(np.uint64),
        )
        offset = np.array([epoch_offset(self.seed, ring, e) for ring, e in named], np.int64)[group]
        tokens = np.array([ring.tokens for ring in self.rings], np.int64)[domain]
        start = (offset + number.astype(np.int64) * self.seq_len) % tokens
        return Sequences(domain=domain, epoch=epoch, number=number, start=start)

    def _phase_at(self, index: int) -> int:
        return bisect_right(self.phases, index, key=lambda phase: phase.first) - 1

    def _check_step(self, step: int) -> None:
        if not 1 <= step <= self.total_steps:
            raise UsageError(f"step {step} is outside the plan, which has steps 1 to {self.total_steps}")


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON values, with its format, id and the versions of its algorithms."""
    domains = []
    for ring in plan.rings:
        piece = asdict(ring) | {"running": 0, "epoch": 0}
        # A list, since data added in mid-run becomes a further piece of its domain.
        domains.append({"name": piece.pop("name"), "pieces": [piece]})
    return {
        "format": FORMAT,
        "plan_id": plan.plan_id,
        "algorithms": ALGORITHMS,
        "mixture_digest": plan.mixture_digest,
        "seed": plan.seed,
        "seq_len": plan.seq_len,
        "domains": domains,
        "phases": [asdict(phase) for phase in plan.phases],
        "batches": [list(entry) for entry in plan.batches.entries],
    }


def plan_from_json(raw: Any) -> Plan:
    """Read a frozen plan back.

    Raises:
        InputError: another format or another version of the algorithms.
    """
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise InputError(
            f"expected a plan of format {FORMAT}, found {raw.get('format') if isinstance(raw, dict) else raw!r}"
        )
    if raw["algorithms"] != ALGORITHMS:
        raise InputError(f"the plan was made with {raw['algorithms']}, this version has {ALGORITHMS}")
    rings = []
    for domain in raw["domains"]:
        if len(domain["pieces"]) != 1:
            raise InputError(f"domain '{domain['name']}' has {len(domain['pieces'])} pieces; this version reads one")
        piece = {k: v for k, v in domain["pieces"][0].items() if k not in ("running", "epoch")}
        rings.append(Ring(name=domain["name"], **piece))
    return Plan(
        mixture_digest=raw["mixture_digest"],
        seed=raw["seed"],
        seq_len=raw["seq_len"],
        rings=tuple(rings),
        phases=tuple(Phase(**phase) for phase in raw["phases"]),
        batches=BatchSchedule(tuple((step, batch) for step, batch in raw["batches"])),
    )
