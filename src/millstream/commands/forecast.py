"""``millstream forecast``: a ladder's forecast in the run's ledger before it begins, and its score."""

from typing import Annotated

import polars as pl
import typer

from millstream import show
from millstream.audit.change import reason
from millstream.audit.runs import is_run, open_run
from millstream.commands.ladder import Asymptote, LadderFolder, forecast_of
from millstream.commands.options import AsJson, RecipeFile, RunFolder, RunName
from millstream.errors import UsageError
from millstream.mixture.load import load_recipe
from millstream.places import existing_run, run_folder
from millstream.stream.corpora import open_corpus
from millstream.stream.freeze import freeze_plan
from millstream.train.forecast.scaling import ASYMPTOTE
from millstream.train.ladder.registered import Score, record_score, register, registered, score

app = typer.Typer(help="A forecast in a run's ledger before it begins, and its score.", no_args_is_help=True)


@app.command("register")
def register_command(
    recipe_file: RecipeFile,
    asymptote: Asymptote = str(ASYMPTOTE),
    ladder: LadderFolder = None,
    run: RunFolder = None,
    by: Annotated[str | None, typer.Option(help="Who says so [default: the user].")] = None,
) -> None:
    """Write the ladder's forecast into the ledger of the run, which it begins. Refused once a step was fed.

    Example: millstream forecast register recipes/ladder.yaml
    """
    hero = load_recipe(recipe_file)
    opened, made = forecast_of(recipe_file, ladder, asymptote)
    folder = run_folder(hero, run)
    if not is_run(folder):
        from millstream.train.begin import begin_run

        corpus = open_corpus(opened.corpus)
        assert hero.mixture is not None
        begin_run(folder, hero, freeze_plan(hero.mixture, corpus.manifest, corpus.root), corpus)
    record = register(open_run(folder), opened, made, reason("forecast", by).by)
    show.line(f"run {folder}: forecast registered as record {record.seq}, {record.hash[:16]}; now train it")


@app.command("score")
def score_command(
    run_name: RunName,
    record: Annotated[bool, typer.Option("--record", help="Write a finished run's score into its ledger.")] = False,
    all_points: Annotated[bool, typer.Option("--all", help="Every point, not the last of each loss.")] = False,
    as_json: AsJson = False,
) -> None:
    """The registered forecast against what the run has measured so far: errors, points inside the band, pinball loss.

    Example: millstream forecast score ladder --record
    """
    run = open_run(existing_run(run_name))
    forecast = registered(run)
    if forecast is None:
        raise UsageError(f"{run.path}: holds no forecast; one is registered before the first step")
    result = score(run, forecast)
    written = record_score(run, forecast) if record else None
    if as_json:
        about = {"run": run.name, "forecast": forecast.record.hash, "complete": result.complete}
        show.json(about | result.summary() | {"points": (result.points if all_points else result.finals).to_dicts()})
        return
    _print(result, run.name, all_points)
    if written is not None:
        show.line(f"recorded as {written.seq}, {written.hash[:16]}")


def _print(result: Score, name: str, all_points: bool) -> None:
    summary = result.summary()
    if not summary["points"]:
        show.line(f"run {name}: has measured nothing of what was forecast yet")
        return
    state = "finished" if result.complete else "so far"
    show.line(
        f"run {name}, {state}: {summary['inside']} of {summary['points']} points inside the band, "
        f"{summary['finals_inside']} of {summary['finals']} last ones"
    )
    shown = (result.points if all_points else result.finals).select(
        "name",
        pl.col("domain").fill_null("all"),
        "step",
        "forecast",
        "low",
        "high",
        "measured",
        (pl.col("error") * 100).alias("error %"),
        "inside",
        (pl.col("pinball") * 1000).alias("pinball /1000"),
    )
    show.table(None, shown.columns, shown.rows())
