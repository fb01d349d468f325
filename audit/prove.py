"""Making proofs, as ``millstream.audit.verifier`` checks them: each whole in itself, against a signed head."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from millstream.audit.commitments import document_path, proofs_folder, read_roots
from millstream.audit.feed import leaf_hashes
from millstream.audit.heads import heads_of
from millstream.audit.key_trie import way_to
from millstream.audit.ledger import FILE, Record, stated_hashes
from millstream.audit.lookup import Question, find
from millstream.audit.merkle import consistency_path, inclusion_path, levels_of
from millstream.audit.records import FedStep
from millstream.audit.replay import stored_leaves, with_stored
from millstream.audit.runs import Run
from millstream.audit.verifier import EMPTY, FORMAT, Head, Refused, leaf_hash, open_head
from millstream.canonical import canonical_bytes
from millstream.errors import InputError, UsageError
from millstream.stream.corpora import Corpora, Corpus
from millstream.stream.reader import open_stream
from millstream.stream.shards import open_domain


def newest_head(run: Run) -> tuple[str, Head]:
    """The newest signed head of a run, as a note and read.

    Raises:
        UsageError: nothing was signed yet.
        InputError: the head is damaged.
    """
    paths = heads_of(run.path)
    if not paths or run.signer is None:
        raise UsageError(f"{run.path}: has no signed head yet; sign one with 'millstream sign {run.path}'")
    return open_note(paths[-1], run.signer)


def open_note(path: Path, signer: str) -> tuple[str, Head]:
    """A signed head in a file, as a note and read.

    Raises:
        InputError: it cannot be read or is not signed by that key.
    """
    try:
        note = path.read_bytes().decode()
        return note, open_head(note, signer)
    except (OSError, ValueError, Refused) as error:
        raise InputError(f"{path}: {error}") from error


def prove_records(run: Run, numbers: Sequence[int]) -> dict[str, Any]:
    """That records of these numbers stand in the ledger.

    Raises:
        UsageError: the newest head does not cover one of them.
    """
    note, head = newest_head(run)
    return _proof(run, "record", note) | {"records": _records(run, head, numbers)}


def prove_included(run: Run, corpora: Corpora, asked: Question, step: int, *, tokens: bool) -> dict[str, Any]:
    """That a document was in a step that was fed.

    Args:
        run: the run.
        corpora: its corpora.
        asked: which document; exactly one kept document has to match.
        step: one of the steps that it was in.
        tokens: show the tokens of the document and of the rows, which hold parts of other documents too.

    Raises:
        UsageError: there is no such document, it was not in that step, or the step's record is not covered by a head.
    """
    note, head = newest_head(run)
    corpus, row = _one_document(run, corpora, asked)
    domain, start = row["domain"], row["token_start"]
    fed = _fed(run, corpus.manifest.corpus_id, domain, (start, start + row["n_tokens"]), step)
    plan = run.plans[fed.segment]
    at = document_path(corpus.root, corpus.manifest, domain, row["shard_number"], start)
    batch = open_stream(plan, corpora.values()).batch(step)
    stored = stored_leaves(run)
    derived = leaf_hashes(batch.indices, batch.tokens, batch.buried)
    leaves = [bytes(leaf) for leaf in with_stored(derived, stored, fed.seq)]
    levels = levels_of(leaves)
    if levels[-1][0].hex() != fed.root:
        raise InputError(
            f"{run.path}: the root of step {step} is not the one that its corpus gives; nothing to prove by"
        )
    seen = plan.exposures(domain, start, start + row["n_tokens"], corpus.manifest.corpus_id)
    rows = []
    numbers = sorted({int(r) for r, s in zip(seen.row.tolist(), seen.step.tolist(), strict=True) if s == step})
    if tokens and any((fed.seq, number) in stored for number in numbers):
        raise UsageError(f"{run.path}: tokens of these rows were redacted; prove it with --no-tokens")
    for number in numbers:
        shown = {"tokens": _encoded(batch.tokens[number])} if tokens else {}
        path = [h.hex() for h in inclusion_path(levels, number)]
        rows.append({"row": number, "leaf": leaves[number].hex(), "path": path} | shown)
    segment = next(r for r in run.records.of("segment") if fed.segment in _segment_ids(r))
    first_plan = {} if "plan" in segment.body else {"run_json": (run.path / "run.json").read_bytes().decode()}
    reader = open_domain(
        corpus.root, corpus.manifest.domain(domain), corpus.manifest.tokenizer.dtype, start + row["n_tokens"]
    )
    own = {"document_tokens": _encoded(reader.span(start, start + row["n_tokens"]))} if tokens else {}
    return (
        _proof(run, "include", note)
        | {
            "key": row["doc_key"].hex()
            if asked.by != "key"
            else asked.value.hex()
            if isinstance(asked.value, bytes)
            else "",
            "records": _records(run, head, sorted({0, segment.seq, fed.seq})),
            "document": {
                "doc_key": row["doc_key"].hex(),
                "text_key": row["text_key"].hex(),
                "token_start": start,
                "n_tokens": row["n_tokens"],
                "tokens_sha256": at.tokens_sha256,
                "index": at.index,
                "path": [h.hex() for h in at.path],
            },
            "shard": {
                "corpus_id": corpus.manifest.corpus_id,
                "domain": domain,
                "number": row["shard_number"],
                "documents": at.documents,
                "index": at.shard_index,
                "shards": at.shards,
                "path": [h.hex() for h in at.shard_path],
            },
            "rows": rows,
        }
        | first_plan
        | own
    )


def prove_absent(run: Run, corpora: Corpora, key: bytes) -> dict[str, Any]:
    """That no document of a key lies in any corpus of the run.

    Raises:
        UsageError: one does, or a corpus has no roots that a head names.
    """
    note, head = newest_head(run)
    ways = []
    for corpus_id, roots in head.corpora.items():
        corpus = corpora[corpus_id]
        if roots is None or read_roots(corpus.root, corpus.manifest) is None:
            raise UsageError(
                f"{corpus.root}: has no roots that a signed head of the run names; run 'millstream prove index "
                f"{corpus.root}', "
                f"then 'millstream sign {run.path}'"
            )
        way = way_to(proofs_folder(corpus.root, corpus.manifest), key)
        if way.found == key:
            raise UsageError(f"{corpus.root}: holds a document of key {key.hex()[:16]}; see 'millstream audit doc'")
        siblings = [None if s == EMPTY else s.hex() for s in way.siblings]
        ways.append(
            {"corpus_id": corpus_id, "siblings": siblings, "other": way.found.hex() if way.found is not None else None}
        )
    return _proof(run, "absent", note) | {"key": key.hex(), "corpora": ways}


def prove_consistent(run: Run, old_note: Path) -> dict[str, Any]:
    """That the newest head continues an older one.

    Raises:
        InputError: the older one is not a head of this run's signer.
        UsageError: it is no older head of this run.
    """
    note, head = newest_head(run)
    assert run.signer is not None
    old, before = open_note(old_note, run.signer)
    if before.origin != head.origin or not 0 < before.size <= head.size:
        raise UsageError(f"{old_note}: is of {before.size} records of {before.origin}; no older head of {head.origin}")
    leaves = [leaf_hash(h) for h in stated_hashes(run.path / FILE)[: head.size]]
    path = [h.hex() for h in consistency_path(leaves, before.size)]
    return _proof(run, "consistent", note) | {"old_head": old, "path": path}


def _proof(run: Run, kind: str, note: str) -> dict[str, Any]:
    return {"format": FORMAT, "kind": kind, "head": note, "signer": run.signer}


def _records(run: Run, head: Head, numbers: Sequence[int]) -> list[dict[str, Any]]:
    levels = levels_of([leaf_hash(h) for h in stated_hashes(run.path / FILE)[: head.size]])
    found = []
    for number in numbers:
        if not 0 <= number < head.size:
            raise UsageError(
                f"{run.path}: the newest signed head covers records 0 to {head.size - 1}, not {number}; "
                f"'millstream sign {run.path}' signs another"
            )
        record = run.records[number]
        fields = {name: getattr(record, name) for name in Record.__slots__}
        path = [h.hex() for h in inclusion_path(levels, number)]
        found.append({"line": canonical_bytes(fields).decode(), "path": path})
    return found


def _one_document(run: Run, corpora: Corpora, asked: Question) -> tuple[Corpus, dict[str, Any]]:
    found = []
    for corpus in corpora.values():
        for row in find(corpus.root, corpus.manifest, asked).kept.iter_rows(named=True):
            shards = corpus.manifest.domain(row["domain"]).shards
            number = max(n for n, s in enumerate(shards) if s.token_start <= row["token_start"])
            found.append((corpus, row | {"shard_number": number}))
    if len(found) != 1:
        raise UsageError(f"{run.path}: {len(found)} documents of the run's corpora match; a proof is of one")
    return found[0]


def _fed(run: Run, corpus_id: str, domain: str, span: tuple[int, int], step: int) -> FedStep:
    """The newest record of a step in which a span's tokens were fed."""
    for fed in reversed(run.fed.get(step, [])):
        plan = run.plans[fed.segment]
        if any((ring.name, ring.corpus_id) == (domain, corpus_id) for ring in plan.rings):
            seen = plan.exposures(domain, *span, corpus_id)
            if (seen.step == step).any():
                return fed
    fed_in = sorted(
        {
            s
            for plan in {p.plan_id: p for p in run.plans.values()}.values()
            if domain in plan.domains
            for s in plan.exposures(domain, *span, corpus_id).step.tolist()
            if s in run.fed
        }
    )
    there = ", ".join(map(str, fed_in[:10])) + (" ..." if len(fed_in) > 10 else "") if fed_in else "none"
    raise UsageError(f"{run.path}: the document was not fed in step {step}; steps in which it was: {there}")


def _segment_ids(record: Record) -> set[int]:
    return {int(s["id"]) for s in (record.body["segment"], *record.body.get("later", []))}


def _encoded(tokens: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(tokens, "<u4").tobytes()).decode()
