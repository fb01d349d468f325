"""Replaying what a run was fed: roots derived again from the plan and the corpus, against the ledger."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from millstream.audit.feed import leaf_hashes, step_root
from millstream.audit.records import FedStep
from millstream.audit.runs import Run
from millstream.errors import CheckFailed
from millstream.stream.corpora import Corpora
from millstream.stream.reader import Stream, open_stream

RECENT = 8


@dataclass(frozen=True, slots=True)
class Replayed:
    """A step record beside the root derived again from plan and corpus."""

    fed: FedStep
    root: str

    @property
    def equal(self) -> bool:
        """True where the ledger's root is the derived one."""
        return self.fed.root == self.root


def replay(run: Run, corpora: Corpora, steps: Iterable[FedStep]) -> Iterator[Replayed]:
    """Derive the roots of step records again, one by one, each under the plan that it was fed by."""
    streams: dict[str, Stream] = {}
    stored = stored_leaves(run)
    for fed in steps:
        plan = run.plans[fed.segment]
        if plan.plan_id not in streams:
            streams[plan.plan_id] = open_stream(plan, corpora.values())
        batch = streams[plan.plan_id].batch(fed.step)
        leaves = leaf_hashes(batch.indices, batch.tokens, batch.buried)
        yield Replayed(fed, step_root(with_stored(leaves, stored, fed.seq)))


def stored_leaves(run: Run) -> dict[tuple[int, int], bytes]:
    """Leaves of rows that a redacted document lies in, by record of the step and row; the first that was recorded."""
    found: dict[tuple[int, int], bytes] = {}
    for record in run.records.of("redaction"):
        for entry in record.body["leaves"]:
            found.setdefault((int(entry["record"]), int(entry["row"])), bytes.fromhex(entry["leaf"]))
    return found


def with_stored(leaves: NDArray[np.uint8], stored: Mapping[tuple[int, int], bytes], record: int) -> NDArray[np.uint8]:
    """A step's leaves, uint8 (rows, 32), with those that its record keeps in place of derived ones."""
    own = {row: leaf for (seq, row), leaf in stored.items() if seq == record and row < len(leaves)}
    if not own:
        return leaves
    leaves = leaves.copy()
    for row, leaf in own.items():
        leaves[row] = np.frombuffer(leaf, np.uint8)
    return leaves


def check_recent_roots(run: Run, corpora: Corpora, up_to_step: int) -> None:
    """Refuse to continue where the last steps before a checkpoint cannot be derived again.

    Raises:
        CheckFailed: names the first step whose root differs.
    """
    steps = [s for step in range(max(1, up_to_step - RECENT + 1), up_to_step + 1) for s in run.fed.get(step, [])]
    for replayed in replay(run, corpora, steps):
        if not replayed.equal:
            raise CheckFailed(
                f"{run.path}: step {replayed.fed.step} was fed other data than the corpus gives now (root "
                f"{replayed.fed.root[:16]}, derived {replayed.root[:16]}); the run cannot be continued on it"
            )
