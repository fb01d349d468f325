"""Detectors without statistics: what the run did against plan, recipe and corpus, any difference an alarm."""

from collections.abc import Iterator

import numpy as np

from millstream.audit.replay import replay
from millstream.audit.runs import Run
from millstream.stream.census import taken_before
from millstream.stream.corpora import Corpora
from millstream.stream.plan import Plan
from millstream.train.schedule import rates_at
from millstream.train.watch.alarms import Alarm, first_of_each
from millstream.train.watch.detectors import alarm_at
from millstream.train.watch.readings import Readings
from millstream.train.watch.statistics import Counts

RATE_DIGITS = 1e-9


def plan_check(run: Run, found: Readings) -> list[Alarm]:
    """Steps that were not the plan's: other indices, or another number of sequences of a domain, to the last one.

    The plan is the one that each step was recorded under, so an amendment is none, and data that was mixed otherwise
    without a record is one.
    """
    alarms = []
    strange = [name for name, _ in found.domains("sequences") if all(name not in p.domains for p in run.plans.values())]
    for name in strange:
        fed = found.column("sequences", name)
        alarms += [
            alarm_at(found, row, "plan", "sequences", name, fed[row], 0,
                     f"{fed[row]:.0f} sequences of {name}, which the plan does not have")
            for row in first_of_each(found, np.nan_to_num(fed) > 0)
        ]  # fmt: skip
    wrong = np.zeros(len(found.steps), np.bool_)
    texts: dict[int, tuple[str | None, float, float, str]] = {}
    for plan, rows, first, end in _by_plan(run, found):
        spans = np.array([plan.span(step) for step in found.steps[rows].tolist()], np.int64).reshape(-1, 2)
        elsewhere = (spans[:, 0] != first) | (spans[:, 1] != end)
        counts = taken_before(plan, spans[:, 1]) - taken_before(plan, spans[:, 0])
        fed = np.stack([np.nan_to_num(found.column("sequences", name)[rows]) for name in plan.domains])
        # A run whose numbers of domains were not recorded says nothing of them.
        off = np.where(fed.sum(0) > 0, fed - counts, 0)
        wrong[rows] = elsewhere | off.any(0)
        for number in np.flatnonzero(wrong[rows]).tolist():
            worst = int(np.abs(off[:, number]).argmax())
            name, had, has = plan.domains[worst], fed[worst, number], counts[worst, number]
            if elsewhere[number]:
                texts[int(rows[number])] = (None, float(first[number]), float(spans[number, 0]),
                    f"sequences from {first[number]} to {end[number]}, the plan has {spans[number, 0]} to "
                    f"{spans[number, 1]}")  # fmt: skip
            else:
                texts[int(rows[number])] = (name, float(had), float(has),
                    f"{had:.0f} sequences of {name}, the plan has {has}; no amendment says so")  # fmt: skip
    for row in first_of_each(found, wrong):
        domain, value, limit, text = texts[row]
        alarms.append(alarm_at(found, row, "plan", "sequences", domain, value, limit, text))
    return alarms


def rate_check(run: Run, found: Readings) -> list[Alarm]:
    """Steps whose learning rate is not the schedule's."""
    train, rate = run.recipe.train, found.column("lr")
    wrong, wanted = np.zeros(len(found.steps), np.bool_), np.full(len(found.steps), np.nan)
    for plan, rows, _, _ in _by_plan(run, found):
        wanted[rows] = [rates_at(s, plan, train.optimizer, train.schedule).lr for s in found.steps[rows].tolist()]
    wrong = np.isfinite(rate) & (np.abs(rate - wanted) > RATE_DIGITS * np.abs(wanted))
    return [
        alarm_at(found, row, "learning-rate", "lr", None, rate[row], wanted[row],
                 f"learning rate {rate[row]:.4g}, the schedule has {wanted[row]:.4g}")
        for row in first_of_each(found, wrong)
    ]  # fmt: skip


def skipped_updates(run: Run, found: Readings) -> list[Alarm]:
    """Steps that were fed and not learned from."""
    rows = run.steps.rows[~run.steps.superseded]
    where = np.isin(found.steps, rows["step"][rows["applied"] == 0])
    return [
        alarm_at(found, row, "skipped", "update_applied", None, 0, 1, "fed, but no update was made")
        for row in first_of_each(found, where)
    ]


def repeats(run: Run, found: Readings) -> list[Alarm]:
    """Domains that were read through more often than the recipe allows."""
    plan, mixture = run.plan, run.recipe.mixture
    if mixture is None or not len(found.steps):
        return []
    cap = float(mixture.max_epochs)
    ends = np.array([plan.span(min(step, plan.total_steps))[1] for step in found.steps.tolist()], np.int64)
    taken = taken_before(plan, ends)
    alarms = []
    for number, name in enumerate(plan.domains):
        if plan.epochs(name, int(taken[number, -1])) <= cap:
            continue
        over = np.array([plan.epochs(name, count) > cap for count in taken[number].tolist()])
        row = int(over.argmax())
        epochs = plan.epochs(name, int(taken[number, row]))
        alarms.append(
            alarm_at(
                found, row, "repeat", "epochs", name, epochs, cap, f"{name} is in epoch {epochs:.2f}, at most {cap:g}"
            )
        )
    return alarms


def replay_check(run: Run, corpora: Corpora, found: Readings, last: int) -> list[Alarm]:
    """Of the last steps, those whose data the corpus does not give again."""
    rows = range(max(0, len(found.steps) - last), len(found.steps))
    steps = [fed for row in rows if (fed := run.learned(int(found.steps[row]))) is not None]
    alarms = []
    for replayed in replay(run, corpora, steps):
        if not replayed.equal:
            row = int(np.searchsorted(found.steps, replayed.fed.step))
            text = f"fed root {replayed.fed.root[:16]}, the corpus gives {replayed.root[:16]}"
            alarms.append(alarm_at(found, row, "replay", "root", None, 1, 0, text))
    return alarms[:1]


def _by_plan(run: Run, found: Readings) -> Iterator[tuple[Plan, Counts, Counts, Counts]]:
    """The plans that the steps were recorded under: rows of those steps, and their first and end indices, all (n,)."""
    learned = run.steps.rows[~run.steps.superseded]
    learned = learned[np.argsort(learned["step"], kind="stable")]
    at = np.searchsorted(learned["step"], found.steps)
    at = np.minimum(at, max(0, len(learned) - 1))
    known = np.flatnonzero(learned["step"][at] == found.steps) if len(learned) else np.zeros(0, np.int64)
    segment = learned["segment"][at[known]] if len(known) else np.zeros(0, np.int64)
    for number in np.unique(segment).tolist():
        rows = known[segment == number]
        first = learned["first_index"][at[rows]].astype(np.int64)
        yield run.plans[number], rows, first, first + learned["sequences"][at[rows]].astype(np.int64)
