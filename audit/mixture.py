"""``audit mixture``: what was really mixed, beside what the recipe asked for, counted at the borders of intervals.

Realised counts come from the ledger's index ranges through the plans that they were fed under, not from the weights;
the quota tree answers for a range of any length in the same time, so a run of billions of sequences costs milliseconds.
"""

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from millstream.audit.intervals import Interval, all_intervals, counts_of, own_intervals
from millstream.audit.runs import Run
from millstream.stream import quota
from millstream.stream.census import taken_before
from millstream.stream.plan import Phase, Plan

SCHEMA = pl.Schema(
    {
        "phase": pl.String,
        "steps": pl.String,
        "domain": pl.String,
        "weight": pl.String,
        "planned": pl.Int64,
        "skipped": pl.Int64,
        "expected": pl.Float64,
        "realised": pl.Int64,
        "deviation": pl.Float64,
        "tokens": pl.Int64,
        "share": pl.Float64,
        "epochs": pl.Float64,
    }
)

INTERVALS = pl.Schema(
    {
        "branch": pl.String,
        "status": pl.String,
        "attempt": pl.Int64,
        "segment": pl.Int64,
        "phase": pl.String,
        "first_step": pl.Int64,
        "last_step": pl.Int64,
        "applied": pl.Boolean,
        "sequences": pl.Int64,
        "tokens": pl.Int64,
        "off": pl.Float64,
        "furthest": pl.String,
    }
)

REPEATS = pl.Schema(
    {
        "domain": pl.String,
        "epochs": pl.Float64,
        "planned_epochs": pl.Float64,
        "from_step": pl.Int64,
        "beyond": pl.Int64,
        "planned_beyond": pl.Int64,
    }
)


def audit_mixture(run: Run) -> pl.DataFrame:
    """Planned and realised sequences per phase and domain of the plan in force.

    Realised are the sequences that the lineage learned: fed, not superseded, the update applied.

    Returns:
        One row a phase and domain with weight: ``steps`` (of the phase), ``planned`` (sequences that the phase feeds),
        ``skipped`` (those that amendments passed over), ``expected`` (exact share of what the phase has fed so far),
        ``realised``, ``deviation`` (realised - expected), ``tokens`` (targets realised, those under tombstones too),
        ``share`` (of the phase's realised sequences), ``epochs`` (how often the domain was read through at the end of
        what was realised).
    """
    plan = run.plan
    learned = [(i.first_index, i.end_index) for i in own_intervals(run) if i.learned]
    fed = _in_phases(plan, learned)
    skipped = _in_phases(plan, plan.skips)
    reached = max((end for _, end in learned), default=0)
    ends = np.array([max(phase.first, min(phase.end, reached)) for phase in plan.phases], np.int64)
    consumed = taken_before(plan, ends)
    rows: list[dict[str, Any]] = []
    for number, phase in enumerate(plan.phases):
        done = int(fed[number].sum())
        shares = shares_of(phase)
        steps = f"{plan.batches.steps_within(phase.first) + 1}-{plan.batches.steps_within(phase.end)}"
        taken = quota.counts(phase.tree, np.array([phase.length], np.uint64))[:, 0].tolist()
        in_phase = dict(zip(phase.tree.domains, taken, strict=True))
        for place, name in enumerate(plan.domains):
            if name not in in_phase:
                continue
            realised, passed = int(fed[number, place]), int(skipped[number, place])
            expected = shares[name] * done
            rows.append(
                {
                    "phase": phase.name,
                    "steps": steps,
                    "domain": name,
                    "weight": phase.weights[name],
                    "planned": in_phase[name] - passed,
                    "skipped": passed,
                    "expected": float(expected),
                    "realised": realised,
                    "deviation": float(realised - expected),
                    "tokens": realised * plan.seq_len,
                    "share": realised / done if done else 0.0,
                    "epochs": plan.epochs(name, int(consumed[place, number])),
                }
            )
    return pl.DataFrame(rows, schema=SCHEMA)


def audit_intervals(run: Run) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Every interval of a run, its branches and controls; and each one's domains.

    Returns:
        Intervals: ``branch``, ``status``, ``attempt``, ``segment``, ``phase``, ``first_step``, ``last_step``,
        ``applied``, ``sequences``, ``tokens``, ``off`` (most sequences that a domain strays from its exact share),
        ``furthest`` (that domain). Domains: ``interval`` (row of the first table), ``domain``, ``planned`` (exact share
        of the interval), ``realised``.
    """
    intervals = list(all_intervals(run))
    domains = list(dict.fromkeys(name for interval in intervals for name in interval.plan.domains))
    counts = counts_of(intervals, domains)
    planned = _planned(intervals, domains)
    off = np.abs(counts - planned)
    furthest = off.argmax(axis=1) if domains else np.zeros(0, np.int64)
    rows = [
        {
            "branch": interval.branch,
            "status": interval.status,
            "attempt": interval.attempt,
            "segment": interval.segment,
            "phase": interval.phase.name,
            "first_step": interval.first_step,
            "last_step": interval.last_step,
            "applied": interval.applied,
            "sequences": interval.sequences,
            "tokens": interval.sequences * interval.plan.seq_len,
            "off": float(off[number, furthest[number]]),
            "furthest": domains[furthest[number]],
        }
        for number, interval in enumerate(intervals)
    ]
    used = np.nonzero((counts > 0) | (planned > 0))
    per_domain = pl.DataFrame(
        {
            "interval": pl.Series(used[0], dtype=pl.Int64),
            "domain": pl.Series([domains[place] for place in used[1].tolist()], dtype=pl.String),
            "planned": pl.Series(planned[used], dtype=pl.Float64),
            "realised": pl.Series(counts[used], dtype=pl.Int64),
        }
    )
    return pl.DataFrame(rows, schema=INTERVALS), per_domain


def audit_repeats(run: Run, limit: Decimal) -> pl.DataFrame:
    """Domains that are read through more often than a limit, in what was learned or in what is planned.

    Returns:
        ``domain``, ``epochs`` (read through so far), ``planned_epochs`` (at the plan's end), ``from_step`` (which holds
        the first sequence beyond the limit, null where it was skipped), ``beyond`` and ``planned_beyond`` (sequences
        beyond it, learned and in all that the plan feeds).
    """
    plan = run.plan
    limits = np.array([_running_at(plan, name, limit) for name in plan.domains], np.int64)
    total = taken_before(plan, np.array([plan.total_sequences], np.int64))[:, 0]
    learned = [(i.first_index, i.end_index) for i in own_intervals(run) if i.learned]
    fed = [(first, end) for first, end, _ in _fed_stretches(plan)]
    so_far = taken_before(plan, np.array([max((end for _, end in learned), default=0)], np.int64))[:, 0]
    beyond, planned_beyond = _beyond(plan, learned, limits), _beyond(plan, fed, limits)
    rows = [
        {
            "domain": name,
            "epochs": plan.epochs(name, int(so_far[place])),
            "planned_epochs": plan.epochs(name, int(total[place])),
            "from_step": _step_of(plan, name, int(limits[place])),
            "beyond": int(beyond[place]),
            "planned_beyond": int(planned_beyond[place]),
        }
        for place, name in enumerate(plan.domains)
        if total[place] > limits[place]
    ]
    return pl.DataFrame(rows, schema=REPEATS)


def shares_of(phase: Phase) -> dict[str, Fraction]:
    """The exact share of each domain in a phase, by its integer weights."""
    weighted = 1 - Fraction(sum(phase.exact.values()), phase.length)
    shares = {name: Fraction(number, phase.length) for name, number in phase.exact.items()}
    return shares | {name: Fraction(weight, quota.TOTAL) * weighted for name, weight in phase.quotas.items()}


def _in_phases(plan: Plan, stretches: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """Sequences of ranges of global indices: (phases, domains)."""
    counts = np.zeros((len(plan.phases), len(plan.domains)), np.int64)
    firsts = np.array([phase.first for phase in plan.phases])
    cut = [
        (number, max(first, phase.first), min(end, phase.end))
        for first, end in stretches
        for number in range(int(np.searchsorted(firsts, first, side="right")) - 1, len(plan.phases))
        if (phase := plan.phases[number]).first < end
    ]
    if cut:
        numbers, *borders = np.array(cut, np.int64).T
        first, end = (taken_before(plan, border) for border in borders)
        np.add.at(counts, numbers, (end - first).T)
    return counts


def _planned(intervals: Sequence[Interval], domains: Sequence[str]) -> NDArray[np.float64]:
    """Exact shares of intervals, in sequences: (intervals, domains)."""
    planned = np.zeros((len(intervals), len(domains)))
    place = {name: number for number, name in enumerate(domains)}
    rows: dict[tuple[str, int], NDArray[np.float64]] = {}
    for number, interval in enumerate(intervals):
        phase = interval.phase
        key = (interval.plan.plan_id, phase.number)
        if key not in rows:
            rows[key] = np.zeros(len(domains))
            for name, share in shares_of(phase).items():
                rows[key][place[name]] = float(share)
        planned[number] = rows[key] * interval.sequences
    return planned


def _fed_stretches(plan: Plan) -> list[tuple[int, int, int]]:
    """Ranges of global indices that steps are made of, and their batch."""
    entries = plan.batches.entries
    ends = [plan.batches.span(later[0] - 1)[1] for later in entries[1:]]
    ends.append(plan.batches.span(plan.total_steps)[1])
    return [(first, end, batch) for (_, batch, first), end in zip(entries, ends, strict=True)]


def _beyond(plan: Plan, stretches: Sequence[tuple[int, int]], limits: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sequences of each domain from a running index on, in ranges of global indices: (domains,)."""
    borders = np.array(stretches, np.int64).reshape(len(stretches), 2).ravel()
    over = taken_before(plan, borders) - taken_before(plan, borders, limits)
    count: NDArray[np.int64] = (over[:, 1::2] - over[:, ::2]).sum(axis=1)
    return count


def _running_at(plan: Plan, domain: str, limit: Decimal) -> int:
    """Running index at which a domain was read through so many times."""
    pieces = plan.pieces(domain)
    ring = next((r for r in reversed(pieces) if r.epoch <= limit), pieces[0])
    return ring.running + int((limit - ring.epoch) * (ring.tokens // plan.seq_len))


def _step_of(plan: Plan, domain: str, running: int) -> int | None:
    """The step that holds a domain's sequence of a running index; None where it was skipped."""
    index, _ = plan.indices(domain, np.array([running], np.uint64))
    return int(plan.batches.locate(index)[0][0]) or None
