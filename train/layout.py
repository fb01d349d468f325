"""Where the matrices of a flat ZeRO partition lie, and how they come together on one rank and go back.

ZeRO flattens a group of parameters and cuts the vector into equal pieces, one a rank, wherever the cuts fall. Muon
wants whole matrices. Most lie in one piece and stay there. One that is cut is sent to one of the ranks that hold a part
of it, the one with the least to do, and its update comes back the same way: two all-to-alls a group and step, of the
cut matrices alone, whatever the number of ranks (Liu et al. 2025 gather on every rank; this is the same result for
less). Each expert of a stack is a matrix of its own.

The layout is read from fields of DeepSpeed's optimizer that are not public; ``tests/test_train_muon.py`` holds them to
the pinned version.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from torch import Tensor

MOST_ELEMENTS = 2**26
"""Elements of equally shaped matrices that are worked on at once."""

Transform = Callable[[Tensor], Tensor]
"""From matrices (n, rows, columns) to as many of the same shape."""


@dataclass(frozen=True, slots=True)
class Piece:
    """``count`` elements from position ``at`` of a matrix, at ``local`` in the partition of ``rank``."""

    rank: int
    local: int
    at: int
    count: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix of a flat group; ``owner`` is the rank that works on it."""

    rows: int
    columns: int
    pieces: tuple[Piece, ...]
    owner: int


@dataclass(frozen=True)
class Layout:
    """A flat group's matrices, as one rank of its ``process_group`` sees them."""

    process_group: Any
    rank: int
    world: int
    matrices: tuple[Matrix, ...]

    @cached_property
    def sent(self) -> list[list[Piece]]:
        """This rank's pieces of matrices that other ranks own, by owner; in order of matrix."""
        return [
            [p for m in self.matrices if m.owner == owner != self.rank for p in m.pieces if p.rank == self.rank]
            for owner in range(self.world)
        ]

    @cached_property
    def received(self) -> list[list[tuple[Matrix, Piece]]]:
        """Other ranks' pieces of this rank's matrices, by sender; in order of matrix."""
        own = [m for m in self.matrices if m.owner == self.rank]
        return [
            [(m, p) for m in own for p in m.pieces if p.rank == sender != self.rank] for sender in range(self.world)
        ]

    @property
    def is_cut(self) -> bool:
        """Whether any rank has to send anything; the same on all ranks."""
        return any(len(m.pieces) > 1 for m in self.matrices)

    def map_matrices(self, flat: Tensor, dtype: torch.dtype, transform: Transform) -> None:
        """Put ``transform`` of every matrix in its place; all ranks of the group take part.

        Args:
            flat: this rank's partition, fp32 (n,); changed in place.
            dtype: that matrices travel and are transformed in.
            transform: applied to stacks of matrices of one shape.
        """
        inbox = self._exchange(flat, dtype) if self.is_cut else flat.new_empty(0, dtype=dtype)
        for shape, matrices in self._stacks():
            stack = torch.empty(len(matrices), shape[0] * shape[1], dtype=dtype, device=flat.device)
            for row, matrix in zip(stack, matrices, strict=True):
                for piece, view in self._views(matrix, flat, inbox):
                    row[piece.at : piece.at + piece.count] = view
            done = transform(stack.view(-1, *shape)).reshape(len(matrices), -1)
            for row, matrix in zip(done, matrices, strict=True):
                for piece, view in self._views(matrix, flat, inbox):
                    view.copy_(row[piece.at : piece.at + piece.count])
        if self.is_cut:
            self._return(inbox, flat)

    def _exchange(self, flat: Tensor, dtype: torch.dtype) -> Tensor:
        parts = [flat[p.local : p.local + p.count] for pieces in self.sent for p in pieces]
        outbox = torch.cat(parts).to(dtype) if parts else flat.new_empty(0, dtype=dtype)
        inbox = flat.new_empty(sum(self._in_splits), dtype=dtype)
        dist.all_to_all_single(inbox, outbox, self._in_splits, self._out_splits, group=self.process_group)
        return inbox

    def _return(self, inbox: Tensor, flat: Tensor) -> None:
        back = inbox.new_empty(sum(self._out_splits))
        dist.all_to_all_single(back, inbox, self._out_splits, self._in_splits, group=self.process_group)
        start = 0
        for piece in (p for pieces in self.sent for p in pieces):
            flat[piece.local : piece.local + piece.count] = back[start : start + piece.count]
            start += piece.count

    def _views(self, matrix: Matrix, flat: Tensor, inbox: Tensor) -> Iterator[tuple[Piece, Tensor]]:
        for piece in matrix.pieces:
            source, start = (
                (flat, piece.local) if piece.rank == self.rank else (inbox, self._arrival[piece.rank, piece])
            )
            yield piece, source[start : start + piece.count]

    def _stacks(self) -> Iterator[tuple[tuple[int, int], list[Matrix]]]:
        """This rank's matrices by shape, few enough at a time."""
        shapes: dict[tuple[int, int], list[Matrix]] = {}
        for matrix in self.matrices:
            if matrix.owner == self.rank:
                shapes.setdefault((matrix.rows, matrix.columns), []).append(matrix)
        for shape, matrices in shapes.items():
            several = max(1, MOST_ELEMENTS // (shape[0] * shape[1]))
            for first in range(0, len(matrices), several):
                yield shape, matrices[first : first + several]

    @cached_property
    def _out_splits(self) -> list[int]:
        return [sum(p.count for p in pieces) for pieces in self.sent]

    @cached_property
    def _in_splits(self) -> list[int]:
        return [sum(p.count for _, p in pieces) for pieces in self.received]

    @cached_property
    def _arrival(self) -> dict[tuple[int, Piece], int]:
        """Where in the inbox each received piece begins."""
        found, start = {}, 0
        for pieces in self.received:
            for _, piece in pieces:
                found[piece.rank, piece] = start
                start += piece.count
        return found


def flat_groups(zero: Any) -> list[tuple[Tensor, dict[str, Any]]]:
    """This rank's flat fp32 partitions in DeepSpeed's optimizer of ZeRO 1, 2 or 3, each with its parameter group."""
    groups = zero.optimizer.param_groups
    if isinstance(zero, DeepSpeedZeroOptimizer_Stage3):
        flats = enumerate(zero.fp32_partitioned_groups_flat)
        return [(flat, groups[zero.sub_group_to_group_id[number]]) for number, flat in flats]
    return [(flat, group) for group in groups for flat in group["params"]]


def zero_layout(zero: Any, number: int) -> Layout:
    """Layout of the parameter group with this number in DeepSpeed's optimizer of ZeRO 1 or 2."""
    process_group = zero.real_dp_process_group[number]
    size = int(zero.partition_size[number])
    cut = []
    for parameter, offset in zip(
        zero.round_robin_bit16_groups[number], zero.round_robin_bit16_offsets[number], strict=True
    ):
        cut.append((tuple(parameter.shape), cut_evenly(offset, parameter.numel(), size)))
    return lay_out(cut, process_group, dist.get_rank(process_group), dist.get_world_size(process_group))


def cut_evenly(offset: int, count: int, size: int) -> list[Piece]:
    """Pieces of ``count`` elements at ``offset`` of a vector that is cut every ``size`` elements."""
    pieces = []
    for rank in range(offset // size, (offset + count - 1) // size + 1):
        low, high = max(offset, rank * size), min(offset + count, (rank + 1) * size)
        pieces.append(Piece(rank, low - rank * size, low - offset, high - low))
    return pieces


def lay_out(
    parameters: Sequence[tuple[tuple[int, ...], list[Piece]]], process_group: Any, rank: int, world: int
) -> Layout:
    """Choose an owner for every matrix.

    Args:
        parameters: shape, (rows, columns) or (experts, rows, columns), and pieces of each.
        process_group: the ranks that hold them.
        rank: this one, in the group.
        world: how many there are.
    """
    whole: list[tuple[int, int, tuple[Piece, ...]]] = []
    for shape, pieces in parameters:
        rows, columns = shape[-2:]
        size = rows * columns
        for number in range(shape[0] if len(shape) == 3 else 1):
            whole.append((rows, columns, tuple(_within(pieces, number * size, (number + 1) * size))))
    load = [0] * world
    owners = [-1] * len(whole)
    # What is cut goes last, the heaviest first, to where there is least to do.
    order = sorted(range(len(whole)), key=lambda n: (len(whole[n][2]) > 1, -_cost(*whole[n][:2]), n))
    for number in order:
        rows, columns, pieces_ = whole[number]
        owners[number] = min((p.rank for p in pieces_), key=lambda r: (load[r], r))
        load[owners[number]] += _cost(rows, columns)
    matrices = tuple(Matrix(r, c, p, o) for (r, c, p), o in zip(whole, owners, strict=True))
    return Layout(process_group, rank, world, matrices)


def _within(pieces: list[Piece], first: int, last: int) -> Iterator[Piece]:
    for piece in pieces:
        low, high = max(first, piece.at), min(last, piece.at + piece.count)
        if low < high:
            yield Piece(piece.rank, piece.local + low - piece.at, low - first, high - low)


def _cost(rows: int, columns: int) -> int:
    return rows * columns * min(rows, columns)
