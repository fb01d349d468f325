"""Documents by their language, as a fastText model sees it, with datatrove's decisions.

datatrove downloads its models (``lid.176.bin``, GlotLID); here a recipe names the file.
"""

from typing import Any

import polars as pl

from millstream.errors import InputError
from millstream.mixture.fasttext_model import known_labels, label_scores, load_model, require_fasttext
from millstream.mixture.rule_files import stamps
from millstream.mixture.rules import Language


def by_language(documents: pl.DataFrame, rule: Language) -> pl.DataFrame:
    """The likeliest language of each document that is dropped, and its score: ``rule``, ``value``, ``threshold``."""
    model = load_model(*stamps(rule))
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
    require_fasttext()
    known = known_labels(load_model(*stamps(rule)))
    if unknown := [language for language in rule.languages if language not in known]:
        some = ", ".join(sorted(known)[:5])
        raise InputError(f"{rule.model}: the model knows no language '{unknown[0]}'; it knows {some}, ...")


def _verdict(model: Any, text: str, rule: Language) -> str | None:
    """The likeliest label and its score if the text is to be dropped."""
    pairs = label_scores(model, text)
    if not pairs:
        return "no label"
    best = max(pairs, key=lambda label: pairs[label])
    if any(pairs.get(language, 0.0) > rule.threshold for language in rule.languages or (best,)):
        return None
    return f"{best} {pairs[best]:.6g}"
