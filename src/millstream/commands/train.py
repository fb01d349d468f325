"""``millstream train`` and ``millstream run``: launch training, or go the whole way in one command."""

from pathlib import Path
from typing import Annotated

import polars as pl
import typer
import yaml

from millstream import show
from millstream.audit.branches import compare_control, control_run
from millstream.audit.change import reason
from millstream.audit.corpora import open_corpora
from millstream.audit.notes import paper_body
from millstream.audit.runs import Run, is_run, open_run, require_same
from millstream.audit.step import audit_step
from millstream.commands.audit import doc_command, mixture_command, step_command, verify_command
from millstream.commands.corpus import build
from millstream.commands.options import Cache, CacheSize, CorpusFolder, CorpusPlace, RecipeFile, RunFolder
from millstream.commands.plan import required_mixture
from millstream.errors import CheckFailed, RecipeError, UsageError
from millstream.mixture.load import load_recipe
from millstream.mixture.papers import read_papers, without_papers
from millstream.places import corpus_folder, corpus_place, existing_run, run_folder
from millstream.stream.corpora import open_corpus
from millstream.stream.freeze import freeze_plan
from millstream.stream.reader import check_batches
from millstream.stream.remote import StoreSettings
from millstream.tokenize.manifest import check_size, read_manifest
from millstream.train.page.site import Page, Settings

Accelerators = Annotated[int, typer.Option("--num_accelerators", "--ranks", help="Ranks on this machine.", min=1)]
Hostfile = Annotated[Path | None, typer.Option(help="DeepSpeed hostfile, for several machines.")]
Until = Annotated[int | None, typer.Option(help="Stop after this step, with a checkpoint.", min=1)]

LOCAL = StoreSettings()


def train(
    recipe_file: Annotated[
        Path | None, typer.Argument(metavar="RECIPE", help="Recipe file (YAML).", show_default=False)
    ] = None,
    num_accelerators: Accelerators = 1,
    until: Until = None,
    hostfile: Hostfile = None,
    corpus: CorpusPlace = None,
    cache: Cache = None,
    cache_gb: CacheSize = 256,
    run: RunFolder = None,
    control: Annotated[
        str | None, typer.Option(metavar="RUN", help="Repeat steps of this run beside it, and compare.")
    ] = None,
    at: Annotated[
        int | None, typer.Option(help="With --control: step of the checkpoint to begin after.", min=0)
    ] = None,
    steps: Annotated[int, typer.Option(help="With --control: steps to repeat.", min=1)] = 20,
) -> None:
    """Train with the deepspeed launcher. Continues a run from its newest complete checkpoint.

    Examples: millstream train recipes/demo.yaml --num_accelerators 2

    millstream train recipes/demo.yaml --until 50

    millstream train recipes/demo.yaml --corpus s3://bucket/corpora/demo --cache /scratch/mill

    millstream train --control demo --at 100 --steps 20
    """
    if control is not None:
        if recipe_file is not None or run is not None or until is not None or at is None:
            raise UsageError("train --control RUN needs --at STEP, and takes the recipe and the corpus from the run")
        _control(existing_run(control), at, steps, num_accelerators, hostfile)
    elif recipe_file is None:
        raise UsageError("train: name a recipe, for example recipes/demo.yaml")
    else:
        settings = StoreSettings(cache_dir=cache, cache_bytes=cache_gb * 10**9)
        _train(recipe_file, num_accelerators, until, hostfile, corpus, run, settings)


def _train(
    recipe_file: Path,
    num_accelerators: int,
    until: int | None,
    hostfile: Path | None,
    corpus: str | None,
    run: Path | None,
    settings: StoreSettings = LOCAL,
) -> None:
    from millstream.train.launch import launch

    recipe = load_recipe(recipe_file)
    if recipe.model is None:
        raise RecipeError(f"{recipe_file}: has no 'model' section")
    place, run_dir = corpus_place(recipe, corpus), run_folder(recipe, run)
    # Everything that can be refused is refused before any process starts.
    for name, text in read_papers(recipe, recipe_file).items():
        paper_body(name, text)
    opened = open_corpus(place, settings)
    plan = freeze_plan(required_mixture(recipe, recipe_file), opened.manifest, opened.root)
    if hostfile is None:
        check_batches(plan, num_accelerators, recipe.train.micro_batch)
    if is_run(run_dir):
        begun = open_run(run_dir)
        require_same(begun, recipe, plan)
        if begun.finished:
            show.line(f"{run_dir}: finished already, at step {plan.total_steps}")
            return
    cache = ["--cache", str(settings.cache_dir), "--cache-gb", str(settings.cache_bytes // 10**9)]
    launch(
        recipe_file,
        place,
        run_dir,
        num_accelerators=num_accelerators,
        until=until,
        hostfile=hostfile,
        cache=cache if settings.cache_dir else (),
    )
    show.line(
        f"run {run_dir}: step {open_run(run_dir).last_step} of {plan.total_steps}; loss plot {run_dir / 'loss.png'}"
    )


def _control(path: Path, at: int, steps: int, num_accelerators: int, hostfile: Path | None) -> None:
    """Train steps of a run once more from a checkpoint, with the code as it is now, and compare."""
    run = open_run(path)
    last = min(at + steps, run.last_step)
    if last <= at:
        raise UsageError(f"{path}: has no steps after {at} to compare with; it is at step {run.last_step}")
    new = control_run(path, at, reason("control", None).by)
    recipe_file = new / "recipe.yaml"
    recipe_file.write_text(yaml.safe_dump(without_papers(run.recipe).canonical(), sort_keys=False, allow_unicode=True))
    root = next(iter(open_corpora(run).values())).root
    _train(recipe_file, num_accelerators, last, hostfile, str(root), new)
    outcome = compare_control(path, new, at)
    same = "the same code" if outcome["same_code"] else "other code than the run began with"
    show.line(f"control {new}: {outcome['steps']} steps after step {at}, by {same}")
    if outcome.get("redacted"):
        show.line(f"not compared: {outcome['redacted']} more steps, which held documents that are redacted by now")
    show.line(f"roots differ at {outcome['roots']} steps, losses at {outcome['losses']}")
    if outcome["roots"] or outcome["losses"]:
        show.line(
            f"first difference at step {outcome['first_difference']}; losses by {outcome['loss_difference'] / 1e6}"
        )
    if outcome["roots"]:
        raise CheckFailed(f"{path}: the control was fed other data than the run")


def run(
    recipe_file: RecipeFile,
    num_accelerators: Accelerators = 1,
    tasks: Annotated[int | None, typer.Option(help="Build tasks at once [default: processor cores].", min=1)] = None,
    corpus: CorpusFolder = None,
    run: RunFolder = None,
) -> None:
    """Build, train, audit and write the page in one go.

    Example: millstream run recipes/demo.yaml
    """
    recipe = load_recipe(recipe_file)
    _heading("build")
    build(recipe_file, corpus=corpus, tasks=tasks)
    _heading("train")
    _train(recipe_file, num_accelerators, None, None, str(corpus_folder(recipe, corpus)), run)
    corpus_root, run_dir = corpus_folder(recipe, corpus), run_folder(recipe, run)
    _heading("audit")
    verify_command(str(run_dir), corpus=str(corpus_root))
    mixture_command(str(run_dir))
    _three_answers(open_run(run_dir), corpus_root)
    show.line(f"\ncorpus {corpus_root} · run {run_dir} · plot {run_dir / 'loss.png'}")
    Page(run_dir, run_dir / "page", Settings(corpus=str(corpus_root))).update()
    show.line(f"page {run_dir / 'page' / 'index.html'}")


def _three_answers(run: Run, corpus_root: Path) -> None:
    """Ask the run three real questions: a step, a document of that step, a dropped duplicate."""
    step = min(120, run.last_step)
    seen = audit_step(run, open_corpora(run, corpus_root), step).documents
    _question(f"Which documents were seen at step {step}?", f"step {run.path} {step} --row 0")
    step_command(str(run.path), step, row=0, corpus=str(corpus_root))
    doc_id = str(seen.filter(pl.col("row") == 0)["doc_id"][0])
    _question("When was this document seen?", f"doc {run.path} {doc_id}")
    doc_command(str(run.path), doc_id, corpus=str(corpus_root))
    dropped = _a_dropped_document(corpus_root)
    if dropped is not None:
        _question("Why was this document never seen?", f"doc {run.path} {dropped}")
        doc_command(str(run.path), dropped, corpus=str(corpus_root))


def _a_dropped_document(corpus_root: Path) -> str | None:
    """The id of a dropped duplicate, or of any dropped document."""
    entries = read_manifest(corpus_root).exclusions
    frames = [pl.scan_parquet(check_size(corpus_root, e)).select("doc_id", "kept_key") for e in entries]
    if not frames:
        return None
    first = pl.concat(frames).sort(pl.col("kept_key").is_null(), maintain_order=True).head(1).collect()
    return str(first["doc_id"][0]) if len(first) else None


def _question(text: str, command: str) -> None:
    show.line(f"\n{text}  $ millstream audit {command}")


def _heading(text: str) -> None:
    show.console.rule(text, align="left")


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(train)
    app.command()(run)
