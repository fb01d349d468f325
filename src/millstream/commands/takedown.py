"""``millstream takedown``: what a run saw of a document that has to go, and seeing that it is fed no more."""

from pathlib import Path
from typing import Annotated, Any

import typer

from millstream import show
from millstream.audit.certificate import takedown_statement
from millstream.audit.change import reason
from millstream.audit.corpora import open_corpora
from millstream.audit.export_intoto import envelope_of
from millstream.audit.lookup import Question, question, question_from_file
from millstream.audit.redaction import redact_documents
from millstream.audit.runs import open_run
from millstream.audit.signing import own_key
from millstream.audit.takedown import Gone, find_gone, take_down, takedown_report
from millstream.canonical import canonical_bytes
from millstream.commands.change import By, Why
from millstream.commands.options import AsJson, CorpusPlace, RunName
from millstream.errors import UsageError
from millstream.files import write_bytes
from millstream.places import existing_run
from millstream.stream.amend import Span

app = typer.Typer(
    help="Take documents down: what was seen of them, and that they are fed no more.", no_args_is_help=True
)

Documents = Annotated[list[str] | None, typer.Argument(metavar="[KEY|ID|URL]...", show_default=False)]
Texts = Annotated[list[Path] | None, typer.Option("--file", help="A document whose text this file holds.")]


@app.command("plan")
def plan_command(run_name: RunName, asked: Documents = None, file: Texts = None, as_json: AsJson = False) -> None:
    """Exposures so far and still planned, and the last checkpoint before the first one. Changes nothing.

    Example: millstream takedown plan demo --file letter.txt
    """
    run = open_run(existing_run(run_name))
    gone = find_gone(run, open_corpora(run), _questions(asked, file))
    if as_json:
        show.json({"run": run.name, "next_step": run.last_step + 1, "documents": [_as_json(g) for g in gone]})
        return
    for document in gone:
        _print(document)
    show.line(f"can be taken down from step {run.last_step + 1} on: millstream takedown apply {run.path} ... --why WHY")


@app.command("apply")
def apply_command(
    run_name: RunName,
    why: Why,
    asked: Documents = None,
    file: Texts = None,
    from_step: Annotated[int | None, typer.Option("--from", help="First step without [default: the next one].")] = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Feed documents no more from a step on, and record it. Nothing else moves: their tokens become EOS.

    Example: millstream takedown apply demo verse-files:part-0.jsonl:7 --why "request of 3 May"
    """
    path = existing_run(run_name)
    gone = take_down(path, _questions(asked, file), from_step, reason(why, by))
    run = open_run(path)
    if as_json:
        show.json({"run": run.name, "documents": [_as_json(g) for g in gone], "record": run.records[-1].seq})
        return
    for document in gone:
        _print(document)
    show.line(f"taken down from step {run.plan.amendments[-1]['from_step']} on, record {run.records[-1].seq}")


@app.command("redact")
def redact_command(
    run_name: RunName,
    why: Why,
    asked: Documents = None,
    file: Texts = None,
    by: By = None,
    corpus: CorpusPlace = None,
    as_json: AsJson = False,
) -> None:
    """Write over documents in the corpus that were taken down; what was recorded of them still verifies.

    It cannot be undone. By default all that the run has taken down; of every run here that reads the corpus the ledger
    says so.

    Example: millstream takedown redact demo --why "request of 3 May"
    """
    run = open_run(existing_run(run_name))
    corpora = open_corpora(run, corpus)
    if asked or file:
        spans = [document.span for document in find_gone(run, corpora, _questions(asked, file))]
    else:
        spans = [Span(**entry["span"]) for entry in takedown_report(run) if entry["in_force"]]
    if not spans:
        raise UsageError(f"{run.path}: nothing is taken down; millstream takedown apply {run.path} ... --why WHY")
    done = {
        corpus_id: redact_documents(
            run.path, corpora[corpus_id], [s for s in spans if s.corpus_id == corpus_id], reason(why, by)
        )
        for corpus_id in dict.fromkeys(span.corpus_id for span in spans)
    }
    if as_json:
        show.json({"run": run.name, "corpora": done})
        return
    for corpus_id, found in done.items():
        show.line(f"corpus {corpora[corpus_id].root}: {found.documents} redacted in all; {', '.join(found.files)}")
        show.line(f"  recorded in {', '.join(found.runs)}")
        if found.removed:
            show.line(f"  removed for the texts in them: {', '.join(found.removed)}")


@app.command("report")
def report_command(
    run_name: RunName,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", metavar="FILE", help="Write it signed, for those who asked.")
    ] = None,
    corpus: CorpusPlace = None,
    as_json: AsJson = False,
) -> None:
    """Every takedown of a run: since when, why, what was seen before, and that nothing was fed after.

    Examples: millstream takedown report demo --json

    millstream takedown report demo --certificate takedown.intoto.json
    """
    run = open_run(existing_run(run_name))
    reports = takedown_report(run)
    if certificate is not None:
        statement = takedown_statement(run, open_corpora(run, corpus))
        write_bytes(certificate, canonical_bytes(envelope_of(statement, own_key())) + b"\n")
    if as_json:
        show.json({"run": run.name, "run_id": run.run_id, "head": run.records[-1].hash, "takedowns": reports})
        return
    if not reports:
        show.line(f"run {run.name}: nothing was taken down")
    for entry in reports:
        span = entry["span"]
        state = "in force" if entry["in_force"] else "undone"
        state += f" · redacted, record {entry['redaction']}" if entry["redaction"] is not None else ""
        show.line(
            f"{span['domain']} tokens {span['start']:,} to {span['end']:,} · from step {entry['from_step']} · {state}"
        )
        show.line(f"  {entry['why']} · by {entry['by']} · record {entry['record']}, {entry['hash'][:16]}")
        steps = ", ".join(map(str, entry["steps_before"][:20])) or "never"
        show.line(f"  seen before: {entry['seen_before']} (steps {steps}) · after: {entry['fed_or_planned_after']}")
    if certificate is not None:
        show.line(f"signed certificate: {certificate}")


def _questions(asked: list[str] | None, files: list[Path] | None) -> list[Question]:
    found = [question(text) for text in asked or []] + [question_from_file(path) for path in files or []]
    if not found:
        raise UsageError("takedown: name documents by key, id or URL, or with --file")
    return found


def _as_json(document: Gone) -> dict[str, Any]:
    return {
        "doc_key": document.doc_key,
        "doc_id": document.doc_id,
        "span": document.span,
        "learned": document.count("learned"),
        "superseded": document.count("superseded"),
        "planned": document.count("planned"),
        "steps": sorted({e.step for e in document.exposures if e.status == "learned"}),
        "clean_checkpoint": document.clean_checkpoint,
    }


def _print(document: Gone) -> None:
    span = document.span
    show.line(f"{document.doc_id} · {span.domain} tokens {span.start:,} to {span.end:,} · key {document.doc_key[:16]}")
    learned = sorted({e.step for e in document.exposures if e.status == "learned"})
    steps = f" at steps {', '.join(map(str, learned[:20]))}" if learned else ""
    show.line(f"  learned {document.count('learned')} times{steps}; superseded {document.count('superseded')}")
    clean = f"last checkpoint without it: step {document.clean_checkpoint}"
    show.line(f"  {document.count('planned')} more times planned; {clean}")
