"""Units of work: what a stage is made of, run by datatrove's executors, cached by what decides them.

A unit writes into a temporary folder that gets its name, a digest of everything that decides the
result, when it is whole. So a killed build goes on where it was, a changed recipe redoes what it changes,
and the number of tasks decides nothing. datatrove's own completion marks are not used: they are tied
to a task's number, not to its inputs.
"""

import contextlib
import errno
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from datatrove.pipeline.base import PipelineStep
from loguru import logger

from millstream import errors
from millstream.errors import InputError, MillstreamError, SetupError
from millstream.mixture.recipe import Executor, LocalExecutor
from millstream.tokenize.executors import run_step

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """One piece of a stage: ``work(temporary folder)`` fills what becomes ``folder``."""

    label: str
    folder: Path
    work: Callable[[Path], None]

    @property
    def done(self) -> bool:
        """True once the unit's result is whole."""
        return self.folder.is_dir()


Progress = Callable[[str, int, int], None]
"""Called with a stage's name, its finished units and their number."""


def run_units(
    stage: str,
    units: Sequence[Unit],
    *,
    tasks: int,
    work_root: Path,
    progress: Progress,
    executor: Executor | None = None,
) -> int:
    """Run the units of a stage that are not done yet; returns how many those were.

    Raises:
        MillstreamError: of the first unit, in order, that failed.
    """
    todo = [unit for unit in units if not unit.done]
    progress(stage, len(units) - len(todo), len(units))
    if not todo:
        return 0
    failures = work_root / "failures"
    shutil.rmtree(failures, ignore_errors=True)
    failures.mkdir(parents=True)
    step = _UnitStep(stage, todo, failures)
    logs = work_root / "logs" / stage
    shutil.rmtree(logs, ignore_errors=True)
    with _watching(stage, units, progress), _quiet(), _no_main_module():
        run_step(step, len(todo), executor or LocalExecutor(), tasks, logs.resolve())
    for number, _ in enumerate(todo):
        path = failures / f"{number}.json"
        if path.exists():
            failure = orjson.loads(path.read_bytes())
            raise getattr(errors, failure["kind"], InputError)(failure["message"])
    missing = [unit.label for unit in todo if not unit.done]
    if missing:
        raise SetupError(f"{stage}: {missing[0]} was not finished: its worker process ended; is there enough memory?")
    return len(todo)


def clean(work_root: Path) -> None:
    """Remove what killed builds left half written."""
    for path in work_root.glob("*/.*.tmp"):
        shutil.rmtree(path, ignore_errors=True)


class _UnitStep(PipelineStep):
    """datatrove step that runs every n-th unit."""

    name = "units"
    type = "Millstream"

    def __init__(self, stage: str, units: Sequence[Unit], failures: Path) -> None:
        super().__init__()
        self.stage, self.units, self.failures = stage, units, failures

    def run(self, data: Any, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        for number in range(rank, len(self.units), world_size):
            if any(self.failures.iterdir()):
                return
            try:
                _run_unit(self.units[number])
            except Exception as error:
                self._record(number, error)
                return
            self.stat_update("units")
        yield from ()

    def _record(self, number: int, error: Exception) -> None:
        if not isinstance(error, MillstreamError):
            logger.exception(error)
        known = type(error).__name__ if isinstance(error, MillstreamError) else "InputError"
        message = (
            str(error) if isinstance(error, MillstreamError) else f"{self.stage}, {self.units[number].label}: {error}"
        )
        failure = {"kind": known, "message": " ".join(message.split())}
        (self.failures / f"{number}.json").write_bytes(orjson.dumps(failure))


def _run_unit(unit: Unit) -> None:
    temporary = unit.folder.with_name(f".{unit.folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        unit.work(temporary)
        temporary.rename(unit.folder)
    except OSError as error:
        full = error.errno in FULL or "No space left" in str(error)
        raise (
            SetupError(f"{unit.folder.parent}: cannot be written: {os.strerror(error.errno or errno.ENOSPC)}")
            if full
            else InputError(f"{unit.label}: {error}")
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def _watching(stage: str, units: Sequence[Unit], progress: Progress) -> Iterator[None]:
    """Report finished units while the executor, which does not, is running."""
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.25):
            progress(stage, sum(unit.done for unit in units), len(units))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        progress(stage, sum(unit.done for unit in units), len(units))


@contextlib.contextmanager
def _no_main_module() -> Iterator[None]:
    """Keep worker processes from running the caller's main script again.

    They need none of it, and a script without a main guard, or one read from standard input, would
    start builds of its own or have the pool replace failing workers for ever.
    """
    main = sys.modules["__main__"]
    saved: dict[str, Any] = {
        name: main.__dict__.pop(name) for name in ("__file__", "__spec__") if name in main.__dict__
    }
    main.__dict__["__spec__"] = None
    try:
        yield
    finally:
        main.__dict__.update(saved)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logger.disable("datatrove")
    try:
        yield
    finally:
        logger.enable("datatrove")
