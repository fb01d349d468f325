"""The plan against brute force: forward, inverse, shares, borders, and what is refused."""

from collections import Counter, defaultdict
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import make_plan, share

from millstream.canonical import canonical_bytes
from millstream.errors import RecipeError, UsageError
from millstream.mixture.recipe import Mixture
from millstream.stream.freeze import freeze_plan
from millstream.stream.plan import Plan
from millstream.stream.plan_json import plan_from_json, plan_to_json
from millstream.stream.ring import epoch_offset
from millstream.stream.segments import segments_of
from millstream.tokenize.manifest import DomainManifest, FileEntry, Manifest, TokenizerIdentity

WEIGHTS = {"big": "0.6", "one": "0.01", "short": "0.015", "exact": "0.125", "rep": "0.25"}


def everything(plan: Plan) -> list[tuple[str, int, int]]:
    """(domain, epoch, sequence) of every global index."""
    at = plan.locate(np.arange(plan.total_sequences, dtype=np.uint64))
    names = [plan.domains[d] for d in at.domain.tolist()]
    return list(zip(names, at.epoch.tolist(), at.number.tolist(), strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_inverse_equals_brute_force_for_every_document(seed: int) -> None:
    seq_len = (8, 7, 5)[seed % 3]
    rng = np.random.default_rng(seed)
    tokens = {"big": 900 * seq_len + 3, "one": seq_len, "short": 2 * seq_len - 1, "exact": 13 * seq_len}
    tokens["rep"] = 41 * seq_len - 1
    plan = make_plan(
        tokens,
        [(384, WEIGHTS, 12), (432, {**WEIGHTS, "one": "0", "short": "0.05"}, 24), (480, {"big": "1", "rep": "2"}, 12)],
        seq_len=seq_len,
        batch=12,
        seed=seed,
    )
    sequences = everything(plan)
    assert len(set(sequences)) == len(sequences), "a sequence was planned twice"

    hits: dict[str, dict[int, list[tuple[int, int]]]] = {name: defaultdict(list) for name in tokens}
    per_epoch: Counter[tuple[str, int]] = Counter()
    for index, (name, epoch, number) in enumerate(sequences):
        offset = epoch_offset(seed, plan.pieces(name)[0], epoch)
        per_epoch[name, epoch] += 1
        for i in range(seq_len):
            hits[name][(offset + number * seq_len + 1 + i) % tokens[name]].append((index, epoch))
    for name, total in tokens.items():
        whole = plan.consumed(name) // (total // seq_len)
        assert all(per_epoch[name, e] == total // seq_len for e in range(whole))

    for name, total in tokens.items():
        start = 0
        while start < total:
            end = min(total, start + int(rng.choice([1, 2, 3, 5, 9, 17, 40])))
            expected: Counter[tuple[int, int]] = Counter()
            for token in range(start, end):
                expected.update(hits[name][token])
            found = plan.exposures(name, start, end)
            got = dict(
                zip(zip(found.index.tolist(), found.epoch.tolist(), strict=True), found.tokens.tolist(), strict=True)
            )
            assert got == dict(expected), (name, start, end)
            assert (found.step == 1 + found.index.astype(np.int64) // 12).all()
            assert (found.row == found.index.astype(np.int64) % 12).all()
            start = end


@given(st.integers(0, 2**32 - 1), st.integers(2, 40), st.sampled_from([8, 16, 48]))
@settings(max_examples=40, deadline=None)
def test_every_step_has_the_exact_mix(seed: int, domains: int, batch: int) -> None:
    rng = np.random.default_rng(seed)
    weights = {f"d{i}": f"{w:.6f}" for i, w in enumerate(rng.dirichlet(np.ones(domains)) + 0.001)}
    plan = make_plan(dict.fromkeys(weights, 10**6), [(batch * 50, weights, batch)], seq_len=64, batch=batch, seed=seed)
    for step in (1, 2, 25, 50):
        first, end = plan.span(step)
        found = plan.locate(np.arange(first, end, dtype=np.uint64)).domain
        for number, name in enumerate(plan.domains):
            taken = int((found == number).sum())
            assert abs(taken - batch * share(plan.phases[0], name)) <= 3
            before = int((plan.locate(np.arange(end, dtype=np.uint64)).domain == number).sum())
            assert abs(before - Fraction(end) * share(plan.phases[0], name)) <= 2


def test_window_shuffle_moves_sequences_only_inside_their_window() -> None:
    plan = make_plan({"a": 10**6, "b": 10**6}, [(640, {"a": "1", "b": "1"}, 64)], seq_len=8, batch=16)
    ranks = Counter(name for name, _, _ in everything(plan)[:64])
    assert ranks == {"a": 32, "b": 32}


def test_another_domain_changes_no_domains_own_order() -> None:
    two = make_plan({"a": 9000, "b": 7000}, [(800, {"a": "1", "b": "1"}, 16)], seq_len=8, batch=16)
    three = make_plan(
        {"a": 9000, "b": 7000, "c": 999}, [(800, {"a": "1", "b": "1", "c": "1"}, 16)], seq_len=8, batch=16
    )

    def own(plan: Plan, name: str) -> list[tuple[int, int]]:
        phase = plan.phases[0]
        running = np.arange(phase.taken(name))
        located = plan._order(np.full(running.shape, plan.domains.index(name)), running)
        return list(zip(located.epoch.tolist(), located.start.tolist(), strict=True))

    for name in ("a", "b"):
        shorter, longer = own(three, name), own(two, name)
        assert shorter == longer[: len(shorter)]


def test_plan_survives_json_and_is_small() -> None:
    weights = {f"domain-{i:03}": str(1 + i) for i in range(200)}
    plan = make_plan(dict.fromkeys(weights, 10**12), [(4_000_000, weights, 4096)], seq_len=4096, batch=4096)
    raw = plan_to_json(plan)
    assert plan_from_json(raw) == plan
    assert len(canonical_bytes(raw)) < 100_000


def test_golden_plan() -> None:
    """Frozen for ever: these sequences of this plan."""
    plan = make_plan(
        {"a": 10_007, "b": 90_001, "c": 333},
        [(96, {"a": "0.3", "b": "0.6", "c": "0.1"}, 16), (160, {"a": "1", "b": "1"}, 32)],
        seq_len=32,
        batch=16,
        seed=11,
    )
    at = plan.locate(np.array([0, 1, 2, 15, 16, 95, 96, 97, 159], np.uint64))
    assert at.domain.tolist() == [1, 1, 1, 1, 0, 1, 0, 0, 1]
    assert at.epoch.tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 0]
    assert at.start.tolist() == [31232, 36768, 55840, 67392, 6880, 6464, 3392, 1376, 77824]
    assert plan.plan_id == "bfe39bb8f012c6daa62d16c69294e9960a53cf8cd0e2bd46bd7538cb749e5ece"


# --- freezing a recipe's mixture over a corpus ---


def manifest(**tokens: int) -> Manifest:
    entry = FileEntry(path="x", bytes=0, sha256="0" * 64)
    domains = tuple(
        DomainManifest(name=n, tokens=t, documents=1, bytes=1, shards=(), holdout=None, read=1, exclusions={})
        for n, t in tokens.items()
    )
    identity = TokenizerIdentity(file=entry, vocab_size=9, eos_id=0, bos_id=None, dtype="uint16", probe="")
    return Manifest(corpus_digest="", corpus={}, tokenizer=identity, domains=domains, exclusions=(), build={})


def frozen(mixture: dict[str, object], **tokens: int) -> Plan:
    settings = {"seq_len": 10, "max_epochs": "100"} | mixture
    return freeze_plan(Mixture.model_validate(settings), manifest(**tokens), Path("/nowhere"))


HALF = {"a": "0.5", "b": "0.5"}
TWO = [{"name": "pretrain", "weights": HALF}, {"name": "midtrain", "weights": {"a": "1", "b": "3"}}]


def test_two_phases_are_split_80_20_at_a_step_border() -> None:
    plan = frozen({"batch": 8, "steps": 100, "phases": TWO}, a=5000, b=5000)
    assert [(p.first, p.end, p.window) for p in plan.phases] == [(0, 640, 8), (640, 800, 8)]
    assert plan.total_steps == 100
    odd = frozen({"batch": 8, "steps": 7, "phases": TWO}, a=5000, b=5000)
    assert odd.phases[1].first == 48  # 4/5 of 56 is 44.8: the border at 48 is nearer than the one at 40
    assert [s.first_step for s in segments_of(odd)] == [1, 7]


def test_a_token_budget_is_rounded_down_to_whole_steps() -> None:
    plan = frozen({"batch": 8, "tokens": 1679, "phases": TWO[:1]}, a=5000, b=5000)
    assert plan.total_steps == 20
    assert plan.total_sequences == 160


def test_a_batch_change_starts_a_phase_and_carries_cursors() -> None:
    batch = [{"step": 1, "batch": 8}, {"step": 11, "batch": 16}]
    plan = frozen({"batch": batch, "steps": 20, "phases": TWO[:1]}, a=5000, b=5000)
    assert [(p.first, p.end, p.window, p.cursors) for p in plan.phases] == [
        (0, 80, 8, {"a": 0, "b": 0}),
        (80, 240, 16, {"a": 40, "b": 40}),
    ]
    assert plan.span(10) == (72, 80)
    assert plan.span(11) == (80, 96)
    step, row = plan.batches.locate(np.array([79, 80, 95, 96], np.uint64))
    assert step.tolist() == [10, 11, 11, 12]
    assert row.tolist() == [7, 0, 15, 0]
    assert len(set(everything(plan))) == 240


def test_a_batch_change_inside_a_window_names_the_next_allowed_step() -> None:
    phase = {"name": "p", "weights": HALF, "window": 32}
    batch = [{"step": 1, "batch": 8}, {"step": 11, "batch": 16}]
    with pytest.raises(RecipeError, match="inside a window of 32 sequences; the next allowed step is 13"):
        frozen({"batch": batch, "steps": 20, "phases": [phase]}, a=5000, b=5000)


def test_a_domain_shorter_than_a_sequence_is_refused() -> None:
    with pytest.raises(RecipeError, match="domain 'b' has 9 tokens, fewer than one sequence of 10"):
        frozen({"batch": 8, "steps": 20, "phases": TWO}, a=5000, b=9)


def test_a_domain_that_gets_nothing_is_refused_with_the_weight_that_would_do() -> None:
    phases = [{"name": "p", "weights": {"a": "1", "b": "0.0001"}}]
    with pytest.raises(RecipeError, match=r"'b' gets no sequence.*'sequences: 1'"):
        frozen({"batch": 8, "steps": 20, "phases": phases}, a=5000, b=5000)
    exact = [{"name": "p", "weights": {"a": "1", "b": {"sequences": 3}}}]
    assert frozen({"batch": 8, "steps": 20, "phases": exact}, a=5000, b=5000).consumed("b") == 3


def test_too_many_epochs_are_refused_with_numbers_that_work() -> None:
    mixture: dict[str, object] = {"batch": 8, "steps": 100, "phases": TWO[:1], "max_epochs": "4"}
    with pytest.raises(
        RecipeError, match=r"repeated 8.00 times .*at most 0.167 in 'pretrain'; or train on at most 4000"
    ) as e:
        frozen(mixture, a=5000, b=500)
    assert "set max_epochs to 8.0" in str(e.value)
    assert frozen({**mixture, "max_epochs": "8"}, a=5000, b=500).consumed("b") == 400
    lower = [{"name": "pretrain", "weights": {"a": "0.5", "b": "0.166"}}]
    assert frozen({**mixture, "phases": lower}, a=9000, b=500).consumed("b") <= 200


def test_no_indices_are_located_to_no_sequences() -> None:
    plan = make_plan({"a": 9000}, [(64, {"a": "1"}, 16)], seq_len=8, batch=16)
    assert plan.locate(np.empty(0, np.uint64)).start.size == 0


def test_sequences_beyond_the_plan_and_bad_steps_are_refused() -> None:
    plan = make_plan({"a": 9000}, [(64, {"a": "1"}, 16)], seq_len=8, batch=16)
    with pytest.raises(UsageError, match="step 5 is outside the plan, which has steps 1 to 4"):
        plan.span(5)
    with pytest.raises(UsageError, match="the plan ends at sequence 64"):
        plan.locate(np.array([64], np.uint64))


def test_weights_are_decimals_not_floats() -> None:
    phase = {"name": "p", "weights": {"a": "0.1", "b": "0.2"}}
    plan = frozen({"batch": 8, "steps": 20, "phases": [phase]}, a=5000, b=5000)
    assert Fraction(Decimal(plan.phases[0].weights["a"])) == Fraction(1, 10)
    assert plan.phases[0].quotas == {"a": 89478485, "b": 178956971}
