"""Classifiers in fastText's format: loaded once a process, asked for the scores of their labels."""

import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import Any

from millstream.errors import InputError, SetupError
from millstream.mixture.rule_files import Stamp

PREFIX = "__label__"


def require_fasttext() -> None:
    """Check that fastText is installed.

    Raises:
        SetupError: it is not.
    """
    if importlib.util.find_spec("fasttext") is None:
        raise SetupError("models in fastText's format need fastText: pip install 'millstream[language]'")


def stamp_of(path: Path) -> Stamp:
    """What changes when a file does."""
    stat = path.stat()
    return str(path), stat.st_mtime_ns, stat.st_size


@lru_cache(2)
def load_model(stamp: Stamp) -> Any:
    """The model of a file.

    Raises:
        InputError: it is no model that tells labels.
    """
    # As datatrove does: ``load_model`` writes a warning to stderr.
    from fasttext.FastText import _FastText

    path = stamp[0]
    try:
        model = _FastText(path)
        labels = model.predict("a", k=-1)[0]
    except (ValueError, RuntimeError, MemoryError) as error:
        raise InputError(f"{path}: no fastText model that tells labels: {error}") from error
    if not all(label.startswith(PREFIX) for label in labels):
        raise InputError(f"{path}: its labels do not begin with {PREFIX}")
    return model


def known_labels(model: Any) -> set[str]:
    """A model's labels, without their prefix."""
    return {label.removeprefix(PREFIX) for label in model.get_labels()}


def label_scores(model: Any, text: str) -> dict[str, float]:
    """The score of each label of a text; fastText reads one line."""
    labels, scores = model.predict(text.replace("\n", " "), k=-1)
    return {label.removeprefix(PREFIX): float(score) for label, score in zip(labels, scores, strict=True)}
