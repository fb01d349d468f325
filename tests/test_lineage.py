"""A run whose course is changed: amended, killed, rolled back, branched, taken down from; all on record."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import polars as pl
import psutil
import pytest
from corpora import build, documents, recipe_dict, write_domain
from test_story import SECTIONS, millstream

from millstream.audit.corpora import open_corpora
from millstream.audit.document import audit_document
from millstream.audit.ledger import read_ledger
from millstream.audit.lookup import Question
from millstream.audit.runs import Run, open_run
from millstream.stream.documents import documents_of
from millstream.stream.reader import open_stream

DOMAINS = ("law", "news", "verse")


def train(home: Path, run: str, *more: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
    return millstream(home, "train", "recipe.yaml", "--corpus", "corpus", "--run", run, *more, check=check)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole story, told by commands alone."""
    folder = tmp_path_factory.mktemp("lineage")
    for name, count in zip(DOMAINS, (160, 100, 60), strict=True):
        write_domain(folder / "in", name, count)
    write_domain(folder / "more" / "in", "songs", 40)
    recipe = recipe_dict(folder / "in", DOMAINS, **SECTIONS)
    recipe["mixture"] |= {"max_epochs": "20"}
    build(folder, recipe)
    other = recipe_dict(folder / "more" / "in", ["songs"])
    other["corpus"]["tokenizer"] = {"kind": "file", "path": str(folder / "corpus" / "tokenizer.json"), "eos": "<|eos|>"}
    build(folder / "more", other)

    train(folder, "run", "--until", "6")
    weights = ("--weight", "law=0.2", "--weight", "news=0.5", "--weight", "verse=0.3")
    millstream(folder, "amend", "run", "--from", "8", *weights, "--why", "more news", "--by", "ann")
    train(folder, "run", "--until", "9")
    millstream(folder, "amend", "run", "--batch", "16", "--why", "loss is smooth", "--by", "ann")
    kill(folder, 11)
    train(folder, "run", "--until", "12")
    millstream(folder, "rollback", "run", "--to", "9", "--why", "bad node", "--by", "bob")
    train(folder, "run", "--until", "11")
    millstream(folder, "branch", "run", "side", "--at", "9", "--why", "try without verse", "--by", "bob")
    half = ("--weight", "law=0.5", "--weight", "news=0.5")
    millstream(folder, "amend", "side", *half, "--why", "no verse", "--by", "bob")
    train(folder, "side", "--until", "12")
    millstream(folder, "amend", "run", "--skip", "1", "--why", "noise at step 12", "--by", "ann")
    millstream(folder, "takedown", "apply", "run", seen_and_to_come(folder), "--why", "asked to", "--by", "cy")
    songs = ("--data", "songs=more/corpus", "--weight", "songs=0.5", "--weight", "law=0.5")
    millstream(folder, "amend", "run", *songs, "--why", "songs came in", "--by", "ann")
    train(folder, "run")
    return folder


def seen_and_to_come(home: Path) -> str:
    """A document that was learned from and is planned again."""
    run = open_run(home / "run")
    for doc_id in documents(home / "corpus", "verse")["doc_id"]:
        (audit,) = audit_document(run, open_corpora(run), Question(by="id", value=doc_id))
        if {e.status for e in audit.exposures} >= {"learned", "planned"}:
            return str(doc_id)
    raise AssertionError("no such document; choose other weights")


def kill(home: Path, step: int) -> None:
    """Train until a step is in the ledger, then kill everything at once."""
    command = [sys.executable, "-m", "millstream", "train", "recipe.yaml", "--corpus", "corpus", "--run", "run"]
    process = subprocess.Popen(command, cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while f'"step":{step},'.encode() not in (home / "run" / "ledger.jsonl").read_bytes():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    found = psutil.process_iter(["pid", "cmdline"])
    for pid in sorted((p.info["pid"] for p in found if {"--run", "run"} <= set(p.info["cmdline"] or ())), reverse=True):
        os.kill(pid, signal.SIGKILL)
    process.wait(30)


@pytest.fixture(scope="module")
def run(home: Path) -> Run:
    return open_run(home / "run")


def test_the_record_of_every_course_holds(home: Path) -> None:
    for name in ("run", "side"):
        shown = millstream(home, "audit", "verify", name).stdout
        assert "FAILED" not in shown


def test_segments_say_what_changed_why_and_by_whom(run: Run) -> None:
    assert run.finished
    told = [(r.body["why"], r.body["by"]) for r in run.records if r.kind == "segment" and "amendment" in r.body]
    assert told == [
        ("more news", "ann"),
        ("loss is smooth", "ann"),
        ("noise at step 12", "ann"),
        ("asked to", "cy"),
        ("songs came in", "ann"),
    ]
    ids = [segment.id for segment in run.segments]
    assert ids == list(range(len(ids)))
    for segment in run.segments[1:]:
        assert segment.parent is not None
        assert segment.parent < segment.id
    (skipped,) = [s for s in run.segments if s.skip and s.first_step == 12 and s.id == run.segment_of(12).id]
    assert skipped.skip is not None
    assert skipped.skip[1] - skipped.skip[0] == 16
    assert [r.body["to_step"] for r in run.records if r.kind == "rollback"] == [9]
    assert {run.fed[11][n].attempt for n in range(3)} == {3, 4, 5}


def replayed(run: Run) -> dict[tuple[str, str], set[tuple[int, int, int, str, int]]]:
    """Brute force: the documents of every record's step, by the plan it was fed under."""
    corpora = open_corpora(run)
    found: dict[tuple[str, str], set[tuple[int, int, int, str, int]]] = defaultdict(set)
    for step, records in run.fed.items():
        for fed in records:
            plan = run.plans[fed.segment]
            located = plan.locate(np.arange(fed.first_index, fed.first_index + fed.sequences, dtype=np.uint64))
            rows = documents_of(corpora, plan, located, step)
            tokens = rows.group_by("domain", "doc_id", "row").agg(pl.col("tokens").sum())
            status = "superseded" if run.superseded(fed) else "learned"
            for domain, doc_id, row, count in tokens.rows():
                found[domain, doc_id].add((step, row, fed.attempt, status, count))
    return found


@pytest.mark.parametrize("name", ["run", "side"])
def test_every_document_is_answered_for_as_by_replaying_everything(home: Path, name: str) -> None:
    run = open_run(home / name)
    corpora = open_corpora(run)
    expected = replayed(run)
    states = set()
    for corpus in corpora.values():
        for domain in corpus.manifest.domains:
            for doc_id in documents(Path(str(corpus.root)), domain.name)["doc_id"]:
                (audit,) = audit_document(run, corpora, Question(by="id", value=doc_id))
                fed = [e for e in audit.exposures if e.status != "planned"]
                found = {(e.step, e.row, e.attempt, e.status, e.tokens) for e in fed}
                assert found == expected.get((domain.name, doc_id), set())
                assert len(found) == len(fed)
                states |= {e.status for e in fed}
    # The branch was left before anything was superseded.
    assert states == ({"learned", "superseded"} if name == "run" else {"learned"})
    if name == "run":
        assert any(domain == "songs" for domain, _ in expected)


def test_what_was_fed_is_what_the_plans_say_now(home: Path, run: Run) -> None:
    stream = open_stream(run.plan, open_corpora(run).values())
    buried = 0
    for step in range(12, run.plan.total_steps + 1):
        batch = stream.batch(step)
        buried += len(batch.buried)
        fed = run.learned(step)
        assert fed is not None
        assert fed.sequences == len(batch.tokens)
    assert buried > 0, "the document that was taken down would have come up again"


def test_a_takedown_reports_what_was_seen_before_and_nothing_after(home: Path, run: Run) -> None:
    (report,) = json.loads(millstream(home, "takedown", "report", "run", "--json").stdout)["takedowns"]
    assert report["in_force"]
    assert report["fed_or_planned_after"] == 0
    (span,) = run.plan.amendments[-2]["takedowns"]
    table = documents(home / "corpus", "verse").filter(pl.col("token_start") == span["start"])
    gone = table["doc_id"][0]
    (audit,) = json.loads(millstream(home, "audit", "doc", "run", gone, "--json").stdout)["found"]
    assert report["seen_before"] == len(audit["exposures"]) > 0
    assert max(e["step"] for e in audit["exposures"]) < report["from_step"]
    (planned,) = json.loads(millstream(home, "takedown", "plan", "run", gone, "--json").stdout)["documents"]
    assert planned["planned"] == 0
    assert planned["clean_checkpoint"] < min(planned["steps"])
    refused = millstream(home, "takedown", "plan", "run", "nobody:1", check=False)
    assert refused.returncode == 2
    assert "no document of this id" in refused.stderr


def test_a_branch_shares_its_runs_records_and_answers_with_it(home: Path, run: Run) -> None:
    side = open_run(home / "side")
    assert side.run_id == run.run_id
    assert side.name == "test/side"
    shared = next(r.seq for r in side.records if r.kind == "branch")
    assert side.records[:shared] == run.records[:shared]
    assert [side.learned(step).root for step in range(1, 10)] == [run.learned(step).root for step in range(1, 10)]  # type: ignore[union-attr]
    assert "verse" not in {name for phase in side.plan.phases[-2:-1] for name in phase.tree.domains}
    doc_id = documents(home / "corpus", "law")["doc_id"][0]
    (branch,) = json.loads(millstream(home, "audit", "doc", "run", doc_id, "--json").stdout)["branches"]
    assert (branch["branch"], branch["after_step"]) == ("test/side", 9)
    assert all(e["step"] > 9 for e in branch["found"][0]["exposures"])


def test_metrics_follow_the_lineage(home: Path) -> None:
    from millstream.train.metrics import current, read_metrics

    for name, last in (("run", open_run(home / "run").plan.total_steps), ("side", 12)):
        losses = current(read_metrics(home / name)).filter(pl.col("name") == "loss", pl.col("domain").is_null())
        assert losses["step"].to_list() == list(range(1, last + 1))


def test_what_cannot_be_changed_is_refused_in_one_line(home: Path, tmp_path: Path) -> None:
    why = ("--why", "x")

    def refused(*arguments: str) -> str:
        done = millstream(home, *arguments, check=False)
        assert done.returncode == 2, done.stderr
        (line,) = done.stderr.splitlines()
        return line

    assert "was trained on already; amend from step" in refused("amend", "run", "--from", "3", "--batch", "4", *why)
    assert "there is no checkpoint of step 5; there are:" in refused("rollback", "run", "--to", "5", *why)
    assert "holds something already" in refused("branch", "run", "side", "--at", "9", *why)
    assert "the amendment changes nothing" in refused("amend", "side", *why)
    assert "expected DOMAIN=SHARE" in refused("amend", "side", "--weight", "law", *why)
    assert "has no domain 'poems'; it has" in refused("amend", "side", "--weight", "poems=1", *why)
    before = (home / "side" / "ledger.jsonl").read_bytes()
    shown = json.loads(millstream(home, "amend", "side", "--batch", "8", *why, "--dry-run", "--json").stdout)
    assert not shown["written"]
    assert (home / "side" / "ledger.jsonl").read_bytes() == before


def test_a_start_from_an_older_checkpoint_has_to_be_said(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "side", home / "lost", ignore=shutil.ignore_patterns("wandb"))
    newest = max((home / "lost" / "checkpoints").iterdir())
    shutil.rmtree(newest)
    done = train(home, "lost", check=False)
    assert done.returncode == 3
    assert "missing, and it is the newest" in done.stderr
    assert "millstream rollback" in done.stderr
    assert "--to 9" in done.stderr
    millstream(home, "rollback", "lost", "--to", "9", "--undo", "--why", "disk died")
    lost = open_run(home / "lost")
    assert not [a for a in lost.plan.amendments if a["from_step"] > 9]
    train(home, "lost", "--until", "10")
    assert "FAILED" not in millstream(home, "audit", "verify", "lost").stdout
    assert [r.kind for r in read_ledger(home / "lost")].count("rollback") == 1


def test_a_control_repeats_steps_and_is_no_source(home: Path) -> None:
    done = millstream(home, "train", "--control", "side", "--at", "9", "--steps", "2")
    assert "roots differ at 0 steps, losses at 0" in done.stdout
    (outcome,) = [r.body for r in read_ledger(home / "side") if r.kind == "control"]
    assert (outcome["steps"], outcome["roots"], outcome["losses"], outcome["same_code"]) == (2, 0, 0, True)
    assert open_run(home / "side").last_step == 12
    control = str(home / "side" / "controls" / "0001")
    refused = millstream(home, "branch", control, "from-control", "--at", "9", "--why", "x", check=False)
    assert "is a control; say --accept" in refused.stderr
    assert "FAILED" not in millstream(home, "audit", "verify", "side").stdout
    assert "needs --at STEP" in millstream(home, "train", "--control", "side", check=False).stderr
