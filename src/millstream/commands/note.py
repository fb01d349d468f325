"""``millstream note``: the engineering log of a run."""

from pathlib import Path
from typing import Annotated

import typer

from millstream import show
from millstream.audit.change import reason
from millstream.audit.notes import papers_of, write_log
from millstream.audit.runs import open_run
from millstream.commands.options import AsJson, RunName
from millstream.errors import UsageError
from millstream.mixture.papers import read_paper
from millstream.places import existing_run


def note(
    run_name: RunName,
    text: Annotated[
        str | None, typer.Argument(help="The note, in Markdown; - reads it from standard input.", show_default=False)
    ] = None,
    paper: Annotated[
        list[str] | None, typer.Option(metavar="NAME=FILE", help="A new version of a paper; may be repeated.")
    ] = None,
    by: Annotated[str | None, typer.Option(help="Who writes [default: the user that is logged in].")] = None,
    as_json: AsJson = False,
) -> None:
    """Write into a run's log, also while it trains; without a text, read it.

    Notes and papers stand in the ledger with author and time, and on the run's page.

    Examples: millstream note demo "Restarted on new nodes; the old ones ran hot."

    millstream note demo "Why clipping was dropped" --paper failed-designs=docs/failed.md

    millstream note demo
    """
    path = existing_run(run_name)
    papers = dict(_paper(given) for given in paper or [])
    if text is None and not papers:
        _print(path, as_json)
        return
    recorded = write_log(path, read_paper(Path("/dev/stdin")) if text == "-" else text, papers, reason("", by).by)
    if as_json:
        show.json({"run": open_run(path).name, "recorded": recorded})
    elif recorded:
        show.line(f"run {open_run(path).name}: recorded")
    else:
        show.line("the run is training: recorded with its next step")


def _paper(given: str) -> tuple[str, str]:
    name, sign, file = given.partition("=")
    if not (name and sign and file):
        raise UsageError(f"--paper {given}: expected NAME=FILE")
    return name, read_paper(Path(file))


def _print(path: Path, as_json: bool) -> None:
    """The log, the oldest first."""
    run = open_run(path)
    papers = [(version.record.body, version) for versions in papers_of(run).values() for version in versions]
    if as_json:
        named = ("name", "title", "version", "sha256", "by", "time")
        notes = [record.body | {"record": record.seq} for record in run.records.of("note")]
        show.json({"notes": notes, "papers": [{n: body.get(n) for n in named} for body, _ in papers]})
        return
    entries = [
        (r.seq, r.body.get("time", ""), r.body.get("by", ""), r.body.get("text", "")) for r in run.records.of("note")
    ]
    entries += [
        (p.record.seq, body["time"], body["by"], f"{p.title}, version {p.version} ({p.name})") for body, p in papers
    ]
    if not entries:
        show.line(f"run {run.name}: nothing was noted")
    else:
        show.table(None, ["record", "time", "by", "text"], sorted(entries))


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(note)
