"""The head: cross-entropy over the vocabulary without ever holding all logits.

Positions are taken a chunk at a time and each chunk's gradient is made while its logits are there, so that memory is
one chunk's logits whatever the batch (128k entries and 16k positions would be 8 GB in fp32) and nothing is computed
twice.

Shapes: T positions, D hidden, V vocabulary, N positions of a chunk.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHUNK_LOGITS = 2**26
"""Most logits held at once: 256 MiB in fp32."""


class Head(nn.Module):
    """Projection onto the vocabulary and the loss on it; ``weight`` (V, D)."""

    def __init__(self, hidden: int, vocab_size: int, z_loss: float) -> None:
        super().__init__()
        self.weight: Tensor = nn.Parameter(torch.empty(vocab_size, hidden))
        self.z_loss = z_loss

    def forward(self, hidden_TD: Tensor, targets_T: Tensor, masked_T: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Loss of given targets.

        Args:
            hidden_TD: the decoder's output.
            targets_T: int64 ids.
            masked_T: bool, targets that count as 0; the mean stays over T.

        Returns:
            The loss, an fp32 scalar: mean cross-entropy plus ``z_loss`` times the mean squared log-normaliser (PaLM,
            Chowdhery et al. 2022); then without gradient each target's cross-entropy, fp32 (T,), and the mean squared
            log-normaliser.
        """
        loss, nats, squared = _Loss.apply(hidden_TD, self.weight, targets_T, masked_T, self.z_loss)
        return loss, nats, squared

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits in fp32, (..., V)."""
        return F.linear(hidden, self.weight).float()


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, masked: Tensor | None, z_loss: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        count, vocab = len(hidden), len(weight)
        size = max(1, CHUNK_LOGITS // vocab)
        of_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        of_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        normalisers, nats = (torch.empty(count, dtype=torch.float32, device=hidden.device) for _ in range(2))
        for at in range(0, count, size):
            part = slice(at, at + size)
            rows, target = hidden[part], targets[part, None]
            logits = F.linear(rows, weight).float()
            log_p = torch.log_softmax(logits, -1)
            loss = -log_p.gather(-1, target)
            normaliser = logits.gather(-1, target) + loss
            del logits
            if masked is not None:
                # With a log-normaliser of 0 a masked target adds nothing to the z-loss either.
                loss, normaliser = (t.masked_fill(masked[part, None], 0) for t in (loss, normaliser))
            nats[part], normalisers[part] = loss.squeeze(-1), normaliser.squeeze(-1)
            if of_hidden is None and of_weight is None:
                continue
            # d loss / d logits = softmax * (1 + 2 z log-normaliser) - onehot, all over the number of targets.
            slope = log_p.exp_()
            slope *= (1 + 2 * z_loss * normaliser) / count
            slope.scatter_add_(-1, target, torch.full_like(normaliser, -1 / count))
            if masked is not None:
                slope.masked_fill_(masked[part, None], 0)
            slope = slope.to(weight.dtype)
            if of_hidden is not None:
                torch.mm(slope, weight, out=of_hidden[part])
            if of_weight is not None:
                _add_product(of_weight, slope, rows)
        ctx.save_for_backward(of_hidden, of_weight)
        ctx.dtype = weight.dtype
        squared = normalisers.square().mean()
        ctx.mark_non_differentiable(nats, squared)
        return nats.mean() + z_loss * squared, nats, squared

    @staticmethod
    def backward(ctx: Any, slope: Tensor, *unused: Tensor) -> tuple[Tensor | None, ...]:
        of_hidden, of_weight = ctx.saved_tensors
        return (
            None if of_hidden is None else of_hidden * slope,
            None if of_weight is None else (of_weight * slope).to(ctx.dtype),
            None,
            None,
            None,
        )


def _add_product(total: Tensor, slope_NV: Tensor, rows_ND: Tensor) -> None:
    if rows_ND.dtype == total.dtype:
        total.addmm_(slope_NV.T, rows_ND)
    else:
        total += slope_NV.T @ rows_ND
