"""``millstream plan``: what a recipe will cost and mix, before anything is spent."""

from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
import yaml

from millstream import show
from millstream.commands.options import AsJson, CorpusPlace, RecipeFile
from millstream.commands.plan_table import cost_rows
from millstream.errors import InputError, RecipeError, UsageError
from millstream.files import write_bytes
from millstream.mixture.load import load_recipe, parse_recipe
from millstream.mixture.recipe import Mixture, Recipe, TokenizerFile
from millstream.places import corpus_folder
from millstream.stream.freeze import freeze_plan
from millstream.stream.plan import Plan
from millstream.stream.preview import preview_plan
from millstream.stream.roots import open_root, read_corpus
from millstream.stream.summary import closest_repeat, coarse_domains, phase_table
from millstream.tokenize.manifest import MANIFEST
from millstream.train.budget import Job, costs, layout_problems, layout_warnings, memory_problem

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="FIELD=VALUE", help="Plan with another value, such as train.zero_stage=1; repeatable."
    ),
]


def plan(
    recipe_file: RecipeFile,
    corpus: CorpusPlace = None,
    ranks: Annotated[
        int | None,
        typer.Option(help="Ranks to plan for [default: the recipe's cluster, or 1].", min=1, show_default=False),
    ] = None,
    mfu: Annotated[
        float | None,
        typer.Option(
            help="Share of the peak FLOPs to plan for [default: the recipe's].", min=0, max=1, show_default=False
        ),
    ] = None,
    changes: Set = None,
    show_recipe: Annotated[bool, typer.Option("--show-recipe", help="Print the recipe with every default.")] = False,
    schema: Annotated[Path | None, typer.Option(help="Write the recipe's JSON Schema, for editors, and stop.")] = None,
    as_json: AsJson = False,
) -> None:
    """Tokens, steps and epochs per domain and phase, parameters, FLOPs, memory, time. Refuses what cannot work.

    Needs the recipe alone; epochs and repeats are planned where the corpus is built.

    Examples: millstream plan recipes/demo.yaml --ranks 2

    millstream plan recipes/marin-535b-a23b.yaml --ranks 64 --set train.zero_stage=1

    millstream plan recipes/demo.yaml --show-recipe
    """
    if schema is not None:
        write_bytes(schema, orjson.dumps(Recipe.model_json_schema(), option=orjson.OPT_INDENT_2) + b"\n")
        show.line(f"wrote {schema}")
        return
    recipe = changed_recipe(load_recipe(recipe_file), changes or [])
    if show_recipe:
        text = yaml.safe_dump(recipe.canonical(), sort_keys=False, allow_unicode=True, width=100)
        show.json(recipe.canonical()) if as_json else show.line(text.rstrip())
        return
    mixture = required_mixture(recipe, recipe_file)
    root = open_root(corpus) if corpus else corpus_folder(recipe, None)
    built = not isinstance(root, Path) or corpus is not None or (root / MANIFEST).is_file()
    if built:
        manifest = read_corpus(root)
        frozen, vocab = freeze_plan(mixture, manifest, root), manifest.tokenizer.vocab_size
    else:
        frozen, vocab = preview_plan(mixture, recipe.corpus), 0
    facts, problems, warnings = _facts(frozen), [], []
    if recipe.model is not None:
        job = Job(
            model=recipe.model,
            train=recipe.train,
            vocab_size=vocab or vocabulary(recipe, recipe_file.parent),
            seq_len=frozen.seq_len,
            batch=max(phase.batch for phase in frozen.phases),
            ranks=ranks or (recipe.cluster.ranks if recipe.cluster else 1),
        )
        problems, warnings = layout_problems(job, recipe.cluster), layout_warnings(job, recipe.cluster)
        if not problems:
            facts |= costs(job, recipe.cluster, mfu, frozen.total_steps, facts["tokens"])
            if recipe.cluster is not None and (problem := memory_problem(job, recipe.cluster)):
                problems.append(problem)
    phases = phase_table(frozen) if built else phase_table(frozen).drop("epochs")
    warnings += coarse_domains(frozen)
    if as_json:
        shown = {"plan_id": frozen.plan_id if built else None, "corpus": str(root) if built else None, "facts": facts}
        show.json(shown | {"phases": phases.to_dicts(), "problems": problems, "warnings": warnings})
    else:
        if built:
            show.line(f"plan {frozen.plan_id[:16]} over {root}")
        else:
            show.line(f"no corpus at {root} yet: epochs, repeats and limits are planned once it is built")
        show.table(None, ("", ""), cost_rows(facts))
        show.table(None, phases.columns, phases.rows())
        for name in frozen.domains if built else ():
            if (distance := closest_repeat(frozen, name)) is not None:
                show.line(f"{name}: repeated tokens lie at least {distance:,} of its sequences apart")
        for warning in warnings:
            show.line(f"warning: {warning}")
    if problems:
        more = f" (and {len(problems) - 1} more)" if problems[1:] else ""
        raise RecipeError(f"{recipe_file}: {problems[0]}{more}")


def required_mixture(recipe: Recipe, recipe_file: Path) -> Mixture:
    """The recipe's mixture.

    Raises:
        RecipeError: it has none.
    """
    if recipe.mixture is None:
        raise RecipeError(f"{recipe_file}: has no 'mixture' section; it says how much of each domain is seen when")
    return recipe.mixture


def changed_recipe(recipe: Recipe, changes: list[str]) -> Recipe:
    """The recipe with fields set as ``section.field=value`` says, checked like a file's.

    Raises:
        UsageError: a change is not of that form, or names no field.
        RecipeError: the recipe does not allow the value.
    """
    if not changes:
        return recipe
    values: dict[str, Any] = recipe.canonical()
    for change in changes:
        path, equals, value = change.partition("=")
        *sections, field = path.split(".")
        at = values
        for section in sections:
            at = at.setdefault(section, {}) if isinstance(at, dict) else {}
        if not equals or not sections or not isinstance(at, dict):
            raise UsageError(f"--set {change}: expected FIELD=VALUE with the field's section, as in train.zero_stage=1")
        try:
            at[field] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise UsageError(f"--set {change}: {value!r} is no YAML value") from error
    return parse_recipe(yaml.safe_dump(values, allow_unicode=True).encode(), f"--set {' '.join(changes)}")


def vocabulary(recipe: Recipe, base: Path) -> int:
    """Size of the vocabulary that the recipe's tokenizer has or will be trained to.

    Raises:
        InputError: the tokenizer's file is missing or is none.
    """
    settings = recipe.corpus.tokenizer
    if not isinstance(settings, TokenizerFile):
        return settings.vocab_size
    from tokenizers import Tokenizer

    path = base / settings.path
    if not path.is_file():
        raise InputError(f"{path}: no such tokenizer file")
    try:
        return 1 + max(Tokenizer.from_file(str(path)).get_vocab(with_added_tokens=True).values())
    except Exception as error:  # tokenizers raises nothing narrower
        raise InputError(f"{path}: not a tokenizer file: {error}") from error


def _facts(plan: Plan) -> dict[str, Any]:
    return {
        "steps": plan.total_steps,
        "sequences": plan.total_sequences,
        "tokens": plan.total_sequences * plan.seq_len,
    }


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(plan)
