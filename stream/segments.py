"""Segments: stretches of a run's steps with one phase, one batch size and one parent.

A run begins with one segment a phase of its plan. An amendment ends the current segment and starts
another at a step where the plan may change: a step border that is a window border too, since a cut
inside a window would change what was already consumed.
"""

from dataclasses import dataclass, replace

from millstream.errors import UsageError
from millstream.mixture.units import decimal_text, parse_count, parse_decimal
from millstream.stream.freeze import next_border
from millstream.stream.plan import Phase, Plan
from millstream.stream.quota import build_tree
from millstream.stream.quota import quotas as to_quotas
from millstream.stream.steps import BatchSchedule


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Steps ``[first_step, end_step)`` under one phase of the plan.

    ``skip`` is a half-open range of global indices that the segment leaves out.
    """

    id: int
    parent: int | None
    first_step: int
    end_step: int
    phase: int
    batch: int
    skip: tuple[int, int] | None = None


def initial_segments(plan: Plan) -> tuple[Segment, ...]:
    """The segments of a run that follows its plan: one a phase."""
    segments = []
    for phase in plan.phases:
        first = plan.batches.steps_within(phase.first) + 1
        end = plan.batches.steps_within(phase.end) + 1
        parent = phase.number - 1 if phase.number else None
        segments.append(
            Segment(
                id=phase.number,
                parent=parent,
                first_step=first,
                end_step=end,
                phase=phase.number,
                batch=phase.batch,
            )
        )
    return tuple(segments)


def amend(plan: Plan, from_step: int, *, weights: dict[str, str], batch: int | None = None) -> Plan:
    """The plan with new weights, and perhaps a new batch, from ``from_step`` to its end.

    Weights are written as in ``Phase.weights``: decimals, or ``=N`` for exactly N sequences. What lies
    before ``from_step`` is unchanged; the cursors of all domains are carried on, so that no
    document is repeated before its domain is used up. The number of steps stays.

    Raises:
        UsageError: a phase may not begin at ``from_step`` (the next allowed step is named), a weight
            names a domain that the plan does not have, or exact numbers do not fit into the rest.
    """
    current = plan.phase_of_step(from_step)
    start = plan.span(from_step)[0]
    allowed = next_border(current, from_step, plan.batches)
    if start != current.first and allowed != from_step:
        raise UsageError(
            f"a new phase cannot begin at step {from_step}, inside a window of {current.window} sequences; "
            f"the next allowed step is {allowed}"
        )
    if unknown := sorted(set(weights) - set(plan.domains)):
        raise UsageError(f"the plan has no domain '{unknown[0]}'; it has {', '.join(plan.domains)}")
    kept = tuple(p for p in plan.phases if p.end <= start)
    if start > current.first:
        # The cut phase keeps its shuffle and tree; exact numbers would not come out, so they bar the cut.
        if current.exact:
            raise UsageError(f"phase '{current.name}' has domains with exact sequences and cannot be cut short")
        kept = (*kept, replace(current, end=start))
    size = batch or current.batch
    entries = (*(e for e in plan.batches.entries if e[0] < from_step), (from_step, size))
    schedule = BatchSchedule(entries)
    last = kept[-1] if kept else None
    cursors = {d: last.cursors.get(d, 0) + last.taken(d) if last else 0 for d in plan.domains}
    exact = {name: parse_count(text[1:]) for name, text in weights.items() if text.startswith("=")}
    shares = {name: parse_decimal(text) for name, text in weights.items() if name not in exact}
    phase = Phase(
        number=len(kept),
        name=f"amended-{from_step}",
        first=start,
        end=schedule.span(plan.total_steps)[1],
        window=size,
        batch=size,
        weights={n: f"={exact[n]}" if n in exact else decimal_text(shares[n]) for n in weights},
        quotas=to_quotas(shares),
        exact=exact,
        cursors=cursors,
    )
    build_tree(phase.quotas, phase.exact, phase.length)
    return replace(plan, phases=(*kept, phase), batches=schedule)
