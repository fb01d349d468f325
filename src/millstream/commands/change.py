"""``millstream amend``, ``rollback`` and ``branch``: changing the course of a run, on the record."""

from pathlib import Path
from typing import Annotated, Any

import typer

from millstream import show
from millstream.audit.branches import branch_run
from millstream.audit.change import amend_run, amended_plan, new_data, reason, roll_back
from millstream.audit.runs import Run, open_run
from millstream.commands.options import AsJson, RunName
from millstream.errors import UsageError
from millstream.places import existing_run
from millstream.stream.amend import Amendment, amendment_to_json
from millstream.stream.plan import Plan
from millstream.stream.summary import phase_table

Why = Annotated[str, typer.Option(help="Why; it stands in the ledger.", show_default=False)]
By = Annotated[str | None, typer.Option(help="Who changes it [default: the user that is logged in].")]


def amend(
    run_name: RunName,
    why: Why,
    from_step: Annotated[
        int | None, typer.Option("--from", help="First step that is affected [default: the next one].", min=1)
    ] = None,
    weight: Annotated[
        list[str] | None,
        typer.Option(help="DOMAIN=SHARE or DOMAIN==SEQUENCES; once a domain, the others get nothing.", metavar="W"),
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences a step.", min=1)] = None,
    skip: Annotated[int, typer.Option(help="Steps whose sequences are passed over.", min=0)] = 0,
    data: Annotated[
        list[str] | None, typer.Option(help="DOMAIN=CORPUS: a new domain, or how one goes on.", metavar="D")
    ] = None,
    by: By = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Change the mixture, the batch or the data of a run from a step on, or skip steps.

    Cursors are carried: no document is repeated before its domain is used up. The run must not be training.

    Examples: millstream amend demo --from 121 --weight plays=0.4 --weight code=0.6 --why "more plays"

    millstream amend demo --skip 3 --why "loss spike at step 118"

    millstream amend demo --data wiki=corpora/wiki-2 --weight wiki=0.3 --weight plays=0.7 --why "new dump" --dry-run
    """
    path = existing_run(run_name)
    run = open_run(path)
    weights = _pairs(weight or [], "--weight", "DOMAIN=SHARE")
    held, corpora = new_data(run, _pairs(data or [], "--data", "DOMAIN=CORPUS"))
    amendment = Amendment(
        from_step=from_step if from_step is not None else run.last_step + 1,
        weights=weights or None,
        batch=batch,
        skip=skip,
        data=held,
    )
    before = run.plan
    after = amended_plan(run, amendment, corpora) if dry_run else amend_run(path, amendment, reason(why, by), corpora)
    if as_json:
        show.json(
            {
                "run": run.name,
                "amendment": amendment_to_json(amendment),
                "written": not dry_run,
                "steps": [before.total_steps, after.total_steps],
                "plan_id": after.plan_id,
                "phases": phase_table(after).to_dicts(),
            }
        )
        return
    _print_amended(run, before, after, amendment, dry_run)


def rollback(
    run_name: RunName,
    to_step: Annotated[int, typer.Option("--to", help="Step of the checkpoint to go on from; 0 begins again.", min=0)],
    why: Why,
    by: By = None,
    undo: Annotated[bool, typer.Option("--undo", help="Also undo the amendments that begin after that step.")] = False,
    as_json: AsJson = False,
) -> None:
    """Let a run go on from an earlier checkpoint. What was trained since stays on record, as superseded.

    Examples: millstream rollback demo --to 100 --why "diverged at step 112"

    millstream rollback demo --to 100 --undo --why "back to the old mixture"
    """
    path = existing_run(run_name)
    before = open_run(path)
    roll_back(path, to_step, reason(why, by), undo=undo)
    after = open_run(path)
    still = [a for a in after.plan.amendments if int(a["from_step"]) > to_step]
    if as_json:
        show.json({"run": after.name, "to_step": to_step, "superseded": before.last_step - to_step, "holds": still})
        return
    show.line(f"run {after.name}: goes on after step {to_step}; {before.last_step - to_step} steps are superseded")
    for amendment in still:
        show.line(f"the amendment of step {amendment['from_step']} still holds ({_said(amendment)}); --undo drops it")
    show.line(f"continue with: millstream train RECIPE --run {path}")


def branch(
    run_name: RunName,
    name: Annotated[str, typer.Argument(metavar="NEW", help="The branch's name beside the run, or its folder.")],
    at: Annotated[int, typer.Option(help="Step of the checkpoint to leave from; 0 begins anew.", min=0)],
    why: Why,
    by: By = None,
    accept: Annotated[bool, typer.Option("--accept", help="Leave from a control run.")] = False,
    as_json: AsJson = False,
) -> None:
    """Begin another course from a checkpoint, in a run of its own whose ledger goes on from the same records.

    Example: millstream branch demo cooldown --at 120 --why "early annealing"
    """
    path = existing_run(run_name)
    new = Path(name) if "/" in name else path.parent / name
    branch_run(path, new, at, reason(why, by), accept=accept)
    run = open_run(new)
    if as_json:
        show.json({"run": run.name, "folder": str(new), "at": at, "of": run.run_id})
        return
    show.line(f"branch {run.name}: {new}, after step {at} of {run.plan.total_steps}")
    show.line(f"amend it or train it: millstream train RECIPE --run {new}")


def _pairs(given: list[str], option: str, form: str) -> dict[str, str]:
    pairs = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not (name and sign and value):
            raise UsageError(f"{option} {text}: expected {form}")
        if name in pairs:
            raise UsageError(f"{option}: names '{name}' twice")
        pairs[name] = value
    return pairs


def _said(amendment: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in amendment.items() if name != "from_step")


def _print_amended(run: Run, before: Plan, after: Plan, amendment: Amendment, dry_run: bool) -> None:
    verb = "would change" if dry_run else "changes"
    show.line(f"run {run.name}: {verb} from step {amendment.from_step} on ({_said(amendment_to_json(amendment))})")
    show.line(f"steps {before.total_steps} -> {after.total_steps}; plan {before.plan_id[:16]} -> {after.plan_id[:16]}")
    table = phase_table(after)
    show.table(None, table.columns, table.rows())


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(amend)
    app.command()(rollback)
    app.command()(branch)
