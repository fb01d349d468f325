"""Checkpoints: master weights, optimizer state and router biases, saved while training goes on, resharded on load.

    begin   every rank copies its fragments to host memory (training waits for this alone)
    write   a thread of each rank writes them, hashes the file and syncs it
    seal    rank 0 writes the index, syncs the folder and gives it its name

Any number of ranks, expert-parallel size or ZeRO stage reads a checkpoint back; the same topology gets the same bits.
``millstream.train.checkpoint_index`` tells what lies on the disk.
"""

import math
import os
import shutil
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn

from millstream.canonical import canonical_bytes
from millstream.errors import InputError, SetupError
from millstream.files import sha256_file, write_bytes
from millstream.train.checkpoint_index import (
    FOLDER,
    FORMAT,
    INDEX,
    check_files,
    free_folder,
    read_index,
    record_of,
)
from millstream.train.fragments import (
    empty_states,
    logical_kinds,
    logical_shapes,
    state_fragments,
    take_over,
    update_count,
)
from millstream.train.weights import BUFFER, MASTER, Pieces

T = TypeVar("T")

WRITES_WITHIN = timedelta(hours=6)
"""The longest that ranks wait for each other's files."""


class Saver:
    """Saves one checkpoint at a time in the background. Made and used by all ranks alike, from one thread.

    Args:
        engine: DeepSpeed's.
        run_dir: the run's folder, seen by all ranks.
    """

    def __init__(self, engine: Any, run_dir: Path) -> None:
        self._engine, self._run_dir = engine, run_dir
        # A group of its own: its messages must not mix with those of training.
        self._group = dist.new_group(backend="gloo", timeout=WRITES_WITHIN) if dist.get_world_size() > 1 else None
        self._staged: dict[str, Tensor] = {}
        self._writer: threading.Thread | None = None
        self._outcome: dict[str, Any] | Exception | None = None

    def begin(self, step: int, about: dict[str, Any]) -> None:
        """Copy the state as it is now and begin to write it; the one before must have been taken.

        Args:
            step: steps done.
            about: the index's fields ``attempt``, ``head`` (the ledger's last record) and ``layout``; rank 0's count.
        """
        assert self._writer is None
        fragments = state_fragments(self._engine)
        buffers = _buffers(self._engine.module) if dist.get_rank() == 0 else {}
        tensors = {f.name: f.view for f in fragments} | {f"{BUFFER}/{name}": value for name, value in buffers.items()}
        self._stage(tensors)
        parts = [[f.name, f.offset, f.view.numel(), list(f.shape), _dtype(f.view)] for f in fragments]
        parts += [[f"{BUFFER}/{n}", 0, v.numel(), list(v.shape), _dtype(v)] for n, v in buffers.items()]
        index = {
            "format": FORMAT,
            "step": step,
            **about,
            "updates": update_count(self._engine),
        }
        self._outcome = None
        self._writer = threading.Thread(target=self._run, args=(index, parts), daemon=True)
        self._writer.start()

    def finished(self) -> bool:
        """Whether a checkpoint was begun and is on the disk, or failed; then ``take`` does not wait."""
        return self._writer is not None and not self._writer.is_alive()

    def take(self) -> dict[str, Any] | None:
        """Wait for the checkpoint that was begun.

        Returns:
            On rank 0 the body of the ledger's ``checkpoint`` record; None elsewhere, and where none was begun.

        Raises:
            SetupError: it could not be written on some rank; nothing is left that looks like a checkpoint.
        """
        if self._writer is None:
            return None
        self._writer.join()
        self._writer = None
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def _stage(self, tensors: dict[str, Tensor]) -> None:
        """Copy to host memory that is used again for the next checkpoint, page-locked where a GPU copies."""
        on_gpu = torch.cuda.is_available()
        for name, value in tensors.items():
            kept = self._staged.get(name)
            if kept is None or kept.shape != value.shape:
                kept = torch.empty(value.shape, dtype=value.dtype, pin_memory=on_gpu)
                self._staged[name] = kept
            kept.copy_(value, non_blocking=True)
        if on_gpu:
            torch.cuda.synchronize()

    def _run(self, index: dict[str, Any], parts: list[list[Any]]) -> None:
        """The writing thread; its outcome is read once it has ended."""
        try:
            self._outcome = self._write(index, parts)
        except SetupError as error:
            self._outcome = error
        except Exception as error:
            # Most likely another rank is gone; the training thread finds that out by itself too.
            self._outcome = SetupError(f"checkpoint of step {index['step']}: {type(error).__name__}: {error}")

    def _write(self, index: dict[str, Any], parts: list[list[Any]]) -> dict[str, Any] | None:
        rank = dist.get_rank()
        temporary = self._run_dir / FOLDER / f".step-{index['step']:08}.tmp"
        self._agree(temporary, *_tried(lambda: _make_anew(temporary) if rank == 0 else None))
        path = temporary / f"rank-{rank:05}.safetensors"
        sha256, problem = _tried(lambda: _write_synced(self._staged, path))
        everyone = self._agree(temporary, {"file": path.name, "sha256": sha256, "parts": parts}, problem)
        sealed, problem = _tried(lambda: _seal(self._run_dir, temporary, index, everyone) if rank == 0 else None)
        self._agree(temporary, None, problem)
        return sealed

    def _agree(self, temporary: Path, mine: Any, problem: str | None) -> list[Any]:
        """Every rank's ``mine``; where one has a problem nothing is left on the disk, and all of them say so."""
        everyone: list[Any] = [(mine, problem)]
        if self._group is not None:
            everyone = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, (mine, problem), group=self._group)
        problems = [problem for _, problem in everyone if problem]
        if problems:
            if dist.get_rank() == 0:
                shutil.rmtree(temporary, ignore_errors=True)
            raise SetupError(problems[0])
        return [mine for mine, _ in everyone]


def load_checkpoint(engine: Any, folder: Path) -> int:
    """Load a checkpoint into the engine, from whatever topology wrote it; returns its step. All ranks take part.

    Raises:
        InputError: a file is missing or altered, or the checkpoint is of another model or optimizer; names the tensor.
    """
    index = read_index(folder)
    _check_together(folder, index)
    tensors = index["tensors"]
    _refuse_other_shapes(engine, folder, tensors)
    _refuse_other_optimizer(engine, folder, tensors)
    empty_states(engine, index["updates"])
    pieces = Pieces(folder, tensors)
    for fragment in state_fragments(engine):
        pieces.fill(fragment.view, fragment.name, fragment.offset)
    for name, buffer in _buffers(engine.module).items():
        pieces.fill(buffer.view(-1), f"{BUFFER}/{name}", 0)
    take_over(engine)
    engine.global_steps = index["step"]
    return int(index["step"])


def _buffers(module: nn.Module) -> dict[str, Tensor]:
    """The buffers that a network keeps, the same on all ranks."""
    return {
        f"{path}.{name}": buffer
        for path, part in module.named_modules()
        for name, buffer in part.named_buffers(recurse=False)
        if name not in part._non_persistent_buffers_set
    }


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _tried(action: Callable[[], T]) -> tuple[T | None, str | None]:
    """What an action returns, or one line of what went wrong."""
    try:
        return action(), None
    except Exception as error:  # safetensors raises its own for a full disk
        return None, str(error)


def _make_anew(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _write_synced(tensors: dict[str, Tensor], path: Path) -> str:
    """Write a rank's file and wait until it is on the disk; returns its SHA-256."""
    try:
        save_file(tensors, path)
        _sync(path)
    except Exception as error:
        raise SetupError(f"{path}: cannot be written: {error}") from error
    return sha256_file(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _seal(run_dir: Path, temporary: Path, index: dict[str, Any], everyone: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Write the index and give the folder its name; returns the ledger's record."""
    tensors: dict[str, dict[str, Any]] = {}
    for each in everyone:
        for name, offset, count, shape, dtype in each["parts"]:
            about = tensors.setdefault(name, {"shape": shape, "dtype": dtype, "at": []})
            about["at"].append([each["file"], offset, count])
    for name, about in tensors.items():
        about["at"].sort(key=lambda part: part[1])
        ends = [offset + count for _, offset, count in about["at"]]
        begins = [offset for _, offset, _ in about["at"]]
        if begins != [0, *ends[:-1]] or ends[-1] != math.prod(about["shape"]):
            raise SetupError(f"{temporary}: the ranks' fragments of {name} do not make up the whole; nothing was saved")
    index = index | {"files": {each["file"]: each["sha256"] for each in everyone}, "tensors": tensors}
    write_bytes(temporary / INDEX, canonical_bytes(index) + b"\n")
    _sync(temporary)
    target = free_folder(run_dir, index["step"], index["attempt"])
    temporary.rename(target)
    _sync(target.parent)
    return record_of(run_dir, target)


def _check_together(folder: Path, index: dict[str, Any]) -> None:
    """Compare all files with the index, each on one rank; every rank hears of what is wrong."""
    rank, world = dist.get_rank(), dist.get_world_size()
    problem: str | None = None
    try:
        check_files(folder, index, sorted(index["files"])[rank::world])
    except InputError as error:
        problem = str(error)
    everyone: list[Any] = [problem]
    if world > 1:
        everyone = [None] * world
        dist.all_gather_object(everyone, problem)
    for found in filter(None, everyone):
        raise InputError(found)


def _refuse_other_shapes(engine: Any, folder: Path, tensors: dict[str, dict[str, Any]]) -> None:
    """Refuse a checkpoint whose weights are not exactly the network's."""
    expected = {f"{MASTER}/{name}": shape for name, shape in logical_shapes(engine).items()}
    expected |= {f"{BUFFER}/{name}": tuple(value.shape) for name, value in _buffers(engine.module).items()}
    held = {
        name: tuple(about["shape"]) for name, about in tensors.items() if name.partition("/")[0] in (MASTER, BUFFER)
    }
    for name in sorted(expected.keys() | held.keys()):
        if held.get(name) != expected.get(name):
            there = f"of shape {held[name]}" if name in held else "not there"
            wanted = f"of shape {expected[name]}" if name in expected else "not there"
            raise InputError(f"{folder}: is of another model: {name} is {there}; in the recipe's model it is {wanted}")


def _refuse_other_optimizer(engine: Any, folder: Path, tensors: dict[str, dict[str, Any]]) -> None:
    """Refuse a checkpoint whose parameters were moved by other methods than the recipe's."""
    held: dict[str, set[str]] = defaultdict(set)
    for name in tensors:
        kind, _, parameter = name.partition("/")
        held[parameter].add(kind)
    for parameter, kinds in logical_kinds(engine).items():
        if held[parameter] != set(kinds):
            raise InputError(
                f"{folder}: is of another optimizer: it holds {', '.join(sorted(held[parameter]))} of {parameter}, the "
                f"recipe's keeps {', '.join(sorted(kinds))}"
            )
