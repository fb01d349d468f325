"""Parameters by kind, and the optimizer's groups made of them.

DeepSpeed flattens each group into one vector and cuts it among the ranks that hold it; parameters with the same
settings share a group. Experts lie in groups of their own, cut among the ranks that hold the same experts.
"""

import math
from typing import Any, Literal

import torch
from torch import nn

from millstream.mixture.optimizing import Optimizer
from millstream.mixture.training import Model
from millstream.train.model import CausalLM

Kind = Literal["embedding", "head", "norm", "router", "attention", "dense", "shared", "experts"]

KINDS: tuple[Kind, ...] = ("embedding", "head", "norm", "router", "attention", "dense", "shared", "experts")
MATRICES: frozenset[Kind] = frozenset(("attention", "dense", "shared", "experts"))
"""Kinds that Muon moves."""
MOST_ELEMENTS = 2**28
"""Parameters in one group of experts; the fp32 copy of a group's gradients lives for the time of its step."""

_PLACES: tuple[tuple[str, Kind], ...] = (
    ("model.embed_tokens.", "embedding"),
    ("lm_head.", "head"),
    (".self_attn.", "attention"),
    (".mlp.gate.", "router"),
    (".mlp.shared_experts.", "shared"),
    (".mlp.experts.", "experts"),
    (".mlp.", "dense"),
)


def shape_of(parameter: nn.Parameter) -> tuple[int, ...]:
    """Shape of a parameter, also where ZeRO 3 has left a rank nothing but its piece."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def kind_of(name: str, parameter: nn.Parameter) -> Kind:
    """The kind of a parameter of the model, by its shape and name.

    Raises:
        ValueError: a matrix whose name is not known.
    """
    if len(shape_of(parameter)) < 2:
        return "norm"
    for part, kind in _PLACES:
        if part in name:
            return kind
    raise ValueError(f"no kind is known for the parameter {name}")


def parameter_groups(network: nn.Module, optimizer: Optimizer) -> list[dict[str, Any]]:
    """Groups for the optimizer, in the order in which the model's parameters first need them.

    Each has ``params``, ``name``, ``method`` (``adamw`` or ``muon``), ``lr_scale`` and ``weight_decay``; those of
    experts what DeepSpeed asks for besides: ``moe``, and as name that of their group of ranks.
    """
    groups: list[dict[str, Any]] = []
    latest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, parameter in network.named_parameters():
        settings = settings_of(kind_of(name, parameter), optimizer)
        is_expert = not getattr(parameter, "allreduce", True)
        key = (is_expert, *settings.values())
        group = latest.get(key)
        if group is None or (is_expert and _elements([*group["params"], parameter]) > MOST_ELEMENTS):
            label = f"{settings['method']} rate x{settings['lr_scale']:g} decay {settings['weight_decay']:g}"
            group = latest[key] = {"params": [], "name": label, **settings}
            if is_expert:
                group |= {"moe": True, "name": getattr(parameter, "group_name", "")}
            groups.append(group)
        group["params"].append(parameter)
    return groups


def resolved_groups(model: Model, vocab_size: int, optimizer: Optimizer) -> dict[str, dict[str, Any]]:
    """What each kind of parameter of a model gets: settings, the highest rate, how many parameters; JSON values."""
    with torch.device("meta"):
        network = CausalLM(model, vocab_size)
    found: dict[str, dict[str, Any]] = {}
    for name, parameter in network.named_parameters():
        kind = kind_of(name, parameter)
        settings = settings_of(kind, optimizer)
        lr = optimizer.lr * settings.pop("lr_scale")
        found.setdefault(kind, {**settings, "lr": lr, "parameters": 0})["parameters"] += parameter.numel()
    return found


def settings_of(kind: Kind, optimizer: Optimizer) -> dict[str, Any]:
    """What the recipe says of a kind of parameters: ``method``, ``lr_scale``, ``weight_decay``."""
    own = getattr(optimizer.groups, kind)
    plain = 0.0 if kind in ("embedding", "norm") else optimizer.weight_decay
    decay = plain if own.weight_decay is None else own.weight_decay
    if optimizer.kind == "muon" and kind in MATRICES:
        return {"method": "muon", "lr_scale": own.lr_scale * optimizer.muon.lr_scale, "weight_decay": decay}
    return {"method": "adamw", "lr_scale": own.lr_scale, "weight_decay": decay}


def _elements(parameters: list[nn.Parameter]) -> int:
    return sum(math.prod(shape_of(parameter)) for parameter in parameters)
