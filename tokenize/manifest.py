"""The corpus manifest, ``corpus.json``: what a built corpus consists of.

``corpus_id`` is the digest of the manifest without its ``build`` block (library versions, times,
executor), so it depends on the recipe and the inputs alone. Every number is counted from the
files that were written.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from millstream.canonical import canonical_bytes, digest
from millstream.errors import InputError, UsageError
from millstream.files import sha256_file, write_bytes
from millstream.tokenize.redactions import REDACTIONS, Redactions, read_redactions

FORMAT = "millstream-corpus/1"
MANIFEST = "corpus.json"

DOCUMENT_COLUMNS = (
    "doc_key",
    "text_key",
    "doc_id",
    "source",
    "locator",
    "url",
    "licence",
    "edits",
    "n_bytes",
    "n_tokens",
    "token_start",
    "shard",
    "chunk",
    "metadata",
)
"""Columns of a document table, in order; a table of scored documents has ``score`` after them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """A file of the corpus: path relative to its root, size in bytes, SHA-256 as hex."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """A webdataset tar with its document table and chunk index.

    ``token_start`` is the position of its first token in the domain; ``tokens`` and ``documents``
    are counts.
    """

    tar: FileEntry
    documents: FileEntry
    chunks: FileEntry
    token_start: int
    tokens: int
    document_count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DomainManifest:
    """One domain: its shards in stream order, its held-out shard, and what was left out."""

    name: str
    tokens: int
    documents: int
    bytes: int
    shards: tuple[Shard, ...]
    holdout: Shard | None
    read: int
    """Records read; equal to documents + held-out documents + exclusions."""
    exclusions: dict[str, int]
    """Number of dropped records by ``stage/rule``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerIdentity:
    """Which tokenizer made the tokens.

    ``probe`` is the digest of the ids of a fixed set of strings: a library that encodes
    differently is noticed before it spoils a corpus.
    """

    file: FileEntry
    vocab_size: int
    eos_id: int
    bos_id: int | None
    dtype: str
    probe: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A sealed corpus. Its name is a label and stands in the build block."""

    corpus_digest: str
    """Digest of the recipe's corpus section."""
    corpus: dict[str, Any]
    """The corpus section itself, every default filled in."""
    tokenizer: TokenizerIdentity
    domains: tuple[DomainManifest, ...]
    exclusions: tuple[FileEntry, ...]
    build: dict[str, Any]
    duplicates: tuple[FileEntry, ...] = ()
    """Which document stays for each duplicate that was dropped, and which sentences were cut."""
    redactions: Redactions | None = None
    """What was written over since; the entries of those files are as they are now. No part of the corpus id."""

    def domain(self, name: str) -> DomainManifest:
        """The domain of that name.

        Raises:
            UsageError: the corpus has no such domain.
        """
        for domain in self.domains:
            if domain.name == name:
                return domain
        names = ", ".join(d.name for d in self.domains)
        raise UsageError(f"the corpus has no domain '{name}'; it has {names}")

    @cached_property
    def corpus_id(self) -> str:
        """Digest of everything but the ``build`` block, as hex."""
        body = to_json(self)
        del body["build"]
        return digest(body)

    def files(self) -> list[FileEntry]:
        """Every file that belongs to the corpus, in a fixed order."""
        shards = [s for d in self.domains for s in (*d.shards, *([d.holdout] if d.holdout else []))]
        return [
            self.tokenizer.file,
            *(entry for s in shards for entry in (s.tar, s.documents, s.chunks)),
            *self.exclusions,
            *self.duplicates,
        ]


def file_entry(root: Path, path: Path) -> FileEntry:
    """Measure and hash a file below ``root``."""
    return FileEntry(path=path.relative_to(root).as_posix(), bytes=path.stat().st_size, sha256=sha256_file(path))


def to_json(manifest: Manifest) -> dict[str, Any]:
    """The manifest as it was sealed, as JSON values, with its format line."""
    redacted = manifest.redactions.files if manifest.redactions else ()
    sealed = {f.path: FileEntry(path=f.path, bytes=f.sealed_bytes, sha256=f.sealed_sha256) for f in redacted}
    body = asdict(_with_entries(manifest, sealed) if sealed else manifest)
    del body["redactions"]
    if not manifest.duplicates:
        # As in corpora that were built before there was such a table: their digests stay what they were.
        del body["duplicates"]
    return {"format": FORMAT} | body


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Write ``corpus.json``; this seals the corpus."""
    write_bytes(root / MANIFEST, canonical_bytes(to_json(manifest)) + b"\n")


def read_manifest(root: Path) -> Manifest:
    """Read the manifest of a built corpus, with what was redacted since.

    Raises:
        UsageError: there is no corpus here, or it is not finished.
        InputError: the manifest or the list of redactions is damaged or of a newer format.
    """
    path = root / MANIFEST
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{root}: no corpus here (no {MANIFEST}); run 'millstream build RECIPE' first") from error
    manifest = parse_manifest(data, str(path))
    redactions = read_redactions(root)
    return manifest if redactions is None else with_redactions(manifest, redactions, str(root / REDACTIONS))


def with_redactions(manifest: Manifest, redactions: Redactions, where: str) -> Manifest:
    """A sealed manifest with the entries of redacted files as they are now.

    Raises:
        InputError: the redactions are of another corpus or of files that it does not have.
    """
    if redactions.corpus_id != manifest.corpus_id:
        raise InputError(f"{where}: is of corpus {redactions.corpus_id[:16]}, this is {manifest.corpus_id[:16]}")
    sealed = {entry.path: entry for entry in manifest.files()}
    for file in redactions.files:
        known = sealed.get(file.path)
        if known is None or (known.bytes, known.sha256) != (file.sealed_bytes, file.sealed_sha256):
            raise InputError(f"{where}: names the file '{file.path}', which the corpus does not have so")
    now = {f.path: FileEntry(path=f.path, bytes=f.bytes, sha256=f.sha256) for f in redactions.files}
    return replace(_with_entries(manifest, now), redactions=redactions)


def parse_manifest(data: bytes, where: str) -> Manifest:
    """The manifest that a file holds; ``where`` names the file in errors.

    Raises:
        InputError: the manifest is damaged or of a newer format.
    """
    try:
        raw = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InputError(f"{where}: damaged: {error}") from error
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        found = raw.get("format") if isinstance(raw, dict) else type(raw).__name__
        raise InputError(f"{where}: expected format {FORMAT}, found {found}")
    try:
        return _from_json(raw)
    except (KeyError, TypeError) as error:
        raise InputError(f"{where}: damaged: {error!r}") from error


def safe_path(root: Path, entry: FileEntry) -> Path:
    """The entry's path below ``root``.

    Raises:
        InputError: the path would leave the corpus folder.
    """
    path = root / entry.path
    if not path.resolve().is_relative_to(root.resolve()):
        raise InputError(f"{root / MANIFEST}: '{entry.path}' lies outside the corpus")
    return path


def check_size(root: Path, entry: FileEntry) -> Path:
    """The path of a file whose presence and size were checked.

    Raises:
        InputError: the file is missing or its size differs from the manifest.
    """
    path = safe_path(root, entry)
    try:
        found = path.stat().st_size
    except OSError as error:
        raise InputError(f"{path}: missing; the manifest lists {entry.bytes} bytes") from error
    if found != entry.bytes:
        raise InputError(f"{path}: {found} bytes, the manifest says {entry.bytes}")
    return path


def _from_json(raw: dict[str, Any]) -> Manifest:
    tokenizer = raw["tokenizer"]
    return Manifest(
        corpus_digest=raw["corpus_digest"],
        corpus=raw["corpus"],
        tokenizer=TokenizerIdentity(**{**tokenizer, "file": FileEntry(**tokenizer["file"])}),
        domains=tuple(
            DomainManifest(
                **{
                    **domain,
                    "shards": tuple(_shard(s) for s in domain["shards"]),
                    "holdout": _shard(domain["holdout"]) if domain["holdout"] else None,
                }
            )
            for domain in raw["domains"]
        ),
        exclusions=tuple(FileEntry(**entry) for entry in raw["exclusions"]),
        build=raw["build"],
        duplicates=tuple(FileEntry(**entry) for entry in raw.get("duplicates", ())),
    )


def _shard(raw: dict[str, Any]) -> Shard:
    entries = {name: FileEntry(**raw[name]) for name in ("tar", "documents", "chunks")}
    return Shard(**{**raw, **entries})


def _with_entries(manifest: Manifest, entries: Mapping[str, FileEntry]) -> Manifest:
    """The manifest with other entries for some files of its shards, by path."""

    def changed(shard: Shard) -> Shard:
        tar, documents = (entries.get(entry.path, entry) for entry in (shard.tar, shard.documents))
        return replace(shard, tar=tar, documents=documents)

    domains = [replace(domain, shards=tuple(map(changed, domain.shards))) for domain in manifest.domains]
    return replace(manifest, domains=tuple(domains))
