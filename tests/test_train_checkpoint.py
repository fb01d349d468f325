"""Checkpoints: exact on the same topology, read by any other, saved aside, refused where they do not fit."""

import re
import resource
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_train_model
import torch
import torch.distributed as dist
from ranks import on_ranks
from test_train_model import BATCH, MODEL, TRAIN, VOCAB, batch, train

from millstream.errors import InputError, SetupError
from millstream.train.checkpoint_index import check_files, read_index, record_of

FOLDER = "checkpoints/step-00000003"


@pytest.fixture(scope="module")
def whole() -> list[dict[str, Any]]:
    """Six steps in one go on two ranks that share the experts."""
    return on_ranks(2, train, 2, 1, 1, 6)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint after three of those steps."""
    folder = tmp_path_factory.mktemp("saved")
    on_ranks(2, train, 2, 1, 1, 3, None, str(folder))
    return folder / FOLDER


def test_resuming_is_exact_to_the_last_bit(whole: list[dict[str, Any]], saved: Path) -> None:
    again = on_ranks(2, train, 2, 1, 4, 6, str(saved))
    for before, after in zip(whole, again, strict=True):
        assert before["losses"][3:] == after["losses"]
        assert before["weights"] == after["weights"]
        assert before["biases"] == after["biases"]


@pytest.mark.parametrize("topology", [(1, 1, 1), (2, 1, 2), (4, 4, 1), (2, 2, 3)])
def test_any_topology_reads_it(whole: list[dict[str, Any]], saved: Path, topology: tuple[int, int, int]) -> None:
    world, expert_parallel, zero = topology
    other = on_ranks(world, train, expert_parallel, zero, 4, 6, str(saved))[0]
    assert np.abs(np.array(other["losses"]) - whole[0]["losses"][3:]).max() < 1e-5


def test_zero_3_is_exact_and_read_by_others(whole: list[dict[str, Any]], tmp_path: Path) -> None:
    on_ranks(2, train, 2, 3, 1, 3, None, str(tmp_path))
    through = on_ranks(2, train, 2, 3, 1, 6)
    again = on_ranks(2, train, 2, 3, 4, 6, str(tmp_path / FOLDER))
    assert [r["losses"][3:] for r in through] == [r["losses"] for r in again]
    assert [r["biases"] for r in through] == [r["biases"] for r in again]
    other = on_ranks(1, train, 1, 1, 4, 6, str(tmp_path / FOLDER))[0]
    assert np.abs(np.array(other["losses"]) - whole[0]["losses"][3:]).max() < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("source", [(1, 1, 1), (2, 1, 1), (2, 1, 2), (2, 2, 3), (4, 2, 1), (4, 4, 2)])
def test_any_topology_reads_any_other(
    whole: list[dict[str, Any]], tmp_path: Path, source: tuple[int, int, int]
) -> None:
    world, expert_parallel, zero = source
    on_ranks(world, train, expert_parallel, zero, 1, 3, None, str(tmp_path))
    for ranks, experts, stage in [(1, 1, 1), (1, 1, 3), (2, 1, 3), (2, 2, 2), (4, 2, 3), (4, 4, 1)]:
        other = on_ranks(ranks, train, experts, stage, 4, 6, str(tmp_path / FOLDER))[0]
        assert np.abs(np.array(other["losses"]) - whole[0]["losses"][3:]).max() < 1e-5, (source, ranks, experts, stage)


@pytest.mark.slow
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_resuming_in_bf16_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zero: int) -> None:
    monkeypatch.setattr(test_train_model, "TRAIN", TRAIN.model_copy(update={"precision": "bf16"}))
    through = on_ranks(2, train, 2, zero, 1, 6)
    on_ranks(2, train, 2, zero, 1, 3, None, str(tmp_path))
    again = on_ranks(2, train, 2, zero, 4, 6, str(tmp_path / FOLDER))
    assert [r["losses"][3:] for r in through] == [r["losses"] for r in again]
    assert [r["weights"] for r in through] == [r["weights"] for r in again]


def test_it_holds_the_state_whole(saved: Path) -> None:
    index = read_index(saved)
    check_files(saved, index)
    assert (index["step"], index["updates"]) == (3, 3)
    assert index["tensors"]["exp_avg_sq/model.layers.1.mlp.experts.w1"]["shape"] == [8, 16, 32]
    assert index["tensors"]["buffer/model.layers.2.mlp.gate.e_score_correction_bias"]["at"] == [
        ["rank-00000.safetensors", 0, 8]
    ]
    kinds = {name.partition("/")[0] for name in index["tensors"]}
    assert kinds == {"fp32", "exp_avg", "exp_avg_sq", "buffer"}


def load_other(folder: str, change: dict[str, Any]) -> str:
    from millstream.train.checkpoint import load_checkpoint
    from millstream.train.engine import build_engine

    engine = build_engine(MODEL.model_copy(update=change), TRAIN, VOCAB, BATCH)
    with pytest.raises(InputError) as caught:
        load_checkpoint(engine, Path(folder))
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"intermediate_size": 32, "hidden_size": 64},
            r"fp32/lm_head\.weight is of shape \(64, 32\); in the recipe's model it is of shape \(64, 64\)",
        ),
        # As many values in each stack of experts.
        ({"n_routed_experts": 16, "moe_intermediate_size": 8}, r"bias is of shape \(8,\); in .* of shape \(16,\)"),
        ({"tie_word_embeddings": True}, r"fp32/lm_head\.weight is of shape \(64, 32\); .* it is not there"),
        ({"num_hidden_layers": 4}, r"layers\.3\.\S+ is not there; in the recipe's model it is of shape"),
        ({"n_routed_experts": 4}, r"e_score_correction_bias is of shape \(8,\); in .* of shape \(4,\)"),
    ],
    ids=["wider", "other experts", "tied", "deeper", "fewer experts"],
)
def test_another_model_is_refused_by_the_tensor(saved: Path, change: dict[str, Any], message: str) -> None:
    (said,) = on_ranks(1, load_other, str(saved), change)
    assert said.startswith(f"{saved}: is of another model: ")
    assert re.search(message, said), said


def load_broken(folder: str) -> str:
    from millstream.train.checkpoint import load_checkpoint
    from millstream.train.engine import build_engine

    with pytest.raises(InputError) as caught:
        load_checkpoint(build_engine(MODEL, TRAIN, VOCAB, BATCH), Path(folder))
    return str(caught.value)


def test_an_altered_or_missing_file_is_named_on_every_rank(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(saved, folder)
    path = folder / "rank-00001.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    for said in on_ranks(2, load_broken, str(folder)):
        assert re.search(r"rank-00001\.safetensors: altered: SHA-256", said)
    path.unlink()
    with pytest.raises(InputError, match=r"rank-00001\.safetensors: missing"):
        check_files(folder, read_index(folder))
    index = (folder / "checkpoint.json").read_text()
    (folder / "checkpoint.json").write_text(index.replace("checkpoint/2", "checkpoint/9"))
    with pytest.raises(InputError, match="expected format millstream-checkpoint/2, found millstream-checkpoint/9"):
        read_index(folder)
    (folder / "checkpoint.json").unlink()
    with pytest.raises(InputError, match="no complete checkpoint"):
        read_index(folder)


def save_slowly(folder: str) -> dict[str, Any]:
    """Train on while a checkpoint is written, with a disk that waits for the training to go on."""
    import millstream.train.checkpoint as module
    from millstream.train.engine import build_engine

    engine = build_engine(MODEL, TRAIN, VOCAB, BATCH)
    saver = module.Saver(engine, Path(folder))
    trained_on = threading.Event()
    write = module._write_synced

    def wait_and_write(*arguments: Any) -> str:
        assert trained_on.wait(60)
        return write(*arguments)

    module._write_synced = wait_and_write
    steps(engine, 1, 3)
    before = weights(engine)
    saver.begin(3, {"attempt": 1, "head": {}, "layout": {}})
    steps(engine, 4, 5)
    early = saver.finished(), (Path(folder) / FOLDER).exists()
    trained_on.set()
    record = saver.take()
    return {"early": early, "record": record, "before": before, "after": weights(engine), "again": saver.take()}


def steps(engine: Any, first: int, last: int) -> None:
    from millstream.train.engine import run_micro_batches
    from millstream.train.moe import routers
    from millstream.train.router import balance

    rank, world = dist.get_rank(), dist.get_world_size()
    for step in range(first, last + 1):
        mine = batch(step)[rank * BATCH // world : (rank + 1) * BATCH // world]
        list(run_micro_batches(engine, [(part, None) for part in mine.split(2)]))
        engine.step()
        balance(routers(engine.module), 1e-2)


def weights(engine: Any) -> bytes:
    return torch.cat([p.detach().flatten() for p in engine.module.parameters()]).numpy().tobytes()


def load_weights(folder: str) -> bytes:
    from millstream.train.checkpoint import load_checkpoint
    from millstream.train.engine import build_engine

    engine = build_engine(MODEL, TRAIN, VOCAB, BATCH)
    load_checkpoint(engine, Path(folder))
    return weights(engine)


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    first, second = on_ranks(2, save_slowly, str(tmp_path))
    assert first["early"] == second["early"] == (False, False)
    assert (first["again"], second["record"]) == (None, None)
    assert first["record"] == record_of(tmp_path, tmp_path / FOLDER)
    assert first["before"] != first["after"]
    # What is on the disk is the state at the time when the checkpoint was begun.
    assert on_ranks(1, load_weights, str(tmp_path / FOLDER)) == [first["before"]]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000003"]


def save_on_a_full_disk(folder: str, rank: int) -> tuple[str, bool]:
    from millstream.train.checkpoint import Saver
    from millstream.train.engine import build_engine

    saver = Saver(build_engine(MODEL, TRAIN, VOCAB, BATCH), Path(folder))
    if dist.get_rank() == rank:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    saver.begin(3, {"attempt": 1, "head": {}, "layout": {}})
    with pytest.raises(SetupError) as caught:
        saver.take()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    saver.begin(4, {"attempt": 1, "head": {}, "layout": {}})
    return str(caught.value), saver.take() is not None


def test_a_full_disk_on_any_rank_leaves_nothing_and_all_ranks_say_so(tmp_path: Path) -> None:
    (first, kept), (second, _) = on_ranks(2, save_on_a_full_disk, str(tmp_path), 1)
    assert first == second
    assert re.search(r"step-00000003\.tmp/rank-00001\.safetensors: cannot be written: .*File too large", first)
    assert kept
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000004"]
