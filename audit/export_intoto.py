"""A checkpoint's provenance as an in-toto statement in a signed DSSE envelope.

Sources: in-toto Attestation Framework, Statement v1; DSSE v1.0 (its pre-authentication encoding).
"""

import base64
import hashlib
from dataclasses import asdict
from typing import Any

from millstream.audit.change import checkpoint_at
from millstream.audit.heads import origin_of
from millstream.audit.prove import newest_head
from millstream.audit.runs import Run
from millstream.audit.signing import Signer
from millstream.canonical import canonical_bytes
from millstream.errors import UsageError

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:millstream:training-run:v1"
PAYLOAD = "application/vnd.in-toto+json"


def statement_of(run: Run, step: int) -> dict[str, Any]:
    """The statement about the checkpoint of a step: its files, and what they were made from.

    ``roots_sha256`` is SHA-256 over the roots, 32 bytes each, of the steps from 1 on that led to it.

    Raises:
        UsageError: the lineage has no such checkpoint, or no signed head covers its record.
    """
    saved = checkpoint_at(run, step)
    if saved is None:
        raise UsageError(f"{run.path}: step 0 is no checkpoint; a statement is about a file that was written")
    note, head = newest_head(run)
    if saved.seq >= head.size:
        raise UsageError(f"{run.path}: no signed head covers the checkpoint; 'millstream sign {run.path}' signs one")
    roots = hashlib.sha256()
    for number in range(1, step + 1):
        fed = run.learned(number)
        assert fed is not None
        roots.update(bytes.fromhex(fed.root))
    plan = run.plans[run.segment_of(step).id]
    return {
        "_type": STATEMENT,
        "subject": [{"name": f"{saved.path}/{n}", "digest": {"sha256": h}} for n, h in sorted(saved.files.items())],
        "predicateType": PREDICATE,
        "predicate": {
            "run": {"name": run.name, "run_id": run.run_id, "log": origin_of(run)},
            "recipe": dict(run.info["sections"]),
            "code": run.info["code"],
            "environment": run.info["environment"],
            "corpora": [
                {"corpus_id": i, **({"keys_root": r[0], "documents_root": r[1]} if r else {})}
                for i, r in run.corpus_roots.items()
                if i in plan.corpus_ids
            ],
            "plan_id": plan.plan_id,
            "segments": [asdict(s) for s in run.segments if s.first_step <= step],
            "steps": {"first": 1, "last": step, "roots_sha256": roots.hexdigest()},
            "checkpoint": {"step": step, "record": saved.seq, "record_hash": run.records[saved.seq].hash},
            "head": note,
        },
    }


def envelope_of(statement: dict[str, Any], signer: Signer) -> dict[str, Any]:
    """A statement in a DSSE envelope; the same statement and key give the same bytes."""
    payload = canonical_bytes(statement)
    kind = PAYLOAD.encode()
    encoded = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    signature = base64.b64encode(signer.private.sign(encoded)).decode()
    return {
        "payloadType": PAYLOAD,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [{"keyid": signer.verifier_key, "sig": signature}],
    }
