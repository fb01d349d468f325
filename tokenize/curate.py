"""The build's first half, as units of work: reading, filtering, decontamination.

read    (domain, group of files) -> kept.parquet, excluded.parquet, counts.json
"""

import hashlib
import importlib.metadata
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import orjson
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from millstream.canonical import digest
from millstream.errors import InputError
from millstream.files import sha256_file
from millstream.mixture import contamination, filters, reading, rule_files
from millstream.mixture.contamination import EvaluationSet, find_contaminated
from millstream.mixture.documents import DOCUMENT_SCHEMA, EXCLUSION_SCHEMA
from millstream.mixture.recipe import Corpus, Decontaminate, Domain, Source
from millstream.mixture.rules import Filter
from millstream.mixture.sources import SourceFile, list_files, read_file
from millstream.tokenize.work import Unit

GROUP_BYTES = 32 << 20
"""Small files are read together up to this size; a larger file is a unit of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadUnit:
    """A unit of reading, and the domain that it feeds."""

    domain: str
    key: str
    unit: Unit

    @property
    def kept(self) -> Path:
        """Its table of kept documents."""
        return self.unit.folder / "kept.parquet"

    @property
    def excluded(self) -> Path:
        """Its table of dropped records."""
        return self.unit.folder / "excluded.parquet"


def read_units(corpus: Corpus, base: Path, work: Path) -> list[ReadUnit]:
    """Units of the reading stage, in recipe order.

    A unit's key covers the files' contents, how they are read, the filters, files that these name, and the libraries
    that decide.
    """
    known = Fingerprints(work / "files.json")
    evaluation = evaluation_sets(corpus, base)
    sources = {source.name: source for source in corpus.sources}
    units = []
    for domain in corpus.domains:
        rules = tuple(rule_files.located(rule, base) for rule in (*corpus.filters, *domain.filters))
        for name in domain.sources:
            source = sources[name]
            for files in _groups(list_files(source, base)):
                contents = [(f.path, known.sha256(f)) for f in files]
                key = _read_key(corpus, domain, source, rules, contents, evaluation)
                run = partial(
                    read_group,
                    source=source,
                    files=files,
                    domain=domain.name,
                    rules=rules,
                    decontaminate=corpus.decontaminate,
                    evaluation=evaluation,
                    seed=corpus.seed,
                )
                label = f"{domain.name} from {name} ({files[0].path}{' ...' if files[1:] else ''})"
                unit = Unit(label=label, folder=work / "read" / key, work=run)
                units.append(ReadUnit(domain=domain.name, key=key, unit=unit))
    known.save()
    return units


def read_group(
    folder: Path,
    *,
    source: Source,
    files: Sequence[SourceFile],
    domain: str,
    rules: Sequence[Filter],
    decontaminate: Decontaminate | None,
    evaluation: Sequence[EvaluationSet],
    seed: int,
) -> None:
    """Read and filter some files of a source; every record ends in one of two tables.

    Raises:
        InputError: a file is damaged, or the counts do not add up.
    """
    records = 0
    kept = pq.ParquetWriter(folder / "kept.parquet", _arrow(DOCUMENT_SCHEMA), compression="zstd")
    excluded = pq.ParquetWriter(folder / "excluded.parquet", _arrow(EXCLUSION_SCHEMA), compression="zstd")
    with kept, excluded:
        for file in files:
            for batch in reading.read_documents(source, file, domain=domain, seed=seed):
                records += len(batch.kept) + len(batch.excluded)
                filtered = filters.apply_filters(batch.kept, rules, domain)
                clean, leaked = _without_evaluation(filtered.kept, decontaminate, evaluation, domain)
                # Sorted, so that a range of the order can be read without the rest of the file.
                kept.write_table(_table(clean.sort("order", "doc_id"), DOCUMENT_SCHEMA))
                excluded.write_table(_table(pl.concat([batch.excluded, filtered.excluded, leaked]), EXCLUSION_SCHEMA))
    counts = {
        "read": records,
        "kept": pq.read_metadata(folder / "kept.parquet").num_rows,
        "excluded": pq.read_metadata(folder / "excluded.parquet").num_rows,
    }
    check_conserved(f"{domain}: reading {source.name}", counts["read"], counts["kept"] + counts["excluded"])
    (folder / "counts.json").write_bytes(orjson.dumps(counts))


def evaluation_sets(corpus: Corpus, base: Path) -> tuple[EvaluationSet, ...]:
    """The recipe's evaluation sets, found and hashed.

    Raises:
        InputError: a set's file is missing.
    """
    found = []
    for each in corpus.decontaminate.sets if corpus.decontaminate else ():
        path = base / each.file
        if not path.is_file():
            raise InputError(f"{path}: evaluation set '{each.name}' is missing; a corpus is not built without it")
        found.append(EvaluationSet(name=each.name, path=path, sha256=sha256_file(path), fields=each.fields))
    return tuple(found)


def rule_file_digests(corpus: Corpus, base: Path) -> dict[str, str]:
    """SHA-256 of the files that rules name, by the path in the recipe."""
    found: dict[str, str] = {}
    for rule in (*corpus.filters, *(rule for domain in corpus.domains for rule in domain.filters)):
        sums = rule_files.digests(rule_files.located(rule, base))
        found |= {getattr(rule, name): sha256 for name, sha256 in sums.items()}
    return found


def check_not_empty(corpus: Corpus, reads: Sequence[ReadUnit]) -> None:
    """Check that filters left something of each domain, before the tokenizer is trained on it.

    Raises:
        InputError: a domain has no document left; says what dropped them.
    """
    for domain in corpus.domains:
        own = [read for read in reads if read.domain == domain.name]
        if any(pq.read_metadata(read.kept).num_rows for read in own):
            continue
        dropped = pl.concat([pl.scan_parquet(read.excluded).select("stage", "rule") for read in own])
        by_rule = dropped.group_by("stage", "rule").len().sort("stage", "rule").collect().rows()
        why = ", ".join(f"{stage}/{rule} dropped {n}" for stage, rule, n in by_rule) or "its files hold no record"
        raise InputError(f"domain '{domain.name}' ends with no document: {why}")


def check_conserved(where: str, read: int, accounted: int) -> None:
    """Every record is kept, held out or excluded.

    Raises:
        InputError: some are missing or counted twice.
    """
    if read != accounted:
        raise InputError(f"{where}: {read} records went in, {accounted} are accounted for")


class Fingerprints:
    """SHA-256 of input files, remembered by size and time, so that a second build reads nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._known: dict[str, list[str]] = orjson.loads(path.read_bytes())
        except (OSError, orjson.JSONDecodeError):
            self._known = {}
        self._used: dict[str, list[str]] = {}

    def sha256(self, file: SourceFile) -> str:
        """A file's digest, as hex; read only if its stamp is new."""
        known = self._known.get(file.url)
        if known is None or known[0] != file.stamp:
            with read_file(file) as opened:
                known = [file.stamp, hashlib.file_digest(opened, "sha256").hexdigest()]
        self._used[file.url] = known
        return known[1]

    def save(self) -> None:
        """Remember what was asked for."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".tmp")
        temporary.write_bytes(orjson.dumps(self._used))
        temporary.replace(self.path)


def _read_key(
    corpus: Corpus,
    domain: Domain,
    source: Source,
    rules: Sequence[Filter],
    files: list[tuple[str, str]],
    evaluation: Sequence[EvaluationSet],
) -> str:
    libraries = {"polars", *(name for rule in rules for name in filters.libraries(rule))}
    how = source.model_dump(mode="json", exclude={"root", "package", "version", "files"})
    return digest(
        {
            "versions": [reading.VERSION, filters.VERSION, contamination.VERSION],
            "libraries": {name: library_version(name) for name in sorted(libraries)},
            "unicode": unicodedata.unidata_version,
            "seed": corpus.seed,
            "domain": domain.name,
            "source": how,
            "evaluation": [[each.name, each.sha256, list(each.fields)] for each in evaluation],
            "decontaminate": corpus.decontaminate.model_dump(mode="json", exclude={"sets"})
            if corpus.decontaminate
            else None,
            "rules": [rule_files.described(rule) for rule in rules],
            "files": [list(file) for file in files],
        }
    )


def _without_evaluation(
    documents: pl.DataFrame, settings: Decontaminate | None, evaluation: Sequence[EvaluationSet], domain: str
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Documents without items of evaluation sets, and the exclusions of the others."""
    if settings is None:
        return documents, pl.DataFrame(schema=EXCLUSION_SCHEMA)
    judged = pl.concat([documents, find_contaminated(documents, settings, evaluation)], how="horizontal")
    leaked = filters.exclusions(judged.filter(pl.col("rule").is_not_null()), domain, "decontaminate")
    return judged.filter(pl.col("rule").is_null()).select(DOCUMENT_SCHEMA.names()), leaked


def library_version(library: str) -> str | None:
    """Installed version of a library, None where it is not there."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def _groups(files: Sequence[SourceFile]) -> list[list[SourceFile]]:
    groups: list[list[SourceFile]] = []
    size = 0
    for file in files:
        if not groups or size + file.size > GROUP_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size
    return groups


def _arrow(schema: pl.Schema) -> pa.Schema:
    return pl.DataFrame(schema=schema).to_arrow().schema


def _table(frame: pl.DataFrame, schema: pl.Schema) -> pa.Table:
    return frame.to_arrow().cast(_arrow(schema))
