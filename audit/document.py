"""``audit doc``: when a run saw a document, or why it never did."""

from dataclasses import dataclass
from typing import Any

from millstream.audit.lookup import Question, find
from millstream.audit.runs import Run
from millstream.stream.roots import Root
from millstream.tokenize.manifest import Manifest


@dataclass(frozen=True, kw_only=True, slots=True)
class Exposure:
    """One occurrence of a document in a run.

    ``status`` is ``learned``, ``skipped`` (fed, but the update was not applied), ``superseded`` (fed by an
    attempt whose later steps were given up) or ``planned`` (not reached).
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
    exposures: tuple[Exposure, ...] = ()
    twin: "DocumentAudit | None" = None


def audit_document(run: Run, root: Root, manifest: Manifest, asked: Question) -> tuple[DocumentAudit, ...]:
    """Everything that a run and its corpus say about a document; empty if it was never read."""
    found = find(root, manifest, asked)
    audits = [_kept(run, row) for row in found.kept.iter_rows(named=True)]
    audits += [_held_out(row) for row in found.held_out.iter_rows(named=True)]
    audits += [_excluded(run, root, manifest, row) for row in found.excluded.iter_rows(named=True)]
    return tuple(audits)


def exposures(run: Run, domain: str, start: int, end: int) -> tuple[Exposure, ...]:
    """Every occurrence of a domain's tokens ``[start, end)`` in a run, in order of step and attempt."""
    planned = run.plan.exposures(domain, start, end)
    columns = (planned.index, planned.step, planned.row, planned.epoch, planned.phase, planned.tokens)
    result = []
    for index, step, row, epoch, phase, tokens in zip(*(c.tolist() for c in columns), strict=True):
        place = {
            "step": step,
            "row": row,
            "index": index,
            "epoch": epoch,
            "phase": run.plan.phases[phase].name,
            "segment": run.segment_of(step).id,
            "tokens": tokens,
        }
        fed = run.fed.get(step, [])
        if not fed:
            result.append(Exposure(**place, attempt=None, status="planned"))
        for record in fed:
            status = "superseded" if run.superseded(record) else "learned" if record.update_applied else "skipped"
            result.append(Exposure(**place, attempt=record.attempt, status=status))
    return tuple(result)


def _kept(run: Run, row: dict[str, Any]) -> DocumentAudit:
    domain, start, end = row["domain"], row["token_start"], row["token_start"] + row["n_tokens"]
    if end > run.plan.ring(domain).tokens:
        return DocumentAudit(state="beyond limit", domain=domain, document=row)
    return DocumentAudit(state="kept", domain=domain, document=row, exposures=exposures(run, domain, start, end))


def _held_out(row: dict[str, Any]) -> DocumentAudit:
    return DocumentAudit(state="held out", domain=row["domain"], document=row)


def _excluded(run: Run, root: Root, manifest: Manifest, row: dict[str, Any]) -> DocumentAudit:
    twin = None
    if row["kept_key"] is not None:
        kept = find(root, manifest, Question(by="key", value=row["kept_key"]))
        # The kept document may itself be held out.
        twins = [_kept(run, r) for r in kept.kept.iter_rows(named=True)]
        twins += [_held_out(r) for r in kept.held_out.iter_rows(named=True)]
        twin = twins[0] if twins else None
    return DocumentAudit(state="excluded", domain=row["domain"], document=row, twin=twin)


def hex_keys(document: dict[str, Any]) -> dict[str, Any]:
    """A table row with its binary keys as hex, for printing."""
    return {k: v.hex() if isinstance(v, bytes) else v for k, v in document.items()}
