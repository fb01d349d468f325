"""Papers that a recipe names: Markdown beside it that is frozen with each run (plan, risks, failed designs)."""

from pathlib import Path

from millstream.errors import RecipeError, UsageError
from millstream.mixture.recipe import Recipe


def read_papers(recipe: Recipe, recipe_file: Path) -> dict[str, str]:
    """Texts of a recipe's papers by name; their paths are relative to the recipe's folder.

    Raises:
        RecipeError: one cannot be read or is not UTF-8.
    """
    papers = {}
    for name, file in recipe.public.papers.items():
        try:
            papers[name] = read_paper(recipe_file.parent / file)
        except UsageError as error:
            raise RecipeError(f"{recipe_file}: public.papers.{name}: {error}") from error
    return papers


def without_papers(recipe: Recipe) -> Recipe:
    """A recipe that may lie in another folder."""
    return recipe.model_copy(update={"public": recipe.public.model_copy(update={"papers": {}})})


def read_paper(path: Path) -> str:
    """The text of a file, its line ends as LF.

    Raises:
        UsageError: it cannot be read or is not UTF-8.
    """
    try:
        return path.read_bytes().decode().replace("\r\n", "\n")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 at byte {error.start}") from error
