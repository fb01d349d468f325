"""The rungs of a ladder: recipes derived from the hero's, and nothing but the derivation different.

A rung is narrower (``widths.py``) and has the same:

- tokens per active parameter, to half a step,
- mixture: phases, weights, seeds, sequence length; each domain is limited to the share of its tokens that the rung has
  of the hero's tokens, so that it is repeated as often (simulated epoching),
- schedule by progress: warm-up, decay, ramps, evaluations and checkpoints at the same fractions,
- layers, experts, optimizer, seeds.

Batch and learning rate follow a rule each, named in the ladder. So a rung is a pure function of hero, corpus, width,
seed and rules; a recipe that differs from it in anything is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from millstream.errors import RecipeError
from millstream.mixture.papers import without_papers
from millstream.mixture.recipe import Mixture, Recipe
from millstream.mixture.training import Train
from millstream.stream.freeze import freeze_plan
from millstream.stream.plan import Plan
from millstream.stream.roots import Root
from millstream.tokenize.manifest import Manifest
from millstream.train.ladder.widths import narrowed
from millstream.train.size import ModelSize, model_size, train_flops

BatchRule = Literal["sqrt", "constant"]
"""``sqrt``: the batch grows with the root of the tokens; ``constant``: it stays the hero's."""

RateRule = Literal["tokens-width", "width", "constant"]
"""How the learning rate follows, from the hero's own:

``tokens-width``: T^-0.3461 width^-0.3448 batch^0.5, exponents as Marin refitted them for its ladders (its pull request
8132); ``width``: 1 / width, as muP has it for matrices under Adam (Yang et al. 2022); ``constant``: the same.
"""

TOKENS_EXPONENT, WIDTH_EXPONENT = -0.3461, -0.3448
DIGITS = 6
"""Significant digits of a derived learning rate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What a ladder is made by: ``widths`` of its rungs, rising, and how many seeds the smallest is trained with."""

    widths: tuple[int, ...]
    batch: BatchRule = "sqrt"
    rate: RateRule = "tokens-width"
    seeds: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """One run of the ladder, or the hero beside it."""

    recipe: Recipe
    size: ModelSize
    tokens: int
    steps: int
    batch: int
    flops: int

    @property
    def name(self) -> str:
        """The recipe's name without the hero's."""
        return self.recipe.name.rpartition("-")[2]


def hero_rung(hero: Recipe, manifest: Manifest, root: Root) -> tuple[Rung, Plan]:
    """The hero as a rung, with its plan.

    Raises:
        RecipeError: it has no model or no mixture, or its mixture is impossible over the corpus.
    """
    if hero.model is None or hero.mixture is None:
        raise RecipeError(f"{hero.name}: a ladder needs the sections 'mixture' and 'model'")
    plan = freeze_plan(hero.mixture, manifest, root)
    return _rung(hero, plan, manifest), plan


def derive(hero: Recipe, manifest: Manifest, root: Root, rules: Rules) -> tuple[Rung, ...]:
    """The rungs of a ladder, by rising width; further seeds of the smallest come after it.

    Raises:
        RecipeError: a width is impossible, or a rung's share of a domain is too small; names the rung.
    """
    own, plan = hero_rung(hero, manifest, root)
    rungs = []
    for number, width in enumerate(rules.widths):
        for seed in range(rules.seeds if number == 0 else 1):
            recipe = _recipe(hero, own, plan, manifest.tokenizer.vocab_size, width, seed, rules)
            assert recipe.mixture is not None
            try:
                rungs.append(_rung(recipe, freeze_plan(recipe.mixture, manifest, root), manifest))
            except RecipeError as error:
                raise RecipeError(
                    f"{recipe.name}: {error}; a rung has {_share(own, rungs, recipe)} of the hero's tokens of each "
                    "domain, choose wider rungs"
                ) from error
    return tuple(rungs)


def differences(wanted: Recipe, found: Recipe) -> list[str]:
    """Dotted names of the fields in which two recipes differ."""
    return _differences(wanted.canonical(), found.canonical(), "")


def _differences(wanted: Any, found: Any, at: str) -> list[str]:
    if isinstance(wanted, dict) and isinstance(found, dict):
        names = [*wanted, *(name for name in found if name not in wanted)]
        return [d for n in names for d in _differences(wanted.get(n), found.get(n), f"{at}.{n}" if at else n)]
    return [] if wanted == found else [at]


def _rung(recipe: Recipe, plan: Plan, manifest: Manifest) -> Rung:
    assert recipe.model is not None
    vocab, tokens = manifest.tokenizer.vocab_size, plan.total_sequences * plan.seq_len
    return Rung(
        recipe=recipe,
        size=model_size(recipe.model, vocab),
        tokens=tokens,
        steps=plan.total_steps,
        batch=plan.batch_of(plan.total_steps),
        flops=train_flops(recipe.model, vocab, plan.seq_len, tokens),
    )


def _share(own: Rung, rungs: Sequence[Rung], recipe: Recipe) -> str:
    assert recipe.mixture is not None
    steps, batch = recipe.mixture.steps or 0, recipe.mixture.schedule[-1][1]
    return f"about {100 * steps * batch * recipe.mixture.seq_len / own.tokens:.2g}%"


def _recipe(hero: Recipe, own: Rung, plan: Plan, vocab: int, width: int, seed: int, rules: Rules) -> Recipe:
    """A rung's recipe."""
    assert hero.model is not None
    assert hero.mixture is not None
    model = narrowed(hero.model, width)
    of_tokens = Fraction(model_size(model, vocab).active, own.size.active)
    of_batch = _batch_share(hero, of_tokens, rules.batch)
    changes = [(s, max(1, round(b * of_batch / _unit(hero))) * _unit(hero)) for s, b in hero.mixture.schedule]
    # With one batch size this is tokens over tokens a step; a schedule of batches keeps its shape by steps.
    sequences = own.tokens * of_tokens / hero.mixture.seq_len
    scale = float(sequences / _sequences(hero.mixture, changes, own.steps))
    steps = max(1, round(own.steps * scale))
    tokens = _sequences(hero.mixture, changes, own.steps) * steps / own.steps * hero.mixture.seq_len
    of_steps = Fraction(steps, own.steps)
    mixture = hero.mixture.model_dump(mode="json", exclude_none=True) | {
        "steps": steps,
        "batch": changes[0][1] if len(changes) == 1 else _batches(changes, of_steps),
        "limits": {r.name: int(r.tokens * Fraction(tokens) / own.tokens) for r in plan.rings if _used(plan, r.name)},
    }
    mixture.pop("tokens", None)
    for phase in mixture["phases"]:
        if "window" in phase:
            phase["window"] = max(1, round(phase["window"] * of_batch))
        for weight in phase["weights"].values():
            if isinstance(weight, dict):
                weight["sequences"] = max(1, round(weight["sequences"] * tokens / own.tokens))
    rate = _rate(
        hero.train.optimizer.lr, tokens / own.tokens, width / hero.model.hidden_size, changes, hero, rules.rate
    )
    return Recipe.model_validate(
        without_papers(hero).canonical()
        | {
            "name": f"{hero.name}-w{width}" + (f"s{seed}" if seed else ""),
            "mixture": mixture,
            "model": model.model_dump(),
            "train": _train(hero.train, of_steps, Fraction(tokens) / own.tokens, rate, changes[0][1], seed),
        }
    )


def _unit(hero: Recipe) -> int:
    """What a rung's batch is a multiple of: a micro-batch, of which the hero's is one."""
    return hero.train.micro_batch


def _batch_share(hero: Recipe, of_tokens: Fraction, rule: BatchRule) -> float:
    return float(of_tokens) ** 0.5 if rule == "sqrt" else 1.0


def _sequences(mixture: Mixture, changes: Sequence[tuple[int, int]], steps: int) -> int:
    """Sequences of so many steps under the hero's schedule with other batches."""
    ends = [*(step for step, _ in changes[1:]), steps + 1]
    return sum((min(end, steps + 1) - step) * batch for (step, batch), end in zip(changes, ends, strict=True))


def _batches(changes: Sequence[tuple[int, int]], of_steps: Fraction) -> list[dict[str, int]]:
    at = {1 + round((step - 1) * of_steps): batch for step, batch in changes}
    return [{"step": step, "batch": batch} for step, batch in sorted(at.items())]


def _used(plan: Plan, domain: str) -> bool:
    return plan.consumed(domain) > 0


def _rate(
    peak: float, of_tokens: float, of_width: float, changes: Sequence[tuple[int, int]], hero: Recipe, rule: RateRule
) -> float:
    assert hero.mixture is not None
    of_batch = changes[-1][1] / hero.mixture.schedule[-1][1]
    match rule:
        case "tokens-width":
            factor = of_tokens**TOKENS_EXPONENT * of_width**WIDTH_EXPONENT * of_batch**0.5
        case "width":
            factor = 1 / of_width
        case "constant":
            factor = 1.0
    return float(f"{peak * factor:.{DIGITS}g}")


def _train(train: Train, of_steps: Fraction, of_tokens: Fraction, rate: float, batch: int, seed: int) -> dict[str, Any]:
    """The section ``train`` with lengths at the same progress."""
    section: dict[str, Any] = train.model_dump(mode="json", exclude_none=True)
    section["seed"] += seed
    section["optimizer"]["lr"] = rate
    places = [section["schedule"], *(r for r in section["optimizer"].get("ramps", {}).values() if r)]
    for place in places:
        for name in ("steps", "warmup_steps", "decay_steps"):
            if place.get(name):
                place[name] = max(1, round(place[name] * of_steps))
        for name in ("tokens", "warmup_tokens", "decay_tokens"):
            if place.get(name):
                place[name] = max(1, round(place[name] * of_tokens))
    for name in ("checkpoint_every", "evaluate_every"):
        if section.get(name):
            section[name] = max(1, round(section[name] * of_steps))
    return section


def cost(rungs: Sequence[Rung], hero: Rung) -> Mapping[str, float]:
    """FLOPs of each rung as a share of the hero's, by name."""
    return {rung.name: rung.flops / hero.flops for rung in rungs}
