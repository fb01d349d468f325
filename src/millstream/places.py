"""Where things lie by default: ``corpora/NAME`` and ``runs/NAME`` below the current folder."""

from pathlib import Path

from millstream.errors import UsageError
from millstream.mixture.recipe import Recipe


def corpus_folder(recipe: Recipe, given: Path | None) -> Path:
    """The corpus folder of a recipe."""
    return given if given is not None else Path("corpora") / recipe.name


def corpus_place(recipe: Recipe, given: str | None) -> str:
    """The folder or URL of a recipe's corpus."""
    return given if given is not None else str(corpus_folder(recipe, None))


def run_folder(recipe: Recipe, given: Path | None) -> Path:
    """The run folder of a recipe."""
    return given if given is not None else Path("runs") / recipe.name


def existing_run(given: str) -> Path:
    """A run named by its folder or by its name below ``runs``.

    Raises:
        UsageError: there is no run of that name; names the runs there are.
    """
    for path in (Path(given), Path("runs") / given):
        if (path / "run.json").exists():
            return path
    known = sorted(p.parent.name for p in Path("runs").glob("*/run.json"))
    there = f"runs here: {', '.join(known)}" if known else "there are no runs here"
    raise UsageError(f"{given}: no run of that name or folder; {there}")


def existing_corpus(given: str) -> str:
    """A corpus named by its folder, its URL or its name below ``corpora``.

    Raises:
        UsageError: there is no corpus of that name; names the corpora there are.
    """
    if "://" in given:
        return given
    for path in (Path(given), Path("corpora") / given):
        if (path / "corpus.json").exists():
            return str(path)
    known = sorted(p.parent.name for p in Path("corpora").glob("*/corpus.json"))
    there = f"corpora here: {', '.join(known)}" if known else "there are no corpora here"
    raise UsageError(f"{given}: no corpus of that name or folder; {there}")
