"""The mixture-of-experts layer: dropless, sigmoid-routed, expert-parallel under DeepSpeed's engine.

    route (fp32) -> sort rows by expert -> all-to-all to the ranks that hold them, shared experts meanwhile
    -> grouped matmul -> all-to-all back -> weighted sum, plus shared experts

The layer is a subclass of DeepSpeed's ``AutoEPMoELayer`` whose constructor is skipped: the engine knows expert
layers by that type and by the attributes and flags set here. They are not public; ``tests/test_train_deepspeed.py``
holds them to DeepSpeed 0.19.8.
"""

import torch.distributed as dist
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
from deepspeed.module_inject.auto_ep_layer import AutoEPMoELayer
from torch import Tensor, nn

from millstream.mixture.training import Model
from millstream.train.dispatch import Exchange, capacity, combine_rows, gather_rows, sort_by_expert
from millstream.train.experts import Experts, FeedForward
from millstream.train.router import Routed, Router


class MoELayer(AutoEPMoELayer):
    """Routed and shared experts; see the module's docstring.

    Args:
        model: its shape.
        expert_parallel: ranks that share the experts.
        capacity_factor: in training an expert takes at most this many times an even share of a rank's micro-batch, and
            what comes later is dropped; None drops nothing.
        sequence_loss: whether the balance loss within sequences is computed.
    """

    def __init__(
        self,
        model: Model,
        expert_parallel: int = 1,
        *,
        capacity_factor: float | None = None,
        sequence_loss: bool = False,
    ) -> None:
        nn.Module.__init__(self)
        if model.n_routed_experts % expert_parallel:
            raise ValueError(f"{model.n_routed_experts} experts do not divide among {expert_parallel} ranks")
        self.num_experts = model.n_routed_experts
        self.num_local_experts = model.n_routed_experts // expert_parallel
        self.capacity_factor = capacity_factor
        self.ep_size = expert_parallel
        self.ep_rank = dist.get_rank() % expert_parallel if dist.is_initialized() else 0
        self.ep_group_name = f"ep_size_{expert_parallel}"
        self.ep_group, self.tp_group, self.folding_group_handles = None, None, None
        self.combine_impl, self.comm_backend = "weighted_sum", "comm"
        self.gate = Router(model, sequence_loss=sequence_loss)
        self.experts = Experts(self.num_local_experts, model.hidden_size, model.moe_intermediate_size)
        self.shared_experts = (
            FeedForward(model.hidden_size, model.moe_intermediate_size * model.n_shared_experts)
            if model.n_shared_experts
            else None
        )
        self._tell_engine()

    def forward(self, x_BSD: Tensor) -> tuple[Tensor, Routed]:
        """Mix the experts' outputs: (B, S, D), and what the router did."""
        choice, counts, z_loss, sequence_loss = self.gate(x_BSD)
        x_TD = x_BSD.flatten(0, 1)
        most = None
        if self.capacity_factor is not None and self.training:
            most = capacity(len(x_TD), self.gate.top_k, self.num_experts, self.capacity_factor)
        sorting = sort_by_expert(choice.experts, counts, most)
        rows = gather_rows(x_TD, sorting)
        if self.ep_size == 1:
            done = self.experts(rows, sorting.counts)
            shared = self._shared(x_TD)
        else:
            exchange = Exchange(sorting.counts, self.ep_group, self.ep_size)
            sent = exchange.send(rows)
            shared = self._shared(x_TD)
            done = self.experts(exchange.gather(sent.wait()), exchange.counts)
            done = exchange.send_back(exchange.scatter(done)).wait()
        out = combine_rows(done, choice, sorting)
        if shared is not None:
            out = out + shared
        dropped = counts.sum() - sorting.counts.sum()
        return out.view_as(x_BSD), Routed(counts, dropped, z_loss, sequence_loss)

    def _shared(self, x_TD: Tensor) -> Tensor | None:
        return None if self.shared_experts is None else self.shared_experts(x_TD)

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


def moe_layers(module: nn.Module) -> list[MoELayer]:
    """The mixture-of-experts layers of a model, from the bottom."""
    return [m for m in module.modules() if isinstance(m, MoELayer)]


def routers(module: nn.Module) -> list[Router]:
    """Their routers."""
    return [layer.gate for layer in moe_layers(module)]
