"""A decoder with mixture-of-experts layers of the shape of GLM-4.5 (``Glm4MoeForCausalLM`` in transformers).

Grouped-query attention with QK-norm and partial RoPE, SwiGLU feed-forward, the first layers dense.
Parameters carry Hugging Face's names, except that a layer's experts are stacked (``experts.w1`` gate,
``w3`` up, ``w2`` down), so that an export renames and unstacks.

Shapes: B sequences, S tokens, D hidden, H heads, K key-value heads, E head width.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from millstream.mixture.training import Model
from millstream.train.moe import FeedForward, MoELayer


# Without slots: ZeRO 3 looks for tensors in vars().
@dataclass(frozen=True, kw_only=True)
class Losses:
    """What a forward pass gives.

    ``total`` is the scalar that is differentiated: mean cross-entropy, plus the z-losses. ``per_sequence`` is
    the cross-entropy of each sequence, fp32 (B,), without gradient.
    """

    total: Tensor
    per_sequence: Tensor


class RMSNorm(nn.Module):
    """Root-mean-square normalisation in fp32 (Zhang and Sennrich, 2019)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)


class Attention(nn.Module):
    """Causal grouped-query attention; QK-norm and rotation before the product."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.head_dim = model.head_dim
        hidden, heads, kv = model.hidden_size, model.num_attention_heads, model.num_key_value_heads
        self.q_proj = nn.Linear(hidden, heads * model.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, kv * model.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, kv * model.head_dim, bias=False)
        self.o_proj = nn.Linear(heads * model.head_dim, hidden, bias=False)
        self.q_norm = RMSNorm(model.head_dim, model.rms_norm_eps) if model.use_qk_norm else None
        self.k_norm = RMSNorm(model.head_dim, model.rms_norm_eps) if model.use_qk_norm else None

    def forward(self, x_BSD: Tensor, cos_SR: Tensor, sin_SR: Tensor) -> Tensor:
        """Attend; cos and sin rotate the first R widths of each head."""
        batch, length, _ = x_BSD.shape
        q, k, v = (
            proj(x_BSD).view(batch, length, -1, self.head_dim) for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (rotate(t, cos_SR, sin_SR) if rotated else t for t, rotated in ((q, True), (k, True), (v, False)))
        mixed = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
        )
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))


class Block(nn.Module):
    """Attention and feed-forward, each after a norm and around a residual."""

    def __init__(self, model: Model, layer: int, expert_parallel: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(model.hidden_size, model.rms_norm_eps)
        self.self_attn = Attention(model)
        self.post_attention_layernorm = RMSNorm(model.hidden_size, model.rms_norm_eps)
        dense = layer < model.first_k_dense_replace
        self.mlp: FeedForward | MoELayer = (
            FeedForward(model.hidden_size, model.intermediate_size) if dense else MoELayer(model, expert_parallel)
        )

    def forward(self, x_BSD: Tensor, cos_SR: Tensor, sin_SR: Tensor) -> Tensor:
        """One layer."""
        x_BSD = x_BSD + self.self_attn(self.input_layernorm(x_BSD), cos_SR, sin_SR)
        return x_BSD + self.mlp(self.post_attention_layernorm(x_BSD))


class Decoder(nn.Module):
    """Embedding, layers and last norm."""

    def __init__(self, model: Model, vocab_size: int, expert_parallel: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, model.hidden_size)
        self.layers = nn.ModuleList(Block(model, n, expert_parallel) for n in range(model.num_hidden_layers))
        self.norm = RMSNorm(model.hidden_size, model.rms_norm_eps)
        self.rotary = int(model.head_dim * model.partial_rotary_factor)
        self.theta = model.rope_theta

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Hidden states (B, S, D)."""
        x_BSD = self.embed_tokens(tokens_BS)
        cos_SR, sin_SR = rotation(tokens_BS.shape[1], self.rotary, self.theta, x_BSD)
        for layer in self.layers:
            x_BSD = layer(x_BSD, cos_SR, sin_SR)
        out: Tensor = self.norm(x_BSD)
        return out


class CausalLM(nn.Module):
    """The language model.

    Args:
        model: its shape.
        vocab_size: ids it knows.
        expert_parallel: ranks that share a layer's experts.
        z_loss: weight of the squared log-normaliser of the vocabulary (PaLM, Chowdhery et al. 2022).
        router_z_loss: the same for the router's logits (ST-MoE, Zoph et al. 2022), summed over layers.
    """

    def __init__(
        self,
        model: Model,
        vocab_size: int,
        *,
        expert_parallel: int = 1,
        z_loss: float = 0.0,
        router_z_loss: float = 0.0,
    ) -> None:
        super().__init__()
        self.model = Decoder(model, vocab_size, expert_parallel)
        self.lm_head = nn.Linear(model.hidden_size, vocab_size, bias=False)
        if model.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.z_loss, self.router_z_loss = z_loss, router_z_loss

    def logits(self, tokens_BS: Tensor) -> Tensor:
        """Logits in fp32, (B, S, vocabulary)."""
        return self.lm_head(self.model(tokens_BS)).float()

    def forward(self, tokens: Tensor, masked: Tensor | None = None) -> Losses:
        """Losses of whole sequences.

        Args:
            tokens: (B, S + 1): inputs and, shifted by one, targets.
            masked: bool (B, S), targets that were taken down: they count as 0 nats, and means are still over S, so
                that every other target weighs what it weighed before.
        """
        logits = self.logits(tokens[:, :-1])
        normaliser = torch.logsumexp(logits, -1)
        target = logits.gather(-1, tokens[:, 1:, None]).squeeze(-1)
        nats = normaliser - target
        if masked is not None:
            nats, normaliser = nats.masked_fill(masked, 0), normaliser.masked_fill(masked, 0)
        total = nats.mean() + self.z_loss * normaliser.square().mean()
        for layer in moe_layers(self):
            total = total + self.router_z_loss * layer.take_z_loss()
        return Losses(total=total, per_sequence=nats.detach().mean(-1))


def moe_layers(module: nn.Module) -> list[MoELayer]:
    """The mixture-of-experts layers of a model, from the bottom."""
    return [m for m in module.modules() if isinstance(m, MoELayer)]


def rotation(length: int, width: int, theta: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of RoPE (Su et al., 2021): two (S, R), halves repeated."""
    exponent = torch.arange(0, width, 2, dtype=torch.float32, device=like.device) / width
    angle = torch.arange(length, dtype=torch.float32, device=like.device)[:, None] * theta**-exponent
    angle = torch.cat((angle, angle), -1)
    return angle.cos().to(like.dtype), angle.sin().to(like.dtype)


def rotate(x_BSHE: Tensor, cos_SR: Tensor, sin_SR: Tensor) -> Tensor:
    """Rotate the first R of each head's E widths; the rest passes."""
    width = cos_SR.shape[-1]
    turned, rest = x_BSHE[..., :width], x_BSHE[..., width:]
    low, high = turned.chunk(2, -1)
    turned = turned * cos_SR[:, None] + torch.cat((-high, low), -1) * sin_SR[:, None]
    return torch.cat((turned, rest), -1)
