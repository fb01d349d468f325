"""Sealing a corpus: exclusions, tokenizer file and manifest, counted from what was written."""

import importlib.metadata
import platform
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq

import millstream
from millstream.errors import InputError
from millstream.files import replacing
from millstream.mixture.recipe import Recipe
from millstream.tokenize.curate import Inputs, ReadUnit, check_conserved, rule_file_digests
from millstream.tokenize.deduplicate import Deduplicated
from millstream.tokenize.lock import LOCK
from millstream.tokenize.manifest import (
    MANIFEST,
    Manifest,
    Shard,
    TokenizerIdentity,
    check_size,
    file_entry,
    read_manifest,
    write_manifest,
)
from millstream.tokenize.publish import collect_exclusions, domain_manifest, write_duplicates, write_exclusions
from millstream.tokenize.tokenizer import Encoder
from millstream.tokenize.work import Unit

LIBRARIES = ("datatrove", "numpy", "polars", "pyarrow", "tiktoken", "tokenizers", "webdataset")


def sealed(root: Path, recipe: Recipe, shards: Sequence[Shard]) -> Manifest | None:
    """The manifest that is there, if it describes this recipe and these shards and all files are there."""
    if not (root / MANIFEST).exists():
        return None
    manifest = read_manifest(root)
    listed = [s for d in manifest.domains for s in (*d.shards, *([d.holdout] if d.holdout else []))]
    section = recipe.section_digests()["corpus"]
    if manifest.corpus_digest != section or sorted(map(repr, listed)) != sorted(map(repr, shards)):
        return None
    try:
        for entry in manifest.files():
            check_size(root, entry)
    except InputError:
        return None
    return manifest


def seal(
    recipe: Recipe,
    inputs: Inputs,
    base: Path,
    root: Path,
    encoder: Encoder,
    tokenizer: Path,
    documents: Deduplicated,
    shards: Mapping[str, Sequence[Unit]],
) -> Manifest:
    """Write what is left to write, and the manifest last.

    Raises:
        InputError: a domain has no document, or its records do not add up.
    """
    if tokenizer != root / "tokenizer.json":
        with replacing(root / "tokenizer.json") as temporary:
            shutil.copyfile(tokenizer, temporary)
    domains, exclusions = [], []
    for domain in recipe.corpus.split_domains:
        excluded = collect_exclusions(domain.name, documents.reads, documents.gone)
        exclusions.append(write_exclusions(root, domain.name, excluded))
        described = domain_manifest(root, domain.name, shards[domain.name], excluded)
        if described.documents == 0:
            raise InputError(f"domain '{domain.name}' ends with no document: all of them are held out")
        check_conserved(f"domain '{domain.name}'", _records(documents.reads, domain.name), described.read)
        domains.append(described)
    manifest = Manifest(
        corpus_digest=recipe.section_digests()["corpus"],
        corpus=recipe.canonical()["corpus"],
        tokenizer=TokenizerIdentity(
            file=file_entry(root, root / "tokenizer.json"),
            vocab_size=encoder.vocab_size,
            eos_id=encoder.eos,
            bos_id=encoder.bos,
            dtype=encoder.dtype.name,
            probe=encoder.probe(),
        ),
        domains=tuple(domains),
        exclusions=tuple(exclusions),
        build={
            "name": recipe.name,
            "millstream": millstream.__version__,
            "libraries": {name: importlib.metadata.version(name) for name in LIBRARIES},
            "python": platform.python_version(),
            "evaluation": {each.name: each.sha256 for each in inputs.evaluation},
            "rule_files": rule_file_digests(recipe.corpus, base),
            "packages": {s.package: importlib.metadata.version(s.package) for s in recipe.corpus.sources if s.package},
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        },
        duplicates=tuple(write_duplicates(root, documents.gone, documents.removed)),
    )
    write_manifest(root, manifest)
    _remove_strangers(root, {MANIFEST, LOCK, *(entry.path for entry in manifest.files())})
    return manifest


def _records(reads: Sequence[ReadUnit], domain: str) -> int:
    """Records that a domain's units read: rows of their two tables."""
    own = [read for read in reads if read.domain == domain]
    return sum(pq.read_metadata(path).num_rows for read in own for path in (read.kept, read.excluded))


def _remove_strangers(root: Path, keep: set[str]) -> None:
    """Remove files of an earlier corpus that the manifest does not list, inside folders of ours."""
    for path in sorted(root.rglob("*"), reverse=True):
        relative = path.relative_to(root)
        if relative.parts[0] == ".work" or relative.as_posix() in keep:
            continue
        ours = path.suffix in (".tar", ".parquet") and len(relative.parts) == 2
        if ours:
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()
