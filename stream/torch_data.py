"""The stream as ``torch.utils.data`` datasets; the only module here that imports torch.

Each item is one rank's share of a step, so use ``DataLoader(dataset, batch_size=None)``. Worker ``w``
of ``n`` takes every n-th step, and the loader collects from the workers in turn: the order does not
depend on their number, and the state is the next step alone.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from millstream.errors import InputError
from millstream.stream.reader import Batch, Stream
from millstream.stream.tombstones import masked_targets

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
    """Steps in order from ``next_step``; ``state_dict`` and ``load_state_dict`` move it.

    ``ahead`` batches are read by a thread of the trainer's process, which costs far less than a loader's workers.
    The state is the next step: under torchdata's ``StatefulDataLoader`` every worker keeps its own.
    """

    def __init__(
        self, stream: Stream, rank: int = 0, world: int = 1, next_step: int = 1, ahead: int | None = None
    ) -> None:
        self.stream, self.rank, self.world, self.next_step, self.ahead = stream, rank, world, next_step, ahead

    def __iter__(self) -> Iterator[Item]:
        worker = get_worker_info()
        stride = worker.num_workers if worker else 1
        # A worker takes every stride-th step; which of them is its own follows from where all began.
        first = self.next_step + (worker.id if worker else 0) if self._own is None else self._own
        for batch in self.stream.iterate(
            first, None, self.rank, self.world, stride=stride, ahead=self.ahead, dtype=np.int64
        ):
            if worker is None:
                self.next_step = batch.step + 1
            else:
                self._own = batch.step + stride
            yield as_item(batch)

    _own: int | None = None
    """A worker's next step, once it has begun."""

    def state_dict(self) -> dict[str, Any]:
        """The next step and the plan it belongs to."""
        state = {"version": 1, "plan_id": self.stream.plan.plan_id, "next_step": self.next_step}
        return state if self._own is None else state | {"own": self._own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved state.

        Raises:
            InputError: the state belongs to another plan.
        """
        if state["plan_id"] != self.stream.plan.plan_id:
            raise InputError(
                f"the state belongs to plan {state['plan_id'][:16]}, this is {self.stream.plan.plan_id[:16]}"
            )
        self.next_step, self._own = state["next_step"], state.get("own")


def as_item(batch: Batch) -> Item:
    """A batch as tensors.

    ``tokens`` int64 (rows, seq_len + 1), ``domains`` int64 (rows,), ``step``, ``first_index`` of the whole step and
    ``first_row`` of this rank in it; where takedowns fall into the batch, ``masked`` bool (rows, seq_len): targets
    that count for no loss.
    """
    item = {
        "step": batch.step,
        "first_index": batch.first_index,
        "first_row": batch.first_row,
        "tokens": torch.from_numpy(batch.tokens.astype(np.int64, copy=False)),
        "domains": torch.from_numpy(batch.domains),
    }
    masked = masked_targets(batch.buried, batch.tokens.shape[0], batch.tokens.shape[1] - 1)
    return item if masked is None else item | {"masked": torch.from_numpy(masked)}


def as_samples(items: Iterable[Item]) -> Iterator[Item]:
    """Items as webdataset samples, one a sequence: a stage of its pipelines.

    ``DataPipeline(StepIterator(stream), as_samples, ...)`` then takes shuffles, maps and batches as any other source
    does. ``__key__`` is the global index; ``tokens`` int64 (seq_len + 1,), ``domain`` a number, ``step``, and where
    some are taken down ``masked`` bool (seq_len,).
    """
    for item in items:
        for row, tokens in enumerate(item["tokens"]):
            sample = {
                "__key__": f"{item['first_index'] + item['first_row'] + row:012}",
                "__url__": f"step-{item['step']:08}",
                "step": item["step"],
                "tokens": tokens,
                "domain": int(item["domains"][row]),
            }
            yield sample | {"masked": item["masked"][row]} if "masked" in item else sample


def page_locked(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Memory that a GPU copies from while the processor goes on; for ``Stream.iterate``'s ``allocate``.

    Raises:
        RuntimeError: no accelerator is there.
    """
    like = torch.from_numpy(np.empty(0, dtype)).dtype
    array: NDArray[Any] = torch.empty(shape, dtype=like, pin_memory=True).numpy()
    return array
