"""Which checkpoints a run continues from, adopts, keeps and removes."""

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest

from millstream.audit.ledger import Ledger, open_ledger
from millstream.audit.runs import FORMAT as RUN_FORMAT
from millstream.audit.runs import Run, open_run
from millstream.canonical import canonical_bytes
from millstream.errors import InputError
from millstream.train.checkpoint_index import FORMAT, INDEX, free_folder, record_of
from millstream.train.keeping import adopt_unrecorded, newest_checkpoint, open_shelf, prune


def begin(path: Path) -> Ledger:
    """An empty run; its ledger."""
    path.mkdir()
    (path / "run.json").write_bytes(canonical_bytes({"format": RUN_FORMAT}))
    ledger = open_ledger(path)
    ledger.append("run", {})
    return ledger


def save(run_dir: Path, ledger: Ledger, step: int, attempt: int = 1) -> Path:
    """A checkpoint as a saver leaves it, not yet recorded."""
    folder = free_folder(run_dir, step, attempt)
    folder.mkdir(parents=True)
    data = f"{step} {attempt}".encode()
    (folder / "rank-00000.safetensors").write_bytes(data)
    files = {"rank-00000.safetensors": hashlib.sha256(data).hexdigest()}
    index = {"format": FORMAT, "step": step, "attempt": attempt, "head": ledger.head, "files": files}
    (folder / INDEX).write_bytes(canonical_bytes(index))
    return folder


def saved_run(path: Path, *steps: int) -> Ledger:
    """A run with recorded checkpoints of these steps."""
    ledger = begin(path)
    for step in steps:
        ledger.append("checkpoint", record_of(path, save(path, ledger, step)))
    return ledger


def there(run: Run) -> list[str]:
    return sorted(folder.name for folder in (run.path / "checkpoints").iterdir())


def pin(run_dir: Path, step: int, name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "step": step, "path": f"checkpoints/step-{step:08}", "held": True, "by": "ann"} | more


def test_the_newest_ones_every_kth_and_the_pinned_stay(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with saved_run(path, *range(10, 110, 10)) as ledger:
        ledger.append("pin", pin(path, 20, "good"))
        ledger.append("pin", pin(path, 30, "late"))
        ledger.append("pin", pin(path, 30, "late", held=False))
        (path / "checkpoints" / ".step-00000110.tmp").mkdir()
        shelf = open_shelf(open_run(path))
        prune(shelf, 2, 40)
    assert there(open_run(path)) == [f"step-{step:08}" for step in (20, 40, 80, 90, 100)]


def test_what_a_rollback_gave_up_counts_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with saved_run(path, 10, 20, 30) as ledger:
        ledger.append("rollback", {"to_step": 10, "from_step": 35, "why": "", "by": "ann"})
        again = save(path, ledger, 20, attempt=2)
        assert again.name == "step-00000020-attempt-2"
        ledger.append("checkpoint", record_of(path, again))
        run = open_run(path)
        newest = newest_checkpoint(run)
        assert newest is not None
        assert newest.path == "checkpoints/step-00000020-attempt-2"
        prune(open_shelf(run), 1, None)
        assert there(run) == ["step-00000020-attempt-2"]


def test_a_newest_checkpoint_that_is_not_there_is_not_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with saved_run(path, 10, 20, 30):
        run = open_run(path)
        folder = path / "checkpoints" / "step-00000030"
        index = (folder / INDEX).read_bytes()
        (folder / INDEX).write_bytes(index + b" ")
        with pytest.raises(InputError, match=r"step-00000030: not the checkpoint that the ledger names.*--to 20 --why"):
            newest_checkpoint(run)
        (folder / INDEX).unlink()
        (folder / "rank-00000.safetensors").unlink()
        folder.rmdir()
        with pytest.raises(InputError, match=r"step-00000030: missing, and it is the newest; restore it, or give up"):
            newest_checkpoint(run)


def test_a_checkpoint_that_was_complete_before_the_crash_is_adopted(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with saved_run(path, 10) as ledger:
        ledger.append("attempt", {"attempt": 1, "checkpoint_step": 10})
        save(path, ledger, 20)
        ledger.append("note", {"text": "steps that were trained while it was written", "by": "test"})
    with open_ledger(path) as ledger:
        run = adopt_unrecorded(open_run(path), ledger)
        newest = newest_checkpoint(run)
        assert newest is not None
        assert newest.step == 20
        assert [r.body.get("adopted") for r in run.records.of("checkpoint")] == [None, True]
        assert len(adopt_unrecorded(run, ledger).records) == len(run.records)


def test_a_rollback_gives_up_what_was_not_recorded_too(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with saved_run(path, 10) as ledger:
        folder = save(path, ledger, 20)
        ledger.append("rollback", {"to_step": 10, "from_step": 25, "why": "", "by": "ann"})
        run = adopt_unrecorded(open_run(path), ledger)
        newest = newest_checkpoint(run)
        assert newest is not None
        assert newest.step == 10
        assert not folder.exists()


def test_a_checkpoint_that_the_ledger_does_not_know_is_refused(tmp_path: Path) -> None:
    """The ledger was restored from a copy of the day before; the checkpoints were not."""
    path = tmp_path / "run"
    with saved_run(path, 10) as ledger:
        copy = (path / "ledger.jsonl").read_bytes()
        ledger.append("note", {"text": "more", "by": "test"})
        folder = save(path, ledger, 20)
    (path / "ledger.jsonl").write_bytes(copy)
    (path / "ledger.index").unlink()
    with open_ledger(path) as ledger:
        with pytest.raises(InputError, match=r"step-00000020: a complete checkpoint of step 20, taken after a record"):
            adopt_unrecorded(open_run(path), ledger)
        (folder / INDEX).unlink()
        assert adopt_unrecorded(open_run(path), ledger).checkpoints[-1].step == 10


def test_an_altered_checkpoint_is_not_adopted(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with saved_run(path, 10) as ledger:
        folder = save(path, ledger, 20)
        (folder / "rank-00000.safetensors").write_bytes(b"other")
        with pytest.raises(InputError) as caught:
            adopt_unrecorded(open_run(path), ledger)
    assert re.search(r"step-00000020/rank-00000\.safetensors: altered", str(caught.value))
