"""The optimizer inside ZeRO: AdamW, and Muon for the groups that ask for it.

DeepSpeed hands it flat fp32 partitions of averaged, clipped gradients, so it works alike under ZeRO 1 and 2 and with
experts on any ranks, its state is cut and saved like AdamW's, and a step that is skipped never reaches it. DeepSpeed's
own Muon is not used: it orthogonalises before the norm is taken, so that clipping measures the update instead of the
gradient, keeps momentum of whole matrices on every rank that holds a part of one, and compiles its kernels when it is
imported.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from millstream.mixture import optimizing
from millstream.mixture.training import Train
from millstream.train.layout import Layout, flat_groups, zero_layout
from millstream.train.schedule import Rates

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic step that Jordan et al. (2024) chose for its slope at zero; singular values end near one."""
STATES = {"adamw": ("exp_avg", "exp_avg_sq"), "muon": ("momentum_buffer",)}
"""Tensors that a method keeps beside each flat partition, of its shape."""


class RecipeOptimizer(torch.optim.AdamW):
    """torch's fused AdamW for groups whose ``method`` is ``adamw``, Muon for those whose ``method`` is ``muon``.

    Muon keeps an exponential mean of the gradient, takes the mean of that and of the gradient (Nesterov), replaces each
    matrix by a nearly orthogonal one of the same row and column spaces and scales it by its shape (Jordan et al. 2024,
    "Muon: an optimizer for hidden layers in neural networks"; Liu et al. 2025, "Muon is scalable for LLM training").
    Weights decay by ``lr * weight_decay``, as AdamW's.
    """

    def __init__(self, groups: list[dict[str, Any]], train: Train) -> None:
        settings = train.optimizer
        super().__init__(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, weight_decay=0.0, fused=True)
        self.muon = settings.muon
        self.dtype = torch.bfloat16 if train.precision == "bf16" else torch.float32
        """In which matrices are orthogonalised."""
        self.layouts: dict[Tensor, Layout] = {}
        self.watch: Callable[[Tensor], None] | None = None
        """Shown each flat partition with its gradient before it is moved."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move the partitions of all groups that hold any."""
        assert closure is None
        groups = self.param_groups
        for group in groups:
            for flat in group["params"]:
                if self.watch is not None:
                    self.watch(flat)
                if group["method"] == "muon":
                    self._move_matrices(flat, group)
        self.param_groups = [group for group in groups if group["method"] == "adamw"]
        super().step()
        self.param_groups = groups

    def _move_matrices(self, flat: Tensor, group: dict[str, Any]) -> None:
        gradient, momentum = flat.grad, group["momentum"]
        assert gradient is not None
        mean = self.state[flat]["momentum_buffer"].lerp_(gradient, 1 - momentum)
        # ZeRO has no further use for the gradient: the update takes its memory.
        update = gradient.lerp_(mean, momentum) if self.muon.nesterov else gradient.copy_(mean)
        self.layouts[flat].map_matrices(
            update, self.dtype, lambda stack: orthogonalise(stack, self.muon.iterations) * scale_of(self.muon, stack)
        )
        flat.mul_(1 - group["lr"] * group["weight_decay"])
        flat.add_(update, alpha=-group["lr"])


def prepare(engine: Any) -> None:
    """Give the optimizer its state and the places of its matrices, once DeepSpeed has cut the groups.

    State is there before the first update, so that a checkpoint holds the same whatever came before it.
    """
    zero = engine.optimizer
    for number, (flat, group) in enumerate(flat_groups(zero)):
        zero.optimizer.state[flat] = empty_state(group["method"], flat, 0)
        if group["method"] == "muon":
            zero.optimizer.layouts[flat] = zero_layout(zero, number)


def set_rates(engine: Any, rates: Rates) -> None:
    """Set what the next step moves with."""
    for group in engine.optimizer.param_groups:
        group["lr"] = rates.lr * group["lr_scale"]
        group["betas"] = (rates.beta1, rates.beta2)
        group["momentum"] = rates.momentum


def rate_of(engine: Any) -> float:
    """The learning rate that the last step moved with, without the groups' scales."""
    rates: list[float] = [group["lr"] / s for group in engine.optimizer.param_groups if (s := group["lr_scale"])]
    return rates[0] if rates else 0.0


def empty_state(method: str, flat: Tensor, updates: int) -> dict[str, Any]:
    """A method's state of a flat partition before its first step; ``updates`` is AdamW's count of steps."""
    state: dict[str, Any] = {kind: torch.zeros_like(flat, requires_grad=False) for kind in STATES[method]}
    if method == "adamw":
        state["step"] = torch.tensor(float(updates), device=flat.device)
    return state


def orthogonalise(matrices: Tensor, iterations: int) -> Tensor:
    """Replace each matrix ``U S V'`` by about ``U V'``: Newton-Schulz, a matrix polynomial that only multiplies.

    Args:
        matrices: (n, rows, columns), in the dtype to compute in.
        iterations: of the quintic step.
    """
    a, b, c = COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    # The spectral norm is at most Frobenius', which is taken in fp32: squares of small gradients underflow.
    x = (x / (torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True, dtype=torch.float32) + 1e-7)).to(x.dtype)
    for _ in range(iterations):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def scale_of(muon: optimizing.Muon, matrices: Tensor) -> float:
    """Factor of an update by its matrices' shape; see the recipe's ``muon.scale``."""
    rows, columns = matrices.shape[-2:]
    if muon.scale == "rms":
        return float(0.2 * max(rows, columns) ** 0.5)
    return float(max(1.0, rows / columns) ** 0.5)
