"""Checkpoints: fp32 master weights, the optimizer's moments and router biases, resharded on load.

    checkpoints/step-00000100/
      rank-00000.safetensors   this rank's flat fragments of every parameter's state
      checkpoint.json          format, step, layout, where each fragment lies, digests; written last

Each rank writes the fragments that ZeRO gave it, with their offsets in the logical parameter (experts: in
the stack of all experts), so any number of ranks, expert-parallel size or ZeRO stage reads them back; the same topology
gets the same bits. Files are safetensors and JSON: nothing that is loaded can run code, unlike DeepSpeed's own
checkpoints and ``torch.distributed.checkpoint``, whose index is a pickle.

The fragments are found through fields of DeepSpeed's optimizer that are not public; ``tests/test_train_checkpoint.py``
holds them to the pinned version.
"""

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from millstream.canonical import canonical_bytes
from millstream.errors import InputError, SetupError
from millstream.files import sha256_file, write_bytes
from millstream.train.model import moe_layers
from millstream.train.moe import MoELayer
from millstream.train.optimizer import STATES, empty_state

FORMAT = "millstream-checkpoint/1"
INDEX = "checkpoint.json"
KINDS = tuple(kind for states in STATES.values() for kind in states)
"""Tensors beside the master weights, whatever the method."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fragment:
    """A piece of a logical parameter's state: ``view`` (n,) lies at ``offset`` of ``total`` values."""

    name: str
    view: Tensor
    offset: int
    total: int


def folder_of(step: int) -> str:
    """Path of a step's checkpoint, relative to the run."""
    return f"checkpoints/step-{step:08}"


def save_checkpoint(engine: Any, run_dir: Path, step: int, before_sealing: Callable[[], None]) -> dict[str, Any] | None:
    """Write a checkpoint; all ranks take part.

    Args:
        engine: DeepSpeed's.
        run_dir: the run's folder, seen by all ranks.
        step: steps done.
        before_sealing: called on rank 0 when all files are written, before the checkpoint gets its name.

    Returns:
        On rank 0 the body of the ledger's ``checkpoint`` record, without its attempt; else None.

    Raises:
        SetupError: the disk is full or fails on any rank; nothing is left that looks like a checkpoint.
    """
    rank = dist.get_rank()
    target = run_dir / folder_of(step)
    temporary = target.with_name(f".{target.name}.tmp")
    if rank == 0:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    dist.barrier()
    name = f"rank-{rank:05}.safetensors"
    fragments = state_fragments(engine)
    tensors = {f.name: f.view.contiguous() for f in fragments}
    if rank == 0:
        tensors |= {
            f"bias/{n}": layer.gate.e_score_correction_bias for n, layer in enumerate(moe_layers(engine.module))
        }
    problem = None
    try:
        save_file(tensors, temporary / name)
    except Exception as error:  # safetensors raises its own for a full disk
        problem = f"{temporary / name}: cannot be written: {error}"
    mine = {
        "problem": problem,
        "file": name,
        "sha256": None if problem else sha256_file(temporary / name),
        "parts": [[f.name, f.offset, f.view.numel(), f.total] for f in fragments],
    }
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    problems = [each["problem"] for each in everyone if each["problem"]]
    if problems:
        if rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)
        raise SetupError(problems[0])
    record = _finish(engine, target, temporary, step, everyone, before_sealing) if rank == 0 else None
    dist.barrier()
    return record


def load_checkpoint(engine: Any, folder: Path) -> int:
    """Load a checkpoint into the engine, from whatever topology wrote it; returns its step.

    Raises:
        InputError: a file is missing, altered or of another model.
    """
    index = read_index(folder)
    optimizer = engine.optimizer
    for group in optimizer.optimizer.param_groups:
        for flat in group["params"]:
            optimizer.optimizer.state[flat] = empty_state(group["method"], flat, index["updates"])
    files = {name: safe_open(folder / name, "pt") for name in index["files"]}
    for fragment in state_fragments(engine):
        parts = index["parts"].get(fragment.name)
        if parts is None or parts["total"] != fragment.total:
            found = "nothing" if parts is None else f"{parts['total']} values"
            raise InputError(f"{folder}: holds {found} for {fragment.name}, the model has {fragment.total}")
        _fill(fragment, parts["at"], files, folder)
    with torch.no_grad():
        for number, layer in enumerate(moe_layers(engine.module)):
            layer.gate.e_score_correction_bias.copy_(files["rank-00000.safetensors"].get_tensor(f"bias/{number}"))
            layer.gate.load.zero_()
    optimizer.update_lp_params()
    engine.global_steps = index["step"]
    return int(index["step"])


def read_index(folder: Path) -> dict[str, Any]:
    """A checkpoint's index, its files' digests checked.

    Raises:
        InputError: it is incomplete or altered.
    """
    try:
        index: dict[str, Any] = orjson.loads((folder / INDEX).read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise InputError(f"{folder}: no complete checkpoint: {error}") from error
    if index.get("format") != FORMAT:
        raise InputError(f"{folder / INDEX}: expected format {FORMAT}, found {index.get('format')}")
    for name, wanted in index["files"].items():
        path = folder / name
        if Path(name).name != name or not path.is_file():
            raise InputError(f"{path}: missing")
        if (found := sha256_file(path)) != wanted:
            raise InputError(f"{path}: altered: SHA-256 {found[:16]}, the index says {wanted[:16]}; remove {folder}")
    return index


def digest_of(folder: Path) -> str:
    """SHA-256 of a checkpoint's index, as hex; it names the digests of all other files."""
    return hashlib.sha256((folder / INDEX).read_bytes()).hexdigest()


def prune(run_dir: Path, keep: int) -> None:
    """Remove all but the newest complete checkpoints, and what crashes left."""
    folders = sorted((run_dir / "checkpoints").glob("step-*"))
    for folder in [*folders[:-keep], *(run_dir / "checkpoints").glob(".step-*.tmp")]:
        shutil.rmtree(folder, ignore_errors=True)


def state_fragments(engine: Any) -> list[Fragment]:
    """This rank's pieces of every parameter's master weight and moments."""
    expert_rank: dict[int, MoELayer] = {
        id(p): layer for layer in moe_layers(engine.module) for p in layer.experts.parameters()
    }
    optimizer = engine.optimizer
    fragments = []
    for name, parameter in engine.module.named_parameters():
        mapping = getattr(parameter, "_hp_mapping", None)
        if mapping is None:
            continue
        layer = expert_rank.get(id(parameter))
        base = layer.ep_rank * parameter.numel() if layer else 0
        total = parameter.numel() * (layer.ep_size if layer else 1)
        flat = optimizer.single_partition_of_fp32_groups[mapping.param_group_index]
        state = optimizer.optimizer.state.get(flat, {})
        at = mapping.hp_fragment_address
        views = {"fp32": mapping.hp_fragment}
        views |= {kind: state[kind].narrow(0, at.start, at.numel) for kind in KINDS if kind in state}
        for kind, view in views.items():
            offset = base + mapping.lp_fragment_address.start
            fragments.append(Fragment(name=f"{kind}/{name}", view=view.detach().view(-1), offset=offset, total=total))
    return fragments


def _finish(
    engine: Any, target: Path, temporary: Path, step: int, everyone: list[Any], before_sealing: Callable[[], None]
) -> dict[str, Any]:
    parts: dict[str, dict[str, Any]] = {}
    for each in everyone:
        for name, offset, count, total in each["parts"]:
            part = parts.setdefault(name, {"total": total, "at": []})
            # Ranks of different expert groups may hold the same fragment; one copy is enough.
            if not any(offset == known[1] for known in part["at"]):
                part["at"].append([each["file"], offset, count])
    for name, part in parts.items():
        if sum(count for _, _, count in part["at"]) != part["total"]:
            raise SetupError(f"{target}: the ranks' fragments of {name} do not make up the whole; nothing was saved")
    states = engine.optimizer.optimizer.state.values()
    files = {each["file"]: each["sha256"] for each in everyone}
    index = {
        "format": FORMAT,
        "step": step,
        "updates": max((int(state["step"]) for state in states if "step" in state), default=0),
        "world": len(everyone),
        "files": files,
        "parts": parts,
    }
    write_bytes(temporary / INDEX, canonical_bytes(index) + b"\n")
    before_sealing()
    shutil.rmtree(target, ignore_errors=True)
    temporary.rename(target)
    sealed = digest_of(target)
    return {"step": step, "path": folder_of(step), "digest": sealed, "files": files | {INDEX: sealed}}


def _fill(fragment: Fragment, parts: list[list[Any]], files: dict[str, Any], folder: Path) -> None:
    first, last = fragment.offset, fragment.offset + fragment.view.numel()
    filled = 0
    for name, offset, count in parts:
        low, high = max(first, offset), min(last, offset + count)
        if low < high:
            piece = files[name].get_slice(fragment.name)[low - offset : high - offset]
            fragment.view[low - first : high - first].copy_(piece)
            filled += high - low
    if filled != last - first:
        raise InputError(f"{folder}: {fragment.name} is not whole: {filled} of {last - first} values found")
