"""``audit step``: which documents a run saw at a step."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from millstream.audit.records import FedStep
from millstream.audit.runs import Run
from millstream.errors import UsageError
from millstream.stream.corpora import Corpora
from millstream.stream.documents import documents_of
from millstream.stream.plan import Plan, Sequences


@dataclass(frozen=True, kw_only=True, slots=True)
class StepAudit:
    """A step's sequences and documents.

    ``fed`` lists every time the step was fed, superseded ones too; it is empty for a step that the run
    has only planned. ``documents`` is as from ``documents_of``.
    """

    step: int
    phase: str
    first_index: int
    sequences: int
    fed: tuple[tuple[FedStep, bool], ...]
    """(record, superseded)."""
    plan: Plan
    """The plan that the step is answered by."""
    located: Sequences
    documents: pl.DataFrame


def audit_step(run: Run, corpora: Corpora, step: int, attempt: int | None = None) -> StepAudit:
    """What a run saw, or will see, at a step.

    Args:
        run: the run.
        corpora: its corpora.
        step: which step.
        attempt: as that attempt fed it; by default as the plan in force has it.

    Raises:
        UsageError: the step is outside the plan, or the attempt did not feed it.
    """
    plan = run.plan
    if attempt is not None:
        of_attempt = [fed for fed in run.fed.get(step, []) if fed.attempt == attempt]
        if not of_attempt:
            raise UsageError(f"{run.path}: attempt {attempt} did not feed step {step}")
        plan = run.plans[of_attempt[-1].segment]
    first, end = plan.span(step)
    located = plan.locate(np.arange(first, end, dtype=np.uint64))
    return StepAudit(
        step=step,
        phase=plan.phase_of_step(step).name,
        first_index=first,
        sequences=end - first,
        fed=tuple((fed, run.superseded(fed)) for fed in run.fed.get(step, [])),
        plan=plan,
        located=located,
        documents=documents_of(corpora, plan, located, step),
    )
