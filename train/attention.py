"""Causal grouped-query attention that stays inside documents.

A document ends with EOS, so an input after one begins the next: the same borders as ``stream.boundaries`` finds, here
on the device that trains. Rotation needs no restart at a border: it enters products of queries and keys by their
distance alone (Su et al., 2021).

Shapes: B sequences, S tokens, D hidden, H heads, K key-value heads, E head width, R rotated width.
"""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from millstream.mixture.training import Model

Kernel = Literal["auto", "sdpa", "flash", "flex"]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries (B, S, H, E), keys and values (B, S, K, E) to (B, S, H, E)."""


class RMSNorm(nn.Module):
    """Root-mean-square normalisation in fp32 (Zhang and Sennrich, 2019)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return self.weight * F.rms_norm(x.float(), self.weight.shape, eps=self.eps).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention (Ainslie et al., 2023); QK-norm and rotation before the product."""

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

    def forward(self, x_BSD: Tensor, cos_SR: Tensor, sin_SR: Tensor, attend: Attend) -> Tensor:
        """Attend; cos and sin rotate the first R widths of each head."""
        batch, length, _ = x_BSD.shape
        q, k, v = (
            proj(x_BSD).view(batch, length, -1, self.head_dim) for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        mixed = attend(rotate(q, cos_SR, sin_SR), rotate(k, cos_SR, sin_SR), v)
        return self.o_proj(mixed.reshape(batch, length, -1))


def documents_of(inputs_BS: Tensor, eos: int) -> Tensor:
    """Number of each input's document in its row, from 0: int32 (B, S)."""
    begins = torch.zeros_like(inputs_BS, dtype=torch.int32)
    begins[:, 1:] = inputs_BS[:, :-1] == eos
    return begins.cumsum(-1, dtype=torch.int32)


def attention(kernel: Kernel, documents_BS: Tensor | None, like: Tensor) -> Attend:
    """How a batch's inputs look at each other.

    Args:
        kernel: ``sdpa`` is torch's scaled dot product, ``flash`` its variable-length FlashAttention (Dao, 2023; CUDA,
            16 bits), ``flex`` FlexAttention (Dong et al., 2024), compiled on CUDA; ``auto`` is ``flash`` where that
            runs and ``sdpa`` elsewhere. They differ in rounding only.
        documents_BS: numbers as ``documents_of`` gives them; None lets an input look at all of its row before it.
        like: hidden states (B, S, D), for device and dtype.
    """
    short = like.is_cuda and like.dtype in (torch.bfloat16, torch.float16)
    if kernel == "flash" or (kernel == "auto" and short and documents_BS is not None):
        return _flash(documents_BS, like)
    return _flex(documents_BS, like) if kernel == "flex" else _sdpa(documents_BS)


def _sdpa(documents_BS: Tensor | None) -> Attend:
    mask = None
    # Without a border the mask says no more than causality, which has a faster kernel; asking CUDA would make it wait.
    if documents_BS is not None and (documents_BS.is_cuda or bool(documents_BS[:, -1].any())):
        same = documents_BS[:, :, None] == documents_BS[:, None, :]
        mask = same.tril()[:, None]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
        return mixed.transpose(1, 2)

    return attend


def _flash(documents_BS: Tensor | None, like: Tensor) -> Attend:
    from torch.nn.attention.varlen import varlen_attn

    batch, length, _ = like.shape
    if documents_BS is None:
        documents_BS = torch.zeros((batch, length), dtype=torch.int32, device=like.device)
    begins = torch.ones_like(documents_BS, dtype=torch.bool)
    begins[:, 1:] = documents_BS[:, 1:] != documents_BS[:, :-1]
    # Rows are laid end to end; their starts are borders too.
    starts = F.pad(begins.flatten().nonzero().squeeze(-1).int(), (0, 1), value=batch * length)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
        mixed = varlen_attn(q, k, v, starts, starts, length, length, window_size=(-1, 0), enable_gqa=True)
        assert isinstance(mixed, Tensor)
        return mixed.unflatten(0, (batch, length))

    return attend


def _flex(documents_BS: Tensor | None, like: Tensor) -> Attend:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    batch, length, _ = like.shape

    def looks_at(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        causal = query >= key
        return causal if documents_BS is None else causal & (documents_BS[b, query] == documents_BS[b, key])

    rows = None if documents_BS is None else batch
    mask = create_block_mask(looks_at, rows, None, length, length, device=like.device)
    kernel = torch.compile(flex_attention) if like.is_cuda else flex_attention

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mixed = kernel(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), block_mask=mask, enable_gqa=True)
        assert isinstance(mixed, Tensor)
        return mixed.transpose(1, 2)

    return attend


def rotation(length: int, width: int, theta: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of RoPE (Su et al., 2021): two (S, R), halves repeated, the sine's first half negative."""
    exponent = torch.arange(0, width, 2, dtype=torch.float32, device=like.device) / width
    angle = torch.arange(length, dtype=torch.float32, device=like.device)[:, None] * theta**-exponent
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((cos, cos), -1).to(like.dtype), torch.cat((-sin, sin), -1).to(like.dtype)


def rotate(x_BSHE: Tensor, cos_SR: Tensor, sin_SR: Tensor) -> Tensor:
    """Rotate the first R of each head's E widths; the rest passes."""
    width = cos_SR.shape[-1]
    turned, rest = x_BSHE[..., :width], x_BSHE[..., width:]
    low, high = turned.chunk(2, -1)
    turned = turned * cos_SR[:, None] + torch.cat((high, low), -1) * sin_SR[:, None]
    return torch.cat((turned, rest), -1)
