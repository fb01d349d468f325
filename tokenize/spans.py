"""Repeated sentences, as units of work: spans of every document, those to cut, then the documents without them.

spans    a table of documents          -> spans.parquet
repeats  range of span keys            -> repeats.parquet
cut      a read unit                   -> kept.parquet, excluded.parquet, removed.parquet
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq

from millstream.canonical import digest
from millstream.mixture.dedup import Table, without
from millstream.mixture.documents import DOCUMENT_SCHEMA
from millstream.mixture.filters import exclusions
from millstream.mixture.recipe import Corpus, Keep, SentenceDedup
from millstream.tokenize.curate import ReadUnit, arrow_schema, arrow_table, check_conserved, library_version
from millstream.tokenize.duplicates import Known, identity, key_ranges
from millstream.tokenize.work import Unit

VERSION = "spans/1"
ROWS = 4096


def span_units(settings: SentenceDedup, known: Sequence[Known], gone: Sequence[Path], work: Path) -> list[Unit]:
    """Units that hash the spans of documents that are still there: one a table."""
    libraries = {name: library_version(name) for name in ("datatrove", "spacy")}
    spans = settings.model_dump(mode="json", exclude={"min_doc_words"})
    return [
        Unit(
            label=f"sentences of {each.table.domain}",
            folder=work / "spans" / digest([VERSION, spans, libraries, each.key, [p.parent.name for p in gone]]),
            work=partial(_spans, table=each.table, settings=settings, gone=tuple(gone)),
        )
        for each in known
    ]


def repeat_units(corpus: Corpus, known: Sequence[Known], spans: Sequence[Unit], work: Path) -> list[Unit]:
    """Units that choose which of equal spans stays."""
    paths = [unit.folder / "spans.parquet" for unit in spans]
    ranges = key_ranges(sum(pq.read_metadata(path).num_rows for path in paths))
    made_from = [VERSION, identity(known), corpus.dedup.keep, [unit.folder.name for unit in spans], len(ranges)]
    key = digest(made_from)
    tables = [each.table for each in known]
    return [
        Unit(
            label=f"repeated sentences {n + 1} of {len(ranges)}",
            folder=work / "repeats" / f"{key}-{n:03}",
            work=partial(_repeats, tables=tables, spans=paths, prefixes=prefixes, keep=corpus.dedup.keep),
        )
        for n, prefixes in enumerate(ranges)
    ]


def cut_units(
    settings: SentenceDedup, known: Sequence[Known], reads: Sequence[ReadUnit], repeats: Sequence[Unit], work: Path
) -> list[ReadUnit]:
    """Read units whose documents lack their repeated spans."""
    paths = [unit.folder / "repeats.parquet" for unit in repeats]
    numbers = {each.table.kept: number for number, each in enumerate(known)}
    cut = []
    for read in reads:
        key = digest([VERSION, settings.model_dump(mode="json"), read.key, [unit.folder.name for unit in repeats]])
        run = partial(_cut, read=read, table=numbers[read.kept], repeats=paths, settings=settings)
        unit = Unit(label=f"sentences of {read.unit.label}", folder=work / "cut" / key, work=run)
        cut.append(replace(read, key=key, unit=unit))
    return cut


def _spans(folder: Path, *, table: Table, settings: SentenceDedup, gone: Sequence[Path]) -> None:
    from millstream.mixture.sentences import SPAN_SCHEMA, span_table

    columns = ["doc_key", "doc_id", "order", "n_bytes", "score", "text"]
    documents = pl.scan_parquet(table.kept).select(*columns, row=pl.int_range(pl.len(), dtype=pl.UInt32))
    left = without(documents.with_columns(domain=pl.lit(table.domain)), gone).collect()
    with pq.ParquetWriter(folder / "spans.parquet", arrow_schema(SPAN_SCHEMA), compression="zstd") as writer:
        for batch in left.iter_slices(ROWS):
            writer.write_table(arrow_table(span_table(batch, settings), SPAN_SCHEMA))


def _repeats(
    folder: Path, *, tables: Sequence[Table], spans: Sequence[Path], prefixes: tuple[int, int], keep: Keep
) -> None:
    from millstream.mixture.sentences import repeated_spans

    repeated_spans(tables, spans, prefixes, keep).write_parquet(folder / "repeats.parquet", compression="zstd")


def _cut(folder: Path, *, read: ReadUnit, table: int, repeats: Sequence[Path], settings: SentenceDedup) -> None:
    from millstream.mixture.sentences import REMOVED_SCHEMA, cut_sentences

    cuts = pl.concat([pl.scan_parquet(path).filter(pl.col("table") == table) for path in repeats])
    found = cuts.collect().sort("row", "number")
    removed = [pl.DataFrame(schema=REMOVED_SCHEMA)]
    dropped = []
    first = 0
    with pq.ParquetWriter(folder / "kept.parquet", arrow_schema(DOCUMENT_SCHEMA), compression="zstd") as writer:
        for group in pq.ParquetFile(read.kept).iter_batches(ROWS):
            batch = pl.DataFrame(pl.from_arrow(group)).with_row_index("row", offset=first)
            first += len(batch)
            own = found.filter(pl.col("row").is_between(first - len(batch), first - 1))
            touched = batch.filter(pl.col("row").is_in(own["row"].implode()))
            rest = batch.filter(~pl.col("row").is_in(own["row"].implode()))
            kept = rest.select(DOCUMENT_SCHEMA.names())
            if not touched.is_empty():
                stays, few, spans = cut_sentences(touched, own, settings, read.domain)
                kept = pl.concat([kept, stays]).sort("order", "doc_id")
                dropped.append(exclusions(few, read.domain, "dedup"))
                removed.append(spans)
            writer.write_table(arrow_table(kept, DOCUMENT_SCHEMA))
    pl.concat(removed).sort("doc_id", "first_char").write_parquet(folder / "removed.parquet", compression="zstd")
    excluded = pl.concat([pl.read_parquet(read.excluded), *dropped])
    excluded.write_parquet(folder / "excluded.parquet", compression="zstd")
    kept_rows = pq.read_metadata(folder / "kept.parquet").num_rows
    check_conserved(
        f"{read.domain}: cutting sentences", _rows(read.kept) + _rows(read.excluded), kept_rows + len(excluded)
    )


def _rows(path: Path) -> int:
    return int(pq.read_metadata(path).num_rows)
