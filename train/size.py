"""How large a model is: parameters, FLOPs, memory a rank. Integers and formulas, no torch."""

from dataclasses import dataclass

from millstream.mixture.training import Model, Train

MASTER_BYTES = 12
"""fp32 master weight and AdamW's two moments."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSize:
    """Parameters by kind; ``active`` are those that one token passes through, embeddings included once."""

    total: int
    active: int
    experts: int
    """In routed experts, all of them."""


def model_size(model: Model, vocab_size: int) -> ModelSize:
    """Count a model's parameters."""
    hidden, heads, kv, width = model.hidden_size, model.num_attention_heads, model.num_key_value_heads, model.head_dim
    attention = hidden * width * (2 * heads + 2 * kv) + (2 * width if model.use_qk_norm else 0)
    expert = 3 * hidden * model.moe_intermediate_size
    sparse = model.num_hidden_layers - model.first_k_dense_replace
    dense = model.first_k_dense_replace * 3 * hidden * model.intermediate_size
    shared = sparse * (model.n_shared_experts * expert + model.n_routed_experts * hidden)
    embeddings = vocab_size * hidden * (1 if model.tie_word_embeddings else 2)
    rest = model.num_hidden_layers * (attention + 2 * hidden) + dense + shared + hidden + embeddings
    experts = sparse * model.n_routed_experts * expert
    return ModelSize(total=rest + experts, active=rest + sparse * model.num_experts_per_tok * expert, experts=experts)


def train_flops(model: Model, vocab_size: int, seq_len: int, tokens: int) -> int:
    """Floating-point operations of training, forward and backward.

    ``6 * active * tokens``, the input embedding left out since it multiplies nothing, plus attention's products of
    queries with keys and of weights with values: ``12 * layers * heads * head_dim * seq_len / 2`` a token, halved
    since attention is causal (Kaplan et al. 2020; PaLM, appendix B).
    """
    size = model_size(model, vocab_size)
    multiplied = size.active - (0 if model.tie_word_embeddings else vocab_size * model.hidden_size)
    attention = 6 * model.num_hidden_layers * model.num_attention_heads * model.head_dim * seq_len
    return tokens * (6 * multiplied + attention)


def memory_per_rank(model: Model, vocab_size: int, train: Train, world: int, seq_len: int) -> dict[str, int]:
    """Bytes a rank needs, by kind.

    ZeRO 1 shards the optimizer over the ranks that hold a parameter, ZeRO 2 the gradients too. Activations are those
    of one micro-batch without recomputation, a rough count of the tensors that the backward pass keeps.
    """
    size = model_size(model, vocab_size)
    ep = train.expert_parallel
    rest, experts = size.total - size.experts, size.experts // ep
    width = 2 if train.precision == "bf16" else 4
    replicas = max(1, world // ep)
    optimizer = MASTER_BYTES * (rest // world + experts // replicas)
    gradients = width * (rest + experts)
    if train.zero_stage == 2:
        gradients = width * (rest // world + experts // replicas)
    tokens = train.micro_batch * seq_len
    layer = model.hidden_size * 10 + model.num_attention_heads * model.head_dim * 4
    layer += (model.num_experts_per_tok + model.n_shared_experts) * (
        4 * model.moe_intermediate_size + 2 * model.hidden_size
    )
    activations = tokens * (width * model.num_hidden_layers * layer + 12 * vocab_size)
    kinds = {
        "weights": width * (rest + experts),
        "gradients": gradients,
        "optimizer": optimizer,
        "activations": activations,
    }
    return kinds | {"total": sum(kinds.values())}
