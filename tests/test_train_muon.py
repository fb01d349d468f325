"""Muon inside ZeRO: equal to an independent reference in numpy on any ranks, resumable, grouped as the recipe says."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from numpy.typing import NDArray
from ranks import on_ranks
from test_train_model import BATCH, MODEL, TRAIN, VOCAB, batch

from millstream.canonical import canonical_bytes
from millstream.mixture.optimizing import Muon, Optimizer, ParameterGroup, ParameterGroups
from millstream.train.groups import kind_of, parameter_groups, resolved_groups
from millstream.train.initial import initialise
from millstream.train.layout import Layout, cut_evenly, lay_out
from millstream.train.model import CausalLM
from millstream.train.optimizer import orthogonalise
from millstream.train.schedule import Rates
from millstream.train.size import model_size

Array = NDArray[np.float64]

STEPS = 5
RATES = Rates(lr=1e-2, beta1=0.9, beta2=0.95, momentum=0.9)
OPTIMIZER = Optimizer(
    kind="muon",
    weight_decay=0.1,
    muon=Muon(lr_scale=1.5),
    groups=ParameterGroups(
        router=ParameterGroup(lr_scale=0.5, weight_decay=0.02), embedding=ParameterGroup(lr_scale=2.0)
    ),
)


def polar(matrix: Array, iterations: int = 5) -> Array:
    """What the iteration makes of a matrix, by its singular values: no product of matrices is repeated."""
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    s = s / (np.linalg.norm(s) + 1e-7)
    for _ in range(iterations):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return (u * s) @ vt


@pytest.mark.parametrize("shape", [(1, 8, 24), (1, 24, 8), (5, 16, 16), (3, 8, 40), (1, 1, 9)])
def test_orthogonalising_equals_the_polynomial_of_the_singular_values(shape: tuple[int, int, int]) -> None:
    matrices = np.random.default_rng(1).standard_normal(shape) * 1e-4
    found = orthogonalise(torch.from_numpy(matrices).float(), 5).double().numpy()
    expected = np.stack([polar(m) for m in matrices])
    assert np.abs(found - expected).max() < 2e-5
    singular = np.linalg.svd(found, compute_uv=False)
    assert singular.max() < 1.25
    coarse = orthogonalise(torch.from_numpy(matrices).bfloat16(), 5).double().numpy()
    assert np.abs(coarse - expected).max() < 0.05


def reference(steps: int, optimizer: Optimizer, rule: str) -> tuple[list[float], dict[str, Array]]:
    """Muon and AdamW over whole parameters in numpy; gradients from one process without DeepSpeed."""
    network = CausalLM(MODEL, VOCAB, z_loss=0.0, router_z_loss=0.0)
    initialise(network, MODEL, TRAIN.seed)
    parameters = dict(network.named_parameters())
    weights: dict[str, Array] = {n: p.detach().double().numpy().copy() for n, p in parameters.items()}
    first = {n: np.zeros_like(w) for n, w in weights.items()}
    second = {n: np.zeros_like(w) for n, w in weights.items()}
    losses = []
    for step in range(1, steps + 1):
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(torch.from_numpy(weights[name]))
        network.zero_grad()
        output = network(batch(step))
        output.total.backward()
        losses.append(float(output.per_sequence.mean()))
        gradients: dict[str, Array] = {n: p.grad.double().numpy() for n, p in parameters.items() if p.grad is not None}
        norm = np.sqrt(sum((g**2).sum() for g in gradients.values()))
        for name, gradient in gradients.items():
            gradient = gradient / max(1.0, (norm + 1e-6) / optimizer.clip)
            weight, lr, decay = weights[name], RATES.lr, 0.1
            inside = ".layers." in name and ".gate.weight" not in name
            if weight.ndim >= 2 and inside:
                lr *= 1.5
                first[name] = 0.9 * first[name] + 0.1 * gradient
                update = 0.1 * gradient + 0.9 * first[name]
                stack = update if update.ndim == 3 else update[None]
                rows, columns = stack.shape[1:]
                factor = 0.2 * np.sqrt(max(rows, columns)) if rule == "rms" else np.sqrt(max(1.0, rows / columns))
                update = np.stack([polar(m) for m in stack]).reshape(update.shape) * factor
            else:
                if ".gate.weight" in name:
                    lr, decay = 0.5 * lr, 0.02
                elif "embed" in name:
                    lr, decay = 2 * lr, 0.0
                elif weight.ndim < 2:
                    decay = 0.0
                first[name] = 0.9 * first[name] + 0.1 * gradient
                second[name] = 0.95 * second[name] + 0.05 * gradient**2
                update = (first[name] / (1 - 0.9**step)) / (np.sqrt(second[name] / (1 - 0.95**step)) + 1e-8)
            weights[name] = weight * (1 - lr * decay) - lr * update
    return losses, weights


def train(
    optimizer: Optimizer, expert_parallel: int, zero: int, first: int, last: int, load: str = "", save: str = ""
) -> dict[str, Any]:
    """Train on this rank with the engine; returns losses over all ranks and this rank's weights."""
    import torch.distributed as dist

    from millstream.train.checkpoint import Saver, load_checkpoint
    from millstream.train.engine import build_engine, run_micro_batches
    from millstream.train.optimizer import set_rates

    changes = {"expert_parallel": expert_parallel, "zero_stage": zero, "optimizer": optimizer}
    settings = TRAIN.model_copy(update=changes | {"z_loss": 0.0, "router_z_loss": 0.0})
    rank, world = dist.get_rank(), dist.get_world_size()
    engine = build_engine(MODEL, settings, VOCAB, BATCH)
    if load:
        assert load_checkpoint(engine, Path(load)) == first - 1
    losses = []
    for step in range(first, last + 1):
        set_rates(engine, RATES)
        mine = batch(step)[rank * BATCH // world : (rank + 1) * BATCH // world]
        outputs = run_micro_batches(engine, [(part, None) for part in mine.split(settings.micro_batch)])
        total = sum((output.per_sequence.double().sum() for output in outputs), torch.zeros((), dtype=torch.float64))
        engine.step()
        dist.all_reduce(total)
        losses.append(total.item() / BATCH)
    if save:
        saver = Saver(engine, Path(save))
        saver.begin(last, {"attempt": 1, "head": {}, "layout": {}})
        saver.take()
    weights = {name: p.detach().numpy().copy() for name, p in engine.module.named_parameters()}
    return {
        "losses": losses,
        "weights": weights,
        "cut": [v.is_cut for v in engine.optimizer.optimizer.layouts.values()],
    }


@pytest.mark.parametrize("rule", ["rms", "spectral"])
def test_steps_equal_the_reference_on_any_ranks(rule: str) -> None:
    optimizer = OPTIMIZER.model_copy(update={"muon": Muon(lr_scale=1.5, scale=rule)})  # type: ignore[arg-type]
    losses, weights = reference(STEPS, optimizer, rule)
    assert losses[-1] < losses[0] - 0.3, "it learns"
    cut = False
    for world, expert_parallel, zero in [(1, 1, 1), (2, 2, 2), (4, 2, 1)] if rule == "rms" else [(2, 1, 1)]:
        results = on_ranks(world, train, optimizer, expert_parallel, zero, 1, STEPS)
        assert np.abs(np.array(results[0]["losses"]) - losses).max() < 1e-5
        for rank, result in enumerate(results):
            for name, found in result["weights"].items():
                expected = weights[name]
                if ".experts." in name:
                    own = expected.shape[0] // expert_parallel
                    place = rank % expert_parallel
                    expected = expected[place * own : (place + 1) * own]
                assert np.abs(found - expected).max() < 2e-4, name
        cut |= any(results[0]["cut"])
    assert cut or rule != "rms", "some matrix lies on several ranks"


def test_resuming_is_exact_to_the_last_bit_and_reshards(tmp_path: Path) -> None:
    whole = on_ranks(2, train, OPTIMIZER, 2, 1, 1, 6)
    on_ranks(2, train, OPTIMIZER, 2, 1, 1, 3, "", str(tmp_path))
    folder = str(tmp_path / "checkpoints" / "step-00000003")
    again = on_ranks(2, train, OPTIMIZER, 2, 1, 4, 6, folder)
    for before, after in zip(whole, again, strict=True):
        assert before["losses"][3:] == after["losses"]
        assert all(np.array_equal(before["weights"][n], after["weights"][n]) for n in before["weights"])
    other = on_ranks(4, train, OPTIMIZER, 1, 2, 4, 6, folder)[0]
    assert np.abs(np.array(other["losses"]) - whole[0]["losses"][3:]).max() < 1e-5
    assert any(other["cut"])


SHAPES = [(6, 4), (3, 5, 2), (7, 9), (1, 2), (4, 3, 3)]


def test_cut_matrices_meet_on_one_rank_and_their_updates_come_back() -> None:
    for world in (1, 3):
        results = on_ranks(world, map_them, torch.float32)
        flat = np.concatenate(results)
        at = 0
        for shape in SHAPES:
            size = int(np.prod(shape))
            stack = np.arange(at, at + size, dtype=np.float32).reshape(-1, *shape[-2:])
            # Only whoever holds a whole matrix can know its first column's sum.
            expected = stack + stack[:, :, :1].sum(1, keepdims=True)
            assert np.array_equal(flat[at : at + size], expected.ravel())
            at += size
        assert np.array_equal(flat[at:], np.arange(at, flat.size)), "padding stays"


def map_them(dtype: torch.dtype) -> NDArray[np.float32]:
    import torch.distributed as dist

    rank, world = dist.get_rank(), dist.get_world_size()
    layout = layout_of(world, rank, dist.group.WORLD)
    assert layout.is_cut == (world > 1)
    size = -(-sum(int(np.prod(s)) for s in SHAPES) // world) + 1
    flat = torch.arange(rank * size, (rank + 1) * size, dtype=torch.float32)
    layout.map_matrices(flat, dtype, lambda stack: stack + stack[:, :, :1].sum(1, keepdim=True))
    return flat.numpy()


def layout_of(world: int, rank: int, group: Any = None) -> Layout:
    total = sum(int(np.prod(s)) for s in SHAPES)
    size = -(-total // world) + 1
    starts = np.cumsum([0, *(int(np.prod(s)) for s in SHAPES)])
    cut = [(s, cut_evenly(int(o), int(np.prod(s)), size)) for s, o in zip(SHAPES, starts, strict=False)]
    return lay_out(cut, group, rank, world)


@pytest.mark.parametrize("world", [1, 2, 5, 16])
def test_every_element_has_one_place_and_every_matrix_an_owner_that_holds_some_of_it(world: int) -> None:
    layouts = [layout_of(world, rank) for rank in range(world)]
    assert all(layout.matrices == layouts[0].matrices for layout in layouts)
    assert len(layouts[0].matrices) == 10
    for matrix in layouts[0].matrices:
        assert matrix.owner in {p.rank for p in matrix.pieces}
        covered = [n for p in matrix.pieces for n in range(p.at, p.at + p.count)]
        assert covered == list(range(matrix.rows * matrix.columns))
    sent = sum(p.count for layout in layouts for pieces in layout.sent for p in pieces)
    received = sum(p.count for layout in layouts for pieces in layout.received for _, p in pieces)
    whole = sum(m.rows * m.columns for m in layouts[0].matrices if len(m.pieces) > 1)
    assert sent == received <= whole


def test_parameters_are_grouped_as_the_recipe_says() -> None:
    network = CausalLM(MODEL, VOCAB)
    kinds: dict[str, set[str]] = {}
    for name, parameter in network.named_parameters():
        kinds.setdefault(kind_of(name, parameter), set()).add(name.rsplit("layers.", 1)[-1].split(".", 1)[-1])
    assert kinds["router"] == {"mlp.gate.weight"}
    assert kinds["experts"] == {f"mlp.experts.{w}" for w in ("w1", "w2", "w3")}
    assert kinds["dense"] == {f"mlp.{p}_proj.weight" for p in ("gate", "up", "down")}
    assert kinds["attention"] == {f"self_attn.{p}_proj.weight" for p in "qkvo"}
    assert set(kinds) == {"embedding", "head", "norm", "router", "attention", "dense", "shared", "experts"}

    def settings(optimizer: Optimizer) -> dict[tuple[str, float, float], int]:
        groups = parameter_groups(network, optimizer)
        assert sum(len(g["params"]) for g in groups) == len(list(network.parameters()))
        return {(g["method"], g["lr_scale"], g["weight_decay"], g.get("moe", False)): len(g["params"]) for g in groups}

    assert set(settings(Optimizer())) == {
        ("adamw", 1.0, 0.1, False),
        ("adamw", 1.0, 0.0, False),
        ("adamw", 1.0, 0.1, True),
    }
    assert set(settings(OPTIMIZER)) == {
        ("adamw", 2.0, 0.0, False),  # embedding
        ("adamw", 1.0, 0.1, False),  # head
        ("adamw", 1.0, 0.0, False),  # norms
        ("adamw", 0.5, 0.02, False),  # routers
        ("muon", 1.5, 0.1, False),
        ("muon", 1.5, 0.1, True),
    }
    with pytest.raises(ValueError, match=r"no kind is known for the parameter new\.weight"):
        kind_of("new.weight", torch.nn.Parameter(torch.zeros(2, 2)))


def test_what_the_settings_come_to_is_told() -> None:
    resolved = resolved_groups(MODEL, VOCAB, OPTIMIZER)
    assert sum(group["parameters"] for group in resolved.values()) == model_size(MODEL, VOCAB).total
    experts = {key: value for key, value in resolved["experts"].items() if key != "parameters"}
    assert experts == {"method": "muon", "weight_decay": 0.1, "lr": pytest.approx(4.5e-3)}
    assert (resolved["router"]["lr"], resolved["router"]["weight_decay"]) == (1.5e-3, 0.02)
    assert resolved["embedding"]["method"] == "adamw"
    assert orjson.loads(canonical_bytes(resolved)) == resolved


def test_half_precision_trains_too() -> None:
    found = on_ranks(2, train_in_bf16)
    assert found[0] == found[1]
    assert found[0][-1] < found[0][0] - 0.2


def train_in_bf16() -> list[float]:
    import torch.distributed as dist

    from millstream.train.engine import build_engine, run_micro_batches
    from millstream.train.optimizer import set_rates

    settings = TRAIN.model_copy(update={"precision": "bf16", "optimizer": OPTIMIZER, "expert_parallel": 2})
    engine = build_engine(MODEL, settings, VOCAB, BATCH)
    losses = []
    for step in range(1, 7):
        set_rates(engine, dataclasses.replace(RATES, lr=2e-2))
        mine = batch(step).chunk(2)[dist.get_rank()]
        outputs = run_micro_batches(engine, [(part, None) for part in mine.split(settings.micro_batch)])
        total = sum(output.per_sequence.sum() for output in outputs)
        assert isinstance(total, torch.Tensor)
        engine.step()
        dist.all_reduce(total)
        losses.append(total.item() / BATCH)
    return losses
