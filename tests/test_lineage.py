"""A run whose course is changed: amended, killed, rolled back, branched, taken down from; all on record."""

import base64
import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from corpora import build, documents, recipe_dict, write_domain
from test_story import SECTIONS, millstream, processes_of

from millstream.audit.corpora import open_corpora
from millstream.audit.document import audit_document
from millstream.audit.heads import heads_of
from millstream.audit.ledger import FIRST, read_ledger, record_hash
from millstream.audit.lookup import Question
from millstream.audit.prove import prove_absent, prove_consistent, prove_included, prove_records
from millstream.audit.runs import Run, open_run
from millstream.audit.verifier import Refused, check, document_key, key_of
from millstream.audit.verify import verify_run
from millstream.canonical import canonical_bytes
from millstream.errors import MillstreamError, UsageError
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
    for corpus in ("corpus", "more/corpus"):
        millstream(folder, "prove", "index", corpus)

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
    for pid in sorted(processes_of(home, "run"), reverse=True):
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


def some_fed(run: Run, count: int) -> Iterator[tuple[Question, int]]:
    """Documents with a step in which each was fed, over all domains, takedowns and superseded steps too."""
    rng = np.random.default_rng(3)
    every = sorted(replayed(run).items())
    for number in rng.permutation(len(every))[:count].tolist():
        (_, doc_id), seen = every[number]
        step = sorted(s for s, *_ in seen)[number % len(seen)]
        yield Question(by="id", value=doc_id), step


def test_whatever_was_fed_can_be_proved_without_the_data(run: Run) -> None:
    corpora = open_corpora(run)
    plans = set()
    for number, (asked, step) in enumerate(some_fed(run, 60)):
        tokens = number % 3 != 0
        proof = json.loads(json.dumps(prove_included(run, corpora, asked, step, tokens=tokens)))
        shown = check(proof, verifier_key=run.signer)
        assert ("those very tokens were fed" in " ".join(shown)) == tokens
        assert f"step {step} was recorded as fed" in shown[-1]
        plans.add("run_json" in proof)
        with pytest.raises(Refused, match="the proof is of"):
            check(proof, text="another text")
    assert plans == {True, False}


def scalars(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from scalars(inner, (*at, key)) if isinstance(inner, dict | list) else [(*at, key)]


def altered(proof: dict[str, Any], at: tuple[Any, ...], rng: np.random.Generator) -> dict[str, Any]:
    """A proof with one value changed in one place."""
    changed = copy.deepcopy(proof)
    holder = changed
    for key in at[:-1]:
        holder = holder[key]
    value = holder[at[-1]]
    if isinstance(value, int):
        holder[at[-1]] = value + int(rng.choice([-1, 1]))
    elif value is None:
        holder[at[-1]] = "00" * 32
    else:
        place = int(rng.integers(len(value)))
        holder[at[-1]] = value[:place] + ("1" if value[place] != "1" else "2") + value[place + 1 :]
    return changed


def test_no_proof_holds_with_anything_in_it_changed(run: Run, home: Path) -> None:
    corpora = open_corpora(run)
    rng = np.random.default_rng(4)
    asked, step = next(some_fed(run, 1))
    proofs = [
        prove_included(run, corpora, asked, step, tokens=True),
        prove_included(run, corpora, asked, step, tokens=False),
        prove_absent(run, corpora, document_key("nothing like it")),
        prove_records(run, [0, 7, len(run.records) - 1]),
        prove_consistent(run, heads_of(run.path)[2]),
    ]
    for proof in proofs:
        check(proof, verifier_key=run.signer)
        for at in scalars(proof):
            if at == ("signer",) or (proof["kind"], at) == ("absent", ("key",)):
                # The one is not used where the verifier's key is given; the way to a key is that of its neighbours too.
                continue
            with pytest.raises(Refused):
                shown = check(altered(proof, at, rng), verifier_key=run.signer)
                raise AssertionError(f"{proof['kind']}: {at} changed, and still: {shown}")
    shorter = copy.deepcopy(proofs[0])
    shorter["records"] = shorter["records"][:-1]
    with pytest.raises(Refused):
        check(shorter)
    stranger = "ann+00000000+" + base64.b64encode(b"\1" + bytes(32)).decode()
    with pytest.raises(Refused, match="hash is not that"):
        check(proofs[0], verifier_key=stranger)
    with pytest.raises(Refused, match="another head"):
        check(proofs[0], head=heads_of(run.path)[0].read_text())


def test_what_is_there_is_not_proved_absent(home: Path, run: Run) -> None:
    corpora = open_corpora(run)
    kept = pl.concat([documents(home / "corpus", d) for d in DOMAINS])
    for key in kept["doc_key"].to_list()[::20]:
        with pytest.raises(UsageError, match="holds a document of key"):
            prove_absent(run, corpora, key)
    key = kept["doc_key"][0]
    forged = prove_absent(run, corpora, document_key("nothing like it"))
    forged["key"] = key.hex()
    with pytest.raises(Refused):
        check(forged)
    with pytest.raises(UsageError, match="was not fed in step"):
        asked, _ = next(some_fed(run, 1))
        fed = {e.step for e in audit_document(run, corpora, asked)[0].exposures if e.status != "planned"}
        prove_included(run, corpora, asked, next(s for s in run.fed if s not in fed), tokens=True)


def test_the_checker_alone_is_enough(home: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a text that nobody trained on")
    millstream(home, "prove", "absent", "run", "--file", str(tmp_path / "text.txt"), "-o", str(tmp_path / "p.json"))
    millstream(home, "check", "--verifier", str(tmp_path / "verifier.py"))
    key = str(open_run(home / "run").signer)
    command = [sys.executable, "-I", "verifier.py", "p.json", "--file", "text.txt", "--key", key]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("the proof holds\n")
    (tmp_path / "text.txt").write_text("another")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "FAILED: the text has the key" in done.stdout
    for name, broken in (("a.json", "{"), ("b.json", "[]"), ("c.json", '{"format": 3}')):
        (tmp_path / name).write_text(broken)
        refused = millstream(home, "check", str(tmp_path / name), check=False)
        assert refused.returncode in (1, 3)
        assert len(refused.stderr.splitlines()) == 1


@pytest.mark.skipif(
    not shutil.which("go") or not Path("/usr/share/gocode/src/golang.org/x/mod/sumdb").exists(),
    reason="needs Go and its package golang.org/x/mod (Debian: golang-go, golang-golang-x-mod-dev)",
)
def test_go_accepts_the_head_and_finds_its_root_in_the_tile(home: Path, tmp_path: Path) -> None:
    run = open_run(home / "run")
    tile = next(p for p in (run.path / "log/tile/0").rglob(str(len(run.records))))
    program = Path(__file__).parent / "go" / "check_head.go"
    command = ["go", "run", str(program), str(run.signer), str(run.path / "log/checkpoint"), str(tile)]
    setting = {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "GOFLAGS": "", "GOCACHE": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | setting)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == (run.path / "log/checkpoint").read_text().splitlines()[1:3]


MUTATIONS = 1000


def test_every_single_change_is_found_and_named(home: Path, tmp_path: Path) -> None:
    """Each change is made to a whole, signed run, judged, and undone."""
    shutil.copytree(home / "run", tmp_path / "run", ignore=shutil.ignore_patterns("wandb"))
    shutil.copytree(home / "corpus", tmp_path / "corpus", ignore=shutil.ignore_patterns(".work"))
    shutil.copytree(home / "more" / "corpus", tmp_path / "more" / "corpus", ignore=shutil.ignore_patterns(".work"))
    run = tmp_path / "run"
    assert not list(findings(run))
    kept = {p for c in open_run(run).checkpoints for p in (run / c.path).rglob("*") if p.is_file()}
    corpora = [e for c in open_corpora(open_run(run)).values() for e in [c.root / f.path for f in c.manifest.files()]]
    rng = np.random.default_rng(5)
    for number in range(MUTATIONS):
        kind = ("edit", "delete", "swap", "append", "cut", "file", "checkpoint", "log")[number % 8]
        if kind == "file":
            path = Path(corpora[int(rng.integers(len(corpora)))])
        elif kind == "checkpoint":
            path = sorted(kept)[int(rng.integers(len(kept)))]
        elif kind == "log":
            logs = [run / "run.json", *(p for p in sorted((run / "log").rglob("*")) if p.is_file())]
            path = logs[int(rng.integers(len(logs)))]
        else:
            path = run / "ledger.jsonl"
        whole = path.read_bytes()
        changed = mutated_ledger(whole, kind, rng) if path.suffix == ".jsonl" else flipped(whole, rng)
        path.write_bytes(changed)
        assert any(path.name in found for found in findings(run)), (number, kind, path)
        path.write_bytes(whole)
    assert not list(findings(run))


def findings(run: Path) -> Iterator[str]:
    try:
        for outcome in verify_run(open_run(run)):
            yield from outcome.findings
    except MillstreamError as error:
        yield str(error)


def flipped(whole: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(whole)
    changed[int(rng.integers(len(whole)))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def mutated_ledger(whole: bytes, kind: str, rng: np.random.Generator) -> bytes:
    lines = whole.splitlines(keepends=True)
    at = int(rng.integers(len(lines)))
    if kind == "edit":
        # As somebody would who knows the format: every hash from there on is made to fit again.
        records = [json.loads(line) for line in lines]
        body = records[at]["body"]
        name = sorted(body)[int(rng.integers(len(body)))]
        body[name] = body[name] + 1 if isinstance(body[name], int) else "changed"
        return chained(records)
    if kind == "delete":
        records = [json.loads(line) for line in lines]
        del records[at]
        return chained(records)
    if kind == "swap":
        records = [json.loads(line) for line in lines]
        at = min(at, len(records) - 2)
        records[at], records[at + 1] = records[at + 1], records[at]
        return chained(records)
    if kind == "append":
        records = [json.loads(line) for line in lines]
        return chained([*records, {"kind": "note", "body": {"text": "was always here", "by": "eve"}}])
    return whole[: int(rng.integers(1, len(whole)))]


def chained(records: list[dict[str, Any]]) -> bytes:
    out, prev = [], FIRST
    for seq, record in enumerate(records):
        hashed = record_hash(seq, record["kind"], record["body"], prev)
        fields = {"seq": seq, "kind": record["kind"], "body": record["body"], "prev": prev, "hash": hashed}
        out.append(canonical_bytes(fields) + b"\n")
        prev = hashed
    return b"".join(out)


def test_a_checkpoint_has_a_statement_that_others_verify(home: Path, tmp_path: Path) -> None:
    dsse = pytest.importorskip("securesystemslib.dsse")
    signer = pytest.importorskip("securesystemslib.signer")
    run = open_run(home / "run")
    saved = max((c for c in run.checkpoints if not run.given_up(c)), key=lambda c: c.step)
    out = tmp_path / "statement.json"
    millstream(home, "export", "intoto", "run", "--step", str(saved.step), "--out", str(out))
    envelope = dsse.Envelope.from_dict(json.loads(out.read_bytes()))
    name, _, raw = key_of(str(run.signer))
    public = signer.SSlibKey(str(run.signer), "ed25519", "ed25519", {"public": raw.hex()})
    assert list(envelope.verify([public], 1)) == [str(run.signer)]
    statement = json.loads(envelope.payload)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert {s["name"]: s["digest"]["sha256"] for s in statement["subject"]} == {
        f"{saved.path}/{file}": digest for file, digest in saved.files.items()
    }
    assert statement["predicate"]["head"] == (run.path / "log" / "checkpoint").read_text()
    assert name in str(run.signer)
    refused = millstream(home, "export", "intoto", "run", "--step", "1", "--out", str(out), check=False)
    assert "there is no checkpoint of step 1" in refused.stderr
