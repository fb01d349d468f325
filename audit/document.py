"""``audit doc``: when a run saw a document, or why it never did."""

from dataclasses import dataclass
from typing import Any

from millstream.audit.lookup import Question, find
from millstream.audit.runs import Run
from millstream.stream.corpora import Corpora, Corpus


@dataclass(frozen=True, kw_only=True, slots=True)
class Exposure:
    """One occurrence of a document in a run.

    ``status`` is ``learned``, ``skipped`` (fed, but the update was not applied), ``superseded`` (fed, but the run went
    back to an earlier step) or ``planned`` (not reached).
    """

    step: int
    row: int
    index: int
    epoch: int
    phase: str
    segment: int
    attempt: int | None
    tokens: int
    status: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentAudit:
    """One document that matches the question.

    ``state`` is ``kept``, ``held out``, ``beyond limit`` (in the corpus, outside the plan's limit) or
    ``excluded``; an excluded duplicate carries the audit of the document that was kept instead.
    """

    state: str
    domain: str
    document: dict[str, Any]
    corpus_id: str
    exposures: tuple[Exposure, ...] = ()
    twin: "DocumentAudit | None" = None


def audit_document(run: Run, corpora: Corpora, asked: Question) -> tuple[DocumentAudit, ...]:
    """Everything that a run and its corpora say about a document; empty if it was never read."""
    audits: list[DocumentAudit] = []
    for corpus_id, corpus in corpora.items():
        found = find(corpus.root, corpus.manifest, asked)
        audits += [audit_kept(run, corpus_id, row) for row in found.kept.iter_rows(named=True)]
        audits += [_held_out(corpus_id, row) for row in found.held_out.iter_rows(named=True)]
        audits += [_excluded(run, corpus, row) for row in found.excluded.iter_rows(named=True)]
    return tuple(audits)


def exposures(run: Run, corpus_id: str, domain: str, start: int, end: int) -> tuple[Exposure, ...]:
    """Every occurrence of a domain's tokens ``[start, end)`` in a run, in order of step and attempt.

    Steps that were fed are answered by the plan that they were fed under, steps to come by the one in force.
    """
    result: list[tuple[int, int, int, Exposure]] = []
    for plan in {plan.plan_id: plan for plan in run.plans.values()}.values():
        if not any((ring.name, ring.corpus_id) == (domain, corpus_id) for ring in plan.rings):
            continue
        planned = plan.exposures(domain, start, end, corpus_id)
        columns = (planned.index, planned.step, planned.row, planned.epoch, planned.phase, planned.tokens)
        for index, step, row, epoch, phase, tokens in zip(*(c.tolist() for c in columns), strict=True):
            place = {
                "step": step,
                "row": row,
                "index": index,
                "epoch": epoch,
                "phase": plan.phases[phase].name,
                "tokens": tokens,
            }
            if not run.learned(step) and plan.plan_id == run.plan.plan_id:
                segment = run.segment_of(step).id
                result.append(
                    (step, 1 << 62, index, Exposure(**place, segment=segment, attempt=None, status="planned"))
                )
            for fed in run.fed.get(step, []):
                if run.plans[fed.segment].plan_id == plan.plan_id:
                    status = "superseded" if run.superseded(fed) else "learned" if fed.update_applied else "skipped"
                    exposure = Exposure(**place, segment=fed.segment, attempt=fed.attempt, status=status)
                    result.append((step, fed.seq, index, exposure))
    return tuple(exposure for *_, exposure in sorted(result, key=lambda entry: entry[:3]))


def audit_kept(run: Run, corpus_id: str, row: dict[str, Any]) -> DocumentAudit:
    """The audit of a kept document, given its row of the document table with ``domain``."""
    domain, start, end = row["domain"], row["token_start"], row["token_start"] + row["n_tokens"]
    rings = [r for r in run.plan.rings if (r.name, r.corpus_id) == (domain, corpus_id)]
    state = "beyond limit" if rings and all(end > ring.tokens for ring in rings) else "kept"
    seen = exposures(run, corpus_id, domain, start, end) if state == "kept" else ()
    return DocumentAudit(state=state, domain=domain, document=row, corpus_id=corpus_id, exposures=seen)


def _held_out(corpus_id: str, row: dict[str, Any]) -> DocumentAudit:
    return DocumentAudit(state="held out", domain=row["domain"], document=row, corpus_id=corpus_id)


def _excluded(run: Run, corpus: Corpus, row: dict[str, Any]) -> DocumentAudit:
    twin, corpus_id = None, corpus.manifest.corpus_id
    if row["kept_key"] is not None:
        kept = find(corpus.root, corpus.manifest, Question(by="key", value=row["kept_key"]))
        # The kept document may itself be held out.
        twins = [audit_kept(run, corpus_id, r) for r in kept.kept.iter_rows(named=True)]
        twins += [_held_out(corpus_id, r) for r in kept.held_out.iter_rows(named=True)]
        twin = twins[0] if twins else None
    return DocumentAudit(state="excluded", domain=row["domain"], document=row, corpus_id=corpus_id, twin=twin)


def hex_keys(document: dict[str, Any]) -> dict[str, Any]:
    """A table row with its binary keys as hex, for printing."""
    return {k: v.hex() if isinstance(v, bytes) else v for k, v in document.items()}
