"""Redacting documents that were taken down: their tokens leave the corpus, and what runs recorded still verifies.

    corpus     tokens written over with EOS; keys, place and the digest of the tokens stay (millstream.tokenize.redact)
    ledgers    of every run that reads the corpus, a record ``redaction``: the list's SHA-256, and the leaves of the
               rows that the documents were in, which nobody can derive again

A leaf that is taken from the ledger is one of a row that a redacted document lies in; all others are derived, and the
step's root is over both. Which tokens the other documents of such a row are made of, the corpus's root says.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from millstream.audit.branches import branches_of, controls_of
from millstream.audit.change import Reason, amend_before
from millstream.audit.corpora import open_corpora
from millstream.audit.document import exposures
from millstream.audit.feed import leaf_hashes, step_root
from millstream.audit.heads import head_signer
from millstream.audit.ledger import open_ledger
from millstream.audit.records import FedStep
from millstream.audit.replay import stored_leaves, with_stored
from millstream.audit.runs import Run, is_run, open_run
from millstream.errors import InputError, UsageError
from millstream.stream.amend import Amendment, Span
from millstream.stream.corpora import Corpora, Corpus
from millstream.stream.reader import open_stream
from millstream.stream.shards import DomainReader, open_domain
from millstream.tokenize.redact import discard, finish_redaction, prepare_redaction, redact


@dataclass(frozen=True, kw_only=True, slots=True)
class Redacted:
    """What a redaction did: documents in all, files that changed, runs whose ledgers say so, folders removed."""

    documents: int
    files: tuple[str, ...]
    runs: tuple[str, ...]
    removed: tuple[str, ...]


def redact_documents(path: Path, corpus: Corpus, spans: Sequence[Span], given: Reason) -> Redacted:
    """Redact documents of a corpus, on the record of every run here that reads it.

    Runs are looked for beside ``path``, with their branches and controls. What was seen of the documents is not changed
    by this; that they are fed no more has to have been recorded before.

    Raises:
        UsageError: a run would still be fed one of them, or is being trained; the corpus lies in a store.
        InputError: what a run recorded cannot be derived from the corpus, so it is not redacted.
        SetupError: the disk is full.
    """
    if not isinstance(corpus.root, Path):
        raise UsageError(f"{corpus.root}: lies in a store; redact a copy in a folder and put its files there")
    corpus_id = corpus.manifest.corpus_id
    if corpus.manifest.redactions:
        finish_redaction(corpus.root, corpus.manifest.redactions)
    with ExitStack() as stack:
        runs = list(_readers(path, corpus_id))
        ledgers = [stack.enter_context(open_ledger(run.path)) for run in runs]
        signers = [head_signer(run, ledger) for run, ledger in zip(runs, ledgers, strict=True)]
        for run in runs:
            _refuse_to_come(run, spans)
        leaves = [_leaves(run, open_corpora(run), spans) for run in runs]
        prepared = prepare_redaction(corpus.root, corpus.manifest, [(s.domain, s.start, s.end) for s in spans])
        if not prepared.files:
            raise UsageError(f"{corpus.root}: these documents are redacted already")
        listed = prepared.redactions
        body: dict[str, Any] = {
            "corpus_id": corpus_id,
            "redactions": hashlib.sha256(listed.encoded()).hexdigest(),
            "spans": [asdict(span) for span in spans],
            **asdict(given),
        }
        try:
            for ledger, own, sign in zip(ledgers, leaves, signers, strict=True):
                ledger.append("redaction", body | {"leaves": own})
                ledger.sync()
                sign()
        except BaseException:
            discard(prepared)
            raise
        removed = redact(corpus.root, prepared)
    return Redacted(
        documents=len(listed.documents),
        files=tuple(old.relative_to(corpus.root).as_posix() for _, old in prepared.files),
        runs=tuple(str(run.path) for run in runs),
        removed=tuple(removed),
    )


def bury_redacted(path: Path, corpora: Corpora) -> int:
    """Take down from the next step on what was redacted in a run's corpora and would be fed; returns how many.

    So a run that begins on a redacted corpus, or that went back to before a takedown, is fed no EOS as if it were text.
    A control keeps to the plans that it repeats.

    Raises:
        UsageError: the run was fed from a corpus of whose redactions its ledger knows nothing.
    """
    run = open_run(path)
    recorded = _recorded(run)
    for corpus_id, corpus in corpora.items():
        listed = _digest(corpus)
        if listed is None or recorded.get(corpus_id) == listed:
            continue
        if any(corpus_id in run.plans[fed.segment].corpus_ids for step in run.fed.values() for fed in step):
            raise UsageError(
                f"{corpus.root}: documents were redacted, and the ledger of {path}, which was fed from it, does not "
                "say so; redact with all runs of the corpus in one folder"
            )
        given = Reason(why="redacted before the run read the corpus", by="millstream")
        with open_ledger(path) as ledger:
            body: dict[str, Any] = {"corpus_id": corpus_id, "redactions": listed, "spans": [], "leaves": []}
            ledger.append("redaction", body | asdict(given))
    if run.is_control:
        return 0
    spans = [span for span in redacted_spans(corpora) if any(e.status == "planned" for e in _exposures(run, span))]
    if spans:
        given = Reason(why="redacted in the corpus", by="millstream")
        amend_before(path, Amendment(from_step=run.last_step + 1, takedowns=tuple(spans)), given)
    return len(spans)


def redacted_spans(corpora: Corpora) -> list[Span]:
    """Every redacted document of some corpora."""
    return [
        Span(domain=d.domain, corpus_id=corpus_id, start=d.token_start, end=d.token_start + d.n_tokens)
        for corpus_id, corpus in corpora.items()
        if corpus.manifest.redactions
        for d in corpus.manifest.redactions.documents
    ]


def check_redactions(run: Run, corpora: Corpora) -> tuple[int, list[str]]:
    """Judge the redactions of a run's corpora by its ledger; returns how many documents there are, and the findings."""
    findings: list[str] = []
    recorded = _recorded(run)
    for corpus_id, corpus in corpora.items():
        wanted, found = (digest[:16] if digest else "none" for digest in (recorded.get(corpus_id), _digest(corpus)))
        if found != wanted:
            findings.append(f"{corpus.root}: its redactions are not the ledger's (recorded {wanted}, found {found})")
        findings += [f"{corpus.root}: {why}" for why in _not_written_over(corpus)]
    allowed = set()
    for span in redacted_spans(corpora):
        allowed |= {(fed.seq, row) for fed, row in _fed_rows(run, span)}
    for seq, row in stored_leaves(run).keys() - allowed:
        findings.append(f"{run.path}: the ledger keeps a leaf of record {seq}, row {row}, which holds nothing redacted")
    return len(redacted_spans(corpora)), findings


def _recorded(run: Run) -> dict[str, str]:
    """SHA-256 of the newest list of redactions that the ledger has of each corpus."""
    return {str(r.body["corpus_id"]): str(r.body["redactions"]) for r in run.records.of("redaction")}


def _digest(corpus: Corpus) -> str | None:
    listed = corpus.manifest.redactions
    return hashlib.sha256(listed.encoded()).hexdigest() if listed else None


def _not_written_over(corpus: Corpus) -> Iterator[str]:
    eos, dtype = corpus.manifest.tokenizer.eos_id, corpus.manifest.tokenizer.dtype
    for document in corpus.manifest.redactions.documents if corpus.manifest.redactions else ():
        domain = corpus.manifest.domain(document.domain)
        reader = open_domain(corpus.root, domain, dtype, domain.tokens)
        if not isinstance(reader, DomainReader):
            continue
        if (reader.span(document.token_start, document.token_start + document.n_tokens) != eos).any():
            yield f"document {document.doc_key[:16]} of domain '{domain.name}' is listed as redacted and is still there"


def _readers(path: Path, corpus_id: str) -> Iterator[Run]:
    """The runs beside a run, itself too, that read a corpus, with their branches and controls; each once."""
    pending = [path, *sorted(p for p in path.resolve().parent.iterdir() if is_run(p))]
    seen: set[Path] = set()
    while pending:
        place = pending.pop(0).resolve()
        if place in seen:
            continue
        seen.add(place)
        run = open_run(place)
        if any(corpus_id in plan.corpus_ids for plan in run.plans.values()):
            yield run
        pending += [member.path for member in (*branches_of(run), *controls_of(run))]


def _refuse_to_come(run: Run, spans: Sequence[Span]) -> None:
    """Refuse where a run would be fed a document again, by its plan or by going on from its newest checkpoint."""
    there = [c.step for c in run.checkpoints if not run.given_up(c) and (run.path / c.path).is_dir()]
    again = run.last_step if run.finished or run.is_control else max(there, default=0)
    for span in spans:
        what = f"{span.domain} tokens {span.start:,} to {span.end:,}"
        seen = _exposures(run, span)
        if not run.is_control and any(e.status == "planned" for e in seen):
            raise UsageError(
                f"{run.path}: would still be fed {what}; take it down there first: millstream takedown apply {run.path}"
            )
        if any(again < e.step <= run.last_step for e in seen):
            raise UsageError(
                f"{run.path}: has no checkpoint of step {run.last_step}, so it would be fed {what} again; train to a "
                f"checkpoint, or 'millstream rollback {run.path} --to {again}' and take it down from there"
            )


def _exposures(run: Run, span: Span) -> Sequence[Any]:
    return exposures(run, span.corpus_id, span.domain, span.start, span.end)


def _fed_rows(run: Run, span: Span) -> Iterator[tuple[FedStep, int]]:
    """The rows of step records that a span's tokens lie in, tokens that are no targets too."""
    for plan in {plan.plan_id: plan for plan in run.plans.values()}.values():
        if not any((ring.name, ring.corpus_id) == (span.domain, span.corpus_id) for ring in plan.rings):
            continue
        found = plan.exposures(span.domain, span.start, span.end, span.corpus_id)
        for step, row in zip(found.step.tolist(), found.row.tolist(), strict=True):
            for fed in run.fed.get(step, []):
                if run.plans[fed.segment].plan_id == plan.plan_id:
                    yield fed, row


def _leaves(run: Run, corpora: Corpora, spans: Sequence[Span]) -> list[dict[str, Any]]:
    """Leaves of the rows that documents lie in, of every record of a step: ``record``, ``row``, ``leaf``.

    Raises:
        InputError: the root of a step is not the recorded one.
    """
    rows: dict[int, set[int]] = {}
    steps: dict[int, FedStep] = {}
    for span in spans:
        for fed, row in _fed_rows(run, span):
            rows.setdefault(fed.seq, set()).add(row)
            steps[fed.seq] = fed
    known, found = stored_leaves(run), []
    streams: dict[str, Any] = {}
    for seq, fed in sorted(steps.items()):
        plan = run.plans[fed.segment]
        if plan.plan_id not in streams:
            streams[plan.plan_id] = open_stream(plan, corpora.values())
        batch = streams[plan.plan_id].batch(fed.step)
        leaves = with_stored(leaf_hashes(batch.indices, batch.tokens, batch.buried), known, seq)
        if step_root(leaves) != fed.root:
            raise InputError(
                f"{run.path}: the root of step {fed.step} (record {seq}) is not the one that the corpus gives; nothing "
                "is redacted before that is explained"
            )
        found += [
            {"record": seq, "row": row, "leaf": bytes(leaves[row]).hex()}
            for row in sorted(rows[seq])
            if (seq, row) not in known
        ]
    return found
