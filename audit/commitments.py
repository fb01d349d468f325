"""What a corpus is committed to by: the root of its documents and the root of its keys.

    documents   a tree a shard over its documents in order, and a tree over the shards; says which tokens of which
                domain a document is, and what tokens they are
    keys        the trie of ``millstream.audit.key_trie`` over the keys of all documents, as read and as tokenized;
                says what is not there

Held-out documents are in neither: no plan reads them. Both follow from the corpus alone. They lie in
``CORPUS/proofs``, apart from the manifest, so that a corpus of an earlier release gets them without being built again;
those of a corpus in a store lie in ``indexes/CORPUS_ID/proofs`` of the current folder:

    roots.json      the two roots and counts, written last
    documents.bin   32 bytes for every 256 documents of a shard: their subtree's root
    keys.bin, ...   the trie
"""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl
from numpy.typing import NDArray

from millstream.audit.key_trie import Keys, write_trie
from millstream.audit.ledger import Ledger
from millstream.audit.merkle import inclusion_path, levels_of, tree_root
from millstream.audit.runs import Run
from millstream.audit.verifier import leaf_hash, shard_leaf
from millstream.canonical import canonical_bytes
from millstream.errors import InputError, UsageError
from millstream.files import write_bytes
from millstream.stream.corpora import Corpora, Corpus
from millstream.stream.roots import Root, whole_file
from millstream.stream.shards import open_domain
from millstream.stream.tables import lookup_folder
from millstream.tokenize.manifest import DomainManifest, Manifest, Shard

FORMAT = "millstream-roots/1"
FOLDER = "proofs"
ROOTS = "roots.json"
DOCUMENTS = "documents.bin"
GROUP = 256
"""Documents of a subtree whose root is kept; a power of two."""
TOKENS_AT_ONCE = 1 << 22

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Roots:
    """The commitments of a corpus: roots as hex, and how many documents and distinct keys they cover."""

    corpus_id: str
    documents: int
    documents_root: str
    keys: int
    keys_root: str


def commit(root: Root, manifest: Manifest, progress: Progress = lambda *_: None) -> Roots:
    """Compute the roots of a corpus and write what proofs need, unless that was done.

    Raises:
        InputError: a table or shard is missing or damaged.
        SetupError: the disk is full.
    """
    known = read_roots(root, manifest)
    return known if known is not None else write_commitments(root, manifest, proofs_folder(root, manifest), progress)


def proofs_folder(root: Root, manifest: Manifest) -> Path:
    """Where a corpus's roots and tries lie: beside it, or for one in a store beside its indexes."""
    return lookup_folder(Corpus(root, manifest)).with_name(FOLDER)


def read_roots(root: Root, manifest: Manifest) -> Roots | None:
    """The roots that lie beside a corpus; None where they were not computed for it yet."""
    try:
        raw = orjson.loads((proofs_folder(root, manifest) / ROOTS).read_bytes())
        found = Roots(**{name: value for name, value in raw.items() if name != "format"})
    except (OSError, orjson.JSONDecodeError, TypeError, AttributeError):
        return None
    return found if raw["format"] == FORMAT and found.corpus_id == manifest.corpus_id else None


def write_commitments(root: Root, manifest: Manifest, folder: Path, progress: Progress = lambda *_: None) -> Roots:
    """Compute the roots of a corpus and write them, and what proofs need, into a folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".proofs-", dir=folder.parent) as temporary:
        beginning = Path(temporary) / "whole"
        beginning.mkdir()
        documents = sum(d.documents for d in manifest.domains)
        leaves: list[bytes] = []
        with (beginning / DOCUMENTS).open("wb") as file:
            keys = _commit_shards(root, manifest, file.write, leaves, progress)
            keys_root, distinct = write_trie(beginning, keys, documents)
        roots = Roots(
            corpus_id=manifest.corpus_id,
            documents=documents,
            documents_root=tree_root(leaves).hex(),
            keys=distinct,
            keys_root=keys_root.hex(),
        )
        write_bytes(beginning / ROOTS, canonical_bytes({"format": FORMAT} | asdict(roots)) + b"\n")
        shutil.rmtree(folder, ignore_errors=True)
        beginning.rename(folder)
    return roots


def _commit_shards(
    root: Root, manifest: Manifest, write: Callable[[bytes], Any], leaves: list[bytes], progress: Progress
) -> Iterator[Keys]:
    """Write the subtrees' roots and add the shards' leaves; yields the shards' keys."""
    shards = list(shards_of(manifest))
    for done, (domain, number, shard) in enumerate(shards):
        progress("commit", done, len(shards))
        table = documents_table(root, shard)
        groups = [tree_root(g) for g in _groups(document_leaves(root, manifest, domain, table))]
        write(b"".join(groups))
        leaves.append(shard_leaf(domain.name, number, len(table), tree_root(groups)))
        read, tokenized = (_keys(table[name]) for name in ("doc_key", "text_key"))
        yield np.concatenate((read, tokenized[read != tokenized]))
    progress("commit", len(shards), len(shards))


def shards_of(manifest: Manifest) -> Iterator[tuple[DomainManifest, int, Shard]]:
    """Every shard of a corpus in the order of its tree, with its domain and its number in the domain."""
    for domain in manifest.domains:
        for number, shard in enumerate(domain.shards):
            yield domain, number, shard


def documents_table(root: Root, shard: Shard) -> pl.DataFrame:
    """The columns of a shard's documents that its tree is of.

    Raises:
        InputError: the table is missing or damaged.
    """
    table = whole_file(root, shard.documents)
    try:
        return pl.read_parquet(table, columns=["doc_key", "text_key", "n_tokens", "token_start"])
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{root}/{shard.documents.path}: damaged: {str(error).splitlines()[0]}") from error


def token_digests(root: Root, manifest: Manifest, domain: DomainManifest, table: pl.DataFrame) -> list[bytes]:
    """SHA-256 of each document's tokens as u32, little-endian; of redacted ones as they were. They lie end to end."""
    reader = open_domain(root, domain, manifest.tokenizer.dtype, domain.tokens)
    starts = table["token_start"].to_numpy()
    ends = starts + table["n_tokens"].to_numpy()
    digests: list[bytes] = []
    at = 0
    while at < len(starts):
        until = max(at + 1, int(np.searchsorted(ends, starts[at] + TOKENS_AT_ONCE, side="right")))
        view = memoryview(reader.span(int(starts[at]), int(ends[until - 1])).astype("<u4").tobytes())
        borders = ((ends[at:until] - starts[at]) * 4).tolist()
        digests += [hashlib.sha256(view[a:b]).digest() for a, b in zip([0, *borders], borders, strict=False)]
        at = until
    redacted = manifest.redactions.documents if manifest.redactions else ()
    if was := {d.token_start: d.tokens_sha256 for d in redacted if d.domain == domain.name}:
        return [
            bytes.fromhex(was[start]) if start in was else found
            for start, found in zip(starts.tolist(), digests, strict=True)
        ]
    return digests


def document_leaves(root: Root, manifest: Manifest, domain: DomainManifest, table: pl.DataFrame) -> list[bytes]:
    """Leaves of documents that lie end to end, as of ``verifier.document_leaf``."""
    digests = np.frombuffer(b"".join(token_digests(root, manifest, domain, table)), np.uint8).reshape(-1, 32)
    numbers = [_bytes(table[name].to_numpy().astype("<u8"), 8) for name in ("token_start", "n_tokens")]
    keys = [_bytes(_keys(table[name]), 32) for name in ("doc_key", "text_key")]
    packed = np.concatenate([*numbers, *keys, digests], axis=1).tobytes()
    width = len(packed) // max(1, len(table))
    return [leaf_hash(b"document/v1\0" + packed[n : n + width]) for n in range(0, len(packed), width)]


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentPath:
    """Where a document stands in its shard's tree, and the shard in its corpus's; paths from the bottom."""

    index: int
    documents: int
    path: tuple[bytes, ...]
    tokens_sha256: str
    shard_index: int
    shards: int
    shard_path: tuple[bytes, ...]


def document_path(root: Root, manifest: Manifest, domain: str, number: int, token_start: int) -> DocumentPath:
    """The way from the document that begins at a token of a domain to the corpus's root.

    Raises:
        UsageError: the corpus was not committed to yet, or no document begins there.
    """
    if read_roots(root, manifest) is None:
        raise UsageError(f"{root}: has no roots to prove anything by; run 'millstream prove index {root}' first")
    shards = list(shards_of(manifest))
    at = next(n for n, (d, i, _) in enumerate(shards) if (d.name, i) == (domain, number))
    held, _, shard = shards[at]
    table = documents_table(root, shard)
    index = int(table["token_start"].search_sorted(token_start))
    if index == len(table) or table["token_start"][index] != token_start:
        raise UsageError(f"{root}: no document of domain '{domain}' begins at token {token_start}")
    group = index // GROUP
    own = table[group * GROUP : (group + 1) * GROUP]
    leaves = document_leaves(root, manifest, held, own)
    sizes = [-(-s.document_count // GROUP) for _, _, s in shards]
    stored = np.fromfile(proofs_folder(root, manifest) / DOCUMENTS, np.uint8).reshape(-1, 32)
    starts = np.concatenate(([0], np.cumsum(sizes)))
    nodes = [stored[a:b].tobytes() for a, b in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)]
    groups = [[each[n : n + 32] for n in range(0, len(each), 32)] for each in nodes]
    path = inclusion_path(levels_of(leaves), index - group * GROUP) + inclusion_path(levels_of(groups[at]), group)
    shard_leaves = [
        shard_leaf(d.name, i, s.document_count, tree_root(g)) for (d, i, s), g in zip(shards, groups, strict=True)
    ]
    return DocumentPath(
        index=index,
        documents=len(table),
        path=tuple(path),
        tokens_sha256=token_digests(root, manifest, held, own)[index - group * GROUP].hex(),
        shard_index=at,
        shards=len(shards),
        shard_path=tuple(inclusion_path(levels_of(shard_leaves), at)),
    )


def record_commitments(ledger: Ledger, run: Run, corpora: Corpora) -> None:
    """Write the roots of the corpora of a run into its ledger, of those that have any and are not recorded yet."""
    for corpus_id, corpus in corpora.items():
        if run.corpus_roots.get(corpus_id) is None:
            roots = read_roots(corpus.root, corpus.manifest)
            if roots is not None:
                ledger.append("corpus", asdict(roots))


def _groups(leaves: list[bytes]) -> Iterator[list[bytes]]:
    for first in range(0, len(leaves), GROUP):
        yield leaves[first : first + GROUP]


def _keys(column: pl.Series) -> Keys:
    return np.frombuffer(b"".join(column.to_list()), "S32")


def _bytes(values: NDArray[Any], width: int) -> NDArray[np.uint8]:
    return np.frombuffer(values.tobytes(), np.uint8).reshape(-1, width)
