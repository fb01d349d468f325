"""The recipe's sections ``model`` and ``train``: what is trained, and how."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from millstream.mixture.optimizing import Optimizer, Schedule
from millstream.mixture.rules import Section


class Model(Section):
    """A decoder with mixture-of-experts layers; the fields of transformers' ``Glm4MoeConfig``."""

    hidden_size: int = Field(ge=8, multiple_of=8)
    num_hidden_layers: int = Field(ge=1)
    num_attention_heads: int = Field(ge=1)
    num_key_value_heads: int = Field(ge=1)
    head_dim: int = Field(ge=8, multiple_of=8)
    intermediate_size: int = Field(ge=8, multiple_of=8)
    """Width of the feed-forward part of dense layers."""
    first_k_dense_replace: int = Field(1, ge=0)
    """Layers at the bottom that are dense."""
    n_routed_experts: int = Field(ge=1)
    num_experts_per_tok: int = Field(ge=1)
    moe_intermediate_size: int = Field(ge=8, multiple_of=8)
    n_shared_experts: int = Field(1, ge=0)
    routed_scaling_factor: float = Field(1.0, gt=0)
    norm_topk_prob: bool = True
    use_qk_norm: bool = True
    partial_rotary_factor: float = Field(0.5, gt=0, le=1)
    rope_theta: float = Field(10_000.0, gt=0)
    rms_norm_eps: float = Field(1e-5, gt=0)
    tie_word_embeddings: bool = False
    initializer_range: float = Field(0.02, gt=0)

    @model_validator(mode="after")
    def _shapes(self) -> Self:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads ({self.num_attention_heads}) is not a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads})"
            )
        if self.num_experts_per_tok > self.n_routed_experts:
            raise ValueError(
                f"num_experts_per_tok ({self.num_experts_per_tok}) is larger than "
                f"n_routed_experts ({self.n_routed_experts})"
            )
        if self.first_k_dense_replace > self.num_hidden_layers:
            raise ValueError("first_k_dense_replace is larger than num_hidden_layers")
        if int(self.head_dim * self.partial_rotary_factor) % 2:
            raise ValueError("head_dim * partial_rotary_factor must be even")
        return self


class Wandb(Section):
    """Where Weights & Biases files the run; offline unless an API key is set."""

    project: str = "millstream"
    entity: str | None = None


class Watchdog(Section):
    """When a rank that does not get on ends itself, so that a job which hangs does not hold its machines."""

    start_s: float = Field(3600, gt=0)
    """Seconds until the first step begins."""
    step_s: float = Field(900, gt=0)
    """Seconds in which a micro-batch, an update, an evaluation or a checkpoint must be done."""


class Train(Section):
    """How the model is trained."""

    seed: int = Field(0, ge=0)
    precision: Literal["fp32", "bf16"] = "bf16"
    gradient_precision: Literal["fp32", "bf16"] | None = None
    """In which a step's gradients are accumulated; that of the weights by default. ``fp32`` over ``bf16`` weights needs
    ``zero_stage: 2``."""
    micro_batch: int = Field(1, ge=1)
    """Sequences a rank runs at once; the rest of its share of the batch is accumulated."""
    activation_checkpointing: bool = False
    """Keep a layer's input only and make the rest again in the backward pass: a third more work for a fraction of the
    memory."""
    document_mask: bool = True
    """Attention stays inside documents."""
    attention: Literal["auto", "sdpa", "flash", "flex"] = "auto"
    """Kernel; ``auto`` is FlashAttention on GPUs in bf16, and torch's scaled dot product elsewhere."""
    zero_stage: Literal[1, 2, 3] = 1
    expert_parallel: int = Field(1, ge=1)
    """Ranks that share the experts of a layer."""
    capacity_factor: float | None = Field(None, gt=0)
    """In training an expert takes at most this many times an even share of a micro-batch's tokens; what comes later in
    the micro-batch is dropped, counted and left to the residual. By default nothing is dropped."""
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    router_bias_rate: float = Field(1e-3, ge=0)
    """Step of the correction bias that balances expert load, outside the gradient."""
    router_z_loss: float = Field(1e-3, ge=0)
    """On the routers' logits, summed over layers."""
    router_sequence_loss: float = Field(0.0, ge=0)
    """On the imbalance of expert load within each sequence, summed over layers."""
    z_loss: float = Field(1e-4, ge=0)
    """On the logits of the vocabulary."""
    checkpoint_every: int = Field(100, ge=1)
    keep_checkpoints: int = Field(3, ge=1)
    """The newest ones stay; older ones go, unless they are pinned."""
    keep_every: int | None = Field(None, ge=1)
    """Checkpoints of steps that are a multiple of it stay as well."""
    evaluate_every: int | None = Field(None, ge=1)
    """Steps between losses on the held-out documents; none by default."""
    wandb: Wandb | None = Wandb()
    stop_after_skipped: int = Field(5, ge=1)
    """Steps in a row without an update, because loss or gradients were not finite, after which training stops."""
    watchdog: Watchdog = Watchdog()

    @model_validator(mode="after")
    def _muon(self) -> Self:
        if self.optimizer.kind == "muon" and self.zero_stage == 3:
            raise ValueError("'optimizer.kind: muon' needs 'zero_stage: 1' or 2: ZeRO 3 cuts every matrix")
        return self

    @model_validator(mode="after")
    def _gradients(self) -> Self:
        if self.gradient_precision == "bf16" and self.precision == "fp32":
            raise ValueError("'gradient_precision: bf16' is below 'precision: fp32'")
        if self.gradient_precision == "fp32" and self.precision == "bf16" and self.zero_stage == 1:
            raise ValueError("'gradient_precision: fp32' over bf16 weights needs 'zero_stage: 2'")
        return self


PLACEMENT = frozenset(
    {
        "micro_batch",
        "activation_checkpointing",
        "attention",
        "zero_stage",
        "expert_parallel",
        "checkpoint_every",
        "keep_checkpoints",
        "keep_every",
        "evaluate_every",
        "wandb",
        "stop_after_skipped",
        "watchdog",
    }
)
"""Fields of ``train`` that change where and how a run is trained and what of it is kept, but not what is learned."""


def learned(train: Train) -> dict[str, Any]:
    """The fields of a section that decide what is learned; a run is continued only with the same ones."""
    return train.model_dump(exclude=set(PLACEMENT))
