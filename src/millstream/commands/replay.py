"""``millstream audit replay``: a step as it was fed, derived again from plan and corpus."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from millstream import show
from millstream.audit.replay import replay
from millstream.commands.audit import open_run_and_corpora
from millstream.commands.options import AsJson, CorpusPlace, RunName
from millstream.errors import CheckFailed, UsageError
from millstream.files import replacing
from millstream.stream.reader import open_stream


def replay_command(
    run_name: RunName,
    step: Annotated[int, typer.Argument(help="Step, from 1.")],
    last: Annotated[int | None, typer.Option(help="All steps up to this one.")] = None,
    attempt: Annotated[
        int | None, typer.Option(help="As this attempt fed it, where the plan was changed since.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 where a root is not the ledger's.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the step's tokens (.npy).")
    ] = None,
    corpus: CorpusPlace = None,
    as_json: AsJson = False,
) -> None:
    """Derive what a step was fed from plan and corpus once more, and compare its root with the ledger's.

    Examples: millstream audit replay demo 120 --check

    millstream audit replay demo 1 --last 200 --check

    millstream audit replay demo 120 -o step-120.npy
    """
    run, corpora = open_run_and_corpora(run_name, corpus)
    steps = range(step, (step if last is None else last) + 1)
    records = [fed for n in steps for fed in run.fed.get(n, []) if attempt in (None, fed.attempt)]
    if not records or (output is not None and len(steps) > 1):
        where = f" by attempt {attempt}" if attempt is not None else ""
        raise UsageError(
            f"{run.path}: step {step} was not fed{where}; the run is at step {run.last_step}"
            if not records
            else "audit replay: --output takes one step, not --last"
        )
    replayed = list(replay(run, corpora, records))
    if output is not None:
        with replacing(output) as temporary, temporary.open("wb") as file:
            np.save(file, open_stream(run.plans[records[-1].segment], corpora.values()).batch(step).tokens)
    if as_json:
        answers = [{"record": r.fed, "derived": r.root, "equal": r.equal} for r in replayed]
        show.json({"run": run.name, "steps": answers})
    else:
        for r in replayed:
            state = "superseded" if run.superseded(r.fed) else "in the lineage"
            found = f"root {r.root}" if r.equal else f"root {r.fed.root} in the ledger, {r.root} derived"
            show.line(
                f"{'ok' if r.equal else 'FAILED':<7} step {r.fed.step} · attempt {r.fed.attempt} · {state} · {found}"
            )
        if output is not None:
            show.line(f"wrote {output}: {records[-1].sequences} sequences of {run.plan.seq_len + 1} tokens")
    wrong = [r.fed.step for r in replayed if not r.equal]
    if check and wrong:
        raise CheckFailed(f"{run.path}: {len(wrong)} of {len(replayed)} roots differ, the first at step {wrong[0]}")


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("replay")(replay_command)
