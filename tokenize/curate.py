"""The build's first half, as units of work: reading, filtering, decontamination.

read    (domain, group of files) -> kept.parquet, excluded.parquet; one of each a part of a domain split by score
"""

import contextlib
import hashlib
import importlib.metadata
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from millstream.canonical import digest
from millstream.errors import InputError
from millstream.files import sha256_file
from millstream.mixture import contamination, filters, reading, rule_files, scores
from millstream.mixture.contamination import EvaluationSet, find_contaminated
from millstream.mixture.documents import DOCUMENT_SCHEMA, EXCLUSION_SCHEMA
from millstream.mixture.recipe import Corpus, Decontaminate, Domain, Scorer, Source, parts_of
from millstream.mixture.rules import Filter
from millstream.mixture.sources import SourceFile, list_files, read_file
from millstream.tokenize.work import Unit

GROUP_BYTES = 32 << 20
"""Small files are read together up to this size; a larger file is a unit of its own."""
MADE_FROM = "made_from.json"
"""Beside a read unit's tables: what decided them, so that a later build can say what is different."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadUnit:
    """A unit of reading, and a domain that it feeds; ``part`` counts the parts of a domain that is split by score."""

    domain: str
    key: str
    unit: Unit
    part: int = 0

    @property
    def kept(self) -> Path:
        """Its table of the domain's kept documents."""
        return self.unit.folder / _table_name("kept", self.part)

    @property
    def excluded(self) -> Path:
        """Its table of the domain's dropped records."""
        return self.unit.folder / _table_name("excluded", self.part)


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """What a recipe points at: the files of each source, by its name, and the evaluation sets."""

    files: dict[str, list[SourceFile]]
    evaluation: tuple[EvaluationSet, ...]


def find_inputs(corpus: Corpus, base: Path) -> Inputs:
    """Look for everything that the recipe points at.

    Raises:
        RecipeError: a source has no file.
        SetupError: a package is missing.
        InputError: a root cannot be read, or an evaluation set is missing.
    """
    return Inputs(
        files={source.name: list_files(source, base) for source in corpus.sources},
        evaluation=evaluation_sets(corpus, base),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How a group of a source's files is read, filtered, and told apart by score into ``parts``."""

    source: Source
    files: tuple[SourceFile, ...]
    domain: Domain
    scorer: Scorer | None
    base: Path
    rules: tuple[Filter, ...]
    decontaminate: Decontaminate | None
    evaluation: tuple[EvaluationSet, ...]
    seed: int

    @property
    def parts(self) -> list[str]:
        """Names of the domains that are fed."""
        return [part.name for part in parts_of(self.domain)]


def read_units(corpus: Corpus, inputs: Inputs, base: Path, work: Path) -> list[ReadUnit]:
    """Units of the reading stage, in recipe order; parts of a domain that is split by score share theirs.

    A unit's key covers the files' contents, how they are read, the filters, files that these name, and the libraries
    that decide.
    """
    known = Fingerprints(work / "files.json")
    sources = {source.name: source for source in corpus.sources}
    units = []
    for domain in corpus.domains:
        for name in domain.sources:
            for files in _groups(inputs.files[name]):
                contents = [(f.path, known.sha256(f)) for f in files]
                reading_of = Reading(
                    source=sources[name],
                    files=tuple(files),
                    domain=domain,
                    scorer=next((s for s in corpus.scorers if s.name == domain.score), None),
                    base=base,
                    rules=tuple(rule_files.located(rule, base) for rule in (*corpus.filters, *domain.filters)),
                    decontaminate=corpus.decontaminate,
                    evaluation=inputs.evaluation,
                    seed=corpus.seed,
                )
                made_from = _made_from(reading_of, contents)
                key = digest(made_from)
                label = f"{domain.name} from {name} ({files[0].path}{' ...' if files[1:] else ''})"
                unit = Unit(
                    label=label,
                    folder=work / "read" / key,
                    work=partial(read_group, reading_of=reading_of, made_from=made_from),
                )
                units += [
                    ReadUnit(domain=part, key=key, unit=unit, part=number)
                    for number, part in enumerate(reading_of.parts)
                ]
    known.save()
    return units


def read_group(folder: Path, *, reading_of: Reading, made_from: dict[str, Any]) -> None:
    """Read and filter some files of a source; every record ends in one of two tables of one part.

    Raises:
        InputError: a file is damaged, a scorer fails, or the counts do not add up.
    """
    (folder / MADE_FROM).write_bytes(orjson.dumps(made_from))
    records = 0
    parts = reading_of.parts
    with contextlib.ExitStack() as stack:
        kept, excluded = (
            [
                stack.enter_context(
                    pq.ParquetWriter(folder / _table_name(name, part), arrow_schema(schema), compression="zstd")
                )
                for part in range(len(parts))
            ]
            for name, schema in (("kept", DOCUMENT_SCHEMA), ("excluded", EXCLUSION_SCHEMA))
        )
        for file in reading_of.files:
            for batch in reading.read_documents(reading_of.source, file, domain=parts[0], seed=reading_of.seed):
                records += len(batch.kept) + len(batch.excluded)
                excluded[0].write_table(arrow_table(batch.excluded, EXCLUSION_SCHEMA))
                for part, documents in enumerate(_by_part(batch.kept, reading_of)):
                    stays, dropped = _judged(documents, reading_of, parts[part])
                    # Sorted, so that a range of the order can be read without the rest of the file.
                    kept[part].write_table(arrow_table(stays.sort("order", "doc_id"), DOCUMENT_SCHEMA))
                    excluded[part].write_table(arrow_table(dropped, EXCLUSION_SCHEMA))
    names = [_table_name(name, part) for name in ("kept", "excluded") for part in range(len(parts))]
    written = sum(pq.read_metadata(folder / name).num_rows for name in names)
    check_conserved(f"{reading_of.domain.name}: reading {reading_of.source.name}", records, written)


def _by_part(documents: pl.DataFrame, reading_of: Reading) -> list[pl.DataFrame]:
    """Documents with their score, one frame a part."""
    if reading_of.scorer is None:
        return [documents]
    scored = scores.score_documents(documents, reading_of.scorer, reading_of.base)
    borders = [float(border) for border in reading_of.domain.split]
    number = scores.bucket(pl.col("score"), borders) if borders else pl.lit(0)
    return [scored.filter(number == part) for part in range(len(reading_of.parts))]


def _judged(documents: pl.DataFrame, reading_of: Reading, domain: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Documents that pass the filters and hold no evaluation item, and the exclusions of the others."""
    filtered = filters.apply_filters(documents, reading_of.rules, domain)
    clean, leaked = _without_evaluation(filtered.kept, reading_of.decontaminate, reading_of.evaluation, domain)
    return clean, pl.concat([filtered.excluded, leaked])


def _table_name(name: str, part: int) -> str:
    return f"{name}-{part}.parquet" if part else f"{name}.parquet"


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
    for domain in corpus.split_domains:
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


def _made_from(reading_of: Reading, files: list[tuple[str, str]]) -> dict[str, Any]:
    """Everything that decides what a unit of reading gives."""
    domain, decontaminate = reading_of.domain, reading_of.decontaminate
    libraries = {"polars", *(name for rule in reading_of.rules for name in filters.libraries(rule))}
    how = reading_of.source.model_dump(mode="json", exclude={"root", "package", "version", "files"})
    scorer = reading_of.scorer
    score = (
        [scores.VERSION, scorer.model_dump(mode="json"), scores.scorer_digest(scorer, reading_of.base)]
        if scorer
        else None
    )
    return {
        "versions": [reading.VERSION, filters.VERSION, contamination.VERSION],
        "libraries": {name: library_version(name) for name in sorted(libraries)},
        "unicode": unicodedata.unidata_version,
        "seed": reading_of.seed,
        "domain": domain.name,
        "score": score,
        "split": [str(border) for border in domain.split],
        "source": how,
        "evaluation": [[each.name, each.sha256, list(each.fields)] for each in reading_of.evaluation],
        "decontaminate": decontaminate.model_dump(mode="json", exclude={"sets"}) if decontaminate else None,
        "rules": [rule_files.described(rule) for rule in reading_of.rules],
        "files": [list(file) for file in files],
    }


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


def arrow_schema(schema: pl.Schema) -> pa.Schema:
    """A schema as Arrow has it."""
    return pl.DataFrame(schema=schema).to_arrow().schema


def arrow_table(frame: pl.DataFrame, schema: pl.Schema) -> pa.Table:
    """A frame as an Arrow table of exactly that schema."""
    return frame.to_arrow().cast(arrow_schema(schema))
