"""The model inside DeepSpeed's engine: ZeRO, precision, clipping, accumulation.

Nothing is compiled at run time: the optimizer is made of torch's own, and the shared-memory extension that
DeepSpeed would build for CPU ranks serves inference only.
"""

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# Read by DeepSpeed when it is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import deepspeed.ops

from millstream.errors import UsageError
from millstream.mixture.training import Model, Train
from millstream.train.footprint import bucket_elements
from millstream.train.groups import parameter_groups
from millstream.train.initial import initialise
from millstream.train.model import CausalLM, Losses
from millstream.train.optimizer import RecipeOptimizer, prepare


def init_distributed() -> tuple[int, int]:
    """Join the process group that the launcher's environment names; returns (rank, world size)."""
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.utils.logger.setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning)
    if not dist.is_initialized():
        deepspeed.init_distributed(dist_backend="nccl" if torch.cuda.is_available() else "gloo", verbose=False)
    return dist.get_rank(), dist.get_world_size()


def build_engine(model: Model, train: Train, vocab_size: int, batch: int, eos: int | None = None) -> Any:
    """Build the network and wrap it.

    Args:
        model: its shape.
        train: how it is trained.
        vocab_size: ids it knows.
        batch: sequences a step, over all ranks.
        eos: id that ends documents; None lets attention cross their borders.

    Raises:
        UsageError: the ranks do not divide into expert-parallel groups, or the experts among their ranks.
    """
    world = dist.get_world_size()
    if world % train.expert_parallel or model.n_routed_experts % train.expert_parallel:
        raise UsageError(
            f"expert_parallel {train.expert_parallel} must divide both {world} ranks and "
            f"{model.n_routed_experts} experts"
        )
    network = build_network(model, train, vocab_size, eos)
    optimizer = RecipeOptimizer(parameter_groups(network, train.optimizer), train)
    config = engine_config(train, batch, world)
    held = sum(parameter.numel() for parameter in network.parameters())
    config["zero_optimization"]["reduce_bucket_size"] = bucket_elements(held)
    engine, *_ = deepspeed.initialize(model=network, optimizer=optimizer, config=config)
    prepare(engine)
    return engine


def build_network(model: Model, train: Train, vocab_size: int, eos: int | None) -> CausalLM:
    """The network that a recipe trains, with its initial weights; arguments as for ``build_engine``."""
    network = CausalLM(
        model,
        vocab_size,
        eos=eos if train.document_mask else None,
        expert_parallel=train.expert_parallel,
        capacity_factor=train.capacity_factor,
        kernel=train.attention,
        activation_checkpointing=train.activation_checkpointing,
        z_loss=train.z_loss,
        router_z_loss=train.router_z_loss,
        sequence_loss=train.router_sequence_loss,
    )
    initialise(network, model, train.seed)
    return network


def engine_config(train: Train, batch: int, world: int) -> dict[str, Any]:
    """DeepSpeed's configuration of a recipe."""
    config: dict[str, Any] = {
        "train_batch_size": batch,
        "train_micro_batch_size_per_gpu": train.micro_batch,
        "gradient_accumulation_steps": batch // (world * train.micro_batch),
        "gradient_clipping": train.optimizer.clip,
        "zero_optimization": {"stage": train.zero_stage},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 2**62,
    }
    if train.precision == "bf16":
        config["bf16"] = {"enabled": True}
    if train.gradient_precision is not None:
        config["data_types"] = {"grad_accum_dtype": train.gradient_precision}
    return config


def set_batch(engine: Any, sequences: int) -> None:
    """Let the next steps hold this many sequences over all ranks, in micro-batches of the same size."""
    if engine.train_batch_size() != sequences:
        engine.set_train_batch_size(sequences)
        # ZeRO keeps a copy that its own averaging uses.
        engine.optimizer.gradient_accumulation_steps = engine.gradient_accumulation_steps()


def run_micro_batches(engine: Any, micro_batches: Sequence[tuple[Tensor, Tensor | None]]) -> Iterator[Losses]:
    """Forward and backward of each micro-batch; the caller takes ``engine.step()`` after the last.

    The border is set by hand: the engine's own counter would be out of step after the batch has changed.

    Args:
        engine: DeepSpeed's.
        micro_batches: tokens (rows, seq_len + 1), and where some are taken down the masked targets (rows, seq_len).
    """
    for number, (tokens, masked) in enumerate(micro_batches, 1):
        engine.set_gradient_accumulation_boundary(number == len(micro_batches))
        output: Losses = engine(tokens, masked)
        engine.backward(output.total)
        yield output
