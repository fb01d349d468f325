"""How large a model is: parameters by kind, and FLOPs. Integers and formulas, no torch."""

from dataclasses import dataclass

from millstream.mixture.training import Model


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSize:
    """Parameters of a model."""

    experts: int
    """In routed experts, all of them."""
    layers: int
    """In the layers otherwise, and the last norm."""
    embeddings: int
    """In the embedding and the head; once where they are tied."""
    active: int
    """In the layers, those that one token passes through: the embedding and the head are not counted, as in names such
    as 535B-A23B and in scaling laws (Kaplan et al. 2020)."""

    @property
    def total(self) -> int:
        """All parameters."""
        return self.experts + self.layers + self.embeddings


@dataclass(frozen=True, kw_only=True, slots=True)
class Flops:
    """Floating-point operations a token of training, forward and backward."""

    layers: int
    """Six a parameter that the token passes through."""
    head: int
    """The same for the projection onto the vocabulary; the embedding multiplies nothing."""
    attention: int
    """Queries with keys and weights with values: half of ``12 * layers * heads * head_dim * seq_len`` (PaLM, Chowdhery
    et al. 2022, appendix B), since attention is causal."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.layers + self.head + self.attention


def model_size(model: Model, vocab_size: int) -> ModelSize:
    """Count a model's parameters."""
    hidden, heads, kv, width = model.hidden_size, model.num_attention_heads, model.num_key_value_heads, model.head_dim
    attention = hidden * width * (2 * heads + 2 * kv) + (2 * width if model.use_qk_norm else 0)
    expert = 3 * hidden * model.moe_intermediate_size
    sparse = model.num_hidden_layers - model.first_k_dense_replace
    dense = model.first_k_dense_replace * 3 * hidden * model.intermediate_size
    shared = sparse * (model.n_shared_experts * expert + model.n_routed_experts * hidden)
    layers = model.num_hidden_layers * (attention + 2 * hidden) + dense + shared + hidden
    return ModelSize(
        experts=sparse * model.n_routed_experts * expert,
        layers=layers,
        embeddings=vocab_size * hidden * (1 if model.tie_word_embeddings else 2),
        active=layers + sparse * model.num_experts_per_tok * expert,
    )


def token_flops(model: Model, vocab_size: int, seq_len: int) -> Flops:
    """FLOPs a token."""
    return Flops(
        layers=6 * model_size(model, vocab_size).active,
        head=6 * vocab_size * model.hidden_size,
        attention=6 * model.num_hidden_layers * model.num_attention_heads * model.head_dim * seq_len,
    )


def train_flops(model: Model, vocab_size: int, seq_len: int, tokens: int) -> int:
    """FLOPs of training on a number of tokens."""
    return tokens * token_flops(model, vocab_size, seq_len).total


def flops_formula(model: Model, vocab_size: int, seq_len: int, tokens: int) -> list[str]:
    """The terms of ``train_flops`` with their factors, for a person to check."""
    active = model_size(model, vocab_size).active
    layers, heads = model.num_hidden_layers, model.num_attention_heads
    return [
        f"6 x {active:,} active parameters x {tokens:,} tokens",
        f"6 x {vocab_size:,} entries x {model.hidden_size:,} wide x {tokens:,} tokens: the head",
        f"6 x {layers} layers x {heads} heads x {model.head_dim} wide x {seq_len:,} long x {tokens:,} tokens: "
        "causal attention",
    ]
