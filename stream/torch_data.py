"""The stream as ``torch.utils.data`` datasets; the only module here that imports torch.

Each item is one rank's share of a step, so use ``DataLoader(dataset, batch_size=None)``. Worker ``w``
of ``n`` takes every n-th step, and the loader collects from the workers in turn: the order does not
depend on their number, and the state is the next step alone.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from millstream.errors import InputError
from millstream.stream.reader import Batch, Stream

Item = dict[str, Any]


class StepDataset(Dataset[Item]):
    """Map-style: item ``i`` is step ``i + 1`` of one rank."""

    def __init__(self, stream: Stream, rank: int = 0, world: int = 1) -> None:
        self.stream, self.rank, self.world = stream, rank, world

    def __len__(self) -> int:
        return self.stream.plan.total_steps

    def __getitem__(self, index: int) -> Item:
        return as_item(self.stream.batch(index + 1, self.rank, self.world))


class StepIterator(IterableDataset[Item]):
    """Steps in order from ``next_step``; ``state_dict`` and ``load_state_dict`` move it."""

    def __init__(self, stream: Stream, rank: int = 0, world: int = 1, next_step: int = 1) -> None:
        self.stream, self.rank, self.world, self.next_step = stream, rank, world, next_step

    def __iter__(self) -> Iterator[Item]:
        worker = get_worker_info()
        first, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        for batch in self.stream.iterate(self.next_step + first, None, self.rank, self.world, stride=stride):
            if worker is None:
                self.next_step = batch.step + 1
            yield as_item(batch)

    def state_dict(self) -> dict[str, Any]:
        """The next step and the plan it belongs to."""
        return {"version": 1, "plan_id": self.stream.plan.plan_id, "next_step": self.next_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved state.

        Raises:
            InputError: the state belongs to another plan.
        """
        if state["plan_id"] != self.stream.plan.plan_id:
            raise InputError(
                f"the state belongs to plan {state['plan_id'][:16]}, this is {self.stream.plan.plan_id[:16]}"
            )
        self.next_step = state["next_step"]


def as_item(batch: Batch) -> Item:
    """A batch as tensors: ``tokens`` int64 (rows, seq_len + 1), ``domains`` int64 (rows,), ``step``."""
    return {
        "step": batch.step,
        "first_index": batch.first_index,
        "tokens": torch.from_numpy(batch.tokens.astype(np.int64)),
        "domains": torch.from_numpy(batch.domains),
    }
