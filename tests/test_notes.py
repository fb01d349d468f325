"""Notes and papers: what stands in the ledger, who may write when, and what is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fed_runs import start

from millstream.audit.ledger import check_chain, open_ledger
from millstream.audit.notes import FOLDER, LONGEST, papers_of, record_papers, take_notes, write_log
from millstream.audit.runs import open_run
from millstream.errors import RecipeError, UsageError
from millstream.mixture.load import load_recipe
from millstream.mixture.papers import read_papers, without_papers


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start(tmp_path_factory.mktemp("notes"))


def notes(run: Path) -> list[str]:
    return [record.body["text"] for record in open_run(run).records.of("note")]


def command(run: Path, *arguments: str, given: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    words = [sys.executable, "-m", "millstream", "note", str(run), *arguments]
    return subprocess.run(words, input=given, capture_output=True, check=False)


def test_a_note_has_author_and_time(begun: Path) -> None:
    assert write_log(begun, "  Nodes ran **hot**.\n", {}, "ann")
    body = list(open_run(begun).records.of("note"))[-1].body
    assert body["text"] == "Nodes ran **hot**."
    assert body["by"] == "ann"
    assert body["time"].endswith("+00:00")
    assert not list((begun / FOLDER).iterdir())
    check_chain(begun)


def test_what_is_written_while_a_run_trains_is_taken_in_by_it(begun: Path) -> None:
    with open_ledger(begun) as ledger:
        assert not write_log(begun, "first", {"plan": "# The plan\n\nTrain."}, "ann")
        assert not write_log(begun, "second", {"plan": "# The plan\n\nTrain on."}, "bob")
        assert "first" not in notes(begun)
        assert take_notes(begun, ledger) == 4
        assert take_notes(begun, ledger) == 0
    assert notes(begun)[-2:] == ["first", "second"]
    versions = papers_of(open_run(begun))["plan"]
    assert [(v.version, v.title, v.text[-3:]) for v in versions] == [(1, "The plan", "in."), (2, "The plan", "on.")]
    assert [v.record.body["why"] for v in versions] == ["first", "second"]


def test_a_crash_between_record_and_removal_writes_nothing_twice(begun: Path) -> None:
    with open_ledger(begun) as ledger:
        write_log(begun, "once", {"risks": "None."}, "ann")
        waiting = {path: path.read_bytes() for path in (begun / FOLDER).iterdir()}
        assert take_notes(begun, ledger) == 2
        for path, held in waiting.items():
            path.write_bytes(held)
        assert take_notes(begun, ledger) == 0
    assert notes(begun).count("once") == 1
    assert papers_of(open_run(begun))["risks"][-1].title == "Risks"


@pytest.mark.parametrize(
    "held",
    [
        b"{",
        b"[]",
        b'{"kind": "note"}',
        b'{"kind": "step", "body": {"text": "a", "by": "b", "time": "c"}}',
        b'{"kind": "note", "body": {"text": 1, "by": "b", "time": "c"}}',
        b'{"kind": "note", "body": {"text": " ", "by": "b", "time": "c"}}',
        b'{"kind": "paper", "body": {"name": "../x", "text": "a", "by": "b", "time": "c"}}',
    ],
)
def test_a_file_that_is_no_note_is_left_out(begun: Path, held: bytes) -> None:
    (begun / FOLDER).mkdir(exist_ok=True)
    (begun / FOLDER / "0.json").write_bytes(held)
    before = len(open_run(begun).records)
    with open_ledger(begun) as ledger:
        assert take_notes(begun, ledger) == 0
    assert len(open_run(begun).records) == before


def test_papers_of_a_recipe_get_a_version_where_they_changed(begun: Path, tmp_path: Path) -> None:
    raw = (begun.parent / "recipe.yaml").read_text() + "\npublic:\n  papers: {contingency: docs/c.md}\n"
    recipe_file = tmp_path / "recipe.yaml"
    recipe_file.write_text(raw)
    recipe = load_recipe(recipe_file)
    with pytest.raises(RecipeError, match=r"public\.papers\.contingency: .*c\.md: cannot be read"):
        read_papers(recipe, recipe_file)
    (tmp_path / "docs").mkdir()
    counts = []
    for text in ("If it diverges,\r\n", "If it diverges,\n", "If it diverges, go back.\n"):
        (tmp_path / "docs" / "c.md").write_bytes(text.encode())
        with open_ledger(begun) as ledger:
            counts.append(record_papers(open_run(begun), ledger, read_papers(recipe, recipe_file)))
    assert counts == [1, 0, 1]
    assert papers_of(open_run(begun))["contingency"][-1].record.body["by"] == "recipe"
    assert read_papers(without_papers(recipe), recipe_file) == {}
    assert without_papers(recipe).section_digests()["mixture"] == recipe.section_digests()["mixture"]


def test_what_cannot_be_noted_is_one_clear_line(begun: Path, tmp_path: Path) -> None:
    for text, said in ((" ", "the text is empty"), ("x" * (LONGEST + 1), "at most 20,000"), ("\udcff", "not UTF-8")):
        with pytest.raises(UsageError, match=said):
            write_log(begun, text, {}, "ann")
    with pytest.raises(UsageError, match="small letters"):
        write_log(begun, None, {"The Plan": "x"}, "ann")
    with pytest.raises(UsageError, match="too large"):
        write_log(begun, None, {"plan": "\u00e9" * 200_000}, "ann")
    assert not list((begun / FOLDER).glob("*"))
    (tmp_path / "latin.md").write_bytes(b"caf\xe9")
    for arguments, said in (
        (["--paper", "plan"], b"expected NAME=FILE"),
        (["--paper", f"plan={tmp_path / 'none.md'}"], b"cannot be read"),
        (["--paper", f"plan={tmp_path / 'latin.md'}"], b"not UTF-8 at byte 3"),
    ):
        done = command(begun, *arguments)
        assert done.returncode == 2
        assert said in done.stderr
        assert b"Traceback" not in done.stderr


def test_the_command_writes_and_reads_the_log(begun: Path, tmp_path: Path) -> None:
    (tmp_path / "failed.md").write_text("# What failed\n\nClipping.\n")
    done = command(
        begun, "-", "--by", "eve", "--paper", f"failed-designs={tmp_path / 'failed.md'}", given=b"From stdin."
    )
    assert (done.returncode, b"recorded" in done.stdout) == (0, True), done.stderr
    held = json.loads(command(begun, "--json").stdout)
    assert (held["notes"][-1]["text"], held["notes"][-1]["by"]) == ("From stdin.", "eve")
    assert held["papers"][-1]["title"] == "What failed"
    shown = command(begun).stdout.decode()
    assert "From stdin." in shown
    assert "What failed, version 1 (failed-designs)" in shown


def test_whoever_has_another_key_may_note(begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "MILLSTREAM_KEY", str(tmp_path / "other.key"))
    assert write_log(begun, "from elsewhere", {}, "dan")
