"""Segments: stretches of a run's steps with one phase, one batch size and one parent.

A run begins with one segment a phase of its plan. Every amendment ends a segment and starts another.
"""

from dataclasses import dataclass
from itertools import pairwise

from millstream.stream.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Steps ``[first_step, end_step)`` under one phase of the plan.

    ``skip`` is the half-open range of global indices that was passed over before the segment's first step.
    """

    id: int
    parent: int | None
    first_step: int
    end_step: int
    phase: int
    batch: int
    skip: tuple[int, int] | None = None


def segments_of(plan: Plan) -> tuple[Segment, ...]:
    """The segments of a run that follows a plan to its end, in order; each is the next one's parent."""
    cuts = {1, plan.total_steps + 1}
    cuts |= {plan.batches.steps_within(phase.first) + 1 for phase in plan.phases}
    cuts |= {int(amendment["from_step"]) for amendment in plan.amendments}
    segments: list[Segment] = []
    for first, end in pairwise(sorted(cuts)):
        index = plan.span(first)[0]
        skips = [skip for skip in plan.skips if skip[1] == index]
        segments.append(
            Segment(
                id=len(segments),
                parent=len(segments) - 1 if segments else None,
                first_step=first,
                end_step=end,
                phase=plan.phase_of_step(first).number,
                batch=plan.batch_of(first),
                skip=skips[0] if skips else None,
            )
        )
    return tuple(segments)
