"""What was mixed, counted at borders: equal to counting every sequence, whatever was amended and given up."""

import json
import shutil
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import begin, train
from synthetic import make_plan
from test_story import millstream

from millstream.audit.branches import branch_run, control_run
from millstream.audit.change import Reason, amend_run, roll_back
from millstream.audit.intervals import all_intervals
from millstream.audit.ledger import open_ledger
from millstream.audit.mixture import audit_intervals, audit_mixture, audit_repeats, shares_of
from millstream.audit.runs import Run, open_run
from millstream.errors import UsageError
from millstream.stream.amend import Amendment, NewData, amend
from millstream.stream.census import taken_before
from millstream.stream.plan import Plan

WHY = Reason(why="x", by="y")
MIXTURE = {
    "seq_len": 16,
    "batch": 8,
    "steps": 60,
    "max_epochs": "40",
    "phases": [
        {"name": "pretrain", "weights": {"law": "0.5", "news": "0.3", "verse": "0.2"}, "window": 32},
        {"name": "midtrain", "weights": {"law": "0.1", "news": {"sequences": 30}, "verse": "0.8"}},
    ],
}


def plans() -> list[Plan]:
    phases = [(640, {"a": "1", "b": "1.7", "c": "0.1"}, 64), (800, {"a": "1", "b": "3"}, 16)]
    first = make_plan({"a": 9001, "b": 700, "c": 300}, phases, seq_len=8, batch=16)
    swapped = amend(first, Amendment(from_step=13, weights={"a": "1", "c": "=40"}, skip=0))
    skipped = amend(first, Amendment(from_step=17, skip=2))
    grown = amend(skipped, Amendment(from_step=22, batch=32, skip=1))
    new = NewData(domain="b", corpus_id="2" * 64, tokens=500, documents=1)
    return [first, swapped, skipped, grown, amend(first, Amendment(from_step=13, data=(new,)))]


@pytest.mark.parametrize("number", range(5))
def test_counts_at_any_borders_are_those_of_every_sequence(number: int) -> None:
    plan = plans()[number]
    total = plan.total_sequences
    domain, running = plan.running(np.arange(total, dtype=np.uint64))
    borders = np.append(np.random.default_rng(number).integers(0, total + 1, 200), [0, total])
    limits = np.array([30, 90, 5])
    whole, limited = taken_before(plan, borders), taken_before(plan, borders, limits)
    for column, border in enumerate(borders.tolist()):
        assert whole[:, column].tolist() == np.bincount(domain[:border], minlength=3).tolist()
        early = domain[:border][running[:border] < limits[domain[:border]]]
        assert limited[:, column].tolist() == np.bincount(early, minlength=3).tolist()
    for place, name in enumerate(plan.domains):
        own = np.flatnonzero(domain == place)
        index, phases = plan.indices(name, running[own].astype(np.uint64))
        assert index.tolist() == own.tolist()
        assert all(plan.phases[p].first <= i < plan.phases[p].end for p, i in zip(phases, own, strict=True))
        with pytest.raises(UsageError, match="the plan reads"):
            plan.indices(name, np.array([own.size], np.uint64))
    with pytest.raises(UsageError, match="borders from 0 to"):
        taken_before(plan, np.array([total + 1]))


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("mixture")
    begin(home, MIXTURE, {"law": 80, "news": 60, "verse": 40})
    return home


def counted(run: Run) -> Counter[tuple[int, str]]:
    """Brute force: every sequence of every learned step, by the plan that it was fed under."""
    found: Counter[tuple[int, str]] = Counter()
    firsts = [phase.first for phase in run.plan.phases]
    for step in list(run.fed):
        fed = run.learned(step)
        if fed is None or not fed.update_applied:
            continue
        plan = run.plans[fed.segment]
        indices = np.arange(fed.first_index, fed.first_index + fed.sequences, dtype=np.uint64)
        for index, domain in zip(indices.tolist(), plan.locate(indices).domain.tolist(), strict=True):
            phase = int(np.searchsorted(firsts, index, side="right")) - 1
            found[phase, plan.domains[domain]] += 1
    return found


def assert_counted(run: Run) -> None:
    expected = counted(run)
    mixed = audit_mixture(run)
    rows = iter(mixed.iter_rows(named=True))
    for phase in run.plan.phases:
        done = sum(n for (number, _), n in expected.items() if number == phase.number)
        for name in run.plan.domains:
            if name not in phase.tree.domains:
                assert (phase.number, name) not in expected
                continue
            row = next(rows)
            assert (row["domain"], row["realised"]) == (name, expected[phase.number, name])
            assert row["expected"] == pytest.approx(float(shares_of(phase)[name] * done))
            skipped = sum(
                run.plan.domains[d] == name
                for first, end in run.plan.skips
                if phase.first <= first < phase.end
                for d in run.plan.locate(np.arange(first, end, dtype=np.uint64)).domain
            )
            assert (row["planned"], row["skipped"]) == (phase.taken(name) - skipped, skipped)
        assert sum(shares_of(phase).values()) == 1
    assert next(rows, None) is None


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_any_course_is_counted_as_by_counting_everything(
    begun: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    home = tmp_path_factory.mktemp("course")
    path = home / "run"
    shutil.copytree(begun / "run", path)
    (home / "corpus").symlink_to(begun / "corpus")
    not_applied = data.draw(st.sets(st.integers(1, 60), max_size=6))
    for _ in range(data.draw(st.integers(1, 6))):
        run = open_run(path)
        at, end = run.last_step, run.plan.total_steps
        event = data.draw(st.sampled_from(["train", "train", "crash", "weights", "batch", "skip", "rollback"]))
        try:
            if event == "train" and at < end:
                train(path, at, data.draw(st.integers(at + 1, end)), lambda s: s not in not_applied)
            elif event == "crash" and at:
                train(path, data.draw(st.integers(0, at - 1)), at, lambda s: s not in not_applied)
            elif event == "rollback" and at:
                roll_back(path, data.draw(st.integers(0, at - 1)), WHY, undo=data.draw(st.booleans()))
            elif event == "weights":
                weights = {"law": "0.3", "verse": data.draw(st.sampled_from(["0.2", "0.7"]))}
                amend_run(path, Amendment(from_step=at + 1 + data.draw(st.integers(0, 4)), weights=weights), WHY)
            elif event == "batch":
                amend_run(path, Amendment(from_step=at + 1, batch=data.draw(st.sampled_from([4, 16]))), WHY)
            elif event == "skip":
                amend_run(path, Amendment(from_step=at + 1, skip=data.draw(st.integers(1, 3))), WHY)
        except UsageError:
            # Inside a window, beyond the plan's end, before an earlier amendment.
            continue
    run = open_run(path)
    assert_counted(run)
    intervals, domains = audit_intervals(run)
    learned = intervals.with_row_index("interval").filter(pl.col("status") == "accepted", pl.col("applied"))
    totals: Counter[str] = Counter()
    for (_, name), n in counted(run).items():
        totals[name] += n
    inside = domains.filter(pl.col("interval").is_in(learned["interval"].implode()))
    assert {n: t for n, t in inside.group_by("domain").agg(pl.col("realised").sum()).rows() if t} == dict(totals)
    steps = [s for i in all_intervals(run) for s in range(i.first_step, i.last_step + 1)]
    assert Counter(steps) == Counter({step: len(fed) for step, fed in run.fed.items()})
    limit = data.draw(st.sampled_from(["0.2", "0.5", "1", "2"]))
    assert_repeats(run, Decimal(limit))


def assert_repeats(run: Run, limit: Decimal) -> None:
    plan = run.plan
    found = {row["domain"]: row for row in audit_repeats(run, limit).iter_rows(named=True)}
    domain, running = plan.running(np.arange(plan.total_sequences, dtype=np.uint64))
    step, _ = plan.batches.locate(np.arange(plan.total_sequences, dtype=np.uint64))
    learned = {s for s in run.fed if (fed := run.learned(s)) and fed.update_applied}
    for place, name in enumerate(plan.domains):
        ring = plan.pieces(name)[0]
        over = (domain == place) & (running >= int(limit * (ring.tokens // plan.seq_len)))
        assert (name in found) == bool(over.any())
        if over.any():
            row = found[name]
            assert row["planned_beyond"] == int((over & (step > 0)).sum())
            assert row["beyond"] == sum(s in learned for s in step[over].tolist())
            first = running[over].min()
            assert row["from_step"] == (int(step[over][running[over] == first][0]) or None)
            assert row["planned_epochs"] == pytest.approx(plan.consumed(name) / (ring.tokens // plan.seq_len))


def test_branches_and_controls_are_told_apart(begun: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(begun / "run", path)
    (tmp_path / "corpus").symlink_to(begun / "corpus")
    train(path, 0, 20, lambda s: s != 5)
    roll_back(path, 12, WHY, undo=False)
    train(path, 12, 16)
    branch_run(path, tmp_path / "side", 16, WHY)
    amend_run(tmp_path / "side", Amendment(from_step=17, weights={"verse": "1"}), WHY)
    train(tmp_path / "side", 16, 18)
    branch_run(tmp_path / "side", tmp_path / "deep", 18, WHY)
    train(tmp_path / "deep", 18, 19)
    train(control_run(path, 14, "y"), 14, 15)
    train(path, 16, 21)
    run = open_run(path)
    assert_counted(run)
    intervals, domains = audit_intervals(run)
    told = [tuple(row[:3]) + tuple(row[5:8]) for row in intervals.rows()]
    assert told == [
        ("test", "accepted", 1, 1, 4, True),
        ("test", "accepted", 1, 5, 5, False),
        ("test", "accepted", 1, 6, 12, True),
        ("test", "superseded", 1, 13, 20, True),
        ("test", "accepted", 2, 13, 16, True),
        ("test", "accepted", 3, 17, 21, True),
        ("test/side", "trial", 3, 17, 18, True),
        ("test/deep", "trial", 4, 19, 19, True),
        ("test/control-0001", "control", 3, 15, 15, True),
    ]
    (side,) = [n for n, row in enumerate(told) if row[0] == "test/side"]
    assert domains.filter(pl.col("interval") == side).select("domain", "planned", "realised").rows() == [
        ("verse", 16.0, 16)
    ]
    assert intervals["sequences"].sum() == 8 * (20 + 4 + 5 + 2 + 1 + 1)
    shown = millstream(tmp_path, "audit", "mixture", "run", "--intervals", "--over", "1").stdout
    assert "test/control-0001" in shown
    answer: dict[str, Any] = json.loads(
        millstream(tmp_path, "audit", "mixture", "run", "--intervals", "--over", "0.5", "--json").stdout
    )
    assert [i["sequences"] for i in answer["intervals"]] == intervals["sequences"].to_list()
    for interval in answer["intervals"]:
        assert sum(entry["realised"] for entry in interval["mixture"]) == interval["sequences"]
    assert {row["domain"] for row in answer["repeats"]} <= {"law", "news", "verse"}
    control = [i.status for i in all_intervals(open_run(path / "controls" / "0001"))]
    assert control == [*["accepted"] * 3, "superseded", "accepted", "control"]


def test_a_run_without_steps_has_only_plans(begun: Path) -> None:
    run = open_run(begun / "run")
    mixed = audit_mixture(run)
    assert mixed["realised"].sum() == 0
    assert mixed["planned"].sum() == 480
    assert audit_intervals(run)[0].is_empty()
    with open_ledger(begun / "run"):
        assert Fraction(1) == sum(shares_of(run.plan.phases[0]).values())
