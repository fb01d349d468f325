"""Narrower models of one shape: the same layers, experts and choices, every width scaled by one fraction.

Heads are taken away in whole groups (query heads that share key-value heads), their width stays. Where the model has
too few groups, heads stay and become narrower.
"""

from fractions import Fraction
from math import gcd
from typing import Any

from millstream.errors import RecipeError
from millstream.mixture.training import Model

WIDTHS = ("hidden_size", "intermediate_size", "moe_intermediate_size")
HEADS = ("num_attention_heads", "num_key_value_heads")
KEPT = (
    "num_hidden_layers",
    "first_k_dense_replace",
    "n_routed_experts",
    "num_experts_per_tok",
    "n_shared_experts",
    "routed_scaling_factor",
    "norm_topk_prob",
    "use_qk_norm",
    "partial_rotary_factor",
    "rope_theta",
    "rms_norm_eps",
    "tie_word_embeddings",
    "initializer_range",
)
MULTIPLE = 8
"""What every width must be a multiple of."""

SMALLEST, LARGEST = Fraction(1, 8), Fraction(1, 2)
"""Between which fractions of the width rungs are laid by default."""


def narrowed(model: Model, width: int) -> Model:
    """The model at another ``hidden_size``.

    Raises:
        RecipeError: the shape does not allow that width; names those that it does.
    """
    fraction = Fraction(width, model.hidden_size)
    changed = _by_heads(model, fraction) or _by_head_width(model, fraction)
    if not 0 < fraction < 1 or changed is None:
        allowed = ", ".join(map(str, possible_widths(model))) or "none"
        raise RecipeError(f"model: cannot be made {width} wide; heads and widths divide at: {allowed}")
    known = {*WIDTHS, *HEADS, *KEPT, "head_dim"}
    for name, field in Model.model_fields.items():
        if name not in known and getattr(model, name) != field.get_default(call_default_factory=True):
            raise RecipeError(
                f"model.{name}: a ladder does not know how it goes with the width; leave it at its default"
            )
    return Model.model_validate(model.model_dump() | changed)


def possible_widths(model: Model) -> list[int]:
    """Every ``hidden_size`` below the model's that its shape allows, rising."""
    widths = range(MULTIPLE, model.hidden_size, MULTIPLE)
    fractions = [Fraction(width, model.hidden_size) for width in widths]
    return [w for w, f in zip(widths, fractions, strict=True) if _by_heads(model, f) or _by_head_width(model, f)]


def spread_widths(model: Model, rungs: int) -> list[int]:
    """Widths of so many rungs, at equal ratios from an eighth to a half of the model's as far as the shape allows.

    Raises:
        RecipeError: the shape allows fewer widths.
    """
    allowed = possible_widths(model)
    if len(allowed) < rungs:
        raise RecipeError(
            f"model: its shape allows {len(allowed)} narrower widths ({', '.join(map(str, allowed)) or 'none'}), fewer "
            f"than {rungs} rungs; give it more heads, or heads whose width has more multiples of {MULTIPLE} below it"
        )
    lowest, highest = SMALLEST * model.hidden_size, LARGEST * model.hidden_size
    chosen: list[int] = []
    for number in range(rungs):
        wanted = float(lowest) * float(highest / lowest) ** (number / max(1, rungs - 1))
        # One for each rung that is left, above those that are chosen.
        free = [w for w in allowed if w > max(chosen, default=0)]
        free = free[: len(free) - (rungs - number - 1)]
        chosen.append(min(free, key=lambda w: (abs(w / wanted - 1), w)))
    return chosen


def _by_heads(model: Model, fraction: Fraction) -> dict[str, Any] | None:
    """The fields that change when whole groups of heads go; None where the fraction cuts a group."""
    groups = gcd(model.num_attention_heads, model.num_key_value_heads)
    if (fraction * groups).denominator != 1 or (fraction * model.hidden_size) % MULTIPLE:
        return None
    return _scaled(model, WIDTHS, fraction) | {name: int(getattr(model, name) * fraction) for name in HEADS}


def _by_head_width(model: Model, fraction: Fraction) -> dict[str, Any] | None:
    """The fields that change when every head becomes narrower; None where its width would not divide."""
    head = fraction * model.head_dim
    if head.denominator != 1 or head % MULTIPLE or (fraction * model.hidden_size) % MULTIPLE:
        return None
    if int(int(head) * model.partial_rotary_factor) % 2:
        return None
    return _scaled(model, WIDTHS, fraction) | {"head_dim": int(head)}


def _scaled(model: Model, names: tuple[str, ...], fraction: Fraction) -> dict[str, Any]:
    """Widths times the fraction, to the nearest multiple."""
    return {name: max(1, round(getattr(model, name) * fraction / MULTIPLE)) * MULTIPLE for name in names}
