"""Takedowns: what a certificate says is so, and everybody can check who signed it."""

import json
from pathlib import Path

import pytest
from corpora import documents
from fed_runs import feed, start
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey
from typer.testing import CliRunner

from millstream.audit.change import reason, roll_back
from millstream.audit.commitments import commit, record_commitments
from millstream.audit.corpora import open_corpora
from millstream.audit.document import audit_document
from millstream.audit.ledger import open_ledger
from millstream.audit.lookup import Question
from millstream.audit.runs import Run, open_run
from millstream.audit.signing import own_key
from millstream.audit.takedown import take_down
from millstream.audit.verifier import key_of, open_head
from millstream.cli import app
from millstream.tokenize.manifest import read_manifest

WHY = reason("letter of 3 May", "cy")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a step that was given up, taken down from after step 12."""
    home = tmp_path_factory.mktemp("takedown")
    path = start(home, signer=own_key().verifier_key)
    commit(home / "corpus", read_manifest(home / "corpus"))
    with open_ledger(path) as ledger:
        run = open_run(path)
        record_commitments(ledger, run, open_corpora(run))
    for until in (4, 8):
        feed(path, until)
    roll_back(path, 4, reason("bad node", "bob"), undo=False)
    for until in (6, 12):
        feed(path, until)
    take_down(path, [seen_and_to_come(open_run(path))], None, WHY)
    return home


def seen_and_to_come(run: Run) -> Question:
    """A document that was learned after a checkpoint that is there, and is planned again."""
    for doc_id in documents(run.path.parent / "corpus", "verse")["doc_id"]:
        asked = Question(by="id", value=doc_id)
        (audit,) = audit_document(run, open_corpora(run), asked)
        seen = [e for e in audit.exposures if e.status != "planned"]
        if seen and min(e.step for e in seen) > 4 and len(seen) < len(audit.exposures):
            return asked
    raise AssertionError("no such document; choose other counts")


def certificate(home: Path, out: Path) -> Envelope:
    done = CliRunner().invoke(app, ["takedown", "report", str(home / "run"), "--certificate", str(out)])
    assert done.exit_code == 0, done.output
    assert "signed certificate" in done.output
    return Envelope.from_dict(json.loads(out.read_bytes()))


def test_a_certificate_says_what_was_seen_and_is_signed_by_the_runs_key(home: Path, tmp_path: Path) -> None:
    run = open_run(home / "run")
    signer = str(run.signer)
    envelope = certificate(home, tmp_path / "c.json")
    public = SSlibKey(signer, "ed25519", "ed25519", {"public": key_of(signer)[2].hex()})
    assert list(envelope.verify([public], 1)) == [signer]
    statement = json.loads(envelope.payload)
    (subject,) = statement["subject"]
    (said,) = statement["predicate"]["takedowns"]
    (audit,) = audit_document(run, open_corpora(run), Question(by="id", value=subject["name"]))
    assert subject["digest"] == {"millstream_doc_key": audit.document["doc_key"].hex()}
    assert (said["why"], said["by"], said["from_step"]) == ("letter of 3 May", "cy", 13)
    assert said["steps_before"] == sorted({e.step for e in audit.exposures})
    assert said["exposures_before"] == len(audit.exposures)
    assert said["exposures_after"] == 0
    assert said["last_checkpoint_without"] == max(step for step in (0, 4, 6, 12) if step < said["steps_before"][0])
    segment = next(s for s in run.segments if s.id == said["segment"])
    assert segment.first_step <= 13 < segment.end_step
    assert (said["roots"]["keys_root"], said["roots"]["documents_root"]) == run.corpus_roots[said["span"]["corpus_id"]]


def test_its_heads_stand_before_and_after_the_takedown(home: Path, tmp_path: Path) -> None:
    run = open_run(home / "run")
    statement = json.loads(certificate(home, tmp_path / "c.json").payload)
    (said,) = statement["predicate"]["takedowns"]
    before, after = (open_head(said[name], str(run.signer)) for name in ("head_before", "head_after"))
    assert before.size <= said["record"] < after.size
    assert run.records[said["record"]].hash == said["hash"]
    assert statement["predicate"]["head"] == (run.path / "log" / "checkpoint").read_text()
