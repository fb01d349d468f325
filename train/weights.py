"""A checkpoint's weights, read without DeepSpeed and without the ranks that wrote them.

Values lie in flat fragments of logical tensors; any stretch of one is put together from the files that hold it, so
what is read at once is for the reader to choose.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from millstream.errors import InputError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""By the names that recipes and commands have for them."""
MASTER = "fp32"
"""The kind of the master weights, which are fp32 whatever the network computes in."""
BUFFER = "buffer"
"""The kind of the network's persistent buffers: the router's correction biases."""


class Pieces:
    """The fragments of a checkpoint's files, each file mapped when something of it is first asked for.

    Args:
        folder: the checkpoint.
        tensors: the index's ``tensors``.
    """

    def __init__(self, folder: Path, tensors: Mapping[str, Mapping[str, Any]]) -> None:
        self.folder, self.tensors = folder, tensors
        self._open: dict[str, Any] = {}

    def fill(self, view: Tensor, name: str, first: int) -> None:
        """Copy what lies from ``first`` on in the flattened tensor of a name into ``view`` (n,).

        Raises:
            InputError: the fragments do not hold all of it.
        """
        last = first + view.numel()
        filled = 0
        for file, offset, count in self.tensors[name]["at"]:
            low, high = max(first, offset), min(last, offset + count)
            if low < high:
                if file not in self._open:
                    self._open[file] = safe_open(self.folder / file, "pt")
                piece = self._open[file].get_slice(name)[low - offset : high - offset]
                view[low - first : high - first].copy_(piece.view(-1))
                filled += high - low
        if filled != last - first:
            raise InputError(f"{self.folder}: {name} is not whole: {filled} of {last - first} values found")

    def read(self, name: str, at: Sequence[int] = ()) -> Tensor:
        """The tensor of a name, or what lies at these first indices of it."""
        about = self.tensors[name]
        shape = about["shape"]
        size, first = math.prod(shape), 0
        for index, length in zip(at, shape, strict=False):
            size //= length
            first += index * size
        view = torch.empty(size, dtype=getattr(torch, about["dtype"]))
        self.fill(view, name, first)
        return view.view(shape[len(at) :])


def stored_names(tensors: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Of every weight and buffer the parameter's name and the name it is stored under."""
    for name in tensors:
        kind, _, parameter = name.partition("/")
        if kind in (MASTER, BUFFER):
            yield parameter, name
