"""Evaluation items in training text: documents with a paragraph that holds n-grams of an item.

Words are those of datatrove's text normalisation (lower case, no punctuation, digits as 0), cut at spaces. N-grams are
compared by a rolling 64-bit hash in numpy, and each hit is confirmed word by word before a document goes.
"""

import string
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import numpy as np
import orjson
import polars as pl
from numpy.typing import NDArray

from millstream.errors import InputError
from millstream.mixture.recipe import Decontaminate

VERSION = "decontaminate/1"
BASE = np.uint64(0x9E3779B97F4A7C15)
PLANTED = 200
_CAPITALS = str.maketrans(string.ascii_lowercase, string.ascii_uppercase)
PARAGRAPH = r"\n\s*\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationSet:
    """A set as a task reads it: its file resolved, its content named by a digest."""

    name: str
    path: Path
    sha256: str
    fields: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Index:
    """N-grams of all sets.

    ``hashes`` sorted; ``items`` maps an n-gram to the first item that holds it, ``set:number``. ``short`` counts, by
    set, texts with fewer words than an n-gram, which cannot be looked for.
    """

    n: int
    hashes: NDArray[np.uint64]
    items: dict[str, str]
    short: dict[str, int]


def find_contaminated(documents: pl.DataFrame, settings: Decontaminate, sets: Sequence[EvaluationSet]) -> pl.DataFrame:
    """``rule``, ``value`` and ``threshold`` of each document that holds too much of an item; null elsewhere."""
    index = build_index(settings.n_grams, tuple(sets))
    paragraphs = (
        documents.select(
            doc=pl.int_range(pl.len(), dtype=pl.UInt32), part=pl.col("text").str.split(PARAGRAPH, literal=False)
        )
        .explode("part")
        .with_row_index("paragraph")
    )
    words = (
        paragraphs.with_columns(pl.Series("part", _normalised(paragraphs["part"].to_list())))
        .select("doc", "paragraph", word=pl.col("part").str.split(" "))
        .explode("word")
        .filter(pl.col("word") != "")
    )
    hits = _confirmed(words, index)
    worst: dict[int, tuple[Fraction, str]] = {}
    sizes = dict(words.group_by("paragraph").len().rows())
    found: dict[tuple[int, int], list[str]] = {}
    for doc, paragraph, gram in hits:
        found.setdefault((doc, paragraph), []).append(gram)
    for (doc, paragraph), grams in sorted(found.items()):
        share = Fraction(len(grams), sizes[paragraph] - index.n + 1)
        if share > Fraction(settings.max_overlap) and share > worst.get(doc, (Fraction(0), ""))[0]:
            worst[doc] = (
                share,
                f"{index.items[grams[0]]}, {share.numerator}/{share.denominator} of a paragraph: {grams[0]}",
            )
    values = [worst[doc][1] if doc in worst else None for doc in range(len(documents))]
    given = pl.col("value").is_not_null()
    return pl.DataFrame({"value": values}, schema={"value": pl.String}).select(
        rule=pl.when(given).then(pl.lit("contaminated")),
        value="value",
        threshold=pl.when(given).then(pl.lit(f"max_overlap {settings.max_overlap}")),
    )


@lru_cache(2)
def build_index(n: int, sets: tuple[EvaluationSet, ...]) -> Index:
    """Read evaluation sets (JSON lines).

    Raises:
        InputError: a line is no JSON object or lacks a field; names file and line.
    """
    items: dict[str, str] = {}
    short: dict[str, int] = {}
    for each in sets:
        for number, line in enumerate(each.path.read_bytes().splitlines(), 1):
            if not line.strip():
                continue
            for text in _normalised(_fields(each, number, line)):
                words = text.split()
                if len(words) < n:
                    short[each.name] = short.get(each.name, 0) + 1
                for at in range(len(words) - n + 1):
                    items.setdefault(" ".join(words[at : at + n]), f"{each.name}:{number}")
    grams = pl.DataFrame({"gram": list(items)}, schema={"gram": pl.String})
    words_of = grams.with_row_index("paragraph").select("paragraph", word=pl.col("gram").str.split(" ")).explode("word")
    rolled, _ = _rolling(words_of, n)
    return Index(n=n, hashes=np.unique(rolled), items=items, short=short)


def planted_leaks(settings: Decontaminate, each: EvaluationSet, hosts: Sequence[str]) -> dict[str, int]:
    """Whether items of a set are found when they are planted: a test of what decontamination sees.

    Up to ``PLANTED`` items, in capitals, with other spaces and punctuation, are put as paragraphs between those of
    documents that are clean.

    Returns:
        ``planted`` and ``found`` items, ``too_short`` texts that cannot be found; ``clean`` documents, and how many of
        those are ``flagged`` without an item in them.
    """
    index = build_index(settings.n_grams, (each,))
    items: list[str] = []
    with each.path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if len(items) < PLANTED and line.strip():
                texts = _fields(each, number, line)
                items += [t for t in texts if len(_normalised([t])[0].split()) >= settings.n_grams]
    disguised = [item.replace(" ", "  ").translate(_CAPITALS) + " !!" for item in items[:PLANTED]]
    bodies = [hosts[n % len(hosts)] if hosts else "" for n in range(len(disguised))]
    planted = pl.DataFrame({"text": [f"{b}\n\n{item}\n\n{b}" for b, item in zip(bodies, disguised, strict=True)]})
    clean = pl.DataFrame({"text": list(hosts)}, schema={"text": pl.String})
    found, flagged = (
        int(find_contaminated(frame, settings, (each,))["rule"].count()) if len(frame) else 0
        for frame in (planted, clean)
    )
    return {
        "planted": len(planted),
        "found": found,
        "too_short": index.short.get(each.name, 0),
        "clean": len(clean),
        "flagged": flagged,
    }


def _confirmed(words: pl.DataFrame, index: Index) -> list[tuple[int, int, str]]:
    """(document, paragraph, n-gram) of every n-gram that is an item's."""
    rolled, starts = _rolling(words, index.n)
    places = starts[np.isin(rolled, index.hashes)]
    found = []
    for at in places.tolist():
        gram = " ".join(words["word"][at : at + index.n].to_list())
        if gram in index.items:
            found.append((words["doc"][at], words["paragraph"][at], gram))
    return found


def _rolling(words: pl.DataFrame, n: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Hashes of the n-grams that lie in one paragraph, and the row at which each begins."""
    hashed = words["word"].hash(seed=0).to_numpy()
    count = max(0, len(hashed) - n + 1)
    total = np.zeros(count, np.uint64)
    for k in range(n):
        total = total * BASE + hashed[k : k + count]
    paragraph = words["paragraph"].to_numpy()
    starts = np.flatnonzero(paragraph[:count] == paragraph[n - 1 : n - 1 + count])
    return total[starts], starts


def _fields(each: EvaluationSet, number: int, line: bytes) -> list[str]:
    where = f"{each.path}:{number}"
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise InputError(f"{where}: evaluation set '{each.name}': malformed JSON: {error}") from error
    missing = [f for f in each.fields if not isinstance(value, dict) or not isinstance(value.get(f), str)]
    if missing:
        raise InputError(f"{where}: evaluation set '{each.name}' has no text in the field '{missing[0]}'")
    return [value[field] for field in each.fields]


def _normalised(texts: Sequence[str | None]) -> list[str]:
    from datatrove.utils.text import TextNormConfig, simplify_text

    config = TextNormConfig()
    return [simplify_text(text, config) if text else "" for text in texts]
