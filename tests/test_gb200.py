"""The recipes for GB200: what they claim, and that they plan."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from millstream.cli import app
from millstream.mixture.load import load_recipe
from millstream.train.budget import Job
from millstream.train.footprint import bucket_elements
from millstream.train.size import model_size

RECIPES = Path(__file__).parent.parent / "recipes"
LARGE = RECIPES / "marin-535b-a23b.yaml"
FOLDER = RECIPES / "gb200"
VOCAB = 128_256


def planned(recipe: Path, *arguments: str) -> tuple[int, str, dict[str, Any]]:
    """Exit code, what went wrong, and the facts."""
    result = CliRunner().invoke(app, ["plan", str(recipe), "--json", *arguments])
    shown = result.stdout[: result.stdout.rindex("}") + 1] if "}" in result.stdout else "{}"
    code = getattr(result.exception, "exit_code", result.exit_code)
    return code, str(result.exception), json.loads(shown)


def test_the_large_run_has_the_size_and_cost_of_its_name() -> None:
    code, _, plan = planned(LARGE)
    facts = plan["facts"]
    assert code == 0
    assert plan["problems"] == plan["warnings"] == []
    assert facts["parameters"]["total"] == pytest.approx(535e9, rel=0.01)
    assert facts["parameters"]["active"] == pytest.approx(23e9, rel=0.01)
    assert facts["flops"]["total"] == pytest.approx(2.7e24, rel=0.03)
    assert facts["tokens"] == pytest.approx(18e12, rel=0.001)
    assert facts["steps"] == 390_251
    assert facts["memory"]["total"] < facts["memory"]["available"] < 186e9
    assert facts["checkpoint"]["bytes"] == pytest.approx(6.4e12, rel=0.01)


def test_what_cannot_work_is_refused_with_what_would() -> None:
    code, error, _ = planned(LARGE, "--ranks", "792")
    assert code == 2
    assert "792 ranks do not divide into groups of expert_parallel 64 (24 would be left over)" in error
    assert "possible: ranks 768 or 832" in error
    one_rack = ("--ranks", "64", "--set", "train.zero_stage=1", "--set", "train.gradient_precision=bf16")
    code, error, plan = planned(LARGE, *one_rack)
    assert code == 2
    assert plan["facts"]["memory"]["total"] > 186e9
    assert "a rank needs 217" in error
    assert "of the 186.0 GB it has" in error
    assert "any of these makes it fit: " in error
    assert "ranks 704 (" in error
    code, error, _ = planned(LARGE, "--set", "train.activation_checkpointing=false")
    assert code == 2
    assert "activation_checkpointing true (" in error


@pytest.mark.parametrize(
    ("name", "total", "active", "tokens", "flops", "ranks"),
    [
        ("1.6b-a61m", 1.6e9, 61e6, 48e9, 5.5e19, 64),
        ("4.0b-a162m", 4.0e9, 162e6, 128e9, 2.7e20, 128),
        ("11.5b-a481m", 11.5e9, 481e6, 381e9, 1.8e21, 384),
        ("27.7b-a1.2b", 27.7e9, 1.2e9, 926e9, 9.2e21, 704),
    ],
)
def test_the_rungs_plan(name: str, total: float, active: float, tokens: float, flops: float, ranks: int) -> None:
    code, error, plan = planned(FOLDER / f"ladder-{name}.yaml")
    assert code == 0, error
    facts = plan["facts"]
    assert facts["parameters"]["total"] == pytest.approx(total, rel=0.01)
    assert facts["parameters"]["active"] == pytest.approx(active, rel=0.01)
    assert facts["tokens"] == pytest.approx(tokens, rel=0.003)
    assert facts["flops"]["total"] == pytest.approx(flops, rel=0.03)
    assert facts["ranks"] == ranks
    large, rung = load_recipe(LARGE), load_recipe(FOLDER / f"ladder-{name}.yaml")
    assert rung.corpus == large.corpus


def test_the_hostfile_has_the_ranks_rack_by_rack() -> None:
    lines = [line for line in (FOLDER / "hostfile").read_text().splitlines() if not line.startswith("#")]
    found = [re.fullmatch(r"rack(\d\d)-host(\d\d) slots=4", line) for line in lines]
    assert [m and (int(m[1]), int(m[2])) for m in found] == [(r, h) for r in range(1, 12) for h in range(1, 17)]
    recipe = load_recipe(LARGE)
    assert recipe.cluster is not None
    assert recipe.cluster.ranks == 4 * len(lines)
    assert recipe.train.expert_parallel == recipe.cluster.domain == 4 * 16


def test_the_engine_gets_the_configuration_that_is_shown() -> None:
    from millstream.train.engine import engine_config

    recipe = load_recipe(LARGE)
    assert recipe.model is not None
    config = engine_config(recipe.train, 11264, 704)
    size = model_size(recipe.model, VOCAB)
    held = size.total - size.experts + size.experts // 64
    config["zero_optimization"]["reduce_bucket_size"] = bucket_elements(held)
    assert json.loads((FOLDER / "deepspeed.json").read_text()) == config
    assert config["zero_optimization"]["stage"] == 2
    assert config["data_types"] == {"grad_accum_dtype": "fp32"}
    assert config["bf16"] == {"enabled": True}


def test_room_is_left_for_uneven_experts() -> None:
    recipe = load_recipe(LARGE)
    assert recipe.model is not None
    assert recipe.cluster is not None
    job = Job(model=recipe.model, train=recipe.train, vocab_size=VOCAB, seq_len=4096, batch=11264, ranks=704)
    doubled = recipe.model.model_copy(update={"num_experts_per_tok": 16})
    twice = Job(model=doubled, train=recipe.train, vocab_size=VOCAB, seq_len=4096, batch=11264, ranks=704)
    room = recipe.cluster.memory - recipe.cluster.reserve
    assert job.footprint().total < twice.footprint().total < room, "a rank may get twice its share of rows"
