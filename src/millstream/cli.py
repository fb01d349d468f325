"""The command line: assembles the commands and is the one place that turns errors into exit codes.

Exit 0: done. 1: a finding or a failed check. 2: wrong use. 3: bad input or environment.
"""

import os
import sys
import traceback
from typing import NoReturn

import typer

from millstream.commands import (
    audit,
    change,
    corpus,
    diff,
    export,
    forecast,
    generate,
    ladder,
    machine,
    note,
    page,
    plan,
    prove,
    replay,
    search,
    spike,
    takedown,
    train,
    watch,
)
from millstream.errors import MillstreamError
from millstream.files import FULL_OR_FORBIDDEN

app = typer.Typer(
    name="millstream",
    help="Recipes in, trained models out, with proof of what went in.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for commands in (corpus, plan, train, generate, page, note, change, machine):
    commands.add_to(app)
for commands in (diff, replay, search, spike):
    commands.add_to(audit.app)
app.add_typer(audit.app, name="audit")
app.add_typer(takedown.app, name="takedown")
app.add_typer(export.app, name="export")
app.add_typer(ladder.app, name="ladder")
app.add_typer(forecast.app, name="forecast")
app.add_typer(prove.app, name="prove")
app.add_typer(prove.keys, name="key")
app.command("watch")(watch.watch_command)
app.command("incident")(watch.incident_command)
app.command()(prove.check)
app.command()(prove.sign)


@app.command()
def version() -> None:
    """Print the version."""
    from millstream import __version__

    typer.echo(__version__)


def main() -> None:
    """Run the command line; every error a user can act on becomes one line on stderr."""
    try:
        app()
    except MillstreamError as error:
        _fail(str(error), error, error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output went away (`| head`); nothing more can be said to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        if error.errno not in FULL_OR_FORBIDDEN:
            _unexpected(error)
        _fail(f"{error.filename or 'a file'}: cannot be written: {error.strerror}", error, 3)
    except Exception as error:
        _unexpected(error)


def _unexpected(error: Exception) -> NoReturn:
    _fail(f"unexpected {type(error).__name__}: {error} (MILLSTREAM_DEBUG=1 shows where; please report it)", error, 3)


def _fail(message: str, error: BaseException, code: int) -> NoReturn:
    if os.environ.get("MILLSTREAM_DEBUG"):
        traceback.print_exception(error)
    line = " ".join(message.split("\n"))
    print(f"millstream: {line}", file=sys.stderr)
    sys.exit(code)
