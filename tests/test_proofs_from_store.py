"""Proofs about a corpus in an object store: the same roots as of the folder, signed, proved from, verified."""

import json
from pathlib import Path

import pytest
from fed_runs import feed, start
from stores import s3_server, upload
from typer.testing import CliRunner

from millstream.audit.runs import create_run
from millstream.audit.signing import own_key
from millstream.audit.verifier import check
from millstream.cli import app
from millstream.mixture.load import load_recipe
from millstream.stream.corpora import open_corpus
from millstream.stream.freeze import freeze_plan


def asked(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == code, done.output + str(done.exception)
    return done.stdout


def test_a_head_names_the_roots_of_a_corpus_in_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_KEY", str(tmp_path / "key"))
    start(tmp_path)
    run, corpus, recipe = tmp_path / "signed", open_corpus(tmp_path / "corpus"), load_recipe(tmp_path / "recipe.yaml")
    assert recipe.mixture is not None
    plan = freeze_plan(recipe.mixture, corpus.manifest, corpus.root)
    create_run(run, recipe, plan, corpus, signer=own_key().verifier_key)
    feed(run, 24)
    with s3_server() as endpoint:
        url = upload(endpoint, tmp_path / "corpus", "proofs")
        (tmp_path / "corpus").rename(tmp_path / "put away")
        for name, value in (("ACCESS_KEY_ID", "k"), ("SECRET_ACCESS_KEY", "s"), ("ENDPOINT_URL", endpoint)):
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.chdir(tmp_path)
        roots = json.loads(asked("prove", "index", url, "--json"))
        corpus_id = open_corpus(url).manifest.corpus_id
        assert (tmp_path / "indexes" / corpus_id[:16] / "proofs" / "roots.json").exists()
        signed = json.loads(asked("sign", str(run), "--corpus", url, "--json"))["head"]
        assert f"corpus {corpus_id} {roots['keys_root']} {roots['documents_root']}\n" in signed
        text = tmp_path / "never.txt"
        text.write_text("nobody wrote this\n")
        asked("prove", "absent", str(run), "--file", str(text), "--corpus", url, "-o", "absent.json")
        shown = check(json.loads(Path("absent.json").read_text()), text=text.read_text())
        assert shown
        exposed = json.loads(asked("audit", "step", str(run), "3", "--corpus", url, "--json"))["documents"][0]
        given = ["include", str(run), exposed["doc_key"], "--step", "3", "--corpus", url, "-o", "include.json"]
        asked("prove", *given)
        assert check(json.loads(Path("include.json").read_text()))
        asked("audit", "verify", str(run), "--corpus", url)
    (tmp_path / "put away").rename(tmp_path / "corpus")
    assert json.loads(asked("prove", "index", str(tmp_path / "corpus"), "--json")) == roots
