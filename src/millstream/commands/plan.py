"""``millstream plan``: what a recipe will cost and mix, before anything is spent."""

from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
import yaml

from millstream import show
from millstream.commands.options import AsJson, CorpusPlace, RecipeFile
from millstream.errors import RecipeError
from millstream.files import write_bytes
from millstream.mixture.load import load_recipe
from millstream.mixture.recipe import Mixture, Recipe
from millstream.places import corpus_folder
from millstream.stream.freeze import freeze_plan
from millstream.stream.plan import Plan
from millstream.stream.roots import open_root, read_corpus
from millstream.stream.summary import closest_repeat, coarse_domains, phase_table
from millstream.train.size import memory_per_rank, model_size, train_flops


def plan(
    recipe_file: RecipeFile,
    corpus: CorpusPlace = None,
    ranks: Annotated[int, typer.Option(help="Ranks to plan memory for.", min=1)] = 1,
    show_recipe: Annotated[bool, typer.Option("--show-recipe", help="Print the recipe with every default.")] = False,
    schema: Annotated[Path | None, typer.Option(help="Write the recipe's JSON Schema, for editors, and stop.")] = None,
    as_json: AsJson = False,
) -> None:
    """Tokens, steps and epochs per domain and phase, parameters, FLOPs, memory. Refuses what cannot work.

    Examples: millstream plan recipes/demo.yaml --ranks 2

    millstream plan recipes/demo.yaml --show-recipe
    """
    if schema is not None:
        write_bytes(schema, orjson.dumps(Recipe.model_json_schema(), option=orjson.OPT_INDENT_2) + b"\n")
        show.line(f"wrote {schema}")
        return
    recipe = load_recipe(recipe_file)
    if show_recipe:
        text = yaml.safe_dump(recipe.canonical(), sort_keys=False, allow_unicode=True, width=100)
        show.json(recipe.canonical()) if as_json else show.line(text.rstrip())
        return
    mixture = required_mixture(recipe, recipe_file)
    root = open_root(corpus) if corpus else corpus_folder(recipe, None)
    manifest = read_corpus(root)
    frozen = freeze_plan(mixture, manifest, root)
    vocab = manifest.tokenizer.vocab_size
    facts = _facts(recipe, frozen, vocab, ranks)
    phases = phase_table(frozen)
    if as_json:
        show.json({"plan_id": frozen.plan_id, "facts": facts, "phases": phases.to_dicts()})
        return
    show.table(None, ("", ""), facts.items())
    show.table(None, phases.columns, phases.rows())
    for name in frozen.domains:
        if (distance := closest_repeat(frozen, name)) is not None:
            show.line(f"{name}: repeated tokens lie at least {distance:,} of its sequences apart")
    for warning in coarse_domains(frozen):
        show.line(f"warning: {warning}")


def required_mixture(recipe: Recipe, recipe_file: Path) -> Mixture:
    """The recipe's mixture.

    Raises:
        RecipeError: it has none.
    """
    if recipe.mixture is None:
        raise RecipeError(f"{recipe_file}: has no 'mixture' section; it says how much of each domain is seen when")
    return recipe.mixture


def _facts(recipe: Recipe, plan: Plan, vocab: int, ranks: int) -> dict[str, Any]:
    tokens = plan.total_sequences * plan.seq_len
    facts: dict[str, Any] = {
        "plan": plan.plan_id[:16],
        "steps": plan.total_steps,
        "sequences": plan.total_sequences,
        "tokens": tokens,
    }
    if recipe.model is not None:
        size = model_size(recipe.model, vocab)
        memory = memory_per_rank(recipe.model, vocab, recipe.train, ranks, plan.seq_len)
        facts |= {
            "parameters": size.total,
            "active parameters": size.active,
            "training FLOPs": f"{train_flops(recipe.model, vocab, plan.seq_len, tokens):.3e}",
            **{f"memory per rank: {kind}": f"{amount / 2**20:,.0f} MiB" for kind, amount in memory.items()},
        }
    return facts


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(plan)
