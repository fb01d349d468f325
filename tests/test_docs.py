"""The docs say what the code does: references are derived from it, links lead somewhere, commands exist.

``MILLSTREAM_UPDATE_DOCS=1`` writes the derived pages anew.
"""

import os
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from pydantic import BaseModel

from millstream.cli import app
from millstream.mixture import optimizing, recipe, rules, training
from millstream.mixture.load import load_recipe

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def check_page(path: Path, text: str) -> None:
    if os.environ.get("MILLSTREAM_UPDATE_DOCS"):
        path.write_text(text)
    assert path.read_text() == text, "run the tests once with MILLSTREAM_UPDATE_DOCS=1"


def kind_of(annotation: Any) -> str:
    """The choices of a field, or the part it is made of; plain types need no words."""
    text = str(annotation)
    if choices := re.findall(r"Literal\[([^\]]*)\]", text):
        return "one of " + ", ".join(f"`{c.strip()}`" for c in choices[0].replace("'", "").split(","))
    parts = sorted(set(re.findall(r"millstream\.mixture\.(?:cluster|optimizing|recipe|rules|training)\.(\w+)", text)))
    return " or ".join(f"[{part}](#{part.lower()})" for part in parts)


def recipe_reference() -> str:
    lines = [
        "# Recipe reference",
        "",
        "Derived from `recipe.py`, `training.py`, `optimizing.py`, `cluster.py` and `rules.py` in `mixture/`. Sections",
        "first, then their parts.",
        "",
    ]
    known = [*vars(recipe).values(), *vars(training).values(), *vars(optimizing).values(), *vars(rules).values()]
    models = [
        m for m in dict.fromkeys(m for m in known if isinstance(m, type)) if issubclass(m, BaseModel) and m.__doc__
    ]
    order = ["Recipe", "Corpus", "Mixture", "Model", "Train", "Cluster", "Public"]
    models.sort(key=lambda m: order.index(m.__name__) if m.__name__ in order else len(order))
    for model in models:
        if not model.model_fields:
            continue
        about = " ".join((model.__doc__ or "").split())
        lines += [f"## {model.__name__}", about, "", "| field | default | |", "|---|---|---|"]
        for name, field in model.model_fields.items():
            default = None if field.is_required() else field.get_default(call_default_factory=True)
            shown = "required" if field.is_required() else "" if isinstance(default, BaseModel) else f"`{default}`"
            text = " ".join((field.description or kind_of(field.annotation)).split())
            lines.append(f"| `{name}` | {shown} | {text.replace('|', 'or')} |")
        lines.append("")
    return "\n".join(lines)


def commands() -> dict[str, click.Command]:
    group = typer.main.get_command(app)
    found: dict[str, click.Command] = {}

    def walk(command: click.Command, name: str) -> None:
        if hasattr(command, "commands"):
            for inner, child in command.commands.items():
                walk(child, f"{name} {inner}")
        else:
            found[name] = command

    walk(group, "millstream")
    return found


def cli_reference() -> str:
    lines = [
        "# Commands",
        "",
        "Derived from the commands' own help. Exit codes: 0 done, 1 a finding or a failed check, 2 wrong use, 3 bad",
        "input or environment. Errors are one line on stderr; `MILLSTREAM_DEBUG=1` adds where.",
        "",
    ]
    for name, command in commands().items():
        lines += [f"## {name}", *(line.strip() for line in (command.help or "").strip().splitlines()), ""]
        for parameter in command.params:
            argument = parameter.metavar or (parameter.name or "").upper()
            label = ", ".join(parameter.opts) if parameter.param_type_name == "option" else argument
            lines.append(f"- `{label}` {getattr(parameter, 'help', None) or ''}".rstrip())
        lines.append("")
    return "\n".join(lines)


def test_the_recipe_reference_is_the_schemas() -> None:
    check_page(ROOT / "docs" / "reference" / "recipe.md", recipe_reference())


def test_the_command_reference_is_the_helps() -> None:
    check_page(ROOT / "docs" / "reference" / "cli.md", cli_reference())


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_in_the_docs_exist_with_their_options(page: Path) -> None:
    known = commands()
    for line in page.read_text().splitlines():
        for shown in re.findall(r"(?:^\s+(?:\.venv/bin/)?|`|\$ )(millstream [a-z][^`#|]*)", line):
            words = shlex.split(shown.split("  ")[0])
            name = " ".join(words[:2]) if " ".join(words[:2]) in known else " ".join(words[:3])
            assert name in known, shown
            options = {opt for p in known[name].params for opt in p.opts}
            assert {w for w in words if w.startswith("--")} <= options | {"--help"}, shown


def test_every_shipped_recipe_loads() -> None:
    recipes = sorted((ROOT / "recipes").rglob("*.yaml"))
    assert recipes
    for path in recipes:
        assert load_recipe(path).name


def test_the_project_speaks_of_itself_alone() -> None:
    for page in PAGES:
        assert not re.search(r"/(?:work|farm|root)/[a-z.]", page.read_text()), page
