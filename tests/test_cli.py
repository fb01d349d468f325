"""Commands as users meet them: help with examples, one-line errors, exit codes, JSON, harmless output."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from corpora import recipe_dict, write_domain, write_jsonl, write_recipe

TAKEDOWNS = [["takedown", t] for t in ("plan", "apply", "redact", "report")]
COMMANDS = [
    "check",
    "sign",
    "init",
    "stats",
    "build",
    "plan",
    "train",
    "run",
    "amend",
    "rollback",
    "branch",
    "doctor",
    "status",
    "page",
    "generate",
    "note",
    "watch",
    "incident",
]
PROOFS = [["prove", c] for c in ("include", "absent", "consistent", "record", "index")] + [
    ["key", "new"],
    ["key", "show"],
]
EXPORTS = ["croissant", "eu", "exposures", "hf", "intoto"]
LADDERS = [["ladder", c] for c in ("make", "run", "status", "fit", "forecast")] + [
    ["forecast", "register"],
    ["forecast", "score"],
]
AUDITS = ["step", "doc", "why", "mixture", "spike", "diff", "replay", "index", "search", "verify"]


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "millstream", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def fails(folder: Path, code: int, message: str, *arguments: str) -> None:
    done = run(folder, *arguments)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "command",
    [[c] for c in COMMANDS]
    + [["audit", a] for a in AUDITS]
    + [["export", e] for e in EXPORTS]
    + TAKEDOWNS
    + PROOFS
    + LADDERS,
)
def test_every_command_has_help_with_an_example(tmp_path: Path, command: list[str]) -> None:
    shown = run(tmp_path, *command, "--help")
    assert shown.returncode == 0
    assert "Example" in shown.stdout
    assert f"millstream {' '.join(command)}" in " ".join(shown.stdout.split())


def test_the_commands_are_the_ones_we_test(tmp_path: Path) -> None:
    from millstream.cli import app
    from millstream.commands import audit, export, prove, takedown

    assert sorted(c.name or c.callback.__name__ for c in app.registered_commands if c.callback) == sorted(
        [*COMMANDS, "version"]
    )
    assert sorted(str(c.name) for c in audit.app.registered_commands) == sorted(AUDITS)
    proofs = [
        [name, str(c.name)] for name, a in (("prove", prove.app), ("key", prove.keys)) for c in a.registered_commands
    ]
    assert sorted(proofs) == sorted(PROOFS)
    assert sorted(str(c.name) for c in export.app.registered_commands) == sorted(EXPORTS)
    assert sorted(["takedown", str(c.name)] for c in takedown.app.registered_commands) == sorted(TAKEDOWNS)


def test_wrong_use_is_one_clear_line(tmp_path: Path) -> None:
    write_domain(tmp_path / "in", "law", 20)
    write_recipe(tmp_path / "r.yaml", recipe_dict(tmp_path / "in", ["law"]))
    fails(tmp_path, 2, "nope.yaml: cannot be read", "build", "nope.yaml")
    (tmp_path / "m.yaml").write_text((tmp_path / "r.yaml").read_text() + MIXTURE)
    fails(
        tmp_path,
        2,
        "no corpus here (no corpus.json); run 'millstream build RECIPE' first",
        "plan",
        "m.yaml",
        "--corpus",
        "corpora/m",
    )
    fails(tmp_path, 2, "has no 'mixture' section", "plan", "r.yaml")
    fails(tmp_path, 2, "has no 'model' section", "train", "r.yaml")
    fails(tmp_path, 2, "no run of that name or folder; there are no runs here", "audit", "verify", "nothing")
    (tmp_path / "broken.yaml").write_text((tmp_path / "r.yaml").read_text().replace("seed:", "sed:"))
    fails(tmp_path, 2, "corpus.sed: unknown key; did you mean 'seed'?", "build", "broken.yaml")


MIXTURE = """
mixture:
  seq_len: 16
  batch: 4
  steps: 8
  phases:
    - {name: pretrain, weights: {law: 1}}
"""


def test_build_plan_and_status(tmp_path: Path) -> None:
    write_domain(tmp_path / "in", "law", 40)
    write_recipe(tmp_path / "r.yaml", recipe_dict(tmp_path / "in", ["law"]))
    (tmp_path / "r.yaml").write_text((tmp_path / "r.yaml").read_text() + MIXTURE)
    explained = run(tmp_path, "build", "r.yaml", "--explain")
    assert "to do" in explained.stdout
    assert not (tmp_path / "corpora" / "test" / "corpus.json").exists()
    built = json.loads(run(tmp_path, "build", "r.yaml", "--json").stdout)
    assert built["did_work"]
    assert "nothing to do: the corpus is up to date" in run(tmp_path, "build", "r.yaml").stdout
    planned = json.loads(run(tmp_path, "plan", "r.yaml", "--json").stdout)
    assert planned["facts"]["tokens"] == 8 * 4 * 16
    assert planned["phases"][0]["sequences"] == 32
    assert "pretrain" in run(tmp_path, "plan", "r.yaml").stdout
    shown = run(tmp_path, "plan", "r.yaml", "--show-recipe").stdout
    assert "max_epochs: '4'" in shown
    assert run(tmp_path, "plan", "r.yaml", "--schema", "schema.json").returncode == 0
    assert json.loads((tmp_path / "schema.json").read_text())["title"] == "Recipe"
    status = json.loads(run(tmp_path, "status", "--json").stdout)
    assert [c["corpus"] for c in status["corpora"]] == ["test"]
    too_long = (tmp_path / "r.yaml").read_text().replace("steps: 8", "steps: 8000")
    (tmp_path / "long.yaml").write_text(too_long)
    fails(tmp_path, 2, "more than max_epochs 4", "plan", "long.yaml")


def test_doctor_looks_at_this_machine(tmp_path: Path) -> None:
    done = run(tmp_path, "doctor", "--json")
    findings = {f["what"]: f for f in json.loads(done.stdout)}
    assert {"cores", "memory", "disk here", "torch", "deepspeed", "accelerators", "a free port"} <= set(findings)
    assert done.returncode == (0 if all(f["ok"] for f in findings.values()) else 1)


def test_init_makes_a_recipe_that_builds(tmp_path: Path) -> None:
    write_domain(tmp_path / "texts", "law", 60)
    (tmp_path / "texts" / "Notes & more").mkdir()
    for n in range(40):
        (tmp_path / "texts" / "Notes & more" / f"{n}.md").write_text(f"Note {n}. " + "word and word again. " * 8)
    assert run(tmp_path, "init", "texts", "-o", "mine.yaml").returncode == 0
    fails(tmp_path, 2, "mine.yaml: exists already", "init", "texts", "-o", "mine.yaml")
    built = run(tmp_path, "build", "mine.yaml")
    assert built.returncode == 0, built.stderr
    assert "states no licence" in built.stdout
    planned = run(tmp_path, "plan", "mine.yaml")
    assert planned.returncode == 0, planned.stderr
    (tmp_path / "empty").mkdir()
    fails(tmp_path, 2, "no file of a known kind", "init", "empty", "-o", "other.yaml")
    fails(tmp_path, 2, "nowhere: no such folder", "init", "nowhere", "-o", "other.yaml")


def test_document_text_cannot_steer_a_terminal(tmp_path: Path) -> None:
    from millstream.show import harmless

    hostile = "\x1b[2J\x1b]0;title\x07 \u202eright\u200b \x9b31m [bold]x[/bold]\r\nnext\ttab"
    shown = harmless(hostile)
    assert shown == ("\\u001b[2J\\u001b]0;title\\u0007 \\u202eright\\u200b \\u009b31m [bold]x[/bold]\\u000d\nnext\ttab")
    # Through the real command, on a real terminal: a reason that holds an escape sequence stays text.
    write_jsonl(tmp_path / "in" / "law" / "a.jsonl", [{"text": "fine text of some length " * 5}] * 1)
    (tmp_path / "in" / "law" / "\x1b[31mred.jsonl").write_text('{"text": 5}\n')
    write_recipe(tmp_path / "r.yaml", recipe_dict(tmp_path / "in", ["law"]))
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "millstream", "build", "r.yaml", "--explain"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=child, stderr=child, env=os.environ | {"TERM": "xterm"}
    ) as process:
        os.close(child)
        received = b""
        while True:
            try:
                block = os.read(parent, 65536)
            except OSError:
                break
            received += block
        process.wait()
    os.close(parent)
    assert process.returncode == 0
    assert b"\x1b[31mred" not in received
    assert b"red.jsonl" in received


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    line = f"{sys.executable} -m millstream doctor --json | head -c 1"
    done = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == ""
