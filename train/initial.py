"""Initial weights: each parameter from a generator of its own.

So they depend on the seed and the parameter's name alone, not on the ranks, the order of construction or who holds an
expert.

Matrices and embeddings are normal with the recipe's ``initializer_range``; those that write into the residual
stream are divided by ``sqrt(2 * layers)`` (GPT-2, Radford et al. 2019). Norms are one.
"""

import hashlib
import math

import torch
from torch import Tensor

from millstream.mixture.training import Model
from millstream.train.model import CausalLM
from millstream.train.moe import MoELayer

RESIDUAL = ("o_proj.weight", "down_proj.weight", "experts.w2")


@torch.no_grad()
def initialise(network: CausalLM, model: Model, seed: int) -> None:
    """Fill every parameter in place."""
    first_expert = {
        f"{name}.experts.{part}": layer.ep_rank * layer.num_local_experts
        for name, layer in network.named_modules()
        if isinstance(layer, MoELayer)
        for part, _ in layer.experts.named_parameters()
    }
    for name, parameter in network.named_parameters():
        if name.endswith("norm.weight"):
            continue
        spread = model.initializer_range
        if name.endswith(RESIDUAL):
            spread /= math.sqrt(2 * model.num_hidden_layers)
        if name in first_expert:
            for number, expert in enumerate(parameter):
                _fill(expert, spread, seed, f"{name}.{first_expert[name] + number}")
        else:
            _fill(parameter, spread, seed, name)


def _fill(target: Tensor, spread: float, seed: int, name: str) -> None:
    word = hashlib.sha256(f"init/v1\0{seed}\0{name}".encode()).digest()[:8]
    generator = torch.Generator().manual_seed(int.from_bytes(word, "little") >> 1)
    target.copy_(torch.empty(target.shape).normal_(0.0, spread, generator=generator))
