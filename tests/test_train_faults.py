"""What goes wrong in training, through the real launcher on two ranks: each ends as documented, nothing is lost."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from corpora import build, recipe_dict, write_domain
from test_story import SECTIONS, millstream, processes_of, steps_of

from millstream.audit.ledger import read_ledger
from millstream.audit.runs import open_run
from millstream.train.requests import ask, forget

FAULTS = Path(__file__).parent / "faults"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    for name in ("law", "news", "verse"):
        write_domain(folder / "in", name, 80)
    sections: dict[str, Any] = json.loads(json.dumps(SECTIONS))
    sections["mixture"] |= {"steps": 12, "limits": {}}
    sections["train"] |= {
        "checkpoint_every": 3,
        "evaluate_every": None,
        "wandb": None,
        "stop_after_skipped": 3,
        "watchdog": {"step_s": 4},
    }
    build(folder, recipe_dict(folder / "in", ("law", "news", "verse"), **sections))
    return folder


def start(home: Path, run: str, fault: str = "", ranks: int = 2) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "millstream", "train", "recipe.yaml", "--corpus", "corpus", "--run", run]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PASSES": str(8 // ranks // 2)}
    if fault:
        path = [str(FAULTS), os.environ.get("PYTHONPATH", "")]
        environment |= {"FAULT": fault, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    return subprocess.Popen(
        [*command, "--num_accelerators", str(ranks)],
        cwd=home,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: "subprocess.Popen[str]", home: Path, run: str, within: float = 60) -> tuple[int, list[str]]:
    """Exit code and the lines of errors; no process is left."""
    _, errors = process.communicate(timeout=within)
    assert processes_of(home, run) == []
    assert "Traceback" not in errors
    return process.returncode, errors.splitlines()


def wait_for_step(home: Path, run: str, step: int, process: "subprocess.Popen[str]") -> None:
    ledger = home / run / "ledger.jsonl"
    deadline = time.monotonic() + 60
    while not (ledger.exists() and f'"step":{step},'.encode() in ledger.read_bytes()):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)


def test_skipped_steps_are_recorded_and_a_rank_that_dies_ends_the_others(home: Path) -> None:
    began = time.monotonic()
    code, errors = ended(start(home, "run", "nan:1:2-3,die:1:8"), home, "run", within=40)
    assert code == 3
    (line,) = errors
    assert line.startswith(
        "millstream: rank 0: lost another rank, which died or was stopped; run the command again to go on"
    )
    assert time.monotonic() - began < 40
    assert ended(start(home, "run"), home, "run") == (0, [])
    run = open_run(home / "run")
    assert run.attempts[1].checkpoint_step == 6
    assert run.finished
    steps = {body["step"]: body for body in steps_of(home / "run")}
    assert [steps[n]["update_applied"] for n in range(1, 13)] == [n not in (2, 3) for n in range(1, 13)]
    # The data was fed, and the losses themselves were sound; nothing moved, so the next loss is finite too.
    assert all(isinstance(body["loss"], int) for body in steps.values())
    verify = millstream(home, "audit", "verify", "run", "--json")
    assert not any(check["findings"] for check in json.loads(verify.stdout)["checks"])


def test_too_many_skipped_steps_end_the_run_and_a_rank_that_hangs_is_ended(home: Path) -> None:
    code, errors = ended(start(home, "stuck", "nan:0:5-99"), home, "stuck")
    assert code == 1
    (line,) = errors
    assert line.startswith(
        "millstream: stuck: loss or gradients of steps 5 to 7 were not finite and no update was made"
    )
    (alert,) = [record.body for record in read_ledger(home / "stuck") if record.kind == "alert"]
    assert alert == {"what": "not finite", "first_step": 5, "last_step": 7, "attempt": 1}
    assert [body["update_applied"] for body in steps_of(home / "stuck")][3:] == [True, False, False, False]

    code, errors = ended(start(home, "stuck", "hang:1:2"), home, "stuck")
    assert code == 3
    assert open_run(home / "stuck").attempts[1].checkpoint_step == 6
    (line,) = errors
    assert line.startswith("millstream: rank ")
    assert "ended itself: nothing moved for " in line
    assert "of step 8; stacks are in " in line
    stacks = Path(home / line.rsplit("stacks are in ", 1)[1]).read_text()
    assert "run_micro_batches" in stacks


def test_a_signal_to_the_ranks_saves_a_checkpoint_from_which_the_next_start_goes_on(home: Path) -> None:
    """As a scheduler sends it to every process of a job; the launcher waits for its ranks."""
    process = start(home, "preempted")
    wait_for_step(home, "preempted", 1, process)
    for pid in processes_of(home, "preempted"):
        if pid != process.pid:
            os.kill(pid, signal.SIGTERM)
    code, errors = ended(process, home, "preempted")
    assert code == 3
    run = open_run(home / "preempted")
    assert run.last_step < 12
    assert run.checkpoints[-1].step == run.last_step
    assert f"stopped as asked after step {run.last_step} of 12, with a checkpoint" in errors[-1]
    assert ended(start(home, "preempted", ranks=1), home, "preempted") == (0, [])
    assert [body["step"] for body in steps_of(home / "preempted")] == list(range(1, 13)), "no step was fed twice"


def test_a_file_in_the_folder_of_a_run_is_a_request(tmp_path: Path) -> None:
    """For ``checkpoint``, and for whoever stands on the machine; what an earlier job left is no request."""
    ask(tmp_path, "checkpoint")
    forget(tmp_path)
    ask(tmp_path, "stop")
    assert [path.name for path in (tmp_path / "requests").iterdir()] == ["stop"]
