"""The whole way through the real launcher: train, stop, resume, two ranks, kill, audit everything."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import psutil
import pytest
import yaml
from corpora import build, documents, exclusions, recipe_dict, texts, words, write_domain, write_jsonl
from stores import s3_server, upload

from millstream.audit.corpora import open_corpora
from millstream.audit.document import audit_document, exposures
from millstream.audit.ledger import read_ledger
from millstream.audit.lookup import Question, find
from millstream.audit.losses import read_losses
from millstream.audit.mixture import audit_mixture
from millstream.audit.runs import Run, open_run
from millstream.audit.step import audit_step
from millstream.stream.reader import open_stream
from millstream.tokenize.decode import decoder
from millstream.train.checkpoint_index import read_index

STEPS = 24
DOMAINS = ("law", "news", "verse")

SECTIONS: dict[str, Any] = {
    "mixture": {
        "seq_len": 32,
        "batch": 8,
        "steps": STEPS,
        "phases": [
            {"name": "pretrain", "weights": {"law": "0.5", "news": "0.3", "verse": "0.2"}},
            {"name": "midtrain", "weights": {"law": "0.1", "news": "0.1", "verse": "0.8"}},
        ],
        "limits": {"law": 3000},
    },
    "model": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 64,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
    },
    "train": {
        "precision": "fp32",
        "micro_batch": 2,
        "optimizer": {"lr": 1e-2},
        "schedule": {"kind": "cosine", "warmup_steps": 4},
        "checkpoint_every": 6,
        "evaluate_every": 12,
    },
}


def millstream(folder: Path, *arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
    """Run a command as a user does."""
    command = [sys.executable, "-m", "millstream", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
    assert not check or done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a built corpus and a run of it, trained in one go on one rank."""
    folder = tmp_path_factory.mktemp("story")
    for name, count in zip(DOMAINS, (160, 100, 60), strict=True):
        write_domain(folder / "in", name, count)
    write_jsonl(folder / "in" / "news" / "copies.jsonl", [{"text": f"law 0 1. {words('law01', 42)}"}, {"text": " "}])
    recipe = recipe_dict(folder / "in", DOMAINS, **SECTIONS, corpus={"filters": [{"rule": "length", "min_chars": 60}]})
    recipe["corpus"]["domains"][1]["holdout"] = 0.2
    build(folder, recipe)
    millstream(folder, "prove", "index", "corpus")
    millstream(folder, "train", "recipe.yaml", "--corpus", "corpus", "--run", "whole")
    return folder


@pytest.fixture(scope="module")
def run(home: Path) -> Run:
    return open_run(home / "whole")


def steps_of(run: Path) -> list[dict[str, Any]]:
    return [record.body for record in read_ledger(run) if record.kind == "step"]


def verified(folder: Path, run: str) -> None:
    done = millstream(folder, "audit", "verify", run, "--json")
    checks = json.loads(done.stdout)["checks"]
    assert [c["name"] for c in checks] == [
        "chain",
        "heads",
        "plans",
        "steps",
        "corpus",
        "commitments",
        "checkpoints",
        "losses",
        "roots",
    ]
    # Of a corpus in a store no roots are computed.
    assert all((c["looked_at"] or c["name"] == "commitments") and not c["findings"] for c in checks)


def test_the_loss_falls_and_the_record_holds(home: Path, run: Run) -> None:
    losses = [body["loss"] for body in steps_of(home / "whole")]
    assert len(losses) == STEPS
    assert np.mean(losses[-4:]) < np.mean(losses[:4]) - 0.5e6
    assert run.finished
    for step in range(1, STEPS + 1):
        (fed,) = run.fed[step]
        assert read_losses(run, fed).mean() * 1e6 == pytest.approx(fed.loss, rel=1e-3)
    assert (home / "whole" / "loss.png").read_bytes().startswith(b"\x89PNG")
    verified(home, "whole")


def test_stopping_and_resuming_changes_no_bit(home: Path) -> None:
    train = ("train", "recipe.yaml", "--corpus", "corpus", "--run", "halves")
    millstream(home, *train, "--until", "12")
    millstream(home, *train)
    whole, halves = (steps_of(home / name) for name in ("whole", "halves"))
    for one, other in zip(whole, halves, strict=True):
        assert {**one, "attempt": 0} == {**other, "attempt": 0}
    assert [a.checkpoint_step for a in open_run(home / "halves").attempts] == [0, 12]
    last = f"checkpoints/step-{STEPS:08}"
    assert read_index(home / "whole" / last)["files"] == read_index(home / "halves" / last)["files"]
    verified(home, "halves")


def test_two_ranks_feed_the_same_batches(home: Path) -> None:
    millstream(home, "train", "recipe.yaml", "--corpus", "corpus", "--run", "two", "--num_accelerators", "2")
    one, two = steps_of(home / "whole"), steps_of(home / "two")
    assert [body["root"] for body in one] == [body["root"] for body in two]
    assert max(abs(a["loss"] - b["loss"]) for a, b in zip(one, two, strict=True)) <= 10  # millionths
    verified(home, "two")


def test_a_corpus_in_a_store_is_trained_on_without_a_copy(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server() as server:
        url = upload(server, home / "corpus", "corpora/test")
        for name, value in (("ACCESS_KEY_ID", "k"), ("SECRET_ACCESS_KEY", "s"), ("ENDPOINT_URL", server)):
            monkeypatch.setenv(f"AWS_{name}", value)
        train = ("train", "recipe.yaml", "--corpus", url, "--run", "stored")
        millstream(home, *train, "--until", "4", "--num_accelerators", "2")
        millstream(home, *train, "--until", "8", "--cache", "cache", "--cache-gb", "1")
        fed = [(body["step"], body["root"]) for body in steps_of(home / "stored")]
        assert fed == [(body["step"], body["root"]) for body in steps_of(home / "whole")][:8]
        assert any(path.is_file() for path in (home / "cache").rglob("*"))
        # Where the corpus lies is what the run says.
        verified(home, "stored")
        shown = json.loads(millstream(home, "audit", "step", "stored", "3", "--json").stdout)
    assert shown == json.loads(millstream(home, "audit", "step", "stored", "3", "--json", "--corpus", "corpus").stdout)


def start_training(home: Path, run: str, until: int) -> "subprocess.Popen[str]":
    """Start a run and return once its ledger holds a step."""
    command = [sys.executable, "-m", "millstream", "train", "recipe.yaml", "--corpus", "corpus", "--run", run]
    process = subprocess.Popen(command, cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    ledger = home / run / "ledger.jsonl"
    deadline = time.monotonic() + 120
    while not (ledger.exists() and f'"step":{until},'.encode() in ledger.read_bytes()):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    return process


def processes_of(home: Path, run: str) -> list[int]:
    """Processes that train a run of this folder, and of no other one that is tested at the same time."""
    marks, folder = {"--run", run}, str(home)
    found = psutil.process_iter(["pid", "cmdline", "cwd"])
    return [p.info["pid"] for p in found if marks <= set(p.info["cmdline"] or ()) and p.info["cwd"] == folder]


def test_a_killed_run_goes_on_and_tells_the_superseded_steps_apart(home: Path) -> None:
    process = start_training(home, "killed", 7)
    # The rank itself, the newest process, first: it trains on while the others are looked for.
    for pid in sorted(processes_of(home, "killed"), reverse=True):
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=30)
    reached = max(open_run(home / "killed").fed)
    assert reached < STEPS
    millstream(home, "train", "recipe.yaml", "--corpus", "corpus", "--run", "killed")
    verified(home, "killed")
    killed = open_run(home / "killed")
    assert len(killed.attempts) == 2
    resumed = killed.attempts[1].checkpoint_step
    assert resumed in (6, 12, 18)
    twice = [step for step, fed in killed.fed.items() if len(fed) == 2]
    assert twice == list(range(resumed + 1, reached + 1))
    for step in twice:
        first, second = killed.fed[step]
        assert killed.superseded(first)
        assert not killed.superseded(second)
        assert first.root == second.root
    roots = [body["root"] for body in steps_of(home / "whole")]
    assert roots == [fed.root for fed in map(killed.learned, range(1, STEPS + 1)) if fed is not None]


def test_no_process_outlives_the_command(home: Path) -> None:
    process = start_training(home, "stopped", 2)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 3
    assert processes_of(home, "stopped") == []
    stopped = open_run(home / "stopped")
    saved = stopped.checkpoints[-1].step
    assert saved == stopped.last_step
    assert errors.splitlines()[-2:] == [
        "millstream: saving a checkpoint after this step; a second signal ends at once",
        f"millstream: stopped: stopped as asked after step {saved} of {STEPS}, with a checkpoint; run the command "
        "again to go on",
    ]
    orphaned = start_training(home, "orphaned", 2)
    orphaned.kill()
    deadline = time.monotonic() + 30
    while processes_of(home, "orphaned"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    orphaned.communicate(timeout=10)


def test_forward_and_inverse_audits_agree(home: Path, run: Run) -> None:
    """100 random (step, row): the documents found forwards name that step and row backwards."""
    stream = open_stream(run.plan, home / "corpus")
    corpora = open_corpora(run)
    (corpus_id,) = corpora
    decode = decoder(home / "corpus", stream.manifest)
    stored = {name: texts(home / "corpus", name) for name in DOMAINS}
    rng = np.random.default_rng(0)
    checked = 0
    for step in rng.choice(np.arange(1, STEPS + 1), 20, replace=False).tolist():
        audit = audit_step(run, corpora, step)
        tokens = stream.read(audit.located)
        for row in rng.choice(8, 5, replace=False).tolist():
            checked += 1
            seen = audit.documents.filter(pl.col("row") == row)
            assert seen["tokens"].sum() == run.plan.seq_len
            for entry in seen.iter_rows(named=True):
                start, count = entry["token_start"], entry["n_tokens"]
                places = {
                    (e.step, e.row): e.tokens for e in exposures(run, corpus_id, entry["domain"], start, start + count)
                }
                same = seen.filter(pl.col("doc_id") == entry["doc_id"])["tokens"].sum()
                assert places[step, row] == same
                stretch = tokens[row, entry["first"] + 1 : entry["last"] + 2].tolist()
                text = decode([t for t in stretch if t != stream.manifest.tokenizer.eos_id])
                assert text.strip("\ufffd") in stored[entry["domain"]][entry["doc_id"]]
    assert checked == 100


def test_every_document_of_the_corpus_is_answered_for(home: Path, run: Run) -> None:
    """Brute force: documents of every step, against the inverse of every document."""
    corpora = open_corpora(run)
    forward: dict[str, set[tuple[int, int]]] = {}
    for step in range(1, STEPS + 1):
        for doc_id, row in audit_step(run, corpora, step).documents.select("doc_id", "row").rows():
            forward.setdefault(doc_id, set()).add((step, row))
    states = set()
    for name in DOMAINS:
        for doc_id in documents(home / "corpus", name)["doc_id"]:
            (audit,) = audit_document(run, open_corpora(run), Question(by="id", value=doc_id))
            states.add(audit.state)
            assert {(e.step, e.row) for e in audit.exposures} == forward.get(doc_id, set())
            assert all(e.status == "learned" for e in audit.exposures)
    assert states == {"kept", "held out", "beyond limit"}
    assert any(len({step for step, _ in places}) > 1 for places in forward.values())


def test_every_excluded_document_is_found_with_its_reason(home: Path, run: Run) -> None:
    stream = open_stream(run.plan, home / "corpus")
    dropped = exclusions(home / "corpus")
    assert set(dropped["stage"]) == {"read", "filter", "dedup"}
    for row in dropped.iter_rows(named=True):
        audits = audit_document(run, open_corpora(run), Question(by="id", value=row["doc_id"]))
        (audit,) = [a for a in audits if a.state == "excluded"]
        assert (audit.document["rule"], audit.document["value"]) == (row["rule"], row["value"])
        assert (audit.twin is not None) == (row["stage"] == "dedup")
        if row["doc_key"] is not None:
            by_key = find(home / "corpus", stream.manifest, Question(by="key", value=row["doc_key"]))
            assert row["doc_id"] in by_key.excluded["doc_id"]


def test_audit_answers_on_the_command_line(home: Path) -> None:
    step = json.loads(millstream(home, "audit", "step", "whole", "3", "--json").stdout)
    assert step["fed"][0]["record"]["root"] == steps_of(home / "whole")[2]["root"]
    document = step["documents"][0]
    shown = millstream(home, "audit", "step", "whole", "3", "--text", "--row", "0").stdout
    assert document["doc_id"] in shown
    for asked in (document["doc_id"], document["doc_key"], document["url"]):
        found = json.loads(millstream(home, "audit", "doc", "whole", asked, "--json").stdout)["found"]
        assert [3, 0] in [[e["step"], e["row"]] for e in found[0]["exposures"]]
    mine = home / "mine.txt"
    mine.write_text(next(iter(texts(home / "corpus", "verse").values())))
    assert "domain verse · kept" in millstream(home, "audit", "doc", "whole", "--file", "mine.txt").stdout
    mine.write_text("nobody wrote this")
    assert "never read" in millstream(home, "audit", "doc", "whole", "--file", "mine.txt").stdout
    copied = millstream(home, "audit", "doc", "whole", "news-files:copies.jsonl:1").stdout
    assert "dropped by dedup/exact" in copied
    assert "kept instead:" in copied
    assert "law-files:part-0.jsonl:2" in copied
    why = json.loads(millstream(home, "audit", "why", "whole", "news-files:copies.jsonl:1", "--json").stdout)["dropped"]
    assert [w["document"]["rule"] for w in why] == ["exact"]
    assert "was not dropped: kept" in millstream(home, "audit", "why", "whole", document["doc_id"]).stdout
    blank = millstream(home, "audit", "doc", "whole", "news-files:copies.jsonl:2").stdout
    assert "dropped by read/empty-text" in blank


def test_steps_are_replayed_from_plan_and_corpus(home: Path, tmp_path: Path) -> None:
    shown = millstream(home, "audit", "replay", "whole", "3", "--check", "-o", str(tmp_path / "tokens.npy")).stdout
    assert steps_of(home / "whole")[2]["root"] in shown
    assert np.load(tmp_path / "tokens.npy").shape == (8, 33)
    answer = json.loads(millstream(home, "audit", "replay", "whole", "1", "--last", str(STEPS), "--json").stdout)
    assert [step["equal"] for step in answer["steps"]] == [True] * STEPS
    late = millstream(home, "audit", "replay", "whole", "99", check=False)
    assert "step 99 was not fed; the run is at step 24" in late.stderr


def test_the_realised_mixture_is_the_planned_one(home: Path, run: Run) -> None:
    mixed = audit_mixture(run)
    assert mixed["realised"].to_list() == mixed["planned"].to_list()
    assert mixed["realised"].sum() == STEPS * 8
    assert mixed["deviation"].abs().max() < 2
    assert mixed.filter(pl.col("domain") == "law")["epochs"].max() > 0.5


def test_metrics_are_kept_per_domain(home: Path) -> None:
    from millstream.train.metrics import current, read_metrics

    metrics = current(read_metrics(home / "killed" if (home / "killed").exists() else home / "whole"))
    losses = metrics.filter(pl.col("name") == "loss")
    assert losses.filter(pl.col("domain").is_null())["step"].to_list() == list(range(1, STEPS + 1))
    assert set(losses["domain"].drop_nulls()) == set(DOMAINS)
    counts = metrics.filter(pl.col("name") == "sequences").group_by("step").agg(pl.col("value").sum())
    assert set(counts["value"]) == {8.0}
    assert metrics.filter(pl.col("name") == "loss_held_out")["step"].unique().sort().to_list() == [12, 24]


def test_wandb_files_are_written_offline(home: Path) -> None:
    assert list((home / "whole" / "wandb").glob("offline-run-*/*.wandb"))


def test_what_was_altered_is_found_and_named(home: Path, tmp_path: Path) -> None:
    def altered(change: Any) -> str:
        folder = tmp_path / "copy"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(home / "whole", folder / "whole", ignore=shutil.ignore_patterns("wandb"))
        shutil.copytree(home / "corpus", folder / "corpus", ignore=shutil.ignore_patterns(".work"))
        change(folder)
        done = millstream(folder, "audit", "verify", "whole", check=False)
        assert done.returncode == 1
        assert done.stderr.startswith("millstream: ")
        return done.stdout

    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    def edit(path: Path, old: str, new: str) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    shard = Path("corpus/law/law-00000.tar")
    out = altered(lambda f: flip(f / shard))
    assert "law-00000.tar: altered" in out
    out = altered(lambda f: (f / shard).unlink())
    assert "law-00000.tar: missing" in out
    out = altered(lambda f: edit(f / "whole" / "ledger.jsonl", '"update_applied":true', '"update_applied":false'))
    assert "ledger.jsonl:" in out
    out = altered(lambda f: edit(f / "whole" / "run.json", '"name":"test"', '"name":"best"'))
    assert "run.json: altered" in out
    checkpoint = f"whole/checkpoints/step-{STEPS:08}/rank-00000.safetensors"
    out = altered(lambda f: flip(f / checkpoint))
    assert "rank-00000.safetensors: altered" in out


def test_a_run_refuses_another_recipe_or_corpus(home: Path) -> None:
    recipe = (home / "recipe.yaml").read_text()
    (home / "other.yaml").write_text(recipe.replace("lr: 0.01", "lr: 0.02"))
    done = millstream(home, "train", "other.yaml", "--corpus", "corpus", "--run", "whole", check=False)
    assert done.returncode == 2
    assert "the run was started with another 'train' section" in done.stderr
    assert "finished already" in millstream(home, "train", "recipe.yaml", "--corpus", "corpus", "--run", "whole").stdout


def test_a_run_is_not_continued_on_other_data(home: Path, tmp_path: Path) -> None:
    """The plan fits, the bytes of a shard do not: the last roots cannot be derived again."""
    shutil.copytree(home / "corpus", tmp_path / "corpus", ignore=shutil.ignore_patterns(".work"))
    shutil.copyfile(home / "recipe.yaml", tmp_path / "recipe.yaml")
    train = ("train", "recipe.yaml", "--corpus", "corpus", "--run", "run")
    millstream(tmp_path, *train, "--until", "6")
    for path in (tmp_path / "corpus").glob("*/*.tar"):
        data = bytearray(path.read_bytes())
        tokens = np.frombuffer(data, "<u2")
        path.write_bytes(np.where((tokens > 10) & (tokens < 200), tokens ^ 1, tokens).astype("<u2").tobytes())
    done = millstream(tmp_path, *train, check=False)
    assert done.returncode == 1
    assert "was fed other data than the corpus gives now" in done.stderr


def test_a_start_that_was_cut_short_is_no_run(home: Path) -> None:
    """Killed between run.json and the ledger: the next start begins the run anew."""
    folder = home / "short"
    (folder / ".start").mkdir(parents=True)
    shutil.copyfile(home / "whole" / "run.json", folder / "run.json")
    (folder / ".start" / "ledger.jsonl").write_text("{")
    millstream(home, "train", "recipe.yaml", "--corpus", "corpus", "--run", "short", "--until", "2")
    assert open_run(folder).last_step == 2
    verified(home, "short")


def test_a_run_without_its_ledger_is_not_begun_anew(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "whole", tmp_path / "lost", ignore=shutil.ignore_patterns("wandb", "ledger.jsonl"))
    train = ("train", "recipe.yaml", "--corpus", "corpus", "--run", str(tmp_path / "lost"))
    done = millstream(home, *train, check=False)
    assert done.returncode == 2
    assert "holds checkpoints but no ledger.jsonl" in done.stderr


def test_a_short_shard_ends_training_with_one_line(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "corpus", tmp_path / "corpus", ignore=shutil.ignore_patterns(".work"))
    shutil.copyfile(home / "recipe.yaml", tmp_path / "recipe.yaml")
    shard = tmp_path / "corpus" / "law" / "law-00000.tar"
    shard.write_bytes(shard.read_bytes()[:-512])
    done = millstream(tmp_path, "train", "recipe.yaml", "--corpus", "corpus", "--run", "run", check=False)
    assert done.returncode == 3
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "law-00000.tar" in line
    assert "the manifest says" in line


def test_a_batch_schedule_is_trained_and_recorded(home: Path) -> None:
    recipe = yaml.safe_load((home / "recipe.yaml").read_text())
    recipe["mixture"] |= {"batch": [{"step": 1, "batch": 8}, {"step": 7, "batch": 16}], "steps": 10}
    (home / "grown.yaml").write_text(yaml.safe_dump(recipe))
    millstream(home, "train", "grown.yaml", "--corpus", "corpus", "--run", "grown")
    verified(home, "grown")
    steps = steps_of(home / "grown")
    assert [body["sequences"] for body in steps] == [8] * 6 + [16] * 4
    # 80% of 112 sequences are 89.6; the nearest step border is 96, after step 9.
    assert [body["segment"] for body in steps] == [0] * 6 + [1] * 3 + [2]
    assert all(isinstance(body["loss"], int) for body in steps)
