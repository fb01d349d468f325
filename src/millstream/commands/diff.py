"""``millstream audit diff``: two runs side by side."""

from collections.abc import Sequence
from typing import Annotated, Any

import orjson
import typer

from millstream import show
from millstream.audit.diff import Difference, RunDiff, audit_diff
from millstream.audit.runs import open_run
from millstream.commands.options import AsJson
from millstream.places import existing_run

SHOWN = 20


def diff_command(
    run_a: Annotated[str, typer.Argument(metavar="RUN_A", help="Run folder or name.", show_default=False)],
    run_b: Annotated[str, typer.Argument(metavar="RUN_B", help="Another one.", show_default=False)],
    everything: Annotated[
        bool, typer.Option("--all", help=f"Every difference, not the first {SHOWN} of a part.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """What two runs have in common, and the first step at which they were fed or lost something else.

    Example: millstream audit diff demo demo-2
    """
    found = audit_diff(open_run(existing_run(run_a)), open_run(existing_run(run_b)))
    if as_json:
        show.json(found)
        return
    show.line(f"a: run {found.a}, at step {found.fed.last[0]} · b: run {found.b}, at step {found.fed.last[1]}")
    if found.shared_records:
        show.line(f"the first {found.shared_records:,} records of both ledgers are the same")
    most = None if everything else SHOWN
    for part in ("recipe", "plan", "segments", "corpora", "code"):
        _print_part(part, getattr(found, part), most)
    _print_fed(found)


def _print_part(part: str, found: Sequence[Difference], most: int | None) -> None:
    if not found:
        show.line(f"{part}: the same")
        return
    show.table(
        f"{part}: {len(found)} differ", ("where", "a", "b"), [(d.where, _text(d.a), _text(d.b)) for d in found[:most]]
    )
    if most is not None and len(found) > most:
        show.line(f"... and {len(found) - most} more (--all)")


def _print_fed(found: RunDiff) -> None:
    fed = found.fed
    show.line(f"steps that both learned: {fed.common:,}")
    if not fed.common:
        return
    for name, count, first in (
        ("data fed", fed.roots, fed.first_root),
        ("updates", fed.updates, fed.first_update),
        ("losses", fed.losses, fed.first_loss),
    ):
        show.line(f"{name}: " + (f"{count:,} differ, first at step {first}" if count else "the same"))
    if fed.largest_at is not None:
        show.line(f"losses differ by at most {fed.largest / 1e6:.6f}, at step {fed.largest_at}")


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return text if len(text) <= 200 else text[:200] + "…"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("diff")(diff_command)
