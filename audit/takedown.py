"""Takedowns: what a run saw of documents that have to go, and tombstones so that it sees them no more.

Positions never move: from the amendment's step on the documents' tokens are fed as EOS and are targets of
nothing. What was learned before stays learned; the report names it, and the checkpoints from before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream.audit.change import Reason, amend_run
from millstream.audit.corpora import open_corpora
from millstream.audit.document import Exposure, audit_document, exposures
from millstream.audit.lookup import Question
from millstream.audit.runs import Run, open_run
from millstream.errors import UsageError
from millstream.stream.amend import Amendment, Span
from millstream.stream.corpora import Corpora


@dataclass(frozen=True, kw_only=True, slots=True)
class Gone:
    """A document that is to go: where it lies, and every occurrence in the run's fed and planned steps.

    ``clean_checkpoint`` is the newest checkpoint on disk from before the first occurrence, 0 where only the initial
    state is.
    """

    doc_key: str
    doc_id: str
    span: Span
    exposures: tuple[Exposure, ...]
    clean_checkpoint: int

    def count(self, *statuses: str) -> int:
        """Occurrences of these statuses."""
        return sum(1 for e in self.exposures if e.status in statuses)


def find_gone(run: Run, corpora: Corpora, asked: Sequence[Question]) -> tuple[Gone, ...]:
    """The kept documents that match the questions.

    Raises:
        UsageError: nothing kept matches one of them.
    """
    found: dict[Span, Gone] = {}
    for wanted in asked:
        kept = [audit for audit in audit_document(run, corpora, wanted) if audit.state == "kept"]
        if not kept:
            value = wanted.value.hex() if isinstance(wanted.value, bytes) else wanted.value
            raise UsageError(f"{run.path}: no document of this {wanted.by} is in what the run reads: {value}")
        for audit in kept:
            start = audit.document["token_start"]
            span = Span(
                domain=audit.domain,
                corpus_id=audit.corpus_id,
                start=start,
                end=start + audit.document["n_tokens"],
            )
            seen = [e.step for e in audit.exposures if e.status != "planned"]
            found[span] = Gone(
                doc_key=audit.document["doc_key"].hex(),
                doc_id=audit.document["doc_id"],
                span=span,
                exposures=audit.exposures,
                clean_checkpoint=newest_before(run, min(seen)) if seen else run.last_step,
            )
    return tuple(found.values())


def take_down(path: Path, asked: Sequence[Question], from_step: int | None, given: Reason) -> tuple[Gone, ...]:
    """Bury documents from a step on (by default the next one), on the record; returns what was buried.

    Raises:
        UsageError: nothing matches, the step was trained on already, or another process is writing to the run.
    """
    run = open_run(path)
    gone = find_gone(run, open_corpora(run), asked)
    first = from_step if from_step is not None else run.last_step + 1
    amend_run(path, Amendment(from_step=first, takedowns=tuple(g.span for g in gone)), given)
    return gone


def takedown_report(run: Run) -> list[dict[str, Any]]:
    """Every takedown of a run, with what was seen before it and what is fed after it, from the plans and records.

    ``redaction`` is the record by which the document left the corpus.
    """
    reports = []
    redactions = [(record.seq, record.body["spans"]) for record in run.records.of("redaction")]
    for record in run.records.of("segment"):
        if not record.body.get("amendment", {}).get("takedowns"):
            continue
        from_step = int(record.body["amendment"]["from_step"])
        for raw in record.body["amendment"]["takedowns"]:
            span = Span(**raw)
            seen = exposures(run, span.corpus_id, span.domain, span.start, span.end)
            before = [e for e in seen if e.step < from_step and e.status != "planned"]
            after = [e for e in seen if e.step >= from_step and e.status != "superseded"]
            reports.append(
                {
                    "record": record.seq,
                    "hash": record.hash,
                    "why": record.body["why"],
                    "by": record.body["by"],
                    "from_step": from_step,
                    "span": raw,
                    "in_force": _covers(run, span),
                    "seen_before": len(before),
                    "steps_before": sorted({e.step for e in before}),
                    "fed_or_planned_after": len(after),
                    "redaction": next((seq for seq, spans in redactions if raw in spans), None),
                }
            )
    return reports


def _covers(run: Run, span: Span) -> bool:
    """Whether the plan in force buries every token of a span."""
    at = span.start
    for stone in sorted(run.plan.tombstones, key=lambda s: s.start):
        if (stone.domain, stone.corpus_id) == (span.domain, span.corpus_id) and stone.start <= at < stone.end:
            at = stone.end
    return at >= span.end


def newest_before(run: Run, step: int) -> int:
    """The newest checkpoint on disk from before a step; 0 where only the initial state is."""
    there = [c.step for c in run.checkpoints if not run.given_up(c) and (run.path / c.path).is_dir()]
    return max((s for s in there if s < step), default=0)
