"""Statistics before rules: a sample of each domain, what every rule measures there, and what its limits would drop."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from millstream.mixture import filters, reading
from millstream.mixture.documents import DOCUMENT_SCHEMA
from millstream.mixture.measures import Measure, measure
from millstream.mixture.recipe import Corpus, Domain
from millstream.mixture.rules import (
    C4Quality,
    Filter,
    FinewebQuality,
    GopherQuality,
    GopherRepetition,
    LengthFilter,
    SymbolFilter,
)
from millstream.mixture.scores import score_documents
from millstream.mixture.sources import SourceFile

BINS = 40
QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
EXAMPLES = 3
EXAMPLE_CHARS = 400
FILES = 16
"""Files of a source that a sample is spread over."""

OFFERED: tuple[Filter, ...] = (
    LengthFilter(rule="length"),
    SymbolFilter(rule="symbols"),
    GopherQuality(rule="gopher-quality"),
    GopherRepetition(rule="gopher-repetition"),
    FinewebQuality(rule="fineweb-quality"),
)
"""Rules that are shown with their default limits where a recipe does not ask for them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A document near a limit: its place, its value, and the beginning of its text."""

    doc_id: str
    value: float | str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    """What one limit would do to a sample.

    ``edges`` and ``counts`` make a histogram over the middle 98% of the values; ``dropped`` counts documents.
    """

    rule: str
    check: str
    field: str
    limit: float
    side: str
    in_recipe: bool
    quantiles: tuple[float, ...]
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    dropped: int
    kept_examples: tuple[Example, ...]
    dropped_examples: tuple[Example, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Dropped:
    """Documents of a sample that one rule drops."""

    rule: str
    documents: int
    examples: tuple[Example, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """A domain's sample.

    ``documents``, and ``unreadable`` records by rule; what each limit would do; what the recipe's filters drop of the
    documents one after the other; and what C4's rules, which set no limits, would drop where the recipe lacks them.
    """

    domain: str
    documents: int
    unreadable: dict[str, int]
    distributions: tuple[Distribution, ...]
    chain: tuple[Dropped, ...]
    chain_kept: int
    offered: tuple[Dropped, ...]


def survey(corpus: Corpus, files: dict[str, list[SourceFile]], base: Path, domain: Domain, documents: int) -> Survey:
    """Sample a domain and measure it.

    Args:
        corpus: the recipe's corpus section.
        files: files of each source.
        base: the recipe's folder.
        domain: the domain.
        documents: how many documents to look at.

    Raises:
        InputError: a file is damaged, or a scorer fails.
    """
    sample, rejected = _sample(corpus, files, domain, documents)
    scorer = next((s for s in corpus.scorers if s.name == domain.score), None)
    if scorer is not None and not sample.is_empty():
        sample = score_documents(sample, scorer, base)
    asked = (*corpus.filters, *domain.filters)
    kinds = {rule.rule for rule in asked}
    rules = [*((rule, True) for rule in asked), *((rule, False) for rule in OFFERED if rule.rule not in kinds)]
    found = [
        _distribution(sample, rule.rule, each, in_recipe)
        for rule, in_recipe in rules
        for each in measure(sample, rule)
        if np.isfinite(each.values).any()
    ]
    chain, kept = _chain(sample, asked)
    c4 = C4Quality(rule="c4-quality")
    offered, _ = _chain(sample, [] if c4.rule in kinds else [c4])
    return Survey(
        domain=domain.name,
        documents=len(sample),
        unreadable=dict(rejected.group_by("rule").len().sort("rule").rows()),
        distributions=tuple(found),
        chain=chain,
        chain_kept=kept,
        offered=offered,
    )


def _sample(
    corpus: Corpus, files: dict[str, list[SourceFile]], domain: Domain, documents: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Documents of a domain: from files in the order of a hash, of each the first by the keyed order."""
    kept, rejected = [pl.DataFrame(schema=DOCUMENT_SCHEMA)], []
    for name in domain.sources:
        source = next(s for s in corpus.sources if s.name == name)
        wanted = -(-documents // len(domain.sources))
        each = -(-wanted // min(FILES, len(files[name])))
        for file in sorted(files[name], key=lambda file: hashlib.sha256(file.path.encode("utf-8", "replace")).digest()):
            if wanted <= 0:
                break
            # The first batch alone: a sample should not read a whole corpus.
            batch = next(reading.read_documents(source, file, domain=domain.name, seed=corpus.seed))
            chosen = batch.kept.sort("order", "doc_id").head(min(each, wanted))
            wanted -= len(chosen)
            kept.append(chosen)
            rejected.append(batch.excluded)
    return pl.concat(kept), pl.concat(rejected)


def _distribution(sample: pl.DataFrame, rule: str, found: Measure, in_recipe: bool) -> Distribution:
    values = found.values
    finite = values[np.isfinite(values)]
    low, high = np.quantile(finite, [0.01, 0.99])
    # The limit is shown where it lies near the values.
    if low - (high - low) <= found.limit <= high + (high - low):
        low, high = min(low, found.limit), max(high, found.limit)
    if low == high:
        high = low + 1
    counts, edges = np.histogram(np.clip(finite, low, high), BINS, (low, high))
    near = np.argsort(np.abs(values - found.limit), kind="stable")
    dropped = found.dropped
    return Distribution(
        rule=rule,
        check=found.rule,
        field=found.field,
        limit=found.limit,
        side=found.side,
        in_recipe=in_recipe,
        quantiles=tuple(np.quantile(finite, QUANTILES).tolist()),
        edges=tuple(edges.tolist()),
        counts=tuple(counts.tolist()),
        dropped=int(dropped.sum()),
        kept_examples=_examples(sample, values, [n for n in near if not dropped[n] and np.isfinite(values[n])]),
        dropped_examples=_examples(sample, values, [n for n in near if dropped[n]]),
    )


def _examples(
    sample: pl.DataFrame, values: np.ndarray[tuple[int], np.dtype[np.float64]], rows: Sequence[int]
) -> tuple[Example, ...]:
    shown = sample.select("doc_id", "text")
    return tuple(
        Example(doc_id=shown["doc_id"][int(n)], value=float(values[n]), text=shown["text"][int(n)][:EXAMPLE_CHARS])
        for n in rows[:EXAMPLES]
    )


def _chain(sample: pl.DataFrame, asked: Sequence[Filter]) -> tuple[tuple[Dropped, ...], int]:
    """What filters drop of the sample, in order, and how many documents stay."""
    filtered = filters.apply_filters(sample, asked, "sample")
    found = []
    for (rule,), dropped in filtered.excluded.group_by("rule", maintain_order=True):
        texts = dropped.head(EXAMPLES).join(sample.select("doc_id", "text"), on="doc_id", how="left")
        shown = texts.select("doc_id", "value", "text").iter_rows()
        examples = tuple(Example(doc_id=d, value=v or "", text=t[:EXAMPLE_CHARS]) for d, v, t in shown)
        found.append(Dropped(rule=str(rule), documents=len(dropped), examples=examples))
    return tuple(found), len(filtered.kept)
