"""The tutorial's commands, run in order as they stand there, on other texts."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

from corpora import words

from millstream.audit.runs import open_run

TUTORIAL = Path(__file__).parent.parent / "docs" / "tutorial.md"


def test_the_tutorial_works(tmp_path: Path) -> None:
    for domain in ("some", "other"):
        folder = tmp_path / "my-texts" / domain
        folder.mkdir(parents=True)
        for n in range(1000):
            (folder / f"{n}.txt").write_text(f"{domain} {n}. " + words(f"{domain}{n}", 90))
    (tmp_path / "my-texts" / "some" / "article.txt").write_text("An article. " + words("article", 90))
    commands = [line.strip() for line in TUTORIAL.read_text().splitlines() if line.startswith("    .venv/bin/")]
    assert len(commands) >= 9
    printed = {}
    for command in commands:
        program, *arguments = shlex.split(command)
        start = [sys.executable] if program.endswith("python") else [sys.executable, "-m", "millstream"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*start, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False, env=environment
        )
        assert done.returncode == 0, (command, done.stderr)
        printed[command] = done.stdout
    shown = {command.split(" ", 1)[1]: text for command, text in printed.items()}
    assert "some · kept" in shown["audit doc my --file my-texts/some/article.txt"]
    assert "step 50 of" in shown["train my.yaml --until 50"]
    run = open_run(tmp_path / "runs" / "my")
    assert run.finished
    assert [a.checkpoint_step for a in run.attempts] == [0, 50]
