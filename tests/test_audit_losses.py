"""Losses of single sequences: found for any step of any attempt, covered by the record, and safe from crashes."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from simulated import begin, losses_of, train

from millstream.audit.branches import branch_run
from millstream.audit.change import Reason, amend_run
from millstream.audit.feed import check_tripwires, tripwires
from millstream.audit.losses import LossWriter, check_losses, losses_file, read_losses
from millstream.audit.runs import open_run
from millstream.errors import CheckFailed, InputError
from millstream.stream.amend import Amendment

MIXTURE = {"seq_len": 16, "batch": 8, "steps": 20, "phases": [{"name": "a", "weights": {"law": 1, "news": 1}}]}
WHY = Reason(why="x", by="y")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three attempts with a larger batch at its end."""
    folder = tmp_path_factory.mktemp("losses")
    path = begin(folder, MIXTURE, {"law": 60, "news": 60})
    train(path, 0, 9)
    train(path, 6, 12)
    amend_run(path, Amendment(from_step=13, batch=16), WHY)
    train(path, 11, 14)
    return folder


def test_every_attempt_of_every_step_has_its_losses(home: Path) -> None:
    run = open_run(home / "run")
    seen = 0
    for step in run.fed:
        for fed in run.fed[step]:
            found = read_losses(run, fed)
            assert found.dtype == np.float32
            assert np.array_equal(found, losses_of(step, fed.attempt, fed.sequences).astype(np.float16))
            assert abs(found.mean() * 1e6 - fed.loss) < 2000  # type: ignore[operator]
            seen += 1
    assert seen == 9 + 6 + 3
    assert run.fed[14][0].sequences == 16
    assert check_losses(run) == (seen, [])


def test_a_branch_has_the_losses_that_it_shares(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "run", tmp_path / "run")
    (tmp_path / "corpus").symlink_to(home / "corpus")
    branch_run(tmp_path / "run", tmp_path / "side", 8, WHY)
    side = train(tmp_path / "side", 8, 10)
    assert check_losses(side)[1] == []
    for fed in [f for step in side.fed for f in side.fed[step]]:
        assert len(read_losses(side, fed)) == fed.sequences
    # The shared records end at the checkpoint of step 8: attempt 2 had fed two steps by then.
    assert losses_file(side.path, 2).stat().st_size == 2 * 2 * 8


@pytest.mark.parametrize("change", ["flip", "cut", "missing"])
def test_what_was_altered_is_named(home: Path, tmp_path: Path, change: str) -> None:
    shutil.copytree(home / "run", tmp_path / "run")
    run = open_run(tmp_path / "run")
    path = losses_file(run.path, 2)
    whole = path.read_bytes()
    (fed,) = (f for f in run.fed[12] if f.attempt == 2)
    if change == "missing":
        path.unlink()
        assert check_losses(run) == (9 + 3, [])
        with pytest.raises(InputError, match="cannot be read"):
            read_losses(run, fed)
        return
    path.write_bytes(whole[:-1] if change == "cut" else whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
    with pytest.raises(InputError, match="altered: the losses of step 12" if change == "flip" else "short: 7 of the 8"):
        read_losses(run, fed)
    looked_at, findings = check_losses(run)
    assert looked_at == 18
    # A superseded step at the end may have lost its losses with the power, but they cannot have changed.
    assert len(findings) == (1 if change == "flip" else 0)
    path.write_bytes(whole[: 2 * 8 * 3])
    assert [f"step {n}" in finding for n, finding in zip((10, 11), check_losses(run)[1], strict=True)] == [True, True]


def test_losses_that_no_record_names_are_in_nobodys_way(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "run", tmp_path / "run")
    with losses_file(tmp_path / "run", 3).open("ab") as file:
        file.write(b"\0\0\0")
    run = train(tmp_path / "run", 14, 15)
    assert check_losses(run) == (19, [])
    assert len(read_losses(run, run.fed[15][0])) == 16


def test_losses_without_a_number_are_kept(tmp_path: Path) -> None:
    with LossWriter(tmp_path, 1) as writer:
        writer.add(np.array([np.nan, np.inf, 1e9, 2.5], np.float32))
        writer.sync()
    found = np.frombuffer(losses_file(tmp_path, 1).read_bytes(), "<f2")
    assert np.array_equal(found, np.array([np.nan, np.inf, np.inf, 2.5], np.float16), equal_nan=True)


def test_a_full_disk_ends_the_file_at_the_step_before(tmp_path: Path) -> None:
    code = f"""
import resource, signal
import numpy as np
from pathlib import Path
from millstream.audit.losses import LossWriter
from millstream.errors import SetupError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = LossWriter(Path({str(tmp_path)!r}), 1)
writer.add(np.ones(100, np.float32))
resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))
try:
    writer.add(np.ones(100, np.float32))
except SetupError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "losses cannot be written: File too large" in done.stdout
    assert losses_file(tmp_path, 1).stat().st_size == 200


def test_a_micro_batch_that_changed_on_its_way_is_named() -> None:
    tokens = np.arange(8 * 5, dtype=np.int64).reshape(8, 5)
    read = tripwires(tokens, 3)
    assert len(read) == 3
    check_tripwires(1, read, tripwires(tokens.copy(), 3))
    tokens[4, 2] ^= 1
    with pytest.raises(CheckFailed, match="step 7: micro-batch 1 reached the engine other than it was read"):
        check_tripwires(7, read, tripwires(tokens, 3))
