"""Parameters, FLOPs and time by formula, and the refusals of a plan."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from millstream.mixture.cluster import Cluster
from millstream.mixture.training import Model, Train
from millstream.train.budget import (
    Job,
    checkpoint_bytes,
    exchange,
    layout_problems,
    layout_warnings,
    memory_problem,
    reduced_bytes,
    step_seconds,
)
from millstream.train.size import model_size, token_flops, train_flops

MODEL = Model(
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    intermediate_size=64,
    n_routed_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=16,
)
VOCAB = 64
CLUSTER = Cluster(
    ranks=8, ranks_per_host=2, ranks_per_domain=4, memory=10**9, flops=1e12, mfu=0.5, link=10**9, network=10**8
)


def job(ranks: int = 8, batch: int = 64, **train: Any) -> Job:
    settings = Train.model_validate({"expert_parallel": 4, "micro_batch": 2} | train)
    return Job(model=MODEL, train=settings, vocab_size=VOCAB, seq_len=16, batch=batch, ranks=ranks)


@pytest.mark.parametrize("change", [{}, {"tie_word_embeddings": True}, {"use_qk_norm": False}, {"n_shared_experts": 0}])
def test_parameters_are_those_of_the_network(change: dict[str, Any]) -> None:
    from millstream.train.model import CausalLM

    model = MODEL.model_copy(update=change)
    parameters = dict(CausalLM(model, VOCAB).named_parameters())
    size = model_size(model, VOCAB)
    assert size.total == sum(p.numel() for p in parameters.values())
    assert size.experts == sum(p.numel() for name, p in parameters.items() if ".experts.w" in name)
    assert size.embeddings == sum(
        p.numel() for name, p in parameters.items() if "embed_tokens" in name or "head" in name
    )
    assert size.active == size.layers + size.experts * 2 // 8


def test_flops_are_six_a_parameter_and_causal_attention() -> None:
    size = model_size(MODEL, VOCAB)
    flops = token_flops(MODEL, VOCAB, 16)
    assert flops.layers == 6 * size.active
    assert flops.head == 6 * VOCAB * 32
    # Scores and mixing: two products of 2 * head_dim FLOPs a pair, half of the pairs, three times with backward.
    assert flops.attention == 3 * (2 * 2 * 8) * 4 * 3 * 16 // 2
    assert train_flops(MODEL, VOCAB, 16, 1000) == 1000 * flops.total


def test_time_and_traffic() -> None:
    flops = 64 * 16 * token_flops(MODEL, VOCAB, 16).total
    assert step_seconds(job(), 1e12, 0.5) == pytest.approx(flops / (8 * 0.5e12))
    sent = exchange(job(), CLUSTER)
    assert sent.bytes_per_layer == 2 * 16 * 2 * 32 * 2 * 3 // 4, "tokens x choices x hidden x bf16, 3 of 4 elsewhere"
    assert sent.exchanges == 4
    assert sent.bytes_per_step == sent.bytes_per_layer * 4 * 2 * 4, "exchanges x MoE layers x micro-batches"
    assert sent.seconds_per_step == sent.bytes_per_step / 1e9
    across = exchange(job(expert_parallel=8), CLUSTER)
    assert across.seconds_per_step == across.bytes_per_step / 1e8, "a group over two domains goes by the network"
    assert exchange(job(expert_parallel=1), CLUSTER).bytes_per_layer == 0
    size = model_size(MODEL, VOCAB)
    once = 2 * (size.experts // 4 // 2 + (size.total - size.experts) * 7 // 8)
    assert reduced_bytes(job()) == once
    assert reduced_bytes(job(zero_stage=2)) == 4 * once
    assert checkpoint_bytes(job()) == 12 * size.total + 4 * 2 * 8


def test_muon_keeps_one_moment_of_matrices() -> None:
    from millstream.train.groups import resolved_groups

    muon = job(optimizer={"kind": "muon"})
    groups = resolved_groups(MODEL, VOCAB, muon.train.optimizer).values()
    expected = sum((8 if group["method"] == "muon" else 12) * group["parameters"] for group in groups)
    assert checkpoint_bytes(muon) - 4 * 2 * 8 == expected


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (job(ranks=10, batch=80), "10 ranks do not divide into groups of expert_parallel 4 (2 would be left over); "
         "possible: ranks 8 or 12, expert_parallel 1 or 2"),
        (job(ranks=6, batch=60, expert_parallel=3), "8 experts do not divide among expert_parallel 3 ranks; possible: "
         "expert_parallel 1 or 2"),
        (job(batch=40), "a batch of 40 sequences is not a multiple of 8 ranks x micro_batch 2; "
         "possible: micro_batch 5"),
        (job(batch=4), "a batch of 4 sequences is not a multiple of 8 ranks x micro_batch 2; possible: a batch of 16"),
    ],
)  # fmt: skip
def test_a_layout_that_cannot_be_says_what_could(made: Job, message: str) -> None:
    assert layout_problems(made, None) == [message]


def test_hosts_are_whole_and_groups_lie_in_one_domain() -> None:
    assert layout_problems(job(), CLUSTER) == []
    assert layout_problems(job(ranks=9, batch=72, expert_parallel=1, micro_batch=1), CLUSTER) == [
        "9 ranks are not a multiple of 2 a host"
    ]
    assert layout_warnings(job(), CLUSTER) == []
    assert "their all-to-alls cross the network" in layout_warnings(job(expert_parallel=8), CLUSTER)[0]


def test_memory_that_does_not_suffice_names_the_changes_that_help() -> None:
    needed = job().footprint().total
    assert memory_problem(job(), CLUSTER) is None
    tight = CLUSTER.model_copy(update={"memory": needed - 1})
    told = memory_problem(job(), tight)
    assert told is not None
    assert "any of these makes it fit: zero_stage 2 (" in told
    assert "micro_batch 1 (" in told
    claim = CLUSTER.model_copy(update={"peak_memory": needed - 1})
    assert "cluster.peak_memory claims at most" in (memory_problem(job(), claim) or "")
    reserved = CLUSTER.model_copy(update={"memory": needed + 10, "reserve": 11})
    assert memory_problem(job(), reserved) is not None
    none = CLUSTER.model_copy(update={"memory": 100})
    assert "no single change makes it fit; most helps" in (memory_problem(job(), none) or "")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ranks": 9}, r"ranks \(9\) is not a multiple of ranks_per_host \(2\)"),
        ({"ranks_per_domain": 3}, r"ranks_per_domain \(3\) is not a multiple of ranks_per_host \(2\)"),
        ({"reserve": "1GB"}, "reserve leaves nothing of memory"),
        ({"flops": None}, "'mfu' is a share of 'flops'"),
    ],
)
def test_a_cluster_is_consistent(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cluster.model_validate(CLUSTER.model_dump() | change)


def test_fp32_gradients_over_bf16_weights_need_zero_2() -> None:
    with pytest.raises(ValueError, match="needs 'zero_stage: 2'"):
        Train(gradient_precision="fp32")
    assert Train(gradient_precision="fp32", zero_stage=2).gradient_precision == "fp32"
    assert Train(gradient_precision="fp32", precision="fp32").zero_stage == 1
    with pytest.raises(ValueError, match="is below 'precision: fp32'"):
        Train(gradient_precision="bf16", precision="fp32")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    values = {
        "format": "millstream-recipe/1",
        "name": "small",
        "corpus": {
            "sources": [{"name": "s", "root": "nowhere"}],
            "domains": [{"name": "a", "sources": ["s"]}, {"name": "b", "sources": ["s"]}],
            "tokenizer": {"kind": "bpe", "vocab_size": 512},
        },
        "mixture": {
            "seq_len": 16,
            "batch": 16,
            "steps": 10,
            "limits": {"a": "1k"},
            "phases": [{"name": "one", "weights": {"a": "0.25", "b": "0.75"}}, {"name": "two", "weights": {"b": 1}}],
        },
        "model": MODEL.model_dump(),
        "train": {"zero_stage": 1, "expert_parallel": 2},
        "cluster": {"ranks": 4, "memory": "1GB", "flops": 1e12, "mfu": 0.25, "storage": "1MB"},
    }
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def plan(recipe: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "millstream", "plan", str(recipe), *arguments]
    return subprocess.run(command, cwd=recipe.parent, capture_output=True, text=True, check=False)


def test_a_recipe_alone_is_planned(recipe: Path) -> None:
    shown = plan(recipe)
    assert shown.returncode == 0, shown.stderr
    assert "no corpus at corpora/small yet: epochs, repeats and limits are planned once it is built" in shown.stdout
    planned = json.loads(plan(recipe, "--json").stdout)
    assert planned["plan_id"] is None
    facts = planned["facts"]
    assert facts["tokens"] == 10 * 16 * 16
    assert [(p["domain"], p["sequences"]) for p in planned["phases"]] == [("a", 32), ("b", 96), ("b", 32)]
    assert "epochs" not in planned["phases"][0]
    size = model_size(MODEL, 512)
    assert facts["parameters"]["total"] == size.total
    assert facts["flops"]["total"] == train_flops(MODEL, 512, 16, 2560)
    assert facts["time"]["step_s"] == pytest.approx(train_flops(MODEL, 512, 16, 256) / (4 * 0.25e12))
    assert facts["time"]["days"] == pytest.approx(10 * facts["time"]["step_s"] / 86400)
    assert facts["checkpoint"]["write_s"] == facts["checkpoint"]["bytes"] / 1e6
    assert sum(facts["memory"]["kinds"].values()) == facts["memory"]["total"]
    faster = json.loads(plan(recipe, "--json", "--mfu", "0.5").stdout)["facts"]["time"]
    assert faster["step_s"] == pytest.approx(facts["time"]["step_s"] / 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "3"], "3 ranks do not divide into groups of expert_parallel 2"),
        (["--set", "cluster.memory=10kB"], "a rank needs"),
        (["--set", "cluster.peak_memory=1kB"], "cluster.peak_memory claims at most"),
        (["--set", "train.zero=1"], "train.zero: unknown key"),
        (["--set", "train=1"], "expected FIELD=VALUE with the field's section"),
        (["--set", "train.zero_stage"], "expected FIELD=VALUE with the field's section"),
        (["--set", "corpus.tokenizer={kind: file, path: no.json, eos: x}"], "no.json: no such tokenizer file"),
    ],
)
def test_plan_refuses_in_one_line(recipe: Path, arguments: list[str], message: str) -> None:
    refused = plan(recipe, *arguments)
    assert refused.returncode in (2, 3)
    assert message in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
