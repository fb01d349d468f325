"""Writing over documents in a corpus's shards: EOS in place of their tokens, nothing in place of what a table told.

Lengths and places stay, so that no other document moves. New files are made beside the old ones and take their names
only when the list of redactions is on the disk; what a crash leaves is finished by the next start.
"""

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from millstream.errors import InputError
from millstream.files import replacing, sha256_file, write_bytes
from millstream.tokenize.manifest import FileEntry, Manifest, Shard, check_size, safe_path
from millstream.tokenize.redactions import REDACTIONS, RedactedDocument, RedactedFile, Redactions

SUFFIX = ".redacted"
DERIVED = (".work", "lookup", "search")
"""Folders of a corpus that hold texts or rows of tables; each is made anew where it is wanted."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Redactions that are ready: all of the corpus's, and the files that take the place of others."""

    redactions: Redactions
    files: tuple[tuple[Path, Path], ...]
    """Each the new one and the old."""


def prepare_redaction(root: Path, manifest: Manifest, spans: Sequence[tuple[str, int, int]]) -> Prepared:
    """Make the files of a corpus anew without some documents, beside the old ones.

    Args:
        root: the corpus folder.
        manifest: as read from it.
        spans: domain, first token and the one after the last of each document, for training.

    Raises:
        InputError: a table or shard is damaged.
        SetupError: the disk is full.
    """
    before = manifest.redactions or Redactions(corpus_id=manifest.corpus_id, documents=(), files=())
    known = {(d.domain, d.token_start): d for d in before.documents}
    sealed = {f.path: (f.sealed_bytes, f.sealed_sha256) for f in before.files}
    now = {f.path: f for f in before.files}
    replaced: list[tuple[Path, Path]] = []
    for domain, shard, own in _by_shard(manifest, spans):
        if all((domain, start) in known for start, _ in own):
            continue
        table = _table(root, shard)
        rows = {row["token_start"]: row for row in table.filter(_at(own)).iter_rows(named=True)}
        tar, places = _without_tokens(root, manifest, shard, own)
        for (start, end), digest in zip(own, places, strict=True):
            row = rows.get(start)
            if row is None or row["n_tokens"] != end - start:
                raise InputError(f"{root}: tokens {start} to {end} of domain '{domain}' are no whole document")
            known.setdefault(
                (domain, start),
                RedactedDocument(
                    domain=domain,
                    token_start=start,
                    n_tokens=end - start,
                    doc_key=row["doc_key"].hex(),
                    tokens_sha256=digest,
                ),
            )
        documents = safe_path(root, shard.documents)
        silent = [pl.when(_at(own)).then(None).otherwise(pl.col(n)).alias(n) for n in ("url", "metadata")]
        blank = documents.with_name(documents.name + SUFFIX)
        with replacing(blank) as temporary:
            table.with_columns(silent).write_parquet(temporary, compression="zstd", row_group_size=1 << 16)
        for new, entry in ((tar, shard.tar), (blank, shard.documents)):
            size, sha256 = sealed.get(entry.path, (entry.bytes, entry.sha256))
            now[entry.path] = RedactedFile(
                path=entry.path,
                bytes=new.stat().st_size,
                sha256=sha256_file(new),
                sealed_bytes=size,
                sealed_sha256=sha256,
            )
            replaced.append((new, safe_path(root, entry)))
    redactions = Redactions(
        corpus_id=manifest.corpus_id,
        documents=tuple(known[place] for place in sorted(known)),
        files=tuple(now[path] for path in sorted(now)),
    )
    return Prepared(redactions, tuple(replaced))


def redact(root: Path, prepared: Prepared) -> list[str]:
    """Put prepared redactions in force; returns the derived folders that were removed for the texts in them."""
    write_bytes(root / REDACTIONS, prepared.redactions.encoded())
    return finish_redaction(root, prepared.redactions)


def finish_redaction(root: Path, redactions: Redactions) -> list[str]:
    """Let files that are listed take the place of those that they were made from, also where a crash came between.

    Returns:
        The derived folders that were removed for the texts in them.
    """
    for file in redactions.files:
        old = root / file.path
        new = old.with_name(old.name + SUFFIX)
        if new.exists() and sha256_file(new) == file.sha256:
            new.replace(old)
    removed = [name for name in DERIVED if (root / name).exists()]
    for name in removed:
        shutil.rmtree(root / name)
    return removed


def discard(prepared: Prepared) -> None:
    """Remove what was made for a redaction that does not take place."""
    for new, _ in prepared.files:
        new.unlink(missing_ok=True)


def _by_shard(
    manifest: Manifest, spans: Sequence[tuple[str, int, int]]
) -> Iterator[tuple[str, Shard, list[tuple[int, int]]]]:
    """The shards that hold spans, each with its own, in order."""
    for domain in manifest.domains:
        for shard in domain.shards:
            end = shard.token_start + shard.tokens
            own = {(a, b) for name, a, b in spans if name == domain.name and shard.token_start <= a < end}
            if own:
                yield domain.name, shard, sorted(own)


def _unaltered(root: Path, entry: FileEntry) -> Path:
    """The path of a file that is what the manifest says: a redaction must not make a changed file look right."""
    path = check_size(root, entry)
    if sha256_file(path) != entry.sha256:
        raise InputError(f"{path}: altered: its SHA-256 is not the manifest's; nothing is redacted in it")
    return path


def _table(root: Path, shard: Shard) -> pl.DataFrame:
    path = _unaltered(root, shard.documents)
    try:
        return pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{path}: damaged: {str(error).splitlines()[0]}") from error


def _at(own: Sequence[tuple[int, int]]) -> pl.Expr:
    return pl.col("token_start").is_in([start for start, _ in own])


def _without_tokens(
    root: Path, manifest: Manifest, shard: Shard, own: Sequence[tuple[int, int]]
) -> tuple[Path, list[str]]:
    """A copy of a shard with EOS over spans; and the digest of each span's tokens as they were."""
    old = _unaltered(root, shard.tar)
    new = old.with_name(old.name + SUFFIX)
    chunks = pl.read_parquet(root / shard.chunks.path)
    starts = chunks["token_start"].to_numpy()
    dtype = np.dtype(manifest.tokenizer.dtype).newbyteorder("<")
    digests = []
    with replacing(new) as temporary:
        shutil.copyfile(old, temporary)
        with temporary.open("r+b") as file:
            for start, end in own:
                # A document lies in one chunk.
                chunk = int(starts.searchsorted(start, "right")) - 1
                offset = int(chunks["data_offset"][chunk]) + (start - int(starts[chunk])) * dtype.itemsize
                file.seek(offset)
                tokens = np.frombuffer(file.read((end - start) * dtype.itemsize), dtype)
                digests.append(hashlib.sha256(tokens.astype("<u4").tobytes()).hexdigest())
                file.seek(offset)
                file.write(np.full(end - start, manifest.tokenizer.eos_id, dtype).tobytes())
    return new, digests
