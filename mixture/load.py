"""Reading a recipe file: strict YAML, errors with file, line and field, likely names for typos.

Decimals keep their digits (``0.1`` stays one tenth), repeated keys are errors, and only plain
YAML values are built (``yaml.SafeLoader``): a recipe cannot run code.
"""

import difflib
import re
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from millstream.errors import RecipeError
from millstream.mixture.recipe import Recipe

MAX_BYTES = 1 << 20

Model = TypeVar("Model", bound=BaseModel)


class _Loader(yaml.SafeLoader):
    """SafeLoader that keeps decimals exact and refuses repeated keys and aliases."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases are not allowed", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            name = str(key.value)
            if name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key '{name}' stands twice", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


def _construct_decimal(loader: Any, node: Any) -> Decimal | str:
    text = loader.construct_scalar(node)
    try:
        return Decimal(text.replace("_", ""))
    except ArithmeticError:
        return str(text)


_Loader.add_constructor("tag:yaml.org,2002:float", _construct_decimal)
# Dates and other implicit types stay text: a version such as 2026-12-01 is a string here.
_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: str(node.value))


def load_recipe(path: Path) -> Recipe:
    """Read, check and freeze a recipe.

    Raises:
        RecipeError: the file is missing, is not YAML or does not describe a recipe. The message
            names the file, the line and the field of the first fault, and how many more there are.
    """
    return load_as(Recipe, path)


def parse_recipe(data: bytes, where: str) -> Recipe:
    """Check a recipe given as YAML bytes; ``where`` names it in errors."""
    return _parse(Recipe, data, where)


def load_as(model: type[Model], path: Path) -> Model:
    """Read a file of another model as strictly as a recipe; errors as of ``load_recipe``."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise RecipeError(f"{path}: {len(data)} bytes is too large for a recipe (at most {MAX_BYTES})")
    return _parse(model, data, str(path))


def _parse(model: type[Model], data: bytes, where: str) -> Model:
    try:
        loader = _Loader(data.decode("utf-8"))
        node = loader.get_single_node()
        values = loader.construct_document(node) if node is not None else None
    except UnicodeDecodeError as error:
        raise RecipeError(f"{where}: not UTF-8 at byte {error.start}") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise RecipeError(f"{where}:{line}: {error.problem}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise RecipeError(f"{where}: not YAML: {str(error).splitlines()[0]}") from error
    if node is None or not isinstance(values, dict):
        wanted = get_args(model.model_fields["format"].annotation)[0]
        raise RecipeError(f"{where}: expected a mapping that begins with 'format: {wanted}'")
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise RecipeError(_explain(error, node, where, model)) from error


def _explain(error: ValidationError, node: yaml.Node, where: str, model: type[BaseModel]) -> str:
    faults = error.errors()
    first = faults[0]
    location = tuple(part for part in first["loc"])
    line, path = _locate(node, location)
    message = _message(first, location, model)
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return f"{where}:{line}: {path + ': ' if path else ''}{message}{more}"


def _message(fault: Any, location: tuple[int | str, ...], model: type[BaseModel]) -> str:
    if fault["type"] == "extra_forbidden":
        key = str(location[-1])
        near = difflib.get_close_matches(key, _known_keys(location[:-1], model), n=1, cutoff=0.5)
        return "unknown key" + (f"; did you mean '{near[0]}'?" if near else "")
    if fault["type"] == "missing":
        return "is missing"
    if fault["type"] == "union_tag_invalid":
        tag, expected = str(fault["ctx"]["tag"]), str(fault["ctx"]["expected_tags"])
        near = difflib.get_close_matches(tag, [kind.strip("' ") for kind in expected.split(",")], n=1, cutoff=0.5)
        return f"unknown kind '{tag}'; " + (f"did you mean '{near[0]}'?" if near else f"expected one of {expected}")
    if fault["type"] == "literal_error":
        choices = [choice.strip("'") for choice in re.split(", | or ", str(fault["ctx"]["expected"]))]
        near = difflib.get_close_matches(str(fault["input"]), choices, n=1, cutoff=0.5)
        if near and len(choices) > 1:
            return f"unknown choice '{fault['input']}'; did you mean '{near[0]}'?"
    message = str(fault["msg"]).removeprefix("Value error, ")
    value = fault["input"]
    if isinstance(value, str | int | Decimal) and str(value) not in message:
        return f"{message}, found {str(value)!r}"
    return message


def _known_keys(location: tuple[int | str, ...], root: type[BaseModel]) -> list[str]:
    """Keys that the model at ``location`` knows (the union of all where it has several kinds)."""
    models: list[type[BaseModel]] = [root]
    for part in location:
        if isinstance(part, int):
            continue
        inner = [f.annotation for m in models for name, f in m.model_fields.items() if name == part]
        # A part that is no field is the tag of a union: the models found so far stay.
        models = [m for annotation in inner for m in _models_in(annotation)] or models
    return sorted({name for model in models for name in model.model_fields})


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    parts = getattr(annotation, "__args__", ())
    return [model for part in parts for model in _models_in(part)]


def _locate(node: yaml.Node, location: tuple[int | str, ...]) -> tuple[int, str]:
    """Line (from 1) and written path of a fault, as deep as the file itself goes."""
    line, path = node.start_mark.line + 1, ""
    for part in location:
        if isinstance(part, int) and isinstance(node, yaml.SequenceNode) and part < len(node.value):
            node = node.value[part]
            line, path = node.start_mark.line + 1, f"{path}[{part}]"
        elif isinstance(node, yaml.MappingNode):
            found = [(k, v) for k, v in node.value if k.value == str(part)]
            if found:
                node = found[0][1]
                line = found[0][0].start_mark.line + 1
                path = f"{path}.{part}" if path else str(part)
            elif part == location[-1]:
                path = f"{path}.{part}" if path else str(part)
    return line, path
