"""Damaged ledgers as a user meets them: a torn line, a full disk, a second writer. Nothing is lost, one clear line."""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fed_runs import feed, start

from millstream.audit.ledger import FILE, check_chain, open_ledger, read_ledger
from millstream.audit.runs import open_run


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("fed")
    path = start(home)
    feed(path, 4)
    feed(path, 10)
    return path


@pytest.fixture
def run(fed: Path, tmp_path: Path) -> Path:
    shutil.copytree(fed.parent, tmp_path / "home", ignore=shutil.ignore_patterns(".work", "in"))
    return tmp_path / "home" / "run"


def millstream(run: Path, *arguments: str, room: int | None = None) -> "subprocess.CompletedProcess[str]":
    """A command on a run; ``room`` is the size in bytes at which the disk refuses to let a file grow."""

    def limit() -> None:
        if room is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))

    environment = os.environ | {"MILLSTREAM_KEY": str(run.parent / "key"), "MILLSTREAM_DEBUG": ""}
    line = [sys.executable, "-m", "millstream", arguments[0], str(run), *arguments[1:]]
    if arguments[0] == "audit":
        line = [sys.executable, "-m", "millstream", "audit", arguments[1], str(run), *arguments[2:]]
    return subprocess.run(line, capture_output=True, text=True, check=False, env=environment, preexec_fn=limit)


def one_line(done: "subprocess.CompletedProcess[str]", code: int) -> str:
    assert done.returncode == code, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_second_writer_gets_one_line_and_changes_nothing(run: Path) -> None:
    with open_ledger(run) as ledger:
        before = (run / FILE).read_bytes()
        for command in (["sign"], ["rollback", "--to", "4", "--why", "test", "--by", "me"]):
            said = one_line(millstream(run, *command), 2)
            assert f"{run / FILE}: another process is writing to this run; wait for it or stop it" in said
        assert (run / FILE).read_bytes() == before
        ledger.append("note", {"text": "went on", "by": "me"})
    assert check_chain(run) == before.count(b"\n") + 1
    assert open_run(run).last_step == 10


def test_many_writers_at_once_are_one_after_another_or_refused(run: Path) -> None:
    code = f"""
import sys, time
from pathlib import Path
from millstream.audit.ledger import open_ledger
from millstream.errors import UsageError
done, until = 0, time.monotonic() + 1.5
while time.monotonic() < until:
    try:
        with open_ledger(Path({str(run)!r})) as ledger:
            ledger.append("note", {{"text": sys.argv[1], "by": "me"}})
            done += 1
    except UsageError:
        time.sleep(0.001)
print(done)
"""
    writers = [
        subprocess.Popen([sys.executable, "-c", code, f"writer {n}"], stdout=subprocess.PIPE, text=True)
        for n in range(3)
    ]
    done = [int(writer.communicate()[0]) for writer in writers]
    noted = [r.body["text"] for r in read_ledger(run) if r.kind == "note"]
    assert [noted.count(f"writer {n}") for n in range(3)] == done
    assert sum(done) > 3
    check_chain(run)
    assert open_run(run).last_step == 10


def test_a_full_disk_leaves_the_ledger_whole_and_the_next_try_writes(run: Path) -> None:
    before = (run / FILE).read_bytes()
    rollback = ["rollback", "--to", "4", "--why", "x" * 300, "--by", "me"]
    said = one_line(millstream(run, *rollback, room=len(before) + 100), 3)
    count = before.count(b"\n")
    assert f"{run / FILE}: record {count} cannot be written: File too large" in said
    assert (run / FILE).read_bytes() == before
    assert millstream(run, *rollback).returncode == 0
    assert (run / FILE).read_bytes().startswith(before)
    assert check_chain(run) == count + 1


@pytest.mark.parametrize("torn", [1, 60, -1])
def test_a_torn_line_is_left_out_when_read_and_cut_off_when_written(run: Path, torn: int) -> None:
    """The line of step 10 is torn, as a power failure does it: the run goes on after step 9's record."""
    lines = (run / FILE).read_bytes().splitlines(keepends=True)
    steps = [n for n, line in enumerate(lines) if b'"kind":"step"' in line]
    whole, last = b"".join(lines[: steps[-1]]), lines[steps[-1]]
    (run / FILE).write_bytes(whole + last[:torn])
    assert open_run(run).last_step == 9
    done = millstream(run, "audit", "step", "9", "--json")
    assert done.returncode == 0, done.stderr
    done = millstream(run, "audit", "verify")
    assert "Traceback" not in done.stderr
    assert (run / FILE).read_bytes() == whole + last[:torn]
    # No room even for the note on what was cut off: the torn bytes go, no record does.
    one_line(millstream(run, "sign", room=len(whole) + 20), 3)
    assert (run / FILE).read_bytes() == whole
    (run / FILE).write_bytes(whole + last[:torn])
    assert millstream(run, "sign").returncode == 0
    noted = [r.body["text"] for r in read_ledger(run) if r.kind == "note"]
    assert noted == [f"cut off {len(last[:torn])} bytes of an incomplete last record"]
    check_chain(run)
    feed(run, 12)
    assert open_run(run).last_step == 12
    check_chain(run)
