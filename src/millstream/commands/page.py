"""``millstream page``: the public page of a run."""

from pathlib import Path
from typing import Annotated

import typer

from millstream import show
from millstream.commands.options import AsJson, CorpusPlace, RunName
from millstream.places import existing_run
from millstream.train.page.documents import LIMIT
from millstream.train.page.samples import STEPS


def page(
    run_name: RunName,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the page goes [default: RUN/page].", show_default=False)
    ] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Serve it, and follow the run.")] = False,
    host: Annotated[str, typer.Option(help="With --serve: address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="With --serve: port; 0 takes a free one.", min=0, max=65535)] = 8000,
    every: Annotated[float, typer.Option(help="With --serve: seconds between looks at the run.", min=0.2)] = 15.0,
    documents: Annotated[int, typer.Option(help="Publish no tables of more documents than these.", min=0)] = LIMIT,
    steps: Annotated[int, typer.Option(help="Steps shown from the inside, about.", min=0)] = STEPS,
    ladder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Draw the rungs of this ladder beside the loss.", show_default=False),
    ] = None,
    corpus: CorpusPlace = None,
    as_json: AsJson = False,
) -> None:
    """Write the public page of a run: static files that anybody can read, also straight from the disk.

    Run it again to bring the page up to date; what did not change is left alone.

    Examples: millstream page demo

    millstream page demo --serve

    millstream page demo --out /srv/www/demo --documents 100000
    """
    from millstream.train.page.site import Page, Settings

    path = existing_run(run_name)
    folder = out if out is not None else path / "page"
    made = Page(path, folder, Settings(corpus=corpus, documents=documents, steps=steps, ladder=ladder))
    history = made.update()
    index = folder / "index.html"
    if as_json:
        show.json({"run": history.run.name, "page": str(index), "step": history.last_step})
    else:
        show.line(f"page of run {history.run.name}, step {history.last_step}: {index}")
    if serve:
        from millstream.train.page.serve import serve_page

        serve_page(made, host, port, every, show.line)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(page)
