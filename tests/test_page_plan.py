"""The page's own plan, in JavaScript, against the one that trains: forwards, backwards, over amendments."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic import make_plan

from millstream.canonical import canonical_bytes
from millstream.errors import UsageError
from millstream.stream.amend import Amendment, NewData, Span, amend
from millstream.stream.plan import Plan
from millstream.stream.plan_json import plan_to_json

HERE = Path(__file__).parent
STATIC = HERE.parent / "train" / "page" / "static"
NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(
    NODE is None, reason="node is not installed; the page's JavaScript needs it to be tested"
)


def changed_plan(seed: int) -> Plan:
    """A small plan after a random chain of amendments of every kind."""
    rng = np.random.default_rng(seed)
    seq_len = int(rng.choice([5, 8]))
    phases = [(640, {"a": "1", "b": "1.5", "c": "0.2"}, 16), (800, {"a": "1", "b": "3"}, 32)]
    plan = make_plan({"a": 9001, "b": 700, "c": 333}, phases, seq_len=seq_len, batch=16, seed=int(rng.integers(2**50)))
    step = 1
    for number in range(6):
        step += int(rng.integers(1, 8))
        x, y = rng.integers(1, 9, 2).tolist()
        corpus = f"{number + 2}" * 64
        change: dict[str, Any] = [
            {"weights": {"a": str(x), "b": f"{y}.25"}},
            {"weights": {"a": "1", "b": f"={x + 2}"}},
            {"batch": 8 * x},
            {"skip": 1 + x % 3},
            {"data": (NewData(domain="b", corpus_id=corpus, tokens=100 * x, documents=1),)},
            {"takedowns": (Span(domain="b", corpus_id="1" * 64, start=17 * x, end=17 * x + 11 * y),)},
        ][int(rng.integers(6))]
        try:
            plan = amend(plan, Amendment(from_step=step, **change))
        except UsageError:
            continue
    return plan


def large_plan() -> Plan:
    """18 trillion tokens over 200 domains, two of them with exact numbers of sequences."""
    rng = np.random.default_rng(7)
    weights = {f"d{n:03}": f"{w:.9f}" for n, w in enumerate(rng.dirichlet(np.ones(198)) + 1e-6)}
    tokens = {name: int(rng.integers(10**9, 7 * 10**11)) for name in weights} | {"few": 5_000_000, "more": 10**9}
    first, end = 11_264 * 312_192, 11_264 * 390_251
    plan = make_plan(
        tokens,
        [(first, weights, 11_264), (end, dict(list(weights.items())[:50]), 11_264)],
        seq_len=4096,
        batch=11_264,
        seed=2**53 - 1,
    )
    exact = {**dict(list(weights.items())[50:]), "few": "=900", "more": "=70000"}
    return amend(plan, Amendment(from_step=108_001, weights=exact))


def questions(plan: Plan, steps: list[int], spans: int) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    asked: list[tuple[str, str, int, int]] = []
    sequences: list[tuple[str, int, int]] = []
    for _ in range(spans):
        ring = plan.rings[int(rng.integers(len(plan.rings)))]
        start = int(rng.integers(ring.tokens))
        asked.append((ring.name, ring.corpus_id, start, min(ring.tokens, start + int(rng.integers(1, 60)))))
        sequences.append((ring.name, ring.epoch + int(rng.integers(3)), int(rng.integers(ring.tokens // plan.seq_len))))
    raw = json.loads(canonical_bytes(plan_to_json(plan)))
    raw["seed"] = str(raw["seed"])
    return {"plan": raw, "rows": steps, "spans": asked, "sequences": sequences}


def rows(plan: Plan, step: int) -> list[list[Any]]:
    at = plan.locate(np.arange(*plan.span(step), dtype=np.uint64))
    columns = (at.ring.tolist(), at.epoch.tolist(), at.number.tolist(), at.start.tolist())
    return [[plan.rings[r].name, plan.rings[r].corpus_id, e, n, s] for r, e, n, s in zip(*columns, strict=True)]


def exposures(plan: Plan, domain: str, corpus: str, start: int, end: int) -> list[list[Any]]:
    found = plan.exposures(domain, start, end, corpus)
    columns = (found.index, found.step, found.row, found.epoch, found.phase, found.tokens)
    return [
        [i, s, r, e, plan.phases[p].name, t] for i, s, r, e, p, t in zip(*(c.tolist() for c in columns), strict=True)
    ]


def found(plan: Plan, domain: str, epoch: int, number: int) -> list[int] | None:
    """By brute force: the place of an epoch's sequence, where the plan reaches it."""
    at = plan.locate(np.arange(plan.total_sequences, dtype=np.uint64))
    same = (at.domain == plan.domains.index(domain)) & (at.epoch == epoch) & (at.number == number)
    indices = np.flatnonzero(same).astype(np.uint64)
    step, row = plan.batches.locate(indices)
    return [int(indices[0]), int(step[0]), int(row[0])] if indices.size and step[0] else None


def ask(asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert NODE is not None
    command = [NODE, str(HERE / "page_plan.js"), str(STATIC)]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=True)
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def test_small_plans_with_amendments_of_every_kind() -> None:
    plans = [changed_plan(seed) for seed in range(40)]
    kinds = {kind for plan in plans for amendment in plan.amendments for kind in amendment}
    assert kinds == {"from_step", "weights", "batch", "skip", "data", "takedowns"}
    asked = [questions(plan, list(range(1, plan.total_steps + 1, 3)), 60) for plan in plans]
    for plan, wanted, answer in zip(plans, asked, ask(asked), strict=True):
        assert answer["steps"] == plan.total_steps
        assert answer["spans"] == [list(plan.span(step)) for step in wanted["rows"]]
        assert answer["rows"] == [rows(plan, step) for step in wanted["rows"]]
        assert answer["exposures"] == [exposures(plan, *span) for span in wanted["spans"]]
        assert answer["found"] == [found(plan, *sequence) for sequence in wanted["sequences"]]


def test_a_plan_of_eighteen_trillion_tokens() -> None:
    plan = large_plan()
    asked = questions(plan, [1, 108_000, 108_001, 312_193, 390_251], 300)
    (answer,) = ask([asked])
    assert answer["steps"] == plan.total_steps
    assert answer["rows"] == [rows(plan, step) for step in asked["rows"]]
    assert answer["exposures"] == [exposures(plan, *span) for span in asked["spans"]]
    for (domain, epoch, number), place in zip(asked["sequences"], answer["found"], strict=True):
        if place is not None:
            at = plan.locate(np.array([place[0]], np.uint64))
            assert (plan.domains[int(at.domain[0])], int(at.epoch[0]), int(at.number[0])) == (domain, epoch, number)
