"""``audit step``: which documents a run saw at a step."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from millstream.audit.runs import FedStep, Run
from millstream.stream.documents import Documents
from millstream.stream.plan import Sequences


@dataclass(frozen=True, kw_only=True, slots=True)
class StepAudit:
    """A step's sequences and documents.

    ``fed`` lists every time the step was fed, superseded ones too; it is empty for a step that the run
    has only planned. ``documents`` is as from ``Documents.of_sequences``.
    """

    step: int
    phase: str
    first_index: int
    sequences: int
    fed: tuple[tuple[FedStep, bool], ...]
    """(record, superseded)."""
    located: Sequences
    documents: pl.DataFrame


def audit_step(run: Run, documents: Documents, step: int) -> StepAudit:
    """What a run saw, or will see, at a step.

    Raises:
        UsageError: the step is outside the plan.
    """
    first, end = run.plan.span(step)
    located = run.plan.locate(np.arange(first, end, dtype=np.uint64))
    return StepAudit(
        step=step,
        phase=run.plan.phase_of_step(step).name,
        first_index=first,
        sequences=end - first,
        fed=tuple((fed, run.superseded(fed)) for fed in run.fed.get(step, [])),
        located=located,
        documents=documents.of_sequences(run.plan, located),
    )
