"""An incident bundle names what made a loss, and the way back."""

import json
from pathlib import Path

import numpy as np
import pytest
import simulated
from simulated import begin, train
from test_cli import fails, run

from millstream.audit.alerts import raise_alerts
from millstream.audit.corpora import open_corpora
from millstream.audit.runs import open_run
from millstream.audit.step import audit_step
from millstream.train.watch.alarms import Alarm
from millstream.train.watch.incident import alike_rows, incident_json, incident_of, incident_text
from millstream.train.watch.watching import alert_body

MIXTURE = {
    "seq_len": 48,
    "batch": 8,
    "steps": 40,
    "max_epochs": "40",
    "phases": [{"name": "a", "weights": {"law": "0.5", "news": "0.3", "verse": "0.2"}}],
}
BAD = 30
ROW = 5


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("incident")
    path = begin(folder, MIXTURE, {"law": 60, "news": 40, "verse": 30})
    usual = simulated.losses_of
    try:
        for name, last in ((usual, BAD - 1), (_spike, BAD), (usual, 35)):
            simulated.losses_of = name
            train(path, open_run(path).last_step, last)
    finally:
        simulated.losses_of = usual
    return folder


def _spike(step: int, attempt: int, sequences: int) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    losses = np.full(sequences, 3.5, np.float32)
    losses[ROW] = 14
    return losses


def test_a_bundle_names_documents_domain_and_checkpoint(home: Path) -> None:
    path = home / "run"
    run_ = open_run(path)
    alarm = Alarm(step=BAD, detector="loss", name="loss", domain=None, value=20.0, limit=9.0, text="loss is high")
    raise_alerts(run_, [alert_body(run_, alarm)])
    run_ = open_run(path)
    corpora = open_corpora(run_)
    incident = incident_of(run_, corpora, BAD)
    content = json.loads(json.dumps(incident_json(incident)))
    guilty = audit_step(run_, corpora, BAD).documents
    rows = {d["rows"][0] for d in content["documents"][:1]}
    assert rows == {ROW}
    assert content["documents"][0]["doc_id"] in set(guilty["doc_id"].to_list())
    worst = max(content["domains"], key=lambda d: (d["loss"] or 0) - (d["usual"] or 0))
    assert worst["domain"] == content["documents"][0]["domain"]
    assert [a["detector"] for a in content["alerts"]] == ["loss"]
    before = [c.step for c in run_.checkpoints if c.step < BAD]
    assert content["checkpoint"]["step"] == max(before)
    assert f"--to {max(before)} " in content["commands"]["go back"]
    text = incident_text(content)
    assert "loss is high" in text
    assert content["documents"][0]["doc_id"] in text


def test_the_command_writes_the_bundle_and_what_it_names_can_be_run(home: Path) -> None:
    done = run(home, "incident", "run", str(BAD), "--documents", "3", "--json")
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    folder = home / "run" / "incidents" / f"step-{BAD:08}"
    assert json.loads((folder / "incident.json").read_text()) == content
    assert len(content["documents"]) == 3
    for purpose in ("look at the documents", "replay the step's data"):
        words = content["commands"][purpose].split()
        assert words[0] == "millstream"
        # What was simulated has other roots than the corpus gives, which replaying says with 1.
        assert run(home, *words[1:]).returncode in (0, 1), purpose
    assert np.load(home / f"step-{BAD}.npy").shape == (8, 49)
    fails(home, 2, "step 39 was not fed", "incident", "run", "39")


def test_a_row_that_is_in_the_batch_twice_is_found() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 5000, (12, 65)).astype(np.uint16)
    assert alike_rows(tokens) == []
    tokens[7] = tokens[3]
    tokens[9, 20:] = tokens[2, :45]
    found = alike_rows(tokens)
    assert [(a, b) for a, b, _ in found] == [(3, 7), (2, 9)]
    assert found[0][2] == 1
    # 38 of the 58 stretches of 8 tokens.
    assert found[1][2] == pytest.approx(38 / 58)
    tokens[:] = tokens[0]
    assert alike_rows(tokens) == [], "what is in every row tells nothing"
