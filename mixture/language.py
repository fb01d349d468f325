"""Documents by their language, as a fastText model sees it, with datatrove's decisions.

datatrove downloads its models (``lid.176.bin``, GlotLID); here a recipe names the file.
"""

import importlib.util
from functools import lru_cache
from typing import Any

import polars as pl

from millstream.errors import InputError, SetupError
from millstream.mixture.rule_files import Stamp, stamps
from millstream.mixture.rules import Language

PREFIX = "__label__"


def by_language(documents: pl.DataFrame, rule: Language) -> pl.DataFrame:
    """The likeliest language of each document that is dropped, and its score: ``rule``, ``value``, ``threshold``."""
    model = _model(rule.model, stamps(rule))
    found = [_verdict(model, text, rule) for text in documents["text"]]
    limit = f"languages {', '.join(rule.languages)}; " if rule.languages else ""
    dropped = pl.col("value").is_not_null()
    return pl.DataFrame({"value": found}, schema={"value": pl.String}).select(
        rule=pl.when(dropped).then(pl.lit("language")),
        value="value",
        threshold=pl.when(dropped).then(pl.lit(f"{limit}threshold {rule.threshold}")),
    )


def check_language(rule: Language) -> None:
    """Load the model once, before work starts.

    Raises:
        InputError: the file is no model that tells labels.
        SetupError: fastText is not installed.
    """
    if importlib.util.find_spec("fasttext") is None:
        raise SetupError("the rule 'language' needs fastText: pip install 'millstream[language]'")
    known = {label.removeprefix(PREFIX) for label in _model(rule.model, stamps(rule)).get_labels()}
    if unknown := [language for language in rule.languages if language not in known]:
        some = ", ".join(sorted(known)[:5])
        raise InputError(f"{rule.model}: the model knows no language '{unknown[0]}'; it knows {some}, ...")


def _verdict(model: Any, text: str, rule: Language) -> str | None:
    """The likeliest label and its score if the text is to be dropped."""
    labels, scores = model.predict(text.replace("\n", " "), k=-1)
    pairs = {label.removeprefix(PREFIX): float(score) for label, score in zip(labels, scores, strict=True)}
    if not pairs:
        return "no label"
    best = max(pairs, key=lambda label: pairs[label])
    if any(pairs.get(language, 0.0) > rule.threshold for language in rule.languages or (best,)):
        return None
    return f"{best} {pairs[best]:.6g}"


@lru_cache(2)
def _model(path: str, _: tuple[Stamp, ...]) -> Any:
    # As datatrove does: ``load_model`` writes a warning to stderr.
    from fasttext.FastText import _FastText

    try:
        model = _FastText(path)
        labels = model.predict("a", k=-1)[0]
    except (ValueError, RuntimeError, MemoryError) as error:
        raise InputError(f"{path}: no fastText model that tells languages: {error}") from error
    if not all(label.startswith(PREFIX) for label in labels):
        raise InputError(f"{path}: its labels do not begin with {PREFIX}")
    return model
