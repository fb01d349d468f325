"""``millstream train`` and ``millstream run``: launch training, or go the whole way in one command."""

from pathlib import Path
from typing import Annotated

import polars as pl
import typer

from millstream import show
from millstream.audit.corpora import open_corpora
from millstream.audit.runs import Run, is_run, open_run, require_same
from millstream.audit.step import audit_step
from millstream.commands.audit import doc_command, mixture_command, step_command, verify_command
from millstream.commands.corpus import build
from millstream.commands.options import CorpusFolder, RecipeFile, RunFolder
from millstream.commands.plan import required_mixture
from millstream.errors import RecipeError
from millstream.mixture.load import load_recipe
from millstream.places import corpus_folder, run_folder
from millstream.stream.freeze import freeze_plan
from millstream.stream.reader import check_batches
from millstream.tokenize.manifest import check_size, read_manifest

Accelerators = Annotated[int, typer.Option("--num_accelerators", "--ranks", help="Ranks on this machine.", min=1)]
Until = Annotated[int | None, typer.Option(help="Stop after this step, with a checkpoint.", min=1)]


def train(
    recipe_file: RecipeFile,
    num_accelerators: Accelerators = 1,
    until: Until = None,
    hostfile: Annotated[Path | None, typer.Option(help="DeepSpeed hostfile, for several machines.")] = None,
    corpus: CorpusFolder = None,
    run: RunFolder = None,
) -> None:
    """Train with the deepspeed launcher. Continues a run from its newest complete checkpoint.

    Examples: millstream train recipes/demo.yaml --num_accelerators 2

    millstream train recipes/demo.yaml --until 50
    """
    from millstream.train.launch import launch

    recipe = load_recipe(recipe_file)
    if recipe.model is None:
        raise RecipeError(f"{recipe_file}: has no 'model' section")
    corpus_root, run_dir = corpus_folder(recipe, corpus), run_folder(recipe, run)
    # Everything that can be refused is refused before any process starts.
    plan = freeze_plan(required_mixture(recipe, recipe_file), read_manifest(corpus_root), corpus_root)
    if hostfile is None:
        check_batches(plan, num_accelerators, recipe.train.micro_batch)
    if is_run(run_dir):
        begun = open_run(run_dir)
        require_same(begun, recipe, plan)
        if begun.finished:
            show.line(f"{run_dir}: finished already, at step {plan.total_steps}")
            return
    launch(recipe_file, corpus_root, run_dir, num_accelerators=num_accelerators, until=until, hostfile=hostfile)
    show.line(
        f"run {run_dir}: step {open_run(run_dir).last_step} of {plan.total_steps}; loss plot {run_dir / 'loss.png'}"
    )


def run(
    recipe_file: RecipeFile,
    num_accelerators: Accelerators = 1,
    tasks: Annotated[int | None, typer.Option(help="Build tasks at once [default: processor cores].", min=1)] = None,
    corpus: CorpusFolder = None,
    run: RunFolder = None,
) -> None:
    """Build, train and audit in one go.

    Example: millstream run recipes/demo.yaml
    """
    recipe = load_recipe(recipe_file)
    _heading("build")
    build(recipe_file, corpus=corpus, tasks=tasks)
    _heading("train")
    train(recipe_file, num_accelerators=num_accelerators, corpus=corpus, run=run)
    corpus_root, run_dir = corpus_folder(recipe, corpus), run_folder(recipe, run)
    _heading("audit")
    verify_command(str(run_dir), corpus=str(corpus_root))
    mixture_command(str(run_dir))
    _three_answers(open_run(run_dir), corpus_root)
    show.line(f"\ncorpus {corpus_root} · run {run_dir} · plot {run_dir / 'loss.png'}")


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
