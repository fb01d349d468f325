"""Bringing tokens to their experts and back: sorted on a rank, exchanged between ranks.

    tokens (T, D) -> rows sorted by expert (R, D) -> ranks that hold the experts -> back -> weighted sum (T, D)

Without a capacity R = T * k, whatever the balance: no token is dropped and none is padded. All moves of rows are
gathers in both directions, so that equal inputs give equal bits on any device.

Shapes: T tokens, k choices of each, R rows, D hidden, E experts.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from millstream.train.router import Choice


@dataclass(frozen=True, kw_only=True, slots=True)
class Sorting:
    """Choices in the order of their experts, of one expert in the order of tokens.

    ``choice`` int64 (R,): flat index of each row's choice. ``place`` int64 (T, k): each choice's row; some row where
    ``kept`` is False. ``kept`` bool (T, k), or None where all are. ``counts`` int64 (E,): rows of each expert.
    """

    choice: Tensor
    place: Tensor
    kept: Tensor | None
    counts: Tensor

    @property
    def token(self) -> Tensor:
        """Token of each row, int64 (R,)."""
        return self.choice // self.place.shape[1]


def capacity(tokens: int, top_k: int, experts: int, factor: float) -> int:
    """Rows that one expert takes of this many tokens: ``factor`` times an even share, rounded up."""
    return math.ceil(tokens * top_k * factor / experts)


def sort_by_expert(experts_Tk: Tensor, counts_E: Tensor, most: int | None) -> Sorting:
    """Sort choices by expert.

    Args:
        experts_Tk: int64.
        counts_E: how often each was chosen, int64.
        most: rows an expert takes; the first in the order of tokens stay. So what a token gets depends on no later
            one: keeping the highest weights instead would let the future decide.
    """
    flat = experts_Tk.flatten()
    order = torch.argsort(flat, stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    if most is None:
        return Sorting(choice=order, place=place.view_as(experts_Tk), kept=None, counts=counts_E)
    starts = counts_E.cumsum(0) - counts_E
    kept = place - starts[flat] < most
    counts = counts_E.clamp(max=most)
    moved = place + (counts.cumsum(0) - counts - starts)[flat]
    return Sorting(
        choice=order[kept[order]],
        place=moved.where(kept, 0).view_as(experts_Tk),
        kept=kept.view_as(experts_Tk),
        counts=counts,
    )


def gather_rows(x_TD: Tensor, sorting: Sorting) -> Tensor:
    """Rows of sorted choices (R, D)."""
    rows: Tensor = _Gather.apply(x_TD, sorting.token, sorting.place, sorting.kept)
    return rows


def combine_rows(rows_RD: Tensor, choice: Choice, sorting: Sorting) -> Tensor:
    """Sum of each token's rows by its weights, in fp32, given back in the rows' type: (T, D)."""
    weights = choice.weights if sorting.kept is None else choice.weights * sorting.kept
    out: Tensor = _Combine.apply(rows_RD, weights, sorting.choice, sorting.place)
    return out


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, place: Tensor, kept: Tensor | None) -> Tensor:
        ctx.save_for_backward(place, kept)
        return x.index_select(0, token)

    @staticmethod
    def backward(ctx: Any, of_rows: Tensor) -> tuple[Tensor | None, ...]:
        place, kept = ctx.saved_tensors
        if not len(of_rows):
            return of_rows.new_zeros(len(place), of_rows.shape[1]), None, None, None
        total = None
        for number, at in enumerate(place.unbind(1)):
            part = of_rows.index_select(0, at)
            if kept is not None:
                part.masked_fill_(~kept[:, number, None], 0)
            total = part if total is None else total.add_(part)
        return total, None, None, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, choice: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weights, choice, place)
        if not len(rows):
            return rows.new_zeros(len(place), rows.shape[1])
        total = None
        for at, weight in zip(place.unbind(1), weights.unbind(1), strict=True):
            part = rows.index_select(0, at).float()
            total = part.mul_(weight[:, None]) if total is None else total.addcmul_(part, weight[:, None])
        assert total is not None
        return total.to(rows.dtype)

    @staticmethod
    def backward(ctx: Any, of_out: Tensor) -> tuple[Tensor | None, ...]:
        rows, weights, choice, place = ctx.saved_tensors
        spread = of_out.index_select(0, choice // place.shape[1]).float()
        of_weights = torch.zeros_like(weights).flatten()
        of_weights[choice] = (rows.float() * spread).sum(-1)
        of_rows = spread.mul_(weights.flatten()[choice, None]).to(rows.dtype)
        return of_rows, of_weights.view_as(weights), None, None


class Exchange:
    """The way of rows to the ranks that hold their experts, and back; made for one forward pass.

    Args:
        counts_E: rows that this rank has for each expert of all ranks, int64 (E,).
        group: the expert-parallel ranks.
        ranks: their number.
    """

    def __init__(self, counts_E: Tensor, group: dist.ProcessGroup | None, ranks: int) -> None:
        self.group = group
        arriving = torch.empty_like(counts_E)
        dist.all_to_all_single(arriving, counts_E, group=group)
        sent, received = counts_E.view(ranks, -1), arriving.view(ranks, -1)
        # One wait for both.
        self.sent, self.received = torch.stack((sent.sum(1), received.sum(1))).tolist()
        self.counts = received.sum(0)
        """Rows that arrive for each of this rank's experts, int64."""
        # They arrive by rank, then expert; experts want them together.
        local = torch.arange(received.shape[1], device=counts_E.device).repeat(ranks)
        expert = local.repeat_interleave(received.flatten(), output_size=sum(self.received))
        self._sorting = sort_by_expert(expert[:, None], self.counts, None)

    def send(self, rows_RD: Tensor) -> "InFlight":
        """Begin to send rows that are sorted by expert; ``InFlight.wait`` gives those that arrived, sorted likewise."""
        return InFlight(rows_RD, self.group, self.sent, self.received)

    def gather(self, arrived: Tensor) -> Tensor:
        """Rows that arrived, by expert."""
        return gather_rows(arrived, self._sorting)

    def scatter(self, done: Tensor) -> Tensor:
        """The experts' results in the order in which their rows arrived."""
        back: Tensor = _Gather.apply(done, self._sorting.place.squeeze(1), self._sorting.choice[:, None], None)
        return back

    def send_back(self, done_RD: Tensor) -> "InFlight":
        """Begin to return the experts' results."""
        return InFlight(done_RD, self.group, self.received, self.sent)


class InFlight:
    """Rows on their way between ranks.

    The exchange runs while other work is done between the constructor and ``wait``; in the backward pass it runs the
    other way, beside the gradient of that same work.
    """

    def __init__(self, rows: Tensor, group: dist.ProcessGroup | None, sent: list[int], received: list[int]) -> None:
        self.group, self.sent, self.received = group, sent, received
        self._running: tuple[Any, Tensor, Tensor] | None = None
        self._link: Tensor | None = _Begin.apply(rows, self)

    def wait(self) -> Tensor:
        """The rows that arrived, by rank."""
        # Let go, since the graph behind it holds this object.
        link, self._link = self._link, None
        arrived: Tensor = _End.apply(link, self)
        return arrived

    def begin(self, rows: Tensor, sent: list[int], received: list[int]) -> None:
        """Start an exchange."""
        rows = rows.contiguous()
        arriving = rows.new_empty(sum(received), rows.shape[1])
        work = dist.all_to_all_single(arriving, rows, received, sent, group=self.group, async_op=True)
        # The rows must stay until they are sent.
        self._running = work, rows, arriving

    def end(self) -> Tensor:
        """Wait for the exchange that runs; the rows that arrived."""
        assert self._running is not None
        work, _, arrived = self._running
        self._running = None
        work.wait()
        return arrived


class _Begin(torch.autograd.Function):
    """Gives an empty tensor, which ties ``_End`` to it: the rows have another shape in each direction."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, flight: InFlight) -> Tensor:
        ctx.flight = flight
        flight.begin(rows, flight.sent, flight.received)
        return rows.new_empty(0)

    @staticmethod
    def backward(ctx: Any, of_link: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.flight.end(), None


class _End(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, link: Tensor, flight: InFlight) -> Tensor:
        ctx.flight = flight
        return flight.end()

    @staticmethod
    def backward(ctx: Any, of_arrived: Tensor) -> tuple[Tensor | None, ...]:
        flight = ctx.flight
        flight.begin(of_arrived, flight.received, flight.sent)
        return of_arrived.new_empty(0), None
