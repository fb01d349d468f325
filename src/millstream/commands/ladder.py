"""``millstream ladder``: narrower models of a recipe, trained first, that forecast its loss."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from millstream import show
from millstream.commands.options import AsJson, CorpusPlace, RecipeFile
from millstream.commands.train import Accelerators, Hostfile
from millstream.errors import UsageError
from millstream.mixture.load import load_recipe
from millstream.places import corpus_place
from millstream.stream.corpora import open_corpus
from millstream.stream.freeze import freeze_plan
from millstream.stream.reader import check_batches
from millstream.train.forecast.digits import supported
from millstream.train.forecast.next_size import NextSize
from millstream.train.forecast.scaling import ASYMPTOTE, ASYMPTOTES
from millstream.train.ladder.folder import Entry, Ladder, check_rungs, ladder_folder, make_ladder, open_ladder
from millstream.train.ladder.forecasts import LadderForecast, forecast_hero
from millstream.train.ladder.observe import Observed, observe
from millstream.train.ladder.rungs import Rules
from millstream.train.ladder.widths import spread_widths

app = typer.Typer(help="Narrower models of a recipe, trained first, that forecast its loss.", no_args_is_help=True)

LadderFolder = Annotated[
    Path | None,
    typer.Option("--ladder", metavar="DIR", help="Ladder's folder [default: ladders/NAME].", show_default=False),
]
Asymptote = Annotated[
    str,
    typer.Option(
        metavar="SHARE|free",
        help="Fix the loss of an infinite model at this share of the smallest one seen, or fit it.",
    ),
]


class BatchRule(StrEnum):
    """How a rung's batch follows from the hero's."""

    sqrt = "sqrt"
    constant = "constant"


class RateRule(StrEnum):
    """How a rung's learning rate follows from the hero's."""

    tokens_width = "tokens-width"
    width = "width"
    constant = "constant"


@app.command("make")
def make_command(
    recipe_file: RecipeFile,
    rungs: Annotated[int, typer.Option(help="Widths, spread from an eighth to a half of the hero's.", min=2)] = 4,
    widths: Annotated[
        str | None, typer.Option(metavar="W,W,...", help="Exactly these widths (hidden_size) instead.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Seeds that the narrowest is trained with, to see the noise.", min=1)] = 1,
    batch: Annotated[
        BatchRule, typer.Option(help="Batch with the root of the tokens, or the hero's.")
    ] = BatchRule.sqrt,
    rate: Annotated[
        RateRule, typer.Option(help="Learning rate by tokens, width and batch; by 1 / width; or the hero's.")
    ] = RateRule.tokens_width,
    ladder: LadderFolder = None,
    corpus: CorpusPlace = None,
    as_json: AsJson = False,
) -> None:
    """Derive the rungs of a recipe: narrower, else the same, with as many tokens per active parameter.

    Example: millstream ladder make recipes/ladder.yaml --widths 96,128,160,192
    """
    hero = load_recipe(recipe_file)
    if hero.model is None:
        raise UsageError(f"{recipe_file}: has no 'model' section")
    chosen = _widths(widths) if widths else spread_widths(hero.model, rungs)
    place = corpus_place(hero, corpus)
    rules = Rules(widths=tuple(chosen), batch=batch.value, rate=rate.value, seeds=seeds)
    made = make_ladder(ladder_folder(hero, ladder), hero, open_corpus(place), place, rules)
    if as_json:
        show.json({"ladder": str(made.path), "share": made.share, "rungs": made.rungs, "hero": made.hero})
        return
    show.line(f"ladder {made.path}: {len(made.rungs)} rungs, {100 * made.share:.1f}% of the hero's FLOPs")
    columns = (
        "rung",
        "width",
        "active",
        "total",
        "tokens",
        "tokens/active",
        "steps",
        "batch",
        "lr",
        "FLOPs",
        "% of hero",
    )
    show.table(None, columns, [_entry_row(entry, made.hero) for entry in (*made.rungs, made.hero)])


@app.command("run")
def run_command(
    recipe_file: RecipeFile,
    rung: Annotated[str | None, typer.Option(help="Only this rung.")] = None,
    num_accelerators: Accelerators = 1,
    hostfile: Hostfile = None,
    ladder: LadderFolder = None,
    corpus: CorpusPlace = None,
) -> None:
    """Train the rungs one after another, the narrowest first; goes on where it stopped.

    Example: millstream ladder run recipes/ladder.yaml --num_accelerators 2
    """
    from millstream.train.launch import launch

    opened = _open(recipe_file, ladder)
    place = corpus or opened.corpus
    data = open_corpus(place)
    check_rungs(opened, data)
    chosen = [entry for entry in opened.rungs if rung in (None, entry.name)]
    if not chosen:
        raise UsageError(f"{opened.path}: no rung {rung}; it has {', '.join(entry.name for entry in opened.rungs)}")
    for entry in chosen:
        recipe = load_recipe(opened.recipe_file(entry))
        assert recipe.mixture is not None
        if hostfile is None:
            plan = freeze_plan(recipe.mixture, data.manifest, data.root)
            check_batches(plan, num_accelerators, recipe.train.micro_batch)
    for entry in chosen:
        run = opened.run_of(entry)
        if run is not None and run.finished:
            show.line(f"{entry.name}: finished already")
            continue
        show.line(
            f"{entry.name}: {entry.steps} steps, {100 * int(entry.flops) / int(opened.hero.flops):.1f}% of the hero"
        )
        launch(
            opened.recipe_file(entry),
            place,
            opened.run_folder(entry),
            num_accelerators=num_accelerators,
            until=None,
            hostfile=hostfile,
        )


@app.command("status")
def status_command(recipe_file: RecipeFile, ladder: LadderFolder = None, as_json: AsJson = False) -> None:
    """How far each rung is, and its last losses.

    Example: millstream ladder status recipes/ladder.yaml
    """
    opened = _open(recipe_file, ladder)
    rows = [_state(opened, entry) for entry in opened.rungs]
    if as_json:
        show.json({"ladder": str(opened.path), "share": opened.share, "rungs": rows})
        return
    done = sum(row["flops_done"] for row in rows) / sum(int(entry.flops) for entry in opened.rungs)
    show.line(f"ladder {opened.path}: {100 * done:.0f}% of its FLOPs done")
    columns = ("rung", "width", "step", "steps", "loss", "loss_held_out")
    show.table(None, columns, [[row[name] for name in columns] for row in rows])


@app.command("fit")
def fit_command(
    recipe_file: RecipeFile, asymptote: Asymptote = str(ASYMPTOTE), ladder: LadderFolder = None, as_json: AsJson = False
) -> None:
    """Fit the ladder's final losses: exponents with errors, conditioning, and what the asymptote decides.

    Example: millstream ladder fit recipes/ladder.yaml --asymptote free
    """
    opened, observed, forecast = _forecast(recipe_file, ladder, asymptote)
    if as_json:
        show.json({"ladder": str(opened.path), "fits": _fits(observed, forecast)})
        return
    show.line(_about(opened, observed, forecast))
    for name, final in forecast.final.items():
        rows = []
        for which, law in zip(observed.series[name], final.laws, strict=True):
            error = float(law.fit.errors[0])
            level = float(law.fit.errors[1]) if forecast.asymptote is None else 0.0
            rows.append(
                (
                    which[1] or "all",
                    supported(law.asymptote, level) if level else f"{law.asymptote:.3g}",
                    supported(law.exponent, error),
                    f"{100 * law.fit.rms:.2g}",
                    f"{law.fit.condition:.2g}" if law.fit.condition < 1e12 else "not determined",
                )
            )
        show.table(f"{name}, at the end", ("domain", "asymptote", "exponent", "residual %", "condition"), rows)
        titles = [f"E {share:g}" for share in ASYMPTOTES]
        shown = [(w[1] or "all", *c) for w, c in zip(observed.series[name], final.by_asymptote.T.tolist(), strict=True)]
        show.table(f"{name} of the hero, by asymptote as a share of the smallest loss", ("domain", *titles), shown)


@app.command("forecast")
def forecast_command(
    recipe_file: RecipeFile, asymptote: Asymptote = str(ASYMPTOTE), ladder: LadderFolder = None, as_json: AsJson = False
) -> None:
    """Forecast every loss of the hero, at every evaluation and at the end, with 80% bands.

    Example: millstream ladder forecast recipes/ladder.yaml --json
    """
    opened, observed, forecast = _forecast(recipe_file, ladder, asymptote)
    if as_json:
        curves = [
            {"name": c.series[0], "domain": c.series[1]}
            | {part: getattr(c, part).tolist() for part in ("steps", "value", "low", "high")}
            for c in forecast.curves
        ]
        show.json({"ladder": str(opened.path), "held": [forecast.held, forecast.tried], "curves": curves})
        return
    show.line(_about(opened, observed, forecast))
    for name, final in forecast.final.items():
        parts = zip(
            observed.series[name],
            final.value.tolist(),
            final.half.tolist(),
            final.calibration.tolist(),
            final.sensitivity.tolist(),
            final.noise.tolist(),
            strict=True,
        )
        rows = [
            (
                which[1] or "all",
                supported(value, half),
                f"{100 * half / value:.1f}",
                *(f"{100 * p / value:.1f}" for p in of),
            )
            for which, value, half, *of in parts
        ]
        columns = ("domain", "forecast, 80% band", "half-width %", "of it calibration %", "asymptote %", "noise %")
        show.table(f"{name} of the hero at its end, nats a token", columns, rows)
    show.line("register it before the first step: millstream forecast register RECIPE")


def forecast_of(recipe_file: Path, ladder: Path | None, asymptote: str) -> tuple[Ladder, LadderForecast]:
    """A recipe's ladder, and what its finished rungs forecast.

    Raises:
        UsageError: a rung is not finished, or the asymptote is neither a share nor 'free'.
    """
    opened, _, forecast = _forecast(recipe_file, ladder, asymptote)
    return opened, forecast


def _forecast(recipe_file: Path, ladder: Path | None, asymptote: str) -> tuple[Ladder, Observed, LadderForecast]:
    opened = _open(recipe_file, ladder)
    observed = observe(opened, opened.rungs)
    if len(set(observed.size.tolist())) < 2:
        raise UsageError(f"{opened.path}: a forecast needs two widths at least")
    return opened, observed, forecast_hero(observed, opened.hero, _share(asymptote))


def _share(asymptote: str) -> float | None:
    if asymptote == "free":
        return None
    try:
        share = float(asymptote)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise UsageError(f"--asymptote: expected a share from 0 to below 1, or 'free', found '{asymptote}'")
    return share


def _open(recipe_file: Path, ladder: Path | None) -> Ladder:
    hero = load_recipe(recipe_file)
    return open_ladder(ladder_folder(hero, ladder), hero)


def _widths(text: str) -> list[int]:
    try:
        widths = sorted({int(part) for part in text.split(",")})
    except ValueError as error:
        raise UsageError(f"--widths: expected whole numbers such as 64,128,256, found '{text}'") from error
    if len(widths) < 2:
        raise UsageError("--widths: a ladder needs two widths at least")
    return widths


def _entry_row(entry: Entry, hero: Entry) -> tuple[Any, ...]:
    share = int(entry.flops) / int(hero.flops)
    numbers = (entry.width, entry.active, entry.total, entry.tokens, entry.tokens / entry.active, entry.steps)
    return (entry.name, *numbers, entry.batch, entry.lr, f"{int(entry.flops):.2e}", f"{100 * share:.1f}")


def _state(ladder: Ladder, entry: Entry) -> dict[str, Any]:
    from millstream.train.metrics import current, read_metrics

    run = ladder.run_of(entry)
    row: dict[str, Any] = {"rung": entry.name, "width": entry.width, "step": 0, "steps": entry.steps}
    if run is not None:
        table = current(read_metrics(run.path))
        row["step"] = run.last_step
        for name in ("loss", "loss_held_out"):
            values = table.filter((table["name"] == name) & table["domain"].is_null())["value"]
            row[name] = values[-1] if len(values) else None
    return {"loss": None, "loss_held_out": None} | row | {"flops_done": int(entry.flops) * row["step"] / entry.steps}


def _about(ladder: Ladder, observed: Observed, forecast: LadderForecast) -> str:
    sizes = len(set(observed.size.tolist()))
    level = "free" if forecast.asymptote is None else f"{forecast.asymptote:g} of the smallest loss"
    text = f"ladder {ladder.path}: {sizes} sizes to {observed.size.max():,.0f} active parameters, hero "
    text += f"{ladder.hero.active:,}; asymptote {level}; "
    if not forecast.tried:
        return text + "bands are not calibrated: that takes three sizes"
    return text + f"such bands held {forecast.held} of {forecast.tried} final losses of rungs left out"


def _fits(observed: Observed, forecast: LadderForecast) -> list[dict[str, Any]]:
    return [
        _fit(name, which, number, final)
        for name, final in forecast.final.items()
        for number, which in enumerate(observed.series[name])
    ]


def _fit(name: str, which: tuple[str, str | None], number: int, final: NextSize) -> dict[str, Any]:
    law = final.laws[number]
    return {
        "name": name,
        "domain": which[1],
        "asymptote": law.asymptote,
        "exponent": law.exponent,
        "exponent_error": float(law.fit.errors[0]),
        "residual": law.fit.rms,
        "condition": law.fit.condition,
        "value": float(final.value[number]),
        "half": float(final.half[number]),
        "by_asymptote": dict(zip(map(str, ASYMPTOTES), final.by_asymptote[:, number].tolist(), strict=True)),
    }
