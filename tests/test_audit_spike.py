"""A step's loss taken apart: shares by hand, over real document tables and made-up losses."""

import json
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import simulated
from simulated import begin, train
from test_story import millstream

from millstream.audit.corpora import open_corpora
from millstream.audit.document import audit_document
from millstream.audit.lookup import Question
from millstream.audit.losses import losses_file, read_losses
from millstream.audit.runs import open_run
from millstream.audit.spike import BEFORE, audit_spike
from millstream.audit.step import audit_step
from millstream.errors import InputError, UsageError

MIXTURE = {
    "seq_len": 48,
    "batch": 8,
    "steps": 40,
    "max_epochs": "40",
    "phases": [{"name": "a", "weights": {"law": "0.5", "news": "0.3", "verse": "0.2"}}],
}
BAD = 30
"""The step with a spike: one sequence is a stranger."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spike")
    path = begin(folder, MIXTURE, {"law": 60, "news": 40, "verse": 30})
    usual = simulated.losses_of
    try:
        for name, last in ((usual, BAD - 1), (_spike, BAD), (_no_number, BAD + 1), (usual, 35)):
            simulated.losses_of = name
            train(path, open_run(path).last_step, last)
    finally:
        simulated.losses_of = usual
    return folder


def _spike(step: int, attempt: int, sequences: int) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    losses = np.full(sequences, 3.5, np.float32)
    losses[5] = 14
    return losses


def _no_number(step: int, attempt: int, sequences: int) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    losses = np.full(sequences, 3.5, np.float32)
    losses[2] = np.nan
    return losses


@pytest.mark.parametrize("step", [1, 7, BAD])
def test_shares_and_excesses_are_those_by_hand(home: Path, step: int) -> None:
    run = open_run(home / "run")
    corpora = open_corpora(run)
    audit = audit_spike(run, corpora, step, most=1000)
    losses = read_losses(run, audit.fed).astype(float)
    of_row = {row: run.plan.domains[d] for row, d in enumerate(audit_step(run, corpora, step).located.domain.tolist())}
    before: dict[str, list[float]] = defaultdict(list)
    for earlier in range(max(1, step - BEFORE), step):
        seen = audit_step(run, corpora, earlier).located.domain.tolist()
        for domain, loss in zip(seen, read_losses(run, run.fed[earlier][0]).tolist(), strict=True):
            before[run.plan.domains[domain]].append(loss)
    usual = {name: float(np.mean(values)) for name, values in before.items()}
    share: dict[str, float] = defaultdict(float)
    excess: dict[str, float] = defaultdict(float)
    for entry in audit_step(run, corpora, step).documents.iter_rows(named=True):
        loss = losses[entry["row"]] * entry["tokens"] / run.plan.seq_len
        share[entry["doc_id"]] += loss / losses.sum()
        if step > 1:
            over = losses[entry["row"]] - usual[of_row[entry["row"]]]
            excess[entry["doc_id"]] += over * entry["tokens"] / run.plan.seq_len / len(losses)
    found = audit.documents
    assert dict(found.select("doc_id", "share").rows()) == pytest.approx(share)
    assert found["share"].sum() == pytest.approx(1)
    assert found["share"].is_sorted(descending=True)
    if step > 1:
        assert dict(found.select("doc_id", "excess").rows()) == pytest.approx(excess)
        assert dict(audit.domains.select("domain", "usual").rows()) == pytest.approx(usual)
        by_mix = sum(usual[of_row[row]] for row in range(8)) / 8
        assert found["excess"].sum() == pytest.approx(audit.loss - by_mix)
    else:
        assert found["excess"].null_count() == len(found)
    for entry in found.head(5).iter_rows(named=True):
        (asked,) = audit_document(run, corpora, Question(by="id", value=entry["doc_id"]))
        learned = [e.step for e in asked.exposures if e.status == "learned" and e.step < step]
        assert (entry["earlier"], entry["last_step"]) == (len(learned), max(learned, default=None))
    mix = audit.domains
    assert mix["sequences"].sum() == 8
    assert mix["planned"].to_list() == pytest.approx([4, 2.4, 1.6], rel=1e-6)


def test_the_stranger_comes_first(home: Path) -> None:
    run = open_run(home / "run")
    corpora = open_corpora(run)
    audit = audit_spike(run, corpora, BAD, by="excess")
    guilty = set(audit_step(run, corpora, BAD).documents.filter(pl.col("row") == 5)["doc_id"])
    assert set(audit.documents.head(len(guilty))["doc_id"]) == guilty
    shown = millstream(home, "audit", "spike", "run", str(BAD), "--by", "excess", "--documents", "3").stdout
    assert audit.documents["doc_id"][0] in shown
    answer = json.loads(millstream(home, "audit", "spike", "run", str(BAD), "--json").stdout)
    assert answer["fed"]["losses"] == audit.fed.losses
    assert {"doc_id", "url", "domain", "share", "excess", "earlier"} <= answer["documents"][0].keys()


def test_sequences_without_a_finite_loss_come_first_and_share_it_all(home: Path) -> None:
    run = open_run(home / "run")
    corpora = open_corpora(run)
    guilty = set(audit_step(run, corpora, BAD + 1).documents.filter(pl.col("row") == 2)["doc_id"])
    for by in ("share", "excess"):
        documents = audit_spike(run, corpora, BAD + 1, by=by).documents  # type: ignore[arg-type]
        assert set(documents.head(len(guilty))["doc_id"]) == guilty
    assert documents["share"].sum() == pytest.approx(1)
    # The step after it is compared with finite losses only.
    assert audit_spike(run, corpora, BAD + 2).domains["usual"].is_finite().all()


def test_what_cannot_be_told_is_said(home: Path, tmp_path: Path) -> None:
    run = open_run(home / "run")
    corpora = open_corpora(run)
    with pytest.raises(UsageError, match="step 36 was not fed; the run is at step 35"):
        audit_spike(run, corpora, 36)
    with pytest.raises(UsageError, match="step 3 was not fed by attempt 9"):
        audit_spike(run, corpora, 3, 9)
    shutil.copytree(home / "run", tmp_path / "run")
    losses_file(tmp_path / "run", 1).unlink()
    with pytest.raises(InputError, match="cannot be read"):
        audit_spike(open_run(tmp_path / "run"), corpora, 3)
