"""The ladder: rungs differ from their hero by the rules alone, their losses forecast it, the record holds it to it."""

import json
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from corpora import build, recipe_dict, write_domain
from test_cli import fails, run

from millstream.audit.ledger import check_chain, open_ledger
from millstream.audit.runs import open_run
from millstream.errors import RecipeError, UsageError
from millstream.mixture.load import load_recipe
from millstream.mixture.recipe import Recipe
from millstream.mixture.training import Model
from millstream.stream.corpora import Corpus, open_corpus
from millstream.stream.freeze import freeze_plan
from millstream.train.begin import begin_run
from millstream.train.ladder.folder import Ladder, check_rungs, make_ladder, open_ladder
from millstream.train.ladder.forecasts import forecast_hero
from millstream.train.ladder.observe import observe
from millstream.train.ladder.registered import record_score, register, registered, score
from millstream.train.ladder.rungs import Rules, derive, differences, hero_rung
from millstream.train.ladder.widths import narrowed, possible_widths, spread_widths
from millstream.train.metrics import MetricsWriter, Value

ROOT = Path(__file__).parent.parent
DOMAINS = ("law", "news")
RULES = Rules(widths=(32, 64, 96), seeds=2)
SECTIONS: dict[str, Any] = {
    "mixture": {
        "seq_len": 32,
        "batch": 16,
        "steps": 60,
        "phases": [
            {"name": "pretrain", "weights": {"law": "0.5", "news": "0.5"}},
            {"name": "midtrain", "weights": {"law": "0.2", "news": {"sequences": 100}}},
        ],
        "max_epochs": "40",
    },
    "model": {
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "intermediate_size": 256,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
    },
    "train": {
        "micro_batch": 4,
        "optimizer": {"lr": 1e-3},
        "schedule": {"kind": "wsd", "warmup_steps": 6, "decay_steps": 12},
        "checkpoint_every": 20,
        "evaluate_every": 10,
        "wandb": None,
    },
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ladder")
    for name in DOMAINS:
        write_domain(folder / "in", name, 400)
    build(folder, recipe_dict(folder / "in", DOMAINS, **SECTIONS), corpus="corpora/test")
    return folder


@pytest.fixture(scope="module")
def hero(home: Path) -> Recipe:
    return load_recipe(home / "recipe.yaml")


@pytest.fixture(scope="module")
def corpus(home: Path) -> Corpus:
    return open_corpus(str(home / "corpora" / "test"))


def made(folder: Path, hero: Recipe, corpus: Corpus) -> Ladder:
    return make_ladder(folder / "ladder", hero, corpus, str(corpus.root), RULES)


def pretend(folder: Path, recipe: Recipe, corpus: Corpus, losses: dict[str | None, float], begun: bool = False) -> None:
    """A run whose steps were all fed, with losses that fall to those given; no model is trained."""
    assert recipe.mixture is not None
    plan = freeze_plan(recipe.mixture, corpus.manifest, corpus.root)
    if not begun:
        begin_run(folder, recipe, plan, corpus)
    metrics = MetricsWriter(folder, 1)
    every = recipe.train.evaluate_every or 1
    with open_ledger(folder) as ledger:
        ledger.append("attempt", {"attempt": 1, "checkpoint_step": 0, "world": 1, "segment": 0})
        for step in range(1, plan.total_steps + 1):
            first, end = plan.span(step)
            body = {"step": step, "attempt": 1, "segment": open_segment(plan, step), "first_index": first}
            fed = {"sequences": end - first, "tokens": (end - first) * plan.seq_len, "root": "0" * 64, "loss": 1}
            ledger.append("step", body | fed | {"update_applied": True})
            falling = 1 + 0.5 * (1 - step / plan.total_steps)
            values = [Value(name="loss", domain=d, value=v * falling) for d, v in losses.items()]
            if step % every == 0 or step == plan.total_steps:
                values += [Value(name="loss_held_out", domain=d, value=v * falling) for d, v in losses.items()]
            metrics.add(step, 0, values)
    metrics.close()


def open_segment(plan: Any, step: int) -> int:
    return int(plan.phase_of_step(step).number)


def law(active: float, domain: str | None) -> float:
    exponent = {None: 0.1, "law": 0.12, "news": 0.08}[domain]
    return 1.2 + 8 * active**-exponent


@pytest.fixture(scope="module")
def ladder(home: Path, hero: Recipe, corpus: Corpus) -> Ladder:
    ladder = made(home, hero, corpus)
    for entry in ladder.rungs:
        noise = 1.001 if entry.name.endswith("s1") else 1.0
        losses = {d: noise * law(entry.active, d) for d in (None, *DOMAINS)}
        pretend(ladder.run_folder(entry), load_recipe(ladder.recipe_file(entry)), corpus, losses)
    return ladder


def test_rungs_hold_tokens_per_active_parameter(hero: Recipe, corpus: Corpus) -> None:
    own, plan = hero_rung(hero, corpus.manifest, corpus.root)
    for rung in derive(hero, corpus.manifest, corpus.root, RULES):
        assert rung.tokens / rung.size.active == pytest.approx(
            own.tokens / own.size.active, rel=0.5 / rung.steps + 1e-9
        )
        frozen = freeze_plan(rung.recipe.mixture, corpus.manifest, corpus.root)  # type: ignore[arg-type]
        # As often repeated: the limit is a prefix of whole documents, so a little more.
        for name in DOMAINS:
            epochs = plan.epochs(name, plan.consumed(name))
            assert epochs <= frozen.epochs(name, frozen.consumed(name)) * 1.02
            assert frozen.epochs(name, frozen.consumed(name)) < 1.35 * epochs
        for mine, theirs in zip(frozen.phases, plan.phases, strict=True):
            assert mine.end / frozen.total_sequences == pytest.approx(theirs.end / plan.total_sequences, abs=0.05)


def test_a_rung_differs_from_its_hero_in_what_follows_from_its_width_alone(hero: Recipe, corpus: Corpus) -> None:
    rung = derive(hero, corpus.manifest, corpus.root, RULES)[0].recipe
    allowed = {"name", "mixture.steps", "mixture.batch", "mixture.limits.law", "mixture.limits.news", "mixture.phases"}
    allowed |= {f"model.{n}" for n in ("hidden_size", "intermediate_size", "moe_intermediate_size")}
    allowed |= {"model.num_attention_heads", "model.num_key_value_heads", "train.optimizer.lr"}
    allowed |= {f"train.{n}" for n in ("checkpoint_every", "evaluate_every")}
    allowed |= {f"train.schedule.{n}" for n in ("warmup_steps", "decay_steps")}
    assert set(differences(hero, rung)) <= allowed
    assert rung.mixture is not None
    assert rung.mixture.seed == hero.mixture.seed  # type: ignore[union-attr]


def test_learning_rates_follow_their_rule(hero: Recipe, corpus: Corpus) -> None:
    def rates(rule: Any) -> list[float]:
        rules = Rules(widths=(32, 64), rate=rule, batch="constant")
        return [r.recipe.train.optimizer.lr for r in derive(hero, corpus.manifest, corpus.root, rules)]

    own, _ = hero_rung(hero, corpus.manifest, corpus.root)
    rungs = derive(hero, corpus.manifest, corpus.root, Rules(widths=(32, 64), batch="constant"))
    assert rates("constant") == [1e-3, 1e-3]
    assert rates("width") == [4e-3, 2e-3]
    for rung, rate, width in zip(rungs, rates("tokens-width"), (32, 64), strict=True):
        assert rung.batch == 16
        expected = 1e-3 * (rung.tokens / own.tokens) ** -0.3461 * (width / 128) ** -0.3448
        assert rate == pytest.approx(expected, rel=1e-5)


def test_further_seeds_change_the_seed_alone(hero: Recipe, corpus: Corpus) -> None:
    first, second = derive(hero, corpus.manifest, corpus.root, RULES)[:2]
    assert differences(first.recipe, second.recipe) == ["name", "train.seed"]
    assert (first.name, second.name) == ("w32", "w32s1")


def test_widths_go_by_groups_of_heads_or_by_their_width() -> None:
    model = Model.model_validate(SECTIONS["model"])
    assert possible_widths(model) == [32, 64, 96]
    assert narrowed(model, 64).num_attention_heads == 4
    assert narrowed(model, 64).num_key_value_heads == 2
    assert narrowed(model, 64).head_dim == 16
    few = model.model_copy(update={"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64})
    assert narrowed(few, 32).head_dim == 16
    assert narrowed(few, 32).num_attention_heads == 2
    assert spread_widths(
        model.model_copy(
            update={"hidden_size": 1024, "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 32}
        ),
        4,
    ) == [128, 192, 320, 512]
    with pytest.raises(RecipeError, match="cannot be made 40 wide; heads and widths divide at: 32, 64, 96"):
        narrowed(model, 40)
    with pytest.raises(RecipeError, match=r"allows 3 narrower widths \(32, 64, 96\), fewer than 4 rungs"):
        spread_widths(model, 4)


def test_a_domain_that_a_rung_would_not_see_is_refused_by_name(home: Path, hero: Recipe, corpus: Corpus) -> None:
    assert hero.mixture is not None
    mixture = hero.mixture.model_copy(update={"seq_len": 4096, "max_epochs": Decimal(200)})
    long = hero.model_copy(update={"mixture": mixture})
    with pytest.raises(
        RecipeError, match=r"test-w32: domain 'law' .* of the hero's tokens of each domain, choose wider rungs"
    ):
        derive(long, corpus.manifest, corpus.root, RULES)


def test_the_same_ladder_is_made_again_and_another_is_refused(
    home: Path, hero: Recipe, corpus: Corpus, ladder: Ladder
) -> None:
    assert made(home, hero, corpus).digest == ladder.digest
    with pytest.raises(UsageError, match="holds another ladder already"):
        make_ladder(ladder.path, hero, corpus, str(corpus.root), Rules(widths=(32, 64)))
    other = hero.model_copy(update={"train": hero.train.model_copy(update={"seed": 7})})
    with pytest.raises(UsageError, match="made from another 'train' section"):
        open_ladder(ladder.path, other)


def test_a_rung_with_any_other_difference_is_refused(tmp_path: Path, hero: Recipe, corpus: Corpus) -> None:
    ladder = made(tmp_path, hero, corpus)
    check_rungs(ladder, corpus)
    file = ladder.recipe_file(ladder.rungs[2])
    changed = yaml.safe_load(file.read_text())
    changed["train"]["optimizer"]["weight_decay"] = 0.2
    file.write_text(yaml.safe_dump(changed))
    with pytest.raises(UsageError, match=r"w64.yaml: differs .* in train.optimizer.weight_decay"):
        check_rungs(ladder, corpus)


def test_a_run_by_another_recipe_is_no_rung(tmp_path: Path, hero: Recipe, corpus: Corpus) -> None:
    ladder = made(tmp_path, hero, corpus)
    first, second = ladder.rungs[0], ladder.rungs[2]
    pretend(ladder.run_folder(first), load_recipe(ladder.recipe_file(second)), corpus, {None: 3.0})
    with pytest.raises(UsageError, match="trained by another 'mixture' section"):
        ladder.run_of(first)
    with pytest.raises(UsageError, match="w64 was not begun; 'millstream ladder run'"):
        observe(ladder, [second])


def test_the_hero_is_forecast_from_its_rungs(ladder: Ladder) -> None:
    observed = observe(ladder, ladder.rungs)
    made = forecast_hero(observed, ladder.hero, asymptote=0.4)
    assert {c.series for c in made.curves} == {(n, d) for n in ("loss", "loss_held_out") for d in (None, *DOMAINS)}
    for curve in made.curves:
        if curve.series[0] == "loss_held_out":
            assert curve.steps.tolist() == [10, 20, 30, 40, 50, 60]
            falling = 1 + 0.5 * (1 - curve.steps / 60)
            truth = law(ladder.hero.active, curve.series[1]) * falling
            np.testing.assert_allclose(curve.value, truth, rtol=0.01)
            assert ((curve.low < truth) & (truth < curve.high)).all()
    assert made.tried == 2 * 3
    assert 0 <= made.held <= made.tried


def test_a_forecast_is_registered_before_the_first_step_and_scored_after_the_last(
    tmp_path: Path, hero: Recipe, corpus: Corpus, ladder: Ladder
) -> None:
    forecast = forecast_hero(observe(ladder, ladder.rungs), ladder.hero)
    plan = freeze_plan(hero.mixture, corpus.manifest, corpus.root)  # type: ignore[arg-type]
    begin_run(tmp_path / "run", hero, plan, corpus)
    record = register(open_run(tmp_path / "run"), ladder, forecast, "ada")
    assert (record.body["by"], record.body["ladder"]) == ("ada", ladder.digest)
    assert {r["name"] for r in record.body["rungs"]} == {"w32", "w32s1", "w64", "w96"}
    with pytest.raises(UsageError, match="holds a forecast already"):
        register(open_run(tmp_path / "run"), ladder, forecast, "ada")
    held = registered(open_run(tmp_path / "run"))
    assert held is not None
    for kept, curve in zip(held.curves, forecast.curves, strict=True):
        assert kept.series == curve.series
        np.testing.assert_allclose(kept.value, curve.value, atol=1e-6)
    assert len(score(open_run(tmp_path / "run"), held).points) == 0
    with pytest.raises(UsageError, match="is at step 0 of 60; scored once it is finished"):
        record_score(open_run(tmp_path / "run"), held)
    pretend(tmp_path / "run", hero, corpus, {d: law(ladder.hero.active, d) for d in (None, *DOMAINS)}, begun=True)
    run = open_run(tmp_path / "run")
    result = score(run, held)
    assert result.complete
    assert result.summary()["finals_inside"] == len(result.finals) == 6
    assert abs(result.summary()["error"]["loss_held_out"]) < 0.02
    written = record_score(run, held)
    assert written is not None
    assert written.body["scored"] == record.hash
    assert record_score(open_run(tmp_path / "run"), held) is None
    assert check_chain(tmp_path / "run") == len(open_run(tmp_path / "run").records)


def test_a_forecast_after_the_first_step_is_refused(
    tmp_path: Path, hero: Recipe, corpus: Corpus, ladder: Ladder
) -> None:
    forecast = forecast_hero(observe(ladder, ladder.rungs), ladder.hero)
    pretend(tmp_path / "run", hero, corpus, {None: 3.0})
    with pytest.raises(UsageError, match="step 60 was fed already; a forecast is registered before the first step"):
        register(open_run(tmp_path / "run"), ladder, forecast, "ada")


def test_pinball_loss_is_koenkers(tmp_path: Path, hero: Recipe, corpus: Corpus, ladder: Ladder) -> None:
    forecast = forecast_hero(observe(ladder, ladder.rungs), ladder.hero)
    plan = freeze_plan(hero.mixture, corpus.manifest, corpus.root)  # type: ignore[arg-type]
    begin_run(tmp_path / "run", hero, plan, corpus)
    register(open_run(tmp_path / "run"), ladder, forecast, "ada")
    pretend(tmp_path / "run", hero, corpus, {None: 5.0}, begun=True)
    run = open_run(tmp_path / "run")
    held = registered(run)
    assert held is not None
    row = score(run, held).finals.row(0, named=True)
    sides = [(0.1, row["low"]), (0.5, row["forecast"]), (0.9, row["high"])]
    expected = sum(q * (5.0 - at) if at < 5.0 else (1 - q) * (at - 5.0) for q, at in sides) / 3
    assert row["measured"] == pytest.approx(5.0)
    assert row["pinball"] == pytest.approx(expected)
    assert not row["inside"]


def test_the_commands_tell_it(home: Path, ladder: Ladder) -> None:
    folder = ["--ladder", "ladder"]
    shown = json.loads(run(home, "ladder", "status", "recipe.yaml", *folder, "--json").stdout)
    assert [r["step"] for r in shown["rungs"]] == [e.steps for e in ladder.rungs]
    assert shown["share"] == pytest.approx(
        float(Fraction(sum(int(e.flops) for e in ladder.rungs), int(ladder.hero.flops)))
    )
    fits = json.loads(run(home, "ladder", "fit", "recipe.yaml", *folder, "--json").stdout)["fits"]
    assert len(fits) == 6
    text = run(home, "ladder", "forecast", "recipe.yaml", *folder).stdout
    assert "such bands held" in text
    assert "±" in text
    fails(
        home,
        2,
        "expected a share from 0 to below 1, or 'free'",
        "ladder",
        "fit",
        "recipe.yaml",
        *folder,
        "--asymptote",
        "2",
    )
    fails(home, 2, "no ladder here (no ladder.json)", "ladder", "fit", "recipe.yaml")
    made = run(home, "forecast", "register", "recipe.yaml", *folder, "--by", "ada")
    assert made.returncode == 0, made.stderr
    assert "forecast registered as record" in made.stdout
    fails(home, 2, "holds a forecast already", "forecast", "register", "recipe.yaml", *folder)
    assert "has measured nothing" in run(home, "forecast", "score", "test").stdout


def test_the_ladders_recipe_is_over_the_demos_corpus() -> None:
    demo, hero = (load_recipe(ROOT / "recipes" / f"{name}.yaml") for name in ("demo", "ladder"))
    assert demo.section_digests()["corpus"] == hero.section_digests()["corpus"]
    assert hero.model is not None
    assert {96, 128, 160, 192} <= set(possible_widths(hero.model))
