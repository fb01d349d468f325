"""``millstream prove``, ``check``, ``sign`` and ``key``: proofs that others check without the data."""

import json
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from millstream import show
from millstream.audit.commitments import commit, record_commitments
from millstream.audit.corpora import open_corpora
from millstream.audit.heads import sign_head
from millstream.audit.ledger import open_ledger
from millstream.audit.lookup import Question, question, question_from_file
from millstream.audit.prove import prove_absent, prove_consistent, prove_included, prove_records
from millstream.audit.runs import open_run
from millstream.audit.signing import key_file, new_key, own_key, read_key
from millstream.audit.verifier import Refused
from millstream.audit.verifier import __file__ as VERIFIER
from millstream.audit.verifier import check as check_proof
from millstream.commands.options import AsJson, CorpusGiven, CorpusPlace, RunName
from millstream.errors import CheckFailed, InputError, UsageError
from millstream.files import write_bytes
from millstream.places import existing_corpus, existing_run
from millstream.progress import stages
from millstream.stream.corpora import open_corpus

app = typer.Typer(help="Prove what a run saw, to people who have none of its data.", no_args_is_help=True)
keys = typer.Typer(help="The key that a run's heads are signed by.", no_args_is_help=True)

Output = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where the proof goes.")]
Text = Annotated[Path | None, typer.Option("--file", help="The document whose text this file holds.")]
Asked = Annotated[str | None, typer.Argument(metavar="KEY|ID|URL", show_default=False)]


@app.command("include")
def include_command(
    run_name: RunName,
    asked: Asked = None,
    file: Text = None,
    step: Annotated[int, typer.Option(help="A step that it was in, as 'audit doc' lists them.")] = 0,
    tokens: Annotated[
        bool,
        typer.Option(help="Show the tokens of the document and of its rows; parts of other documents lie in those."),
    ] = True,
    output: Output = Path("proof.json"),
    corpus: CorpusPlace = None,
    as_json: AsJson = False,
) -> None:
    """That a document was fed to the model at a step.

    Example: millstream prove include demo --file letter.txt --step 120 -o letter.proof.json
    """
    run = open_run(existing_run(run_name))
    wanted = _question(asked, file)
    _write(prove_included(run, open_corpora(run, corpus), wanted, step, tokens=tokens), output, as_json)


@app.command("absent")
def absent_command(
    run_name: RunName,
    key: Annotated[str | None, typer.Argument(metavar="KEY", show_default=False)] = None,
    file: Text = None,
    output: Output = Path("proof.json"),
    corpus: CorpusPlace = None,
    as_json: AsJson = False,
) -> None:
    """That no document of a text is in any corpus that the run reads.

    Example: millstream prove absent demo --file my-novel.txt -o novel.proof.json
    """
    run = open_run(existing_run(run_name))
    wanted = _question(key, file)
    if not isinstance(wanted.value, bytes):
        raise UsageError(f"prove absent: give a key of 64 hex digits, or --file with the text; not '{wanted.value}'")
    _write(prove_absent(run, open_corpora(run, corpus), wanted.value), output, as_json)


@app.command("consistent")
def consistent_command(
    run_name: RunName,
    old: Annotated[Path, typer.Argument(metavar="HEAD", help="An older signed head of the run.", show_default=False)],
    output: Output = Path("proof.json"),
    as_json: AsJson = False,
) -> None:
    """That nothing was rewritten since an older signed head.

    Example: millstream prove consistent demo head-of-may.note -o may.proof.json
    """
    _write(prove_consistent(open_run(existing_run(run_name)), old), output, as_json)


@app.command("record")
def record_command(
    run_name: RunName,
    numbers: Annotated[list[int], typer.Argument(metavar="NUMBER...", help="Records, from 0.", show_default=False)],
    output: Output = Path("proof.json"),
    as_json: AsJson = False,
) -> None:
    """That records stand in the ledger: an amendment, a forecast, a step.

    Example: millstream prove record demo 0 17 -o amendment.proof.json
    """
    _write(prove_records(open_run(existing_run(run_name)), numbers), output, as_json)


@app.command("index")
def index_command(
    corpus: CorpusGiven,
    as_json: AsJson = False,
) -> None:
    """Compute a corpus's roots of documents and keys, where 'build' did not do so.

    Examples: millstream prove index corpora/demo

    millstream prove index s3://bucket/corpora/demo
    """
    opened = open_corpus(existing_corpus(corpus))
    with stages() as progress:
        roots = commit(opened.root, opened.manifest, progress)
    if as_json:
        show.json(roots)
        return
    show.line(f"{roots.documents:,} documents, root {roots.documents_root}")
    show.line(f"{roots.keys:,} keys, root {roots.keys_root}")


def check(
    proof: Annotated[Path | None, typer.Argument(metavar="PROOF", show_default=False)] = None,
    file: Annotated[Path | None, typer.Option("--file", help="The document's text.")] = None,
    key: Annotated[str | None, typer.Option(help="The signer's verifier key, as published.")] = None,
    head: Annotated[Path | None, typer.Option(help="A signed head that you got elsewhere.")] = None,
    verifier: Annotated[
        Path | None, typer.Option(help="Write the stand-alone checker here, for a machine without Millstream.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a proof; needs neither the run nor the data.

    Examples: millstream check proof.json --file my-novel.txt --key 'ann-millstream+0f2e1d3c+AbCd...'

    millstream check --verifier verifier.py
    """
    if verifier is not None:
        write_bytes(verifier, Path(VERIFIER).read_bytes())
        show.line(
            f"wrote {verifier}; it needs Python and the package 'cryptography': python {verifier} PROOF --file TEXT"
        )
    if proof is None:
        if verifier is None:
            raise UsageError("check: give the proof's file")
        return
    try:
        read = json.loads(_read(proof))
        text, note = (_read(path) if path is not None else None for path in (file, head))
    except ValueError as error:
        raise InputError(f"{proof}: not a proof: {error}") from error
    try:
        shown = check_proof(read, text=text, verifier_key=key, head=note)
    except Refused as error:
        raise CheckFailed(f"{proof}: does not hold: {error}") from error
    if as_json:
        show.json({"holds": True, "kind": read["kind"], "shows": shown})
        return
    for sentence in shown:
        show.line(sentence)
    show.line("the proof holds")


def sign(run_name: RunName, corpus: CorpusPlace = None, as_json: AsJson = False) -> None:
    """Sign what a run's ledger holds now. Training does so with each checkpoint and at the end.

    Example: millstream sign demo
    """
    path = existing_run(run_name)
    signer = own_key()
    with open_ledger(path) as ledger:
        run = open_run(path)
        if run.signer is not None and run.signer != signer.verifier_key:
            raise UsageError(f"{path}: its heads are signed by {run.signer}; the key here is {signer.verifier_key}")
        if None in run.corpus_roots.values():
            record_commitments(ledger, run, open_corpora(run, corpus))
        note = sign_head(open_run(path), ledger, signer)
    if as_json:
        show.json({"head": note})
    else:
        show.line(note.rstrip("\n"))


@keys.command("new")
def new_command(
    path: Annotated[Path | None, typer.Argument(metavar="FILE", show_default=False)] = None,
    name: Annotated[str, typer.Option(help="Name that signatures carry; no spaces.")] = "millstream",
    as_json: AsJson = False,
) -> None:
    """Make a signing key.

    Example: millstream key new team.key --name example.org/training
    """
    where = path or key_file()
    signer = new_key(where, name)
    _print_key(where, signer.verifier_key, as_json)


@keys.command("show")
def show_command(
    path: Annotated[Path | None, typer.Argument(metavar="FILE", show_default=False)] = None, as_json: AsJson = False
) -> None:
    """Print the verifier key, to be published.

    Example: millstream key show
    """
    where = path or key_file()
    _print_key(where, read_key(where).verifier_key, as_json)


def _print_key(where: Path, verifier_key: str, as_json: bool) -> None:
    if as_json:
        show.json({"file": str(where), "verifier_key": verifier_key})
    else:
        show.line(verifier_key)


def _question(asked: str | None, file: Path | None) -> Question:
    if (asked is None) == (file is None):
        raise UsageError("give either a key, id or URL, or --file")
    return question_from_file(file) if file is not None else question(asked or "")


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}") from error


def _write(proof: dict[str, Any], output: Path, as_json: bool) -> None:
    data = orjson.dumps(proof, option=orjson.OPT_INDENT_2) + b"\n"
    write_bytes(output, data)
    if as_json:
        show.json({"proof": str(output), "kind": proof["kind"], "bytes": len(data)})
    else:
        show.line(f"wrote {output} ({len(data):,} bytes); check it with: millstream check {output}")
