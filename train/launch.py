"""Starting the ``deepspeed`` launcher, and answering for its processes.

The launcher leaves its workers running when it is told to stop, and its workers do not notice when it
is killed. So it runs in a process group of its own that is ended as a whole, and each worker watches the
process that started it all.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from millstream import errors
from millstream.errors import SetupError, UsageError
from millstream.train.requests import ask, forget

WATCHED = "MILLSTREAM_WATCH_PID"
FAILURE = "millstream-failure "
NOISE = re.compile(r"^\[20\d\d-.*\] \[(INFO|WARNING|ERROR)\]|Setting ds_accelerator|^W\d{4} ")
GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dri/renderD128", "/dev/dxg")
GRACE_S = 10
"""Seconds that ranks have after one of them failed, or after the launcher went."""


def launch(
    recipe_file: Path,
    corpus: str,
    run_dir: Path,
    *,
    num_accelerators: int,
    until: int | None,
    hostfile: Path | None,
    cache: Sequence[str] = (),
) -> None:
    """Train a recipe on this machine's ranks, or on a hostfile's.

    Raises:
        MillstreamError: what a rank reported; SetupError if one died without a word.
        UsageError: the hostfile does not exist (the launcher itself would run locally instead).
    """
    arguments = [str(recipe_file), "--corpus", corpus, "--run", str(run_dir), *cache]
    if until is not None:
        arguments += ["--until", str(until)]
    if hostfile is not None and not hostfile.is_file():
        raise UsageError(f"{hostfile}: no such hostfile")
    where = ["--hostfile", str(hostfile)] if hostfile else ["--num_accelerators", str(num_accelerators)]
    command = [
        str(Path(sys.executable).with_name("deepspeed")),
        "--log_level",
        "critical",
        *where,
        "--master_port",
        str(_free_port()),
    ]
    command += ["--no_local_rank", "--module", "millstream.train.run", *arguments]
    forget(run_dir)
    try:
        code, failure = _run(command, _environment(num_accelerators), run_dir)
    except FileNotFoundError as error:
        raise SetupError("training needs the extra 'train': pip install 'millstream[train]'") from error
    if failure is not None:
        kind, _, message = failure.partition(" ")
        raise getattr(errors, kind, SetupError)(message)
    if code:
        raise SetupError(f"training ended with exit code {code}: a rank died; run the command again to continue")


def _run(command: list[str], environment: dict[str, str], run_dir: Path) -> tuple[int, str | None]:
    """Exit code of the launcher, and the first failure that a rank reported.

    The first signal asks the job to save and stop, the second ends it.
    """
    process = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True
    )
    reported: list[str] = []
    reader = threading.Thread(target=_pass_on, args=(process, reported), daemon=True)
    reader.start()

    asked: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if asked:
            _end_group(process.pid, signal.SIGKILL)
        else:
            ask(run_dir, "stop")
            sys.stderr.write("millstream: saving a checkpoint after this step; a second signal ends at once\n")
        asked.append(number)

    kept = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = process.wait()
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
        # Whatever ended the launcher, none of its workers may outlive it.
        _end_group(process.pid, signal.SIGTERM)
        reader.join(GRACE_S)
        _end_group(process.pid, signal.SIGKILL)
    return code, reported[0] if reported else None


def _pass_on(process: "subprocess.Popen[str]", reported: list[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(FAILURE):
            if not reported:
                # The launcher lets the other ranks take half a minute each, which hang in collectives for good.
                threading.Thread(target=_end_later, args=(process,), daemon=True).start()
            reported.append(line.removeprefix(FAILURE).strip())
        elif not NOISE.search(line):
            sys.stderr.write(line)
            sys.stderr.flush()


def _end_later(process: "subprocess.Popen[str]") -> None:
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        _end_group(process.pid, signal.SIGKILL)


def _end_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def _environment(ranks: int) -> dict[str, str]:
    environment = dict(os.environ)
    cores = len(os.sched_getaffinity(0))
    environment.setdefault("OMP_NUM_THREADS", str(max(1, cores // ranks)))
    # torch._dynamo and inductor are imported for nothing otherwise.
    environment.setdefault("TORCHDYNAMO_DISABLE", "1")
    if not any(Path(device).exists() for device in GPU_DEVICES):
        # Else DeepSpeed says in every process that it found none.
        environment.setdefault("DS_ACCELERATOR", "cpu")
    environment[WATCHED] = str(os.getpid())
    return environment


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
