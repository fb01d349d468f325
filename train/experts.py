"""Feed-forward parts: one for all tokens, or many that each take a stretch of sorted rows.

Shapes: R rows, E experts, D hidden, W width.
"""

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FeedForward(nn.Module):
    """SwiGLU (Shazeer, 2020)."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, width, bias=False)
        self.up_proj = nn.Linear(hidden, width, bias=False)
        self.down_proj = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to the last dimension."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Experts(nn.Module):
    """This rank's experts, each a SwiGLU, stacked: ``w1`` (gate) and ``w3`` (up) are (E, W, D), ``w2`` (E, D, W)."""

    def __init__(self, count: int, hidden: int, width: int) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(count, width, hidden))
        self.w3 = nn.Parameter(torch.empty(count, width, hidden))
        self.w2 = nn.Parameter(torch.empty(count, hidden, width))

    def forward(self, rows_RD: Tensor, counts_E: Tensor) -> Tensor:
        """Apply expert ``i`` to the next ``counts_E[i]`` rows, for each in turn; the counts sum to R."""
        out: Tensor = _SwiGLU.apply(rows_RD, counts_E, self.w1, self.w3, self.w2)
        return out


class _SwiGLU(torch.autograd.Function):
    """Keeps the rows and two activations; their product is made again where it is needed.

    The weights are kept as the parameters that they are, not as views of them, so that ZeRO 3 can take them away
    between forward and backward.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: Tensor, w1: Tensor, w3: Tensor, w2: Tensor) -> Tensor:
        ends = torch.cumsum(counts, 0, dtype=torch.int32)
        gate, up = (grouped(rows, w.transpose(-2, -1), ends) for w in (w1, w3))
        ctx.save_for_backward(rows, ends, w1, w3, w2, gate, up)
        return grouped(F.silu(gate).mul_(up), w2.transpose(-2, -1), ends)

    @staticmethod
    def backward(ctx: Any, of_out: Tensor) -> tuple[Tensor | None, ...]:
        rows, ends, w1, w3, w2, gate, up = ctx.saved_tensors
        of_out = of_out.contiguous()
        of_inner = grouped(of_out, w2, ends)
        opened = F.silu(gate)
        of_w2 = grouped(of_out.T, opened * up, ends)
        of_up = opened.mul_(of_inner)
        of_gate = torch.ops.aten.silu_backward(of_inner.mul_(up), gate)
        of_w1, of_w3 = (grouped(part.T, rows, ends) for part in (of_gate, of_up))
        of_rows = grouped(of_gate, w1, ends).add_(grouped(of_up, w3, ends))
        return of_rows, None, of_w1, of_w3, of_w2


def grouped(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    """Matrix products of the stretches of rows that end at ``ends``, int32 (E,).

    Either each stretch of ``left`` (R, A) times its matrix of ``right`` (E, A, B), to (R, B); or each stretch of the
    columns of ``left`` (A, R) times the same rows of ``right`` (R, B), to (E, A, B). One kernel where torch has one for
    the device and type, a loop elsewhere.
    """
    if left.device.type == "cpu" or left.dtype == torch.bfloat16:
        return F.grouped_mm(left, right, offs=ends)
    return grouped_loop(left, right, ends)


def grouped_loop(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    """The same, one product at a time; the device waits for the sizes."""
    borders = [0, *ends.tolist()]
    stretches = [slice(a, b) for a, b in pairwise(borders)]
    if right.dim() == 3:
        out = left.new_empty(left.shape[0], right.shape[2])
        for number, rows in enumerate(stretches):
            torch.mm(left[rows], right[number], out=out[rows])
        return out
    out = left.new_empty(len(stretches), left.shape[0], right.shape[1])
    for number, rows in enumerate(stretches):
        torch.mm(left[:, rows], right[rows], out=out[number])
    return out
