"""Scores of documents: a number given with the data, or what a classifier or a function says of a text.

Functions are named ``module:function`` and take a list of texts; their module lies beside the recipe or is installed.
That runs code that the recipe names, so a build asks for leave first.
"""

import importlib
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl

from millstream.errors import InputError, RecipeError
from millstream.files import sha256_file
from millstream.mixture.fasttext_model import known_labels, label_scores, load_model, require_fasttext, stamp_of
from millstream.mixture.recipe import Scorer

VERSION = "score/1"

Score = Callable[[list[str]], Sequence[float]]


def score_documents(documents: pl.DataFrame, scorer: Scorer, base: Path) -> pl.DataFrame:
    """Documents with their ``score``; null where the data gives none.

    Raises:
        InputError: the function failed, or gave something that is no number for each text.
    """
    if scorer.field is not None:
        given = pl.col("metadata").str.json_path_match(f"$['{scorer.field}']").cast(pl.Float64, strict=False)
        return documents.with_columns(score=given)
    texts = documents["text"].to_list()
    if scorer.model is not None:
        model = load_model(stamp_of(base / scorer.model))
        told = [label_scores(model, text).get(scorer.label or "", 0.0) for text in texts]
        return documents.with_columns(score=pl.Series(told, dtype=pl.Float64))
    function = load_function(scorer.function or "", base)
    try:
        found = [float(score) for score in function(texts)]
    except Exception as error:
        where = documents["doc_id"][0] if texts else "no document"
        raise InputError(
            f"scorer '{scorer.name}': {scorer.function} failed on texts from {where}: {type(error).__name__}: {error}"
        ) from error
    if len(found) != len(texts) or not all(map(math.isfinite, found)):
        raise InputError(
            f"scorer '{scorer.name}': {scorer.function} gave no finite number for each of {len(texts)} texts"
        )
    return documents.with_columns(score=pl.Series(found, dtype=pl.Float64))


def scorer_digest(scorer: Scorer, base: Path) -> str | None:
    """SHA-256 of a scorer's model, or of the source file of its function; None where there is neither.

    Raises:
        RecipeError: there is no such function.
        InputError: there is no such model, or it does not know the label.
        SetupError: fastText is not installed.
    """
    if scorer.model is not None:
        path = base / scorer.model
        if not path.is_file():
            raise InputError(f"{path}: the model of the scorer '{scorer.name}' is missing")
        require_fasttext()
        if scorer.label not in (known := known_labels(load_model(stamp_of(path)))):
            some = ", ".join(sorted(known)[:5])
            raise InputError(f"{path}: the model knows no label '{scorer.label}'; it knows {some}")
        return sha256_file(path)
    if scorer.function is None:
        return None
    load_function(scorer.function, base)
    source = sys.modules[scorer.function.partition(":")[0]].__file__
    return sha256_file(Path(source)) if source else None


def load_function(path: str, base: Path) -> Score:
    """The function ``module:name``; modules beside the recipe come first.

    Raises:
        RecipeError: there is no such function.
    """
    module, _, name = path.partition(":")
    beside = str(base.resolve())
    sys.path.insert(0, beside)
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise RecipeError(f"scorer function '{path}': {error}") from error
    finally:
        sys.path.remove(beside)
    if not callable(function):
        raise RecipeError(f"scorer function '{path}': not callable")
    loaded: Score = function
    return loaded


def bucket(score: pl.Expr, borders: Sequence[float]) -> pl.Expr:
    """Number of the bucket of a score: how many borders it reaches; documents without a score are in the lowest."""
    reached = [(score >= border).fill_null(False).cast(pl.Int32) for border in borders]
    return pl.sum_horizontal(reached)
