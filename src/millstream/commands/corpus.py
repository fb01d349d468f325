"""``millstream init`` and ``millstream build``: from a folder of files to a sealed corpus."""

import os
from pathlib import Path
from typing import Annotated

import typer

from millstream import show
from millstream.commands.options import AsJson, CorpusFolder, RecipeFile
from millstream.errors import UsageError
from millstream.mixture.load import load_recipe
from millstream.places import corpus_folder
from millstream.progress import stages
from millstream.tokenize.manifest import Manifest


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder with your own files.")] = Path(),
    output: Annotated[Path, typer.Option("--output", "-o", help="Recipe to write.")] = Path("recipe.yaml"),
) -> None:
    """Write a commented recipe for a folder of your own files.

    Example: millstream init my-texts -o my-recipe.yaml
    """
    from millstream.mixture.init import write_starter_recipe

    if output.exists():
        raise UsageError(f"{output}: exists already; choose another name with --output")
    write_starter_recipe(folder, output)
    show.line(f"wrote {output}; next: millstream build {output}")


def build(
    recipe_file: RecipeFile,
    corpus: CorpusFolder = None,
    tasks: Annotated[int | None, typer.Option(help="Tasks at once [default: processor cores].", min=1)] = None,
    retrain_tokenizer: Annotated[bool, typer.Option("--retrain-tokenizer", help="Train the tokenizer anew.")] = False,
    allow_code: Annotated[
        bool, typer.Option("--allow-code", help="Run functions that the recipe's scorers name.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", "--dry-run", help="Say what would be done, do nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Build a corpus: filter, deduplicate, tokenize, write shards. Continues where it was stopped.

    Example: millstream build recipes/demo.yaml --tasks 4
    """
    from millstream.tokenize.build import build_corpus, explain_build

    recipe = load_recipe(recipe_file)
    root = corpus_folder(recipe, corpus)
    if explain:
        todo = explain_build(recipe, recipe_file.parent, root, allow_code=allow_code)
        if as_json:
            show.json(todo)
        else:
            show.table(None, ("stage", "what", "state"), [(t.stage, t.what, t.state) for t in todo])
        return
    with stages() as progress:
        result = build_corpus(
            recipe,
            recipe_file.parent,
            root,
            tasks=tasks or len(os.sched_getaffinity(0)),
            progress=progress,
            retrain_tokenizer=retrain_tokenizer,
            allow_code=allow_code,
        )
    if as_json:
        show.json({"corpus": str(root), "corpus_id": result.manifest.corpus_id, "did_work": result.did_work})
        return
    for warning in result.warnings:
        show.line(f"warning: {warning}")
    if not result.did_work:
        show.line("nothing to do: the corpus is up to date")
    print_corpus(root, result.manifest)


def print_corpus(root: Path, manifest: Manifest) -> None:
    """Show a corpus: documents, tokens and exclusions per domain."""
    show.line(f"corpus {root} · {manifest.corpus_id[:16]} · vocabulary {manifest.tokenizer.vocab_size:,}")
    rows = [
        (
            d.name,
            d.read,
            d.documents,
            d.holdout.document_count if d.holdout else 0,
            sum(d.exclusions.values()),
            d.tokens,
            len(d.shards),
            ", ".join(f"{rule} {n:,}" for rule, n in sorted(d.exclusions.items(), key=lambda item: -item[1])),
        )
        for d in manifest.domains
    ]
    show.table(None, ("domain", "read", "kept", "held out", "excluded", "tokens", "shards", "excluded by"), rows)


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(init)
    app.command()(build)
