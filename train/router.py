"""Routing: which experts a token goes to, with what weight, and how their load is kept even.

Scores are sigmoids of fp32 logits. A correction bias is added for the choice, not for the weight; it moves once a step
by the sign of each expert's distance from the mean load, outside the gradient (Wang et al. 2024, "Auxiliary-Loss-Free
Load Balancing"; DeepSeek-V3).

What a layer's router did is returned, never noted on the way: activation checkpointing runs a layer twice, and only the
first run may count.

Shapes: T tokens, B sequences, S tokens of one, D hidden, E experts, k experts a token, L layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from millstream.mixture.training import Model


class Choice(NamedTuple):
    """Experts of each token, int64 (T, k), and their weights, fp32 (T, k)."""

    experts: Tensor
    weights: Tensor


class Routed(NamedTuple):
    """What a layer's router did with this rank's tokens.

    ``counts`` int64 (E,): tokens that chose each expert, before any is dropped. ``dropped`` int64 (): choices that
    found their expert full. ``z_loss`` fp32 (): mean squared log-normaliser of the logits (ST-MoE, Zoph et al. 2022).
    ``sequence_loss`` fp32 (): DeepSeek-V3's balance loss within each sequence; 0 where the recipe does not use it.
    """

    counts: Tensor
    dropped: Tensor
    z_loss: Tensor
    sequence_loss: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRouting:
    """What the routers did in one step, over all ranks.

    ``load`` int64 (L, E): tokens that chose each expert. ``dropped`` int64 (L,): choices that found their expert full.
    """

    load: Tensor
    dropped: Tensor


class Router(nn.Module):
    """Scores experts and chooses some for each token.

    ``e_score_correction_bias`` fp32 (E,) moves the choice. ``pending`` int64 (E + 1,) counts this rank's choices since
    it moved, the dropped ones last.
    """

    def __init__(self, model: Model, *, sequence_loss: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(model.n_routed_experts, model.hidden_size))
        self.e_score_correction_bias = nn.Buffer(torch.zeros(model.n_routed_experts, dtype=torch.float32))
        self.pending = nn.Buffer(torch.zeros(model.n_routed_experts + 1, dtype=torch.int64), persistent=False)
        self.top_k, self.scale, self.norm = model.num_experts_per_tok, model.routed_scaling_factor, model.norm_topk_prob
        self.sequence_loss = sequence_loss

    def forward(self, x_BSD: Tensor) -> tuple[Choice, Tensor, Tensor, Tensor]:
        """Choose; returns the choice, and ``counts``, ``z_loss`` and ``sequence_loss`` of ``Routed``."""
        logits = F.linear(x_BSD.flatten(0, 1).float(), self.weight.float())
        scores = logits.sigmoid()
        experts = torch.topk(scores.detach() + self.e_score_correction_bias, self.top_k, dim=-1, sorted=False)[1]
        weights = scores.gather(1, experts)
        if self.norm:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        z_loss = logits.logsumexp(-1).square().mean()
        balance = sequence_balance(scores.view(*x_BSD.shape[:2], -1), self.top_k) if self.sequence_loss else None
        nothing = torch.zeros((), device=logits.device)
        return (
            Choice(experts, weights * self.scale),
            count(experts, len(self.weight)),
            z_loss,
            nothing if balance is None else balance,
        )


def count(experts: Tensor, total: int) -> Tensor:
    """How often each expert was chosen: int64 (total,), without waiting for the device."""
    flat = experts.flatten()
    return torch.zeros(total, dtype=torch.int64, device=flat.device).scatter_add_(0, flat, torch.ones_like(flat))


def sequence_balance(scores_BSE: Tensor, top_k: int) -> Tensor:
    """The complementary balance loss of DeepSeek-V3 (equations 17 to 20) without its factor, mean over sequences.

    Within a sequence: the sum over experts of f * P, f the share of tokens whose highest ``top_k`` scores (without
    bias) hold the expert, over what an even spread would be; P its mean normalised score. 1 where all is even.
    """
    length, experts = scores_BSE.shape[1:]
    chosen = torch.topk(scores_BSE.detach(), top_k, dim=-1, sorted=False)[1].flatten(1)
    share = torch.zeros_like(scores_BSE[:, 0]).scatter_add_(1, chosen, torch.ones_like(chosen, dtype=scores_BSE.dtype))
    share *= experts / (top_k * length)
    mean = (scores_BSE / scores_BSE.sum(-1, keepdim=True)).mean(1)
    return (share * mean).sum(-1).mean()


@torch.no_grad()
def note(router: Router, routed: Routed) -> None:
    """Add what one forward pass in training did to what the next ``balance`` will see."""
    router.pending[:-1] += routed.counts
    router.pending[-1] += routed.dropped


@torch.no_grad()
def balance(routers: Sequence[Router], rate: float) -> StepRouting:
    """Move the correction biases by one step's load over all ranks; call once after each optimizer step.

    The mean move is taken off, so that biases keep the sum 0. The result is the same on every rank.
    """
    if not routers:
        return StepRouting(load=torch.zeros(0, 0, dtype=torch.int64), dropped=torch.zeros(0, dtype=torch.int64))
    pending = total_pending(routers)
    load = pending[:, :-1]
    distance = load.double().mean(-1, keepdim=True) - load
    move = rate * distance.sign()
    for router, change in zip(routers, (move - move.mean(-1, keepdim=True)).float(), strict=True):
        router.e_score_correction_bias.add_(change)
        router.pending.zero_()
    return StepRouting(load=load, dropped=pending[:, -1])


def total_pending(routers: Sequence[Router]) -> Tensor:
    """Counts since the last ``balance`` over all ranks: int64 (L, E + 1)."""
    pending = torch.stack([router.pending for router in routers])
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(pending)
    return pending


def routing_numbers(routing: StepRouting, routers: Sequence[Router] = ()) -> dict[str, float]:
    """A step's routing in numbers, means over layers if nothing else is said.

    ``expert_load_max``: the highest load over the mean. ``expert_load_min``: the lowest of all layers, over the mean.
    ``expert_load_entropy``: entropy of the load over that of an even one. ``drop_rate``: dropped of all choices.
    ``router_bias_max``: the largest correction bias of any of the ``routers``.
    """
    if not routing.load.numel():
        return {}
    load = routing.load.double()
    total = load.sum(-1).clamp(min=1)
    share = load / total[:, None]
    numbers = {"expert_load_max": float((share.max(-1).values * load.shape[-1]).mean())}
    numbers["expert_load_min"] = float(share.min()) * load.shape[-1]
    if load.shape[-1] > 1:
        entropy = torch.special.entr(share).sum(-1) / torch.log(torch.tensor(float(load.shape[-1])))
        numbers["expert_load_entropy"] = float(entropy.mean())
    numbers["drop_rate"] = float((routing.dropped / total).mean())
    if routers:
        numbers["router_bias_max"] = max(float(r.e_score_correction_bias.abs().max()) for r in routers)
    return numbers
