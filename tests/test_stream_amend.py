"""Plans that are changed in mid-run: the past stays, and both directions agree with a replay of every step."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import make_plan

from millstream.errors import UsageError
from millstream.stream.amend import Amendment, NewData, Span, amend, amendment_from_json, amendment_to_json
from millstream.stream.plan import Plan
from millstream.stream.plan_json import plan_from_json, plan_to_json
from millstream.stream.segments import segments_of

FIRST, SECOND = "1" * 64, "2" * 64
SEQ_LEN = 8


def small_plan(**changes: Any) -> Plan:
    phases = [(640, {"a": "1", "b": "1"}, 16), (800, {"a": "1", "b": "3"}, 16)]
    return make_plan({"a": 9001, "b": 700}, phases, seq_len=SEQ_LEN, batch=16, **changes)


def replayed(plan: Plan) -> dict[tuple[str, str, int], Counter[tuple[int, int, int]]]:
    """By (domain, corpus, token): (step, row, epoch) of each time it was a target, from all steps of the plan."""
    seen: dict[tuple[str, str, int], Counter[tuple[int, int, int]]] = {}
    buried = {(s.domain, s.corpus_id, token): s.from_step for s in plan.tombstones for token in range(s.start, s.end)}
    for step in range(1, plan.total_steps + 1):
        first, end = plan.span(step)
        at = plan.locate(np.arange(first, end, dtype=np.uint64))
        for row, (number, epoch, start) in enumerate(zip(at.ring, at.epoch, at.start, strict=True)):
            ring = plan.rings[number]
            for target in range(int(start) + 1, int(start) + 1 + plan.seq_len):
                token = (ring.name, ring.corpus_id, target % ring.tokens)
                if step < buried.get(token, step + 1):
                    seen.setdefault(token, Counter())[step, row, int(epoch)] += 1
    return seen


def assert_equal_to_a_replay(plan: Plan) -> None:
    """For "documents" that tile each ring: the closed form equals the replay."""
    seen = replayed(plan)
    rng = np.random.default_rng(1)
    for domain, corpus, tokens in {(r.name, r.corpus_id, r.tokens) for r in plan.rings}:
        start = 0
        while start < tokens:
            end = min(tokens, start + int(rng.choice([1, 2, 5, 9, 17, 40])))
            expected: Counter[tuple[int, int, int]] = Counter()
            for token in range(start, end):
                expected.update(seen.get((domain, corpus, token), Counter()))
            found = plan.exposures(domain, start, end, corpus)
            columns = (found.step, found.row, found.epoch, found.tokens)
            got = {(s, r, e): n for s, r, e, n in zip(*(c.tolist() for c in columns), strict=True)}
            assert got == dict(expected), (domain, start, end)
            assert found.index.tolist() == sorted(found.index.tolist())
            start = end


def rows(plan: Plan, step: int) -> list[tuple[str, int, int]]:
    at = plan.locate(np.arange(*plan.span(step), dtype=np.uint64))
    return [
        (plan.domains[d], e, n)
        for d, e, n in zip(at.domain.tolist(), at.epoch.tolist(), at.number.tolist(), strict=True)
    ]


def test_other_weights_hold_to_the_end_of_their_phase_and_the_rest_stays() -> None:
    plan = small_plan()
    amended = amend(plan, Amendment(from_step=13, weights={"a": "1", "b": "3"}))
    assert [(p.first, p.end, p.weights) for p in amended.phases] == [
        (0, 192, {"a": "1", "b": "1"}),
        (192, 640, {"a": "1", "b": "3"}),
        (640, 800, {"a": "1", "b": "3"}),
    ]
    assert amended.total_steps == plan.total_steps
    for step in range(1, 13):
        assert rows(amended, step) == rows(plan, step)
    for step in range(13, 51):
        assert Counter(name for name, _, _ in rows(amended, step)) == {"a": 4, "b": 12}
    everything = [row for step in range(1, 51) for row in rows(amended, step)]
    assert len(set(everything)) == len(everything), "a sequence came twice in an epoch"
    assert plan_from_json(plan_to_json(amended)) == amended
    assert amended.plan_id != plan.plan_id
    assert_equal_to_a_replay(amended)


def test_another_batch_keeps_the_budget_of_tokens() -> None:
    plan = small_plan()
    amended = amend(plan, Amendment(from_step=13, batch=24))
    # 448 sequences were left of the phase: 18 steps of 24, and 160 of the next: 6 steps.
    assert [(p.first, p.end, p.batch, p.window) for p in amended.phases] == [
        (0, 192, 16, 16),
        (192, 624, 24, 24),
        (624, 768, 24, 24),
    ]
    assert amended.total_steps == 12 + 18 + 6
    assert amended.span(12) == (176, 192)
    assert amended.span(13) == (192, 216)
    assert_equal_to_a_replay(amended)


def test_skipped_steps_are_consumed_but_nobody_is_exposed() -> None:
    plan = small_plan()
    amended = amend(plan, Amendment(from_step=11, skip=3))
    assert amended.skips == ((160, 208),)
    assert amended.total_steps == 47
    assert rows(amended, 10) == rows(plan, 10)
    assert [rows(amended, step) for step in range(11, 48)] == [rows(plan, step) for step in range(14, 51)]
    step, _ = amended.batches.locate(np.array([159, 160, 207, 208], np.uint64))
    assert step.tolist() == [10, 0, 0, 11]
    assert amended.consumed("a") == plan.consumed("a")
    assert_equal_to_a_replay(amended)
    twice = amend(amended, Amendment(from_step=11, skip=1))
    assert twice.skips == ((160, 224),)
    assert_equal_to_a_replay(twice)


def test_a_swap_a_batch_change_and_a_skip_in_one_run() -> None:
    plan = amend(small_plan(), Amendment(from_step=7, weights={"a": "2", "b": "1"}))
    plan = amend(plan, Amendment(from_step=15, batch=32))
    plan = amend(plan, Amendment(from_step=20, skip=2))
    plan = amend(plan, Amendment(from_step=22, weights={"b": "=40", "a": "1"}, batch=16, skip=1))
    segments = segments_of(plan)
    assert [(s.first_step, s.batch, s.skip) for s in segments[:5]] == [
        (1, 16, None),
        (7, 16, None),
        (15, 32, None),
        (20, 32, (384, 448)),
        (22, 16, (512, 544)),
    ]
    assert [s.parent for s in segments] == [None, *range(len(segments) - 1)]
    assert segments[-1].end_step == plan.total_steps + 1
    assert_equal_to_a_replay(plan)
    assert plan_from_json(plan_to_json(plan)) == plan


def test_new_data_follows_at_the_end_of_an_epoch() -> None:
    # b has 87 sequences an epoch and takes 8 a step: after 12 steps it is in its second epoch.
    plan = small_plan()
    new = NewData(domain="b", corpus_id=SECOND, tokens=1500, documents=9)
    amended = amend(plan, Amendment(from_step=13, data=(new,)))
    old, added = amended.pieces("b")
    assert (added.running, added.epoch, added.corpus_id) == (2 * 87, 2, SECOND)
    for step in range(1, 22):
        assert rows(amended, step) == rows(plan, step)
    at = amended.locate(np.arange(amended.total_sequences, dtype=np.uint64))
    running = np.arange(amended.total_sequences)[at.domain == 1]
    assert (at.ring[running] == 1).sum() == 2 * 87
    everything = [row for step in range(1, 51) for row in rows(amended, step)]
    assert len(set(everything)) == len(everything)
    assert old.corpus_id == FIRST
    assert_equal_to_a_replay(amended)
    with pytest.raises(UsageError, match="domain 'b' lies in several corpora"):
        amended.exposures("b", 0, 5)
    # Data that was to come and never did is replaced.
    newer = amend(
        amended, Amendment(from_step=14, data=(NewData(domain="b", corpus_id="3" * 64, tokens=99, documents=1),))
    )
    assert [(r.corpus_id[0], r.running) for r in newer.pieces("b")] == [("1", 0), ("3", 174)]
    assert_equal_to_a_replay(newer)


def test_a_new_domain_comes_in_with_weights() -> None:
    new = NewData(domain="c", corpus_id=SECOND, tokens=400, documents=9)
    amended = amend(small_plan(), Amendment(from_step=13, data=(new,), weights={"a": "1", "c": "1"}))
    assert amended.domains == ("a", "b", "c")
    assert Counter(name for name, _, _ in rows(amended, 13)) == {"a": 8, "c": 8}
    assert amended.consumed("c") == 224
    assert plan_from_json(plan_to_json(amended)) == amended
    assert_equal_to_a_replay(amended)


def test_tombstones_end_exposures_and_move_nothing() -> None:
    plan = small_plan()
    spans = (
        Span(domain="b", corpus_id=FIRST, start=100, end=140),
        Span(domain="a", corpus_id=FIRST, start=8990, end=9001),
    )
    amended = amend(plan, Amendment(from_step=15, takedowns=spans))
    assert [rows(amended, s) for s in range(1, 51)] == [rows(plan, s) for s in range(1, 51)]
    before = plan.exposures("b", 100, 140)
    after = amended.exposures("b", 100, 140)
    assert after.step.tolist() == [s for s in before.step.tolist() if s < 15]
    assert_equal_to_a_replay(amended)
    # What overlaps what was taken down before is cut, so that the earlier step counts.
    wider = amend(amended, Amendment(from_step=20, takedowns=(Span(domain="b", corpus_id=FIRST, start=90, end=150),)))
    assert sorted((s.start, s.end, s.from_step) for s in wider.tombstones if s.domain == "b") == [
        (90, 100, 20),
        (100, 140, 15),
        (140, 150, 20),
    ]
    assert_equal_to_a_replay(wider)


AMENDMENTS = st.lists(
    st.one_of(
        st.tuples(st.just("weights"), st.integers(1, 9), st.integers(1, 9)),
        st.tuples(st.just("batch"), st.sampled_from([8, 16, 24, 48]), st.just(0)),
        st.tuples(st.just("skip"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("data"), st.integers(20, 900), st.just(0)),
        st.tuples(st.just("takedown"), st.integers(0, 600), st.integers(1, 90)),
    ),
    min_size=1,
    max_size=5,
)


@given(AMENDMENTS, st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_any_chain_of_amendments_equals_a_replay(changes: list[tuple[str, int, int]], seed: int) -> None:
    plan, step = small_plan(seed=seed), 1
    for number, (kind, x, y) in enumerate(changes):
        step += 1 + (seed >> number) % 7
        if kind == "weights":
            change = Amendment(from_step=step, weights={"a": str(x), "b": str(y)})
        elif kind == "batch":
            change = Amendment(from_step=step, batch=x)
        elif kind == "skip":
            change = Amendment(from_step=step, skip=x)
        elif kind == "data":
            data = NewData(domain="b", corpus_id=f"{number + 2}" * 64, tokens=x, documents=1)
            change = Amendment(from_step=step, data=(data,))
        else:
            change = Amendment(from_step=step, takedowns=(Span(domain="b", corpus_id=FIRST, start=x, end=x + y),))
        assert amendment_from_json(amendment_to_json(change)) == change
        try:
            amended = amend(plan, change)
        except UsageError as refused:
            assert "has 1 left" in str(refused) or "steps 1 to" in str(refused) or "one must stay" in str(refused)
            continue
        assert [rows(amended, s) for s in range(1, step)] == [rows(plan, s) for s in range(1, step)]
        plan = amended
    assert plan_from_json(plan_to_json(plan)) == plan
    assert_equal_to_a_replay(plan)


def test_what_cannot_be_amended_is_refused_with_what_can() -> None:
    plan = make_plan({"a": 9000, "b": 9000}, [(640, {"a": "1", "b": "1"}, 32)], seq_len=8, batch=16)
    with pytest.raises(UsageError, match=r"cannot begin at step 12, inside a window of 32 .*next allowed step is 13"):
        amend(plan, Amendment(from_step=12, weights={"a": "1"}))
    with pytest.raises(UsageError, match="no domain 'z'"):
        amend(plan, Amendment(from_step=13, weights={"z": "1"}))
    with pytest.raises(UsageError, match="no domain 'z'"):
        amend(plan, Amendment(from_step=13, takedowns=(Span(domain="z", corpus_id=FIRST, start=0, end=1),)))
    with pytest.raises(UsageError, match="40 steps cannot be skipped from step 1 on: phase 'phase0' has 40 left"):
        amend(plan, Amendment(from_step=1, skip=40))
    with pytest.raises(UsageError, match="changes nothing"):
        amend(plan, Amendment(from_step=1))
    with pytest.raises(UsageError, match="too few sequences left for a step of 641"):
        amend(plan, Amendment(from_step=1, batch=641))
    with pytest.raises(UsageError, match="step 41 is outside the plan"):
        amend(plan, Amendment(from_step=41, weights={"a": "1"}))
    later = amend(plan, Amendment(from_step=13, weights={"a": "1"}))
    with pytest.raises(UsageError, match="amended from step 13 on; a further amendment cannot begin at step 11"):
        amend(later, Amendment(from_step=11, weights={"a": "1"}))


def test_an_amendment_may_ask_for_exact_sequences() -> None:
    plan = make_plan({"a": 9000, "b": 9000}, [(640, {"a": "1"}, 16)], seq_len=8, batch=16)
    amended = amend(plan, Amendment(from_step=13, weights={"a": "1", "b": "=37"}))
    assert amended.consumed("b") == 37
    assert amended.phases[-1].weights == {"a": "1", "b": "=37"}
    with pytest.raises(UsageError, match="exactly 449 of the phase's 448 sequences, which exceed it"):
        amend(plan, Amendment(from_step=13, weights={"a": "1", "b": "=449"}))
    with pytest.raises(UsageError, match="has domains with exact sequences and cannot be cut short"):
        amend(amended, Amendment(from_step=20, weights={"a": "1"}))
