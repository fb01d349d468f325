"""``millstream init`` and ``millstream build``: from a folder of files to a sealed corpus."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream import show
from millstream.commands.options import AllowCode, AsJson, CorpusFolder, RecipeFile
from millstream.errors import UsageError
from millstream.mixture.load import load_recipe
from millstream.mixture.native import require_packages
from millstream.places import corpus_folder
from millstream.progress import stages
from millstream.tokenize.manifest import Manifest

if TYPE_CHECKING:
    from millstream.mixture.stats import Dropped


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


def stats(
    recipe_file: RecipeFile,
    documents: Annotated[int, typer.Option(help="Documents to sample from each domain.", min=1)] = 1000,
    domain: Annotated[
        list[str] | None, typer.Option(help="Only this domain; may be repeated.", show_default=False)
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Page to write.")] = Path("stats.html"),
    allow_code: AllowCode = False,
    as_json: AsJson = False,
) -> None:
    """Sample the domains and show what each rule measures and what its limits would drop, to choose them by looking.

    Example: millstream stats recipes/demo.yaml --documents 500 -o stats.html
    """
    # Asked before the imports, which need them.
    require_packages()
    from millstream.html import write_page
    from millstream.mixture.stats import Survey, survey
    from millstream.mixture.stats_page import stats_sections
    from millstream.tokenize.build import check_rules
    from millstream.tokenize.curate import find_inputs

    recipe = load_recipe(recipe_file)
    corpus, base = recipe.corpus, recipe_file.parent
    chosen = [d for d in corpus.domains if not domain or d.name in domain]
    if unknown := sorted(set(domain or ()) - {d.name for d in corpus.domains}):
        raise UsageError(f"the recipe has no domain '{unknown[0]}'; it has {', '.join(d.name for d in corpus.domains)}")
    check_rules(corpus, base, allow_code=allow_code)
    inputs = find_inputs(corpus, base)
    surveys: list[Survey] = []
    with stages() as progress:
        for each in chosen:
            progress("stats", len(surveys), len(chosen))
            surveys.append(survey(corpus, inputs.files, base, each, documents))
        progress("stats", len(surveys), len(chosen))
    write_page(output, f"Statistics of {recipe.name}", stats_sections(surveys))
    if as_json:
        show.json({"recipe": recipe.name, "page": str(output), "domains": surveys})
        return
    for found in surveys:
        rows = [
            (d.rule, d.check, d.field, d.limit, *d.quantiles[1:4], d.dropped / max(1, found.documents), d.in_recipe)
            for d in found.distributions
        ]
        title = f"{found.domain}: {found.documents:,} documents"
        columns = ("rule", "check", "field", "limit", "10%", "median", "90%", "would drop", "in recipe")
        show.table(title, columns, rows)
        if found.chain:
            show.line(f"the recipe's filters keep {found.chain_kept:,} of {found.documents:,}: {_told(found.chain)}")
        if found.offered:
            show.line(f"c4-quality, not in the recipe, would drop {_told(found.offered)}")
    show.line(f"wrote {output}")


def _told(dropped: "Sequence[Dropped]") -> str:
    return ", ".join(f"{each.rule} {each.documents:,}" for each in dropped)


def build(
    recipe_file: RecipeFile,
    corpus: CorpusFolder = None,
    tasks: Annotated[int | None, typer.Option(help="Tasks at once [default: processor cores].", min=1)] = None,
    retrain_tokenizer: Annotated[bool, typer.Option("--retrain-tokenizer", help="Train the tokenizer anew.")] = False,
    allow_code: AllowCode = False,
    explain: Annotated[
        bool, typer.Option("--explain", "--dry-run", help="Say what would be done, do nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Build a corpus: filter, deduplicate, tokenize, write shards. Continues where it was stopped.

    Example: millstream build recipes/demo.yaml --tasks 4
    """
    from millstream.audit.commitments import commit
    from millstream.audit.lookup_index import index_lookups
    from millstream.stream.corpora import Corpus
    from millstream.tokenize.build import build_corpus
    from millstream.tokenize.explain import explain_build

    recipe = load_recipe(recipe_file)
    root = corpus_folder(recipe, corpus)
    if explain:
        todo = explain_build(
            recipe, recipe_file.parent, root, retrain_tokenizer=retrain_tokenizer, allow_code=allow_code
        )
        if as_json:
            show.json(todo)
        else:
            show.table(None, ("stage", "what", "state", "why"), [(t.stage, t.what, t.state, t.why) for t in todo])
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
        commit(root, result.manifest, progress)
        index_lookups(Corpus(root, result.manifest), progress)
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
    app.command()(stats)
    app.command()(build)
