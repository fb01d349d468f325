"""Memory that a rank needs, by kind, from the recipe alone: integers and formulas, no torch."""

from dataclasses import asdict, dataclass

from millstream.mixture.training import Model, Train
from millstream.train.size import model_size

MOST_BUCKET = 500_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """Bytes a rank, when it needs most."""

    weights: int
    gradients: int
    optimizer: int
    """fp32 master weights and moments."""
    activations: int
    """What the forward pass keeps of a micro-batch, and the widest moment of the backward pass."""
    buffers: int
    """Gradients on their way to other ranks."""

    @property
    def total(self) -> int:
        """All of them."""
        return sum(asdict(self).values())


def bucket_elements(parameters: int) -> int:
    """Gradients that ranks sum at once; no more than a rank has parameters."""
    return min(MOST_BUCKET, parameters)


def footprint(model: Model, vocab_size: int, train: Train, world: int, seq_len: int) -> Footprint:
    """Bytes a rank needs to train.

    ZeRO 1 cuts the optimizer's state among the ranks that hold a parameter, ZeRO 2 the gradients too, ZeRO 3 the
    weights.
    """
    size = model_size(model, vocab_size)
    experts, rest = size.experts // train.expert_parallel, size.total - size.experts
    replicas = world // train.expert_parallel
    width = 2 if train.precision == "bf16" else 4
    held = experts + rest
    cut = experts // replicas + rest // world
    gradients = (4 if train.gradient_precision == "fp32" else width) * (held if train.zero_stage == 1 else cut)
    return Footprint(
        weights=width * (cut if train.zero_stage == 3 else held),
        gradients=gradients,
        optimizer=optimizer_bytes(model, vocab_size, train, world),
        activations=_activations(model, vocab_size, train, seq_len, width),
        buffers=width * bucket_elements(held),
    )


def optimizer_bytes(model: Model, vocab_size: int, train: Train, world: int) -> int:
    """A rank's share of master weights and moments: 12 bytes a parameter, 8 where Muon moves it."""
    size = model_size(model, vocab_size)
    muon = train.optimizer.kind == "muon"
    experts = (8 if muon else 12) * size.experts // world
    routers = (model.num_hidden_layers - model.first_k_dense_replace) * model.n_routed_experts * model.hidden_size
    norms = 2 * model.num_hidden_layers * model.hidden_size + model.hidden_size
    norms += 2 * model.num_hidden_layers * model.head_dim if model.use_qk_norm else 0
    matrices = size.layers - routers - norms if muon else 0
    rest = 8 * matrices + 12 * (size.layers + size.embeddings - matrices)
    return experts + rest // world


def _activations(model: Model, vocab_size: int, train: Train, seq_len: int, width: int) -> int:
    tokens = train.micro_batch * seq_len
    layer = model.hidden_size * 10 + model.num_attention_heads * model.head_dim * 4
    layer += (model.num_experts_per_tok + model.n_shared_experts) * (
        4 * model.moe_intermediate_size + 2 * model.hidden_size
    )
    return tokens * (width * model.num_hidden_layers * layer + 12 * vocab_size)
