"""Arrays that are used again: fresh memory costs more than the copy of a batch into it."""

import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Allocate = Callable[[tuple[int, ...], DTypeLike], NDArray[Any]]
"""From a shape and a dtype, an array of undefined content."""


class Buffers:
    """A ring of arrays of one dtype, each used again when its turn comes and nobody holds it.

    Args:
        dtype: of the arrays.
        most: arrays in the ring; one that is still held when its turn comes is left to its holder.
        allocate: makes them.
    """

    def __init__(self, dtype: DTypeLike, most: int, allocate: Allocate = np.empty) -> None:
        self.dtype, self.most, self.allocate = dtype, most, allocate
        self._ring: deque[NDArray[Any]] = deque()

    def take(self, shape: tuple[int, ...]) -> NDArray[Any]:
        """An array of undefined content that nobody else holds, views and tensors over it included."""
        array = self._ring.popleft() if len(self._ring) >= self.most else None
        # The local name and the call's argument; a view or a tensor over the array would be a third.
        if array is None or array.shape != shape or sys.getrefcount(array) > 2:
            array = self.allocate(shape, self.dtype)
        self._ring.append(array)
        return array
