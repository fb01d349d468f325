"""Rates of a step: closed forms, golden values, in steps and in tokens, under a growing batch."""

import math
from dataclasses import astuple, replace
from fractions import Fraction
from typing import Any

import pytest
from synthetic import make_plan

from millstream.errors import RecipeError
from millstream.mixture.load import parse_recipe
from millstream.mixture.optimizing import Optimizer, Ramp, Ramps, Schedule
from millstream.stream.plan import Plan
from millstream.train.schedule import beta2_of, learning_rate, rates_at


def growing_plan() -> Plan:
    """60 steps of 8 sequences of 32 tokens, then 30 steps of 16: 30,720 tokens."""
    plan = make_plan({"a": 40_000}, [(480, {"a": "1"}, 8), (960, {"a": "1"}, 16)], seq_len=32, batch=8)
    return replace(plan, phases=(plan.phases[0], replace(plan.phases[1], batch=16)))


def closed_form(kind: str, decay: str, done: int, total: int, warm: int, length: int, low: Fraction) -> float:
    """The same curves by the definitions in the papers."""
    if done < warm:
        return done / warm
    if kind == "constant":
        return 1.0
    if kind == "wsd":
        into = Fraction(max(0, done - total + length), length)
        kept = 1 - (math.sqrt(into) if decay == "sqrt" else float(into))
    else:
        into = Fraction(done - warm, total - warm)
        kept = math.cos(float(into) * math.pi / 2) ** 2 if kind == "cosine" else float(1 - into)
    return float(low) + (1 - float(low)) * kept


@pytest.mark.parametrize(
    ("kind", "decay"),
    [("constant", "linear"), ("linear", "linear"), ("cosine", "linear"), ("wsd", "linear"), ("wsd", "sqrt")],
)
@pytest.mark.parametrize("by_tokens", [False, True])
def test_every_kind_equals_its_closed_form(kind: str, decay: str, by_tokens: bool) -> None:
    unit = "tokens" if by_tokens else "steps"
    fields: dict[str, Any] = {"kind": kind, "decay": decay, "min_lr_ratio": 0.05, f"warmup_{unit}": 700}
    if kind == "wsd":
        fields[f"decay_{unit}"] = 2_000
    schedule = Schedule(**fields)
    for done in [1, 350, 699, 700, 701, 5_000, 7_999, 8_000, 8_001, 9_999, 10_000]:
        expected = 3e-3 * closed_form(kind, decay, done, 10_000, 700, 2_000, Fraction(1, 20))
        assert learning_rate(done, 10_000, 3e-3, schedule) == pytest.approx(expected, rel=1e-12, abs=1e-18)


def test_golden_rates() -> None:
    """Written once, by hand where they are round: a change of these is a change of what runs do."""
    plan = growing_plan()
    assert plan.total_steps == 90
    optimizer = Optimizer(
        kind="muon",
        lr=0.004,
        beta2_half_life=2048,
        ramps=Ramps(beta1=Ramp(start=0.5, steps=40), momentum=Ramp(start=0.85, tokens=5120)),
    )
    schedule = Schedule(kind="wsd", warmup_tokens=2560, decay_tokens=10_240, decay="sqrt", min_lr_ratio=0)
    found = [rates_at(step, plan, optimizer, schedule) for step in (1, 10, 60, 70, 80, 90)]
    golden = [
        (0.0004, 0.51, 0.9170040432046712, 0.855),
        (0.004, 0.6, 0.9170040432046712, 0.9),
        (0.004, 0.9, 0.9170040432046712, 0.95),
        (0.004, 0.9, 0.8408964152537145, 0.95),
        (0.0011715728752538097, 0.9, 0.8408964152537145, 0.95),
        (0.0, 0.9, 0.8408964152537145, 0.95),
    ]
    assert [astuple(rates) for rates in found] == [pytest.approx(rates, rel=1e-12, abs=1e-15) for rates in golden]


def test_in_tokens_a_growing_batch_moves_nothing() -> None:
    """Half of the tokens are done when two thirds of the steps are; a schedule in tokens is half way then."""
    plan = growing_plan()
    optimizer = Optimizer(lr=1.0)
    in_tokens = Schedule(kind="linear", warmup_tokens=0, min_lr_ratio=0)
    in_steps = Schedule(kind="linear", min_lr_ratio=0)
    assert rates_at(60, plan, optimizer, in_tokens).lr == pytest.approx(0.5)
    assert rates_at(60, plan, optimizer, in_steps).lr == pytest.approx(1 / 3)
    steady = make_plan({"a": 40_000}, [(960, {"a": "1"}, 8)], seq_len=32, batch=8)
    for step, same in ((30, 30), (60, 60), (61, 62), (90, 120)):
        assert rates_at(step, plan, optimizer, in_tokens).lr == rates_at(same, steady, optimizer, in_tokens).lr


def test_a_half_life_is_one_whatever_the_batch() -> None:
    for batch in (256, 1024, 4096):
        assert beta2_of(batch, 8192) ** (8192 // batch) == pytest.approx(0.5, rel=1e-12)


RECIPE = """\
format: millstream-recipe/1
name: r
corpus: {sources: [{name: s, root: in}], domains: [{name: a, sources: [s]}]}
train:
  optimizer: OPTIMIZER
  schedule: SCHEDULE
"""


@pytest.mark.parametrize(
    ("optimizer", "schedule", "message"),
    [
        ("{kind: moun}", "{}", "r.yaml:5: train.optimizer.kind: unknown choice 'moun'; did you mean 'muon'?"),
        ("{lr_scale: 2}", "{}", "train.optimizer.lr_scale: unknown key"),
        ("{groups: {rooter: {}}}", "{}", "train.optimizer.groups.rooter: unknown key; did you mean 'router'?"),
        ("{groups: {router: {weight_decya: 1}}}", "{}", "did you mean 'weight_decay'?"),
        ("{muon: {momentum: 0.9}}", "{}", "'muon' and 'ramps.momentum' belong to 'kind: muon'"),
        ("{kind: muon, muon: {momentum: 1.0}}", "{}", "train.optimizer.muon.momentum: Input should be less than 1"),
        ("{ramps: {beta2: {start: 0.9}}}", "{}", "train.optimizer.ramps.beta2: needs either 'steps' or 'tokens'"),
        ("{beta2_half_life: 1M, ramps: {beta2: {start: 0.9, steps: 3}}}", "{}", "exclude each other"),
        ("{betas: [0.9, 1.0]}", "{}", "'betas' must be at least 0 and below 1"),
        ("{}", "{kind: cosin}", "train.schedule.kind: unknown choice 'cosin'; did you mean 'cosine'?"),
        ("{}", "{kind: wsd}", "'kind: wsd' and 'decay_steps' or 'decay_tokens' go together"),
        ("{}", "{warmup_steps: 5, warmup_tokens: 1k}", "either all in steps or all in tokens"),
        ("{}", "{kind: linear, decay: sqrt}", "'decay' belongs to 'kind: wsd'"),
    ],
)
def test_faults_of_the_recipe_are_named(optimizer: str, schedule: str, message: str) -> None:
    text = RECIPE.replace("OPTIMIZER", optimizer).replace("SCHEDULE", schedule)
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text.encode(), "r.yaml")
    assert message in str(caught.value)


def test_a_recipe_with_every_default_written_out_is_the_same_recipe() -> None:
    recipe = parse_recipe(RECIPE.replace("OPTIMIZER", "{kind: muon}").replace("SCHEDULE", "{}").encode(), "r.yaml")
    assert type(recipe).model_validate(recipe.canonical()) == recipe
