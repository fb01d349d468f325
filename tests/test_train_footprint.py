"""The planned memory against the bytes that torch's allocator gave out in real steps."""

from typing import Any

import pytest
from ranks import on_ranks

from millstream.mixture.training import Model, Train
from millstream.train.footprint import footprint

MODEL = Model(
    hidden_size=256,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=32,
    intermediate_size=768,
    n_routed_experts=16,
    num_experts_per_tok=2,
    moe_intermediate_size=192,
)
LENGTH = 256


def measured(model: Model, train: Train, vocab_size: int, micro_batches: int) -> dict[str, int]:
    """Bytes of weights and optimizer state of a rank, and the most that were allocated in its second step."""
    import torch
    import torch.distributed as dist

    from millstream.train.engine import build_engine, run_micro_batches
    from millstream.train.optimizer import set_rates
    from millstream.train.schedule import Rates

    torch.manual_seed(dist.get_rank())
    engine = build_engine(model, train, vocab_size, train.micro_batch * micro_batches * dist.get_world_size())
    set_rates(engine, Rates(lr=1e-3, beta1=0.9, beta2=0.95, momentum=0.95))
    zero = engine.optimizer
    states = [value for state in zero.optimizer.state.values() for value in state.values()]
    weights = [*engine.module.parameters(), *engine.module.buffers()]
    masters = zero.single_partition_of_fp32_groups

    def step() -> None:
        for _ in run_micro_batches(engine, [(tokens, None) for tokens in rows]):
            pass
        engine.step()

    rows = torch.randint(0, vocab_size, (train.micro_batch * micro_batches, LENGTH + 1)).split(train.micro_batch)
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    live, most = 0, 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    fixed = {"weights": _bytes(weights), "optimizer": _bytes([*masters, *states])}
    return fixed | {"total": sum(fixed.values()) + most}


def _bytes(tensors: list[Any]) -> int:
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


BF16 = {"precision": "bf16", "zero_stage": 2, "gradient_precision": "fp32"}
"""As the recipes for GB200 have it."""


@pytest.mark.parametrize(
    ("ranks", "micro_batches", "vocab_size", "train", "model"),
    [
        (1, 1, 4096, {"precision": "fp32"}, {}),
        (1, 1, 4096, {"precision": "fp32", "micro_batch": 16}, {"hidden_size": 128, "first_k_dense_replace": 3}),
        (1, 1, 4096, {"precision": "fp32", "micro_batch": 16}, {"use_qk_norm": False, "n_shared_experts": 0}),
        (1, 1, 4096, {"precision": "bf16"}, {}),
        (1, 2, 4096, {"precision": "bf16"}, {"tie_word_embeddings": True}),
        (1, 3, 32768, BF16 | {"activation_checkpointing": True}, {}),
        (1, 1, 4096, BF16 | {"micro_batch": 16}, {"hidden_size": 128}),
        (1, 2, 4096, BF16 | {"optimizer": {"kind": "muon"}}, {}),
        (2, 2, 4096, BF16 | {"activation_checkpointing": True, "expert_parallel": 2}, {}),
        pytest.param(
            2,
            2,
            4096,
            {"precision": "bf16", "expert_parallel": 2},
            {},
            marks=pytest.mark.slow,
            id="zero-1-on-two-ranks",
        ),
        pytest.param(
            2, 2, 16384, {"precision": "fp32", "zero_stage": 2}, {}, marks=pytest.mark.slow, id="zero-2-in-fp32"
        ),
    ],
)
def test_planned_memory_is_what_training_takes(
    ranks: int, micro_batches: int, vocab_size: int, train: dict[str, Any], model: dict[str, Any]
) -> None:
    settings, shape = Train.model_validate({"micro_batch": 2} | train), MODEL.model_copy(update=model)
    taken = on_ranks(ranks, measured, shape, settings, vocab_size, micro_batches)
    planned = footprint(shape, vocab_size, settings, ranks, LENGTH, micro_batches)
    mean = {name: sum(t[name] for t in taken) / ranks for name in taken[0]}
    assert planned.optimizer == pytest.approx(mean["optimizer"], rel=0.01)
    assert planned.weights == pytest.approx(mean["weights"], rel=0.01)
    assert planned.total == pytest.approx(mean["total"], rel=0.05)
