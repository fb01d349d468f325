"""``millstream watch``: is a run well, while it trains and after."""

import time
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from millstream import show
from millstream.audit.alerts import identity, raise_alerts
from millstream.audit.corpora import open_corpora
from millstream.audit.ledger import being_written
from millstream.audit.runs import Run, open_run
from millstream.commands.audit import open_run_and_corpora
from millstream.commands.options import AsJson, CorpusPlace, RunName
from millstream.commands.spike import By
from millstream.errors import CheckFailed
from millstream.places import existing_run
from millstream.stream.corpora import Corpora
from millstream.train.ladder.folder import open_ladder
from millstream.train.watch.alarms import Settings
from millstream.train.watch.incident import incident_json, incident_of, write_incident
from millstream.train.watch.tell import check_command, check_url, post, run_command
from millstream.train.watch.watching import Watch, alarms_of, alert_body, bundle_place, idle

Alert = dict[str, Any]
OF_DATA = ("loss", "domain", "grad-norm", "grad-ema", "non-finite")
"""Detectors whose alerts may be the fault of the step's documents."""


def watch_command(
    run_name: RunName,
    live: Annotated[bool, typer.Option("--live", help="Go on until the run is finished or stops.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between looks, with --live.", min=0.1)] = 15.0,
    since: Annotated[int, typer.Option(help="First step that is judged.", min=1)] = 1,
    record: Annotated[bool, typer.Option(help="Write alerts into the run's ledger.")] = True,
    replay: Annotated[int, typer.Option(help="Of the last steps, derive so many again from the corpus.", min=0)] = 0,
    ladder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Ladder whose norms and loads are the envelope.")
    ] = None,
    on_alert: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="Run for every new alert, which it reads as JSON.")
    ] = None,
    webhook: Annotated[str | None, typer.Option(metavar="URL", help="Post every new alert there as JSON.")] = None,
    bundle: Annotated[
        bool, typer.Option("--bundle", help="Gather an incident bundle for steps whose numbers spoke.")
    ] = False,
    corpus: CorpusPlace = None,
    as_json: AsJson = False,
) -> None:
    """Look for trouble in a run: numbers that are unusual, data that was not planned, loaders that stall.

    Exits with 1 where something was found. Needs no process of the run: works while it trains, and afterwards.

    Examples: millstream watch demo

    millstream watch demo --live --on-alert "mail -s 'run in trouble' team@example.org"

    millstream watch demo --replay 8 --no-record --json
    """
    words = check_command(on_alert) if on_alert is not None else None
    url = check_url(webhook) if webhook is not None else None
    path = existing_run(run_name)
    run = open_run(path)
    watch = Watch(
        settings=Settings(),
        corpora=open_corpora(run, corpus) if replay or bundle else None,
        replay=replay,
        ladder=open_ladder(ladder) if ladder is not None else None,
    )
    found: list[Alert] = []
    judged = since
    while True:
        # Asked before the run is read: what it wrote until it let go is then seen.
        training = live and being_written(path)
        run = open_run(path)
        fresh = _look(run, watch, judged, training, record, found)
        found += fresh
        for alert in fresh:
            _tell(run, alert, words, url, as_json and live)
        if bundle and watch.corpora is not None:
            _bundle(open_run(path), watch.corpora, fresh)
        judged = _next_step(run, judged)
        if not live or run.finished or (not training and run.last_step):
            break
        time.sleep(every)
    if as_json and not live:
        show.json({"run": run.name, "step": run.last_step, "steps": run.plan.total_steps, "alerts": found})
    elif not live:
        _print(run, found)
    if found:
        raise CheckFailed(
            f"{run.path}: {len(found)} alert{'s' * (len(found) > 1)}, the first at step {found[0]['step']}"
        )


def _look(run: Run, watch: Watch, judged: int, training: bool, record: bool, before: list[Alert]) -> list[Alert]:
    """Alerts that were not found before."""
    alarms = alarms_of(run, watch, judged)
    if training:
        alarms += idle(run, watch.settings)
    known = {identity(alert) for alert in before}
    bodies = [body for body in (alert_body(run, alarm) for alarm in alarms) if identity(body) not in known]
    if record and bodies:
        raise_alerts(run, bodies)
    return bodies


def _next_step(run: Run, judged: int) -> int:
    """First step that the next look judges: a run that went back is judged from there."""
    newest = run.attempts[-1].checkpoint_step if run.attempts else 0
    return min(max(judged, 1), newest + 1) if run.last_step < judged else run.last_step + 1


def _bundle(run: Run, corpora: Corpora, fresh: list[Alert]) -> None:
    for step in sorted({alert["step"] for alert in fresh if alert["detector"] in OF_DATA}):
        folder = bundle_place(run, step)
        write_incident(incident_of(run, corpora, step), folder)
        typer.echo(f"incident bundle: {folder}", err=True)


def _tell(run: Run, alert: Alert, words: list[str] | None, url: str | None, as_lines: bool) -> None:
    told = {"run": run.name} | alert
    if as_lines:
        print(orjson.dumps(told).decode(), flush=True)
    failures = [run_command(words, told) if words else None, post(url, told) if url else None]
    for failure in failures:
        if failure is not None:
            typer.echo(f"millstream: not told of step {alert['step']}: {show.harmless(failure)}", err=True)


def _print(run: Run, found: list[Alert]) -> None:
    show.line(f"run {run.name}, step {run.last_step} of {run.plan.total_steps}: {len(found) or 'no'} alerts")
    columns = ("step", "detector", "domain", "value", "limit", "text")
    if found:
        show.table(None, columns, [[alert[name] for name in columns] for alert in found])


def incident_command(
    run_name: RunName,
    step: Annotated[int, typer.Argument(help="Step, from 1.", min=1)],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Folder of the bundle [default: RUN/incidents/step-N]."),
    ] = None,
    by: Annotated[By, typer.Option(help="Rank documents by the loss they added, or by their share of it.")] = By.excess,
    documents: Annotated[int, typer.Option(help="Documents to name.", min=1)] = 20,
    corpus: CorpusPlace = None,
    as_json: AsJson = False,
) -> None:
    """Gather what is known of a step that went wrong: documents, mix against plan, the way back.

    Example: millstream incident demo 118
    """
    run, corpora = open_run_and_corpora(run_name, corpus)
    incident = incident_of(run, corpora, step, by.value, documents)
    folder = output if output is not None else bundle_place(run, step)
    write_incident(incident, folder, documents)
    if as_json:
        show.json(incident_json(incident, documents))
        return
    show.line((folder / "incident.md").read_text())
    show.line(f"bundle: {folder}")
