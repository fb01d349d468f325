"""Deduplication as a whole: the passes in order, each over what the ones before have left.

earlier corpora -> exact, by text as read, then as edited -> near -> repeated sentences -> exact, where some were cut
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from millstream.mixture.recipe import Corpus
from millstream.tokenize.curate import ReadUnit
from millstream.tokenize.duplicates import (
    Key,
    Known,
    band_units,
    check_removed,
    cluster_unit,
    dedup_units,
    has_edits,
    known_tables,
    near_units,
    pair_units,
)
from millstream.tokenize.earlier import earlier_units
from millstream.tokenize.spans import cut_units, repeat_units, span_units
from millstream.tokenize.work import Unit

Run = Callable[[str, Sequence[Unit]], int]
"""Runs a stage's units; returns how many were not done before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Deduplicated:
    """Read units whose documents may be cut, tables of the documents that are dropped, and of what was cut."""

    reads: list[ReadUnit]
    gone: list[Path]
    removed: list[Path]
    done: int


def deduplicate(corpus: Corpus, base: Path, work: Path, reads: list[ReadUnit], run: Run) -> Deduplicated:
    """Run the recipe's deduplication.

    Raises:
        InputError: a source would lose more than the recipe allows, or an earlier corpus is damaged.
        RecipeError: there is no such earlier corpus.
    """
    earlier = earlier_units(corpus, base, work)
    done = run("earlier", [each.unit for each in earlier]) if earlier else 0
    known = known_tables(corpus, reads, earlier)
    gone: list[Path] = []
    passes: tuple[Key, ...] = ("doc_key", "text_key") if earlier or has_edits(reads) else ("doc_key",)
    for by in passes:
        done += _exact(corpus, known, work, by, gone, run)
    if (near := corpus.dedup.near) is not None:
        bands, banded = band_units(near, known, work)
        done += run("bands", bands)
        pairs = pair_units(near, banded, work)
        done += run("pairs", pairs)
        clusters = cluster_unit(pairs, work)
        done += run("clusters", [clusters])
        parts = near_units(corpus, near, banded, clusters, gone, work)
        done += run("near", parts)
        found = [unit.folder / "dropped.parquet" for unit in parts]
        check_removed(near, reads, found)
        gone += found
    if (sentences := corpus.dedup.sentences) is None:
        return Deduplicated(reads=reads, gone=gone, removed=[], done=done)
    spans = span_units(sentences, known, gone, work)
    done += run("spans", spans)
    repeats = repeat_units(corpus, known, spans, work)
    done += run("repeats", repeats)
    cut = cut_units(sentences, known, reads, repeats, work)
    done += run("cut", [read.unit for read in cut])
    done += _exact(corpus, known_tables(corpus, cut, earlier), work, "text_key", gone, run)
    removed = [read.unit.folder / "removed.parquet" for read in cut]
    return Deduplicated(reads=cut, gone=gone, removed=removed, done=done)


def _exact(corpus: Corpus, known: Sequence[Known], work: Path, by: Key, gone: list[Path], run: Run) -> int:
    ranges = dedup_units(corpus, known, work, by, gone)
    done = run("dedup", ranges)
    gone += [unit.folder / "dropped.parquet" for unit in ranges]
    return done
