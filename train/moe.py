"""The mixture-of-experts layer: dropless, sigmoid-routed, expert-parallel under DeepSpeed's engine.

    route (fp32) -> sort rows by expert -> all-to-all to the ranks that hold them -> grouped matmul
    -> all-to-all back -> weighted sum, plus shared experts

Expert load is balanced by a correction bias on the choice (not on the weights), moved once a step from
the global load and outside the gradient (Wang et al. 2024, "Auxiliary-Loss-Free Load Balancing"; DeepSeek-V3).

The layer is a subclass of DeepSpeed's ``AutoEPMoELayer`` whose constructor is skipped: the engine knows expert
layers by that type and by the attributes and flags set here. They are not public; ``tests/test_train_moe.py``
holds them to DeepSpeed 0.19.8.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from deepspeed.checkpoint.autoep_affine import (
    autoep_experts_for_rank,
    autoep_placement_to_affine_map,
    legacy_uniform_autoep_placement_descriptor,
)
from deepspeed.checkpoint.constants import (
    AFFINE_MAP,
    AUTOEP_EXPERT_PLACEMENT,
    AUTOEP_PARAM_EP_RANK,
    AUTOEP_PARAM_LOCAL_EXPERTS,
    AUTOEP_PARAM_LOGICAL_SHAPE,
    DS_AUTOEP_UC_META,
)
from deepspeed.module_inject.auto_ep_layer import AutoEPMoELayer, _AllToAllV
from torch import Tensor, nn

from millstream.mixture.training import Model


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


class Router(nn.Module):
    """Scores experts and chooses some for each token.

    ``e_score_correction_bias`` moves the choice; ``load`` counts the tokens an expert got since it moved.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(model.n_routed_experts, model.hidden_size))
        self.e_score_correction_bias = nn.Buffer(torch.zeros(model.n_routed_experts, dtype=torch.float32))
        self.load = nn.Buffer(torch.zeros(model.n_routed_experts, dtype=torch.float32), persistent=False)
        self.top_k, self.scale, self.norm = model.num_experts_per_tok, model.routed_scaling_factor, model.norm_topk_prob

    def forward(self, x_TD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Chosen experts (T, k), their weights (T, k) in fp32, and the mean squared log-normaliser."""
        logits = F.linear(x_TD.float(), self.weight.float())
        scores = logits.sigmoid()
        experts = torch.topk(scores + self.e_score_correction_bias, self.top_k, dim=-1, sorted=False)[1]
        weights = scores.gather(1, experts)
        if self.norm:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return experts, weights * self.scale, logits.logsumexp(-1).square().mean()


class Experts(nn.Module):
    """This rank's experts, stacked: ``w1`` and ``w3`` (experts, width, hidden), ``w2`` (experts, hidden, width)."""

    def __init__(self, count: int, hidden: int, width: int) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(count, width, hidden))
        self.w3 = nn.Parameter(torch.empty(count, width, hidden))
        self.w2 = nn.Parameter(torch.empty(count, hidden, width))

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Apply expert ``i`` to the next ``counts[i]`` rows, for each in turn."""
        ends = torch.cumsum(counts, 0, dtype=torch.int32)
        gate, up = (F.grouped_mm(rows, w.transpose(-2, -1), offs=ends) for w in (self.w1, self.w3))
        return F.grouped_mm(F.silu(gate) * up, self.w2.transpose(-2, -1), offs=ends)


class MoELayer(AutoEPMoELayer):
    """Routed and shared experts; see the module's docstring."""

    def __init__(self, model: Model, expert_parallel: int) -> None:
        nn.Module.__init__(self)
        if model.n_routed_experts % expert_parallel:
            raise ValueError(f"{model.n_routed_experts} experts do not divide among {expert_parallel} ranks")
        self.num_experts = model.n_routed_experts
        self.num_local_experts = model.n_routed_experts // expert_parallel
        self.ep_size = expert_parallel
        self.ep_rank = dist.get_rank() % expert_parallel if dist.is_initialized() else 0
        self.ep_group_name = f"ep_size_{expert_parallel}"
        self.ep_group, self.tp_group, self.folding_group_handles = None, None, None
        self.combine_impl, self.comm_backend = "weighted_sum", "comm"
        self.gate = Router(model)
        self.experts = Experts(self.num_local_experts, model.hidden_size, model.moe_intermediate_size)
        self.shared_experts = (
            FeedForward(model.hidden_size, model.moe_intermediate_size * model.n_shared_experts)
            if model.n_shared_experts
            else None
        )
        self._z_loss: Tensor | None = None
        self._tell_engine()

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Mix the experts' outputs: (B, S, D)."""
        x_TD = x_BSD.reshape(-1, x_BSD.shape[-1])
        experts_Tk, weights_Tk, self._z_loss = self.gate(x_TD)
        flat = experts_Tk.reshape(-1)
        counts = torch.bincount(flat, minlength=self.num_experts)
        if self.training:
            with torch.no_grad():
                self.gate.load.add_(counts)
        order = torch.argsort(flat, stable=True)
        token = order // experts_Tk.shape[1]
        rows = self._dispatch(x_TD[token], counts)
        weighted = rows.float() * weights_Tk.reshape(-1)[order].unsqueeze(-1)
        out = torch.zeros_like(x_TD, dtype=torch.float32).index_add(0, token, weighted).to(x_TD.dtype)
        if self.shared_experts is not None:
            out = out + self.shared_experts(x_TD)
        return out.view_as(x_BSD)

    def take_z_loss(self) -> Tensor:
        """The last forward pass's router z-loss term."""
        assert self._z_loss is not None
        loss, self._z_loss = self._z_loss, None
        return loss

    def _dispatch(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Experts applied to rows that are sorted by expert, whatever rank holds it."""
        if self.ep_size == 1:
            return self.experts(rows, counts)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.ep_group)
        sent, received = counts.view(self.ep_size, -1), arriving.view(self.ep_size, -1)
        out_splits, in_splits = torch.stack((sent.sum(1), received.sum(1))).tolist()
        rows = _AllToAllV.apply(self.ep_group, rows, out_splits, in_splits)
        # They arrive by rank, then expert; the experts want them by expert.
        local = torch.arange(self.num_local_experts, device=rows.device).repeat(self.ep_size)
        by_expert = torch.argsort(local.repeat_interleave(received.reshape(-1)), stable=True)
        done = self.experts(rows[by_expert], received.sum(0))
        back = torch.empty_like(by_expert)
        back[by_expert] = torch.arange(by_expert.numel(), device=rows.device)
        returned: Tensor = _AllToAllV.apply(self.ep_group, done[back], in_splits, out_splits)
        return returned

    def _tell_engine(self) -> None:
        """Set what DeepSpeed's engine and checkpoints read of an expert layer and its parameters."""
        placement = legacy_uniform_autoep_placement_descriptor(self.num_experts, self.num_local_experts, self.ep_size)
        self.expert_placement_descriptor = placement
        for parameter in self.experts.parameters():
            parameter.allreduce = False  # type: ignore[attr-defined]
            parameter.group_name = self.ep_group_name  # type: ignore[attr-defined]
            parameter.ds_zero_placement_family = "autoep_expert"  # type: ignore[attr-defined]
            parameter.ds_zero_partition_group_name = self.ep_group_name  # type: ignore[attr-defined]
            parameter.is_expert_group = True  # type: ignore[attr-defined]
            logical = [self.num_experts, *parameter.shape[1:]]
            about = {
                AUTOEP_EXPERT_PLACEMENT: placement,
                AFFINE_MAP: autoep_placement_to_affine_map(placement, logical).to_dict(),
                AUTOEP_PARAM_LOGICAL_SHAPE: logical,
                AUTOEP_PARAM_EP_RANK: self.ep_rank,
                AUTOEP_PARAM_LOCAL_EXPERTS: list(autoep_experts_for_rank(placement, self.ep_rank)),
            }
            setattr(parameter, DS_AUTOEP_UC_META, about)


@torch.no_grad()
def balance(layers: list[MoELayer], rate: float) -> Tensor:
    """Move the correction biases by one step's global load; call once after each optimizer step.

    Returns:
        The load, tokens an expert: fp32 (layers, experts).
    """
    if not layers:
        return torch.zeros(0, 1)
    load = torch.stack([layer.gate.load for layer in layers])
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(load)
    for layer, counts in zip(layers, load, strict=True):
        move = rate * torch.sign(counts.mean() - counts)
        layer.gate.e_score_correction_bias.add_(move - move.mean())
        layer.gate.load.zero_()
    return load
