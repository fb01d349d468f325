"""Intervals: stretches of steps that a run, its branches and its controls fed, each with what became of it.

    accepted      in the lineage
    superseded    fed, but the run went back to before it
    trial         fed by a branch of the run, after it had left
    control       fed by a control, beside the run

An interval ends where its attempt or segment ends, and where updates begin or cease to be applied.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from millstream.audit.branches import branches_of, controls_of
from millstream.audit.runs import Run
from millstream.stream.census import taken_before
from millstream.stream.plan import Phase, Plan

Status = Literal["accepted", "superseded", "trial", "control"]

_AT_ONCE = 1 << 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """Steps ``first_step`` to ``last_step``, which one attempt fed one after another under one segment."""

    branch: str
    """Name of the run, branch or control that fed it."""
    status: Status
    record: int
    """Number of the record of its first step."""
    attempt: int
    segment: int
    first_step: int
    last_step: int
    first_index: int
    end_index: int
    applied: bool
    """False where the steps were fed but the optimizer took no update."""
    plan: Plan
    """The plan that it was fed under."""

    @property
    def sequences(self) -> int:
        """Sequences fed."""
        return self.end_index - self.first_index

    @property
    def phase(self) -> Phase:
        """The plan's phase that it lies in."""
        return self.plan.phase_of_step(self.first_step)

    @property
    def learned(self) -> bool:
        """True where the lineage learned from it."""
        return self.status == "accepted" and self.applied


def own_intervals(run: Run) -> Iterator[Interval]:
    """What a run's own ledger tells, in its order; what a control fed after it left is ``control``."""
    steps = run.steps
    rows = steps.rows
    if not len(rows):
        return
    following = rows["first_index"][:-1] + rows["sequences"][:-1]
    breaks = (rows["step"][1:] != rows["step"][:-1] + 1) | (rows["first_index"][1:] != following)
    for name in ("attempt", "segment", "applied"):
        breaks |= rows[name][1:] != rows[name][:-1]
    breaks |= steps.superseded[1:] != steps.superseded[:-1]
    firsts = np.append(0, np.flatnonzero(breaks) + 1)
    lasts = np.append(firsts[1:], len(rows)) - 1
    left = _left(run) if run.is_control else len(run.records)
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        record = int(steps.numbers[first])
        yield Interval(
            branch=run.name,
            status="superseded" if steps.superseded[first] else "control" if record > left else "accepted",
            record=record,
            attempt=int(rows["attempt"][first]),
            segment=int(rows["segment"][first]),
            first_step=int(rows["step"][first]),
            last_step=int(rows["step"][last]),
            first_index=int(rows["first_index"][first]),
            end_index=int(rows["first_index"][last]) + int(rows["sequences"][last]),
            applied=bool(rows["applied"][first]),
            plan=run.plans[int(rows["segment"][first])],
        )


def all_intervals(run: Run) -> Iterator[Interval]:
    """A run's own intervals, then those of the branches that left it and of its controls, without what they share."""
    yield from own_intervals(run)
    for branch in branches_of(run):
        left = _left(branch)
        for interval in all_intervals(branch):
            if interval.branch != branch.name or interval.record > left:
                yield replace(interval, status="trial") if interval.status == "accepted" else interval
    for control in controls_of(run):
        left = _left(control)
        yield from (interval for interval in own_intervals(control) if interval.record > left)


def counts_of(intervals: Sequence[Interval], domains: Sequence[str]) -> NDArray[np.int64]:
    """Sequences of each domain in each interval, by the plan that it was fed under: (intervals, domains)."""
    counts = np.zeros((len(intervals), len(domains)), np.int64)
    place = {name: number for number, name in enumerate(domains)}
    plans = {interval.plan.plan_id: interval.plan for interval in intervals}
    for plan_id, plan in plans.items():
        own = [number for number, interval in enumerate(intervals) if interval.plan.plan_id == plan_id]
        columns = [place[name] for name in plan.domains]
        for at in range(0, len(own), _AT_ONCE):
            some = own[at : at + _AT_ONCE]
            ends = np.array([(intervals[n].first_index, intervals[n].end_index) for n in some], np.int64)
            taken = taken_before(plan, ends.ravel()).reshape(len(columns), len(some), 2)
            counts[np.ix_(some, columns)] = (taken[:, :, 1] - taken[:, :, 0]).T
    return counts


def _left(run: Run) -> int:
    """Number of the record with which a branch began."""
    return max(record.seq for record in run.records.of("branch") if "of" in record.body)
