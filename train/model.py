"""A decoder with mixture-of-experts layers of the shape of GLM-4.5 (``Glm4MoeForCausalLM`` in transformers).

Grouped-query attention with QK-norm and partial RoPE, SwiGLU feed-forward, the first layers dense.
Parameters carry Hugging Face's names, except that a layer's experts are stacked (``experts.w1`` gate,
``w3`` up, ``w2`` down), so that an export renames and unstacks.

Shapes: B sequences, S tokens, D hidden, R rotated width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from millstream.mixture.training import Model
from millstream.train.attention import Attend, Attention, Kernel, RMSNorm, attention, documents_of, rotation
from millstream.train.experts import FeedForward
from millstream.train.head import Head
from millstream.train.moe import MoELayer, moe_layers
from millstream.train.router import Routed, note


# Without slots: ZeRO 3 looks for tensors in vars().
@dataclass(frozen=True, kw_only=True)
class Losses:
    """What a forward pass gives.

    ``total`` is the scalar that is differentiated: mean cross-entropy, plus the other losses by their weights. The
    rest has no gradient: ``per_sequence`` is the cross-entropy of each sequence, fp32 (B,); then, unweighted and as
    fp32 scalars, the head's z-loss, and the routers' z-loss and balance loss within sequences, means over layers.
    """

    total: Tensor
    per_sequence: Tensor
    z_loss: Tensor
    router_z_loss: Tensor
    sequence_loss: Tensor


class Block(nn.Module):
    """Attention and feed-forward, each after a norm and around a residual."""

    def __init__(self, model: Model, feed_forward: FeedForward | MoELayer) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(model.hidden_size, model.rms_norm_eps)
        self.self_attn = Attention(model)
        self.post_attention_layernorm = RMSNorm(model.hidden_size, model.rms_norm_eps)
        self.mlp = feed_forward

    def forward(self, x_BSD: Tensor, cos_SR: Tensor, sin_SR: Tensor, attend: Attend) -> tuple[Tensor, Routed | None]:
        """One layer, and what its router did."""
        x_BSD = x_BSD + self.self_attn(self.input_layernorm(x_BSD), cos_SR, sin_SR, attend)
        normed = self.post_attention_layernorm(x_BSD)
        if isinstance(self.mlp, MoELayer):
            mixed, routed = self.mlp(normed)
            return x_BSD + mixed, routed
        return x_BSD + self.mlp(normed), None


class Decoder(nn.Module):
    """Embedding, layers and last norm."""

    def __init__(
        self, model: Model, vocab_size: int, layers: Sequence[Block], kernel: Kernel, activation_checkpointing: bool
    ) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, model.hidden_size)
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(model.hidden_size, model.rms_norm_eps)
        self.rotary = int(model.head_dim * model.partial_rotary_factor)
        self.theta = model.rope_theta
        self.kernel, self.activation_checkpointing = kernel, activation_checkpointing

    def forward(self, tokens_BS: Tensor, documents_BS: Tensor | None) -> tuple[Tensor, list[Routed]]:
        """Hidden states (B, S, D), and what each router did; an input sees its own document, or all where None."""
        x_BSD = self.embed_tokens(tokens_BS)
        cos_SR, sin_SR = rotation(tokens_BS.shape[1], self.rotary, self.theta, x_BSD)
        attend = attention(self.kernel, documents_BS, x_BSD)
        all_routed = []
        for layer in self.layers:
            if self.activation_checkpointing and torch.is_grad_enabled():
                x_BSD, routed = checkpoint(
                    layer, x_BSD, cos_SR, sin_SR, attend, use_reentrant=False, preserve_rng_state=False
                )
            else:
                x_BSD, routed = layer(x_BSD, cos_SR, sin_SR, attend)
            if routed is not None:
                all_routed.append(routed)
        return self.norm(x_BSD), all_routed


class CausalLM(nn.Module):
    """The language model.

    Args:
        model: its shape.
        vocab_size: ids it knows.
        eos: id that ends documents; attention stays inside them. None lets it cross.
        expert_parallel: ranks that share a layer's experts.
        capacity_factor: see ``MoELayer``.
        kernel: see ``attention.attention``.
        activation_checkpointing: whether a layer's activations are made again in the backward pass (Chen et al. 2016).
        z_loss: weight of the head's z-loss (``Head``).
        router_z_loss: weight of the routers' z-loss, mean over a step's tokens, summed over layers.
        sequence_loss: weight of the balance loss within sequences, summed over layers.
    """

    def __init__(
        self,
        model: Model,
        vocab_size: int,
        *,
        eos: int | None = None,
        expert_parallel: int = 1,
        capacity_factor: float | None = None,
        kernel: Kernel = "auto",
        activation_checkpointing: bool = False,
        z_loss: float = 0.0,
        router_z_loss: float = 0.0,
        sequence_loss: float = 0.0,
    ) -> None:
        super().__init__()
        layers = []
        for number in range(model.num_hidden_layers):
            if number < model.first_k_dense_replace:
                layers.append(Block(model, FeedForward(model.hidden_size, model.intermediate_size)))
            else:
                sparse = MoELayer(
                    model, expert_parallel, capacity_factor=capacity_factor, sequence_loss=sequence_loss > 0
                )
                layers.append(Block(model, sparse))
        self.model = Decoder(model, vocab_size, layers, kernel, activation_checkpointing)
        self.lm_head = Head(model.hidden_size, vocab_size, z_loss)
        if model.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.eos, self.router_z_loss, self.sequence_loss = eos, router_z_loss, sequence_loss

    def logits(self, tokens_BS: Tensor) -> Tensor:
        """Logits in fp32, (B, S, vocabulary)."""
        hidden, _ = self._hidden(tokens_BS)
        return self.lm_head.logits(hidden)

    def forward(self, tokens: Tensor, masked: Tensor | None = None) -> Losses:
        """Losses of whole sequences.

        Args:
            tokens: (B, S + 1): inputs and, shifted by one, targets.
            masked: bool (B, S), targets that were taken down: they count as 0 nats, and means are still over S, so
                that every other target weighs what it weighed before.
        """
        hidden, all_routed = self._hidden(tokens[:, :-1])
        targets = tokens[:, 1:]
        total: Tensor
        total, nats, squared = self.lm_head(
            hidden.flatten(0, 1), targets.flatten(), None if masked is None else masked.flatten()
        )
        nothing = torch.zeros_like(squared)
        router_z, within = nothing, nothing
        if all_routed:
            router_z = torch.stack([routed.z_loss for routed in all_routed]).sum()
            within = torch.stack([routed.sequence_loss for routed in all_routed]).sum()
            total = total + self.router_z_loss * router_z + self.sequence_loss * within
        if self.training:
            # Here, outside what activation checkpointing runs twice.
            for layer, routed in zip(moe_layers(self), all_routed, strict=True):
                note(layer.gate, routed)
        layers = max(1, len(all_routed))
        return Losses(
            total=total,
            per_sequence=nats.view_as(targets).mean(-1),
            z_loss=squared,
            router_z_loss=router_z.detach() / layers,
            sequence_loss=within.detach() / layers,
        )

    def _hidden(self, tokens_BS: Tensor) -> tuple[Tensor, list[Routed]]:
        documents = None if self.eos is None else documents_of(tokens_BS, self.eos)
        return self.model(tokens_BS, documents)
