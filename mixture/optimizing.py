"""The recipe's parts ``optimizer`` and ``schedule``: which method moves the weights, how far, when."""

from typing import Literal, Self

from pydantic import Field, model_validator

from millstream.mixture.rules import Section
from millstream.mixture.units import Count


class Ramp(Section):
    """A number that goes in a straight line from ``start`` to the value given elsewhere, then stays."""

    start: float = Field(ge=0, lt=1)
    steps: int | None = Field(None, ge=1)
    tokens: Count | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if (self.steps is None) == (self.tokens is None):
            raise ValueError("needs either 'steps' or 'tokens'")
        return self


class Ramps(Section):
    """Coefficients that change over the first part of the run."""

    beta1: Ramp | None = None
    beta2: Ramp | None = None
    momentum: Ramp | None = None
    """Of Muon; its value is ``muon.momentum``."""


class Muon(Section):
    """Momentum, orthogonalised by Newton-Schulz (Jordan et al. 2024), for the matrices inside the layers."""

    lr_scale: float = Field(1.0, gt=0)
    """Rate of these matrices over ``lr``."""
    momentum: float = Field(0.95, ge=0, lt=1)
    nesterov: bool = True
    iterations: int = Field(5, ge=1, le=20)
    """Steps of Newton-Schulz."""
    scale: Literal["rms", "spectral"] = "rms"
    """Size of an update to a matrix of r rows and c columns: ``rms`` multiplies by ``0.2 * sqrt(max(r, c))``, so that
    it moves about as far as AdamW's would and one rate serves both (Liu et al. 2025); ``spectral`` by
    ``sqrt(max(1, r / c))`` (Jordan et al. 2024)."""


class ParameterGroup(Section):
    """What one kind of parameter is given in place of the optimizer's own values."""

    lr_scale: float = Field(1.0, gt=0)
    """Its rate over ``lr``."""
    weight_decay: float | None = Field(None, ge=0)
    """By default ``optimizer.weight_decay``; none for embeddings and norms."""


class ParameterGroups(Section):
    """Kinds of parameters."""

    embedding: ParameterGroup = ParameterGroup()
    """Of the tokens; a tied head too."""
    head: ParameterGroup = ParameterGroup()
    norm: ParameterGroup = ParameterGroup()
    """Every vector: norms and biases."""
    router: ParameterGroup = ParameterGroup()
    attention: ParameterGroup = ParameterGroup()
    """The four projections."""
    dense: ParameterGroup = ParameterGroup()
    """Feed-forward parts of dense layers."""
    shared: ParameterGroup = ParameterGroup()
    """Shared experts."""
    experts: ParameterGroup = ParameterGroup()
    """Routed experts."""


class Optimizer(Section):
    """AdamW for everything, or Muon for the matrices inside the layers and AdamW for the rest."""

    kind: Literal["adamw", "muon"] = "adamw"
    """``muon`` leaves embedding, head, norms and routers to AdamW."""
    lr: float = Field(3e-3, gt=0)
    """The highest rate."""
    betas: tuple[float, float] = (0.9, 0.95)
    beta2_half_life: Count | None = Field(None, ge=1)
    """Tokens after which a squared gradient counts half; each step's second beta follows from its batch (Marek et al.
    2025), in place of ``betas``."""
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.1, ge=0)
    """On matrices, times the rate (Loshchilov and Hutter 2019); embeddings, norms and biases are not decayed."""
    clip: float = Field(1.0, gt=0)
    """Largest global gradient norm."""
    muon: Muon = Muon()
    groups: ParameterGroups = ParameterGroups()
    ramps: Ramps = Ramps()

    @model_validator(mode="after")
    def _belongs(self) -> Self:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError("'betas' must be at least 0 and below 1")
        if self.kind != "muon" and (self.muon != Muon() or self.ramps.momentum is not None):
            raise ValueError("'muon' and 'ramps.momentum' belong to 'kind: muon'")
        if self.beta2_half_life is not None and self.ramps.beta2 is not None:
            raise ValueError("'beta2_half_life' and 'ramps.beta2' exclude each other")
        return self


class Schedule(Section):
    """Learning rate over the run: a linear warm-up, then a decay to ``min_lr_ratio``.

    Lengths are in steps, or in tokens; in tokens, progress is that of the plan's tokens, so that a batch that grows
    moves nothing.
    """

    kind: Literal["constant", "linear", "cosine", "wsd"] = "cosine"
    warmup_steps: int = Field(0, ge=0)
    warmup_tokens: Count | None = Field(None, ge=0)
    decay_steps: int | None = Field(None, ge=1)
    """Length of the last, falling part of ``wsd``."""
    decay_tokens: Count | None = Field(None, ge=1)
    decay: Literal["linear", "sqrt"] = "linear"
    """How ``wsd`` falls: in a straight line (Hu et al. 2024), or by ``1 - sqrt`` of the way (Haegele et al. 2024)."""
    min_lr_ratio: float = Field(0.1, ge=0, le=1)

    @property
    def by_tokens(self) -> bool:
        """Whether lengths are in tokens."""
        return self.warmup_tokens is not None or self.decay_tokens is not None

    @model_validator(mode="after")
    def _lengths(self) -> Self:
        if self.by_tokens and (self.warmup_steps or self.decay_steps is not None):
            raise ValueError("lengths are either all in steps or all in tokens")
        given = self.decay_steps is not None or self.decay_tokens is not None
        if (self.kind == "wsd") != given:
            raise ValueError("'kind: wsd' and 'decay_steps' or 'decay_tokens' go together")
        if self.kind != "wsd" and self.decay != "linear":
            raise ValueError("'decay' belongs to 'kind: wsd'")
        return self
