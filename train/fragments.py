"""This rank's pieces of the training state, found in DeepSpeed's ZeRO optimizers, and where they lie in the whole.

ZeRO flattens parameters into groups and gives each rank a stretch of every group. A fragment is what such a stretch
holds of one parameter, with its offset in the logical parameter: for experts the stack of all ranks' experts. Any
number of ranks, expert-parallel size and ZeRO stage cuts the same logical parameters, so fragments are all that
resharding needs.

They are found through fields of DeepSpeed's optimizers that are not public; ``tests/test_train_checkpoint.py`` holds
them to the pinned version.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from torch import Tensor, nn

from millstream.train.layout import flat_groups
from millstream.train.moe import moe_layers
from millstream.train.optimizer import STATES, empty_state
from millstream.train.weights import MASTER


@dataclass(frozen=True, kw_only=True, slots=True)
class Fragment:
    """A piece of a logical tensor: ``view`` (n,) lies at ``offset`` of the flattened ``shape``."""

    name: str
    view: Tensor
    offset: int
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """Where a parameter lies on this rank: ``count`` values at ``start`` of ``flat``, ``offset`` of the whole.

    ``method`` is by what the optimizer moves it.
    """

    name: str
    method: str
    flat: Tensor
    start: int
    count: int
    offset: int
    shape: tuple[int, ...]


def logical_shapes(engine: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of all parameters with the experts of all ranks together, by name."""
    experts = _expert_layers(engine.module)
    found = {}
    for name, parameter in engine.module.named_parameters():
        shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
        layer = experts.get(id(parameter))
        found[name] = (layer.num_experts, *shape[1:]) if layer else shape
    return found


def logical_kinds(engine: Any) -> dict[str, tuple[str, ...]]:
    """Kinds of state of the parameters that lie on this rank, by name."""
    return {place.name: (MASTER, *STATES[place.method]) for place in _places(engine)}


def state_fragments(engine: Any) -> list[Fragment]:
    """This rank's pieces of every parameter's master weight and optimizer state, as views."""
    fragments = []
    states = engine.optimizer.optimizer.state
    for place in _places(engine):
        state = states[place.flat]
        kinds = {MASTER: place.flat} | {kind: state[kind] for kind in STATES[place.method]}
        for kind, whole in kinds.items():
            view = whole.detach().narrow(0, place.start, place.count)
            name = f"{kind}/{place.name}"
            fragments.append(Fragment(name=name, view=view, offset=place.offset, shape=place.shape))
    return fragments


def update_count(engine: Any) -> int:
    """How many updates the optimizer has made."""
    states = engine.optimizer.optimizer.state.values()
    return max((int(state["step"]) for state in states if "step" in state), default=0)


def empty_states(engine: Any, updates: int) -> None:
    """Let the optimizer's state be as before its first update, apart from its count of updates."""
    for flat, group in flat_groups(engine.optimizer):
        engine.optimizer.optimizer.state[flat] = empty_state(group["method"], flat, updates)


@torch.no_grad()
def take_over(engine: Any) -> None:
    """Let the network compute with the master weights as they are now; all ranks take part."""
    optimizer = engine.optimizer
    if not isinstance(engine.optimizer, DeepSpeedZeroOptimizer_Stage3):
        optimizer.update_lp_params()
        return
    optimizer._partition_all_parameters()
    for number, flat in enumerate(optimizer.fp32_partitioned_groups_flat):
        optimizer.fp16_partitioned_groups_flat[number].data.copy_(flat.data)
        optimizer._unflatten_partitioned_parameters(number)
    if optimizer.persistent_parameters:
        optimizer.persistent_parameters[0].all_gather(optimizer.persistent_parameters)


def _places(engine: Any) -> Iterator[_Place]:
    experts = _expert_layers(engine.module)
    optimizer, stage_3 = engine.optimizer, isinstance(engine.optimizer, DeepSpeedZeroOptimizer_Stage3)
    flats = flat_groups(optimizer)
    for name, parameter in engine.module.named_parameters():
        own = tuple(getattr(parameter, "ds_shape", parameter.shape))
        layer = experts.get(id(parameter))
        base = layer.ep_rank * math.prod(own) if layer else 0
        shape = (layer.num_experts, *own[1:]) if layer else own
        if stage_3:
            group, start, padded = optimizer.grad_position[optimizer.get_param_id(parameter)]
            first = optimizer._get_param_partition_rank(parameter) * padded
            count = min(padded, math.prod(own) - first)
        else:
            mapping = getattr(parameter, "_hp_mapping", None)
            if mapping is None:
                continue
            first = mapping.lp_fragment_address.start
            start, count = mapping.hp_fragment_address.start, mapping.hp_fragment_address.numel
            group = mapping.param_group_index
        if count > 0:
            flat, method = flats[group][0], flats[group][1]["method"]
            yield _Place(
                name=name, method=method, flat=flat, start=start, count=count, offset=base + first, shape=shape
            )


def _expert_layers(module: nn.Module) -> dict[int, Any]:
    """The layer that each expert parameter belongs to, by the parameter's identity."""
    return {id(p): layer for layer in moe_layers(module) for p in layer.experts.parameters()}
