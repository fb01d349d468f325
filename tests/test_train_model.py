"""The model and its layer: equal to an independent reference on any ranks, balanced, counted, resumable."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from ranks import on_ranks

from millstream.mixture.optimizing import Schedule
from millstream.mixture.training import Model, Train
from millstream.train.initial import initialise
from millstream.train.model import CausalLM
from millstream.train.moe import moe_layers, routers
from millstream.train.schedule import Rates, learning_rate

MODEL = Model(
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    intermediate_size=64,
    n_routed_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=16,
    routed_scaling_factor=1.5,
)
VOCAB, BATCH, LENGTH, STEPS, RATE = 64, 8, 17, 6, 1e-2
TRAIN = Train(precision="fp32", micro_batch=2, router_bias_rate=RATE, seed=3)


def batch(step: int, rows: int = BATCH) -> torch.Tensor:
    """The same two batches in turn, so that there is something to learn."""
    return torch.randint(0, VOCAB, (rows, LENGTH), generator=torch.Generator().manual_seed(step % 2))


def rows_of(step: int, grows: bool) -> int:
    """Sequences of a step: as many always, or half as many again from step 4 on."""
    return 12 if grows and step >= 4 else BATCH


def reference_losses(steps: int, grows: bool = False) -> list[float]:
    """The same training written plainly: one process, a dense loop over experts, torch's own AdamW."""
    network = CausalLM(MODEL, VOCAB, z_loss=0.0, router_z_loss=0.0)
    initialise(network, MODEL, TRAIN.seed)
    parameters = dict(network.named_parameters())
    bias = {n: torch.zeros(8) for n in range(1, 3)}
    matrices = [p for name, p in parameters.items() if p.dim() >= 2 and "embed_tokens" not in name]
    others = [p for name, p in parameters.items() if p.dim() < 2 or "embed_tokens" in name]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), eps=1e-8)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return parameters[name] * x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()

    def swiglu(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T

    def attention(x: torch.Tensor, at: str) -> torch.Tensor:
        b, s, _ = x.shape
        q, k, v = (
            (x @ parameters[f"{at}.self_attn.{p}_proj.weight"].T).view(b, s, -1, 8).transpose(1, 2) for p in "qkv"
        )
        q, k = (norm(t, f"{at}.self_attn.{p}_norm.weight") for t, p in ((q, "q"), (k, "k")))
        angle = torch.arange(s).float()[:, None] * 10_000.0 ** -(torch.arange(0, 4, 2).float() / 4)

        def turn(t: torch.Tensor) -> torch.Tensor:
            one, two, rest = t[..., :2], t[..., 2:4], t[..., 4:]
            return torch.cat((one * angle.cos() - two * angle.sin(), two * angle.cos() + one * angle.sin(), rest), -1)

        q, k = turn(q), turn(k).repeat_interleave(2, 1)
        scores = (q @ k.transpose(-1, -2)) / 8**0.5
        scores = scores.masked_fill(torch.triu(torch.ones(s, s, dtype=torch.bool), 1), float("-inf"))
        mixed = (scores.softmax(-1) @ v.repeat_interleave(2, 1)).transpose(1, 2).reshape(b, s, -1)
        return mixed @ parameters[f"{at}.self_attn.o_proj.weight"].T

    def mlp(x: torch.Tensor, layer: int, loads: dict[int, torch.Tensor]) -> torch.Tensor:
        at = f"model.layers.{layer}.mlp"
        dense = [parameters.get(f"{at}.{p}_proj.weight") for p in ("gate", "up", "down")]
        if layer == 0:
            return swiglu(x, *dense)  # type: ignore[arg-type]
        shared = [parameters[f"{at}.shared_experts.{p}_proj.weight"] for p in ("gate", "up", "down")]
        out = swiglu(x, *shared)
        score = (x @ parameters[f"{at}.gate.weight"].T).sigmoid()
        chosen = (score + bias[layer]).topk(2, -1).indices
        weight = score.gather(-1, chosen)
        weight = weight / weight.sum(-1, keepdim=True) * 1.5
        for expert in range(8):
            part = [parameters[f"{at}.experts.{w}"][expert] for w in ("w1", "w3", "w2")]
            amount = (weight * (chosen == expert)).sum(-1, keepdim=True)
            out = out + amount * swiglu(x, *part)
            loads[layer][expert] += (chosen == expert).sum()
        return out

    losses = []
    for step in range(1, steps + 1):
        tokens = batch(step, rows_of(step, grows))
        loads = {n: torch.zeros(8) for n in bias}
        x = parameters["model.embed_tokens.weight"][tokens[:, :-1]]
        for layer in range(3):
            at = f"model.layers.{layer}"
            x = x + attention(norm(x, f"{at}.input_layernorm.weight"), at)
            x = x + mlp(norm(x, f"{at}.post_attention_layernorm.weight"), layer, loads)
        logits = norm(x, "model.norm.weight") @ parameters["lm_head.weight"].T
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(parameters.values()), 1.0)
        optimizer.step()
        for n in bias:
            move = RATE * (loads[n].mean() - loads[n]).sign()
            bias[n] += move - move.mean()
        losses.append(loss.item())
    return losses


def train(
    expert_parallel: int,
    zero: int,
    first: int,
    last: int,
    load: str | None = None,
    save: str | None = None,
    grows: bool = False,
) -> dict[str, Any]:
    """Train on this rank; returns losses over all ranks, the last biases, and a digest of the weights."""
    import torch.distributed as dist

    from millstream.train.checkpoint import Saver, load_checkpoint
    from millstream.train.engine import build_engine, run_micro_batches, set_batch
    from millstream.train.optimizer import set_rates
    from millstream.train.router import balance

    settings = TRAIN.model_copy(
        update={"expert_parallel": expert_parallel, "zero_stage": zero, "z_loss": 0.0, "router_z_loss": 0.0}
    )
    rank, world = dist.get_rank(), dist.get_world_size()
    engine = build_engine(MODEL, settings, VOCAB, BATCH)
    if load:
        assert load_checkpoint(engine, Path(load)) == first - 1
    losses = []
    for step in range(first, last + 1):
        set_rates(engine, Rates(lr=RATE, beta1=0.9, beta2=0.95, momentum=0.95))
        rows = rows_of(step, grows)
        set_batch(engine, rows)
        mine = batch(step, rows)[rank * rows // world : (rank + 1) * rows // world]
        outputs = run_micro_batches(engine, [(part, None) for part in mine.split(settings.micro_batch)])
        total = sum((output.per_sequence.double().sum() for output in outputs), torch.zeros((), dtype=torch.float64))
        engine.step()
        balance(routers(engine.module), settings.router_bias_rate)
        dist.all_reduce(total)
        losses.append(total.item() / rows)
    if save:
        saver = Saver(engine, Path(save))
        saver.begin(last, {"attempt": 1, "head": {}, "layout": {}})
        saver.take()
    weights = torch.cat([p.detach().flatten() for p in engine.module.parameters()])
    biases = [layer.gate.e_score_correction_bias.tolist() for layer in moe_layers(engine.module)]
    return {"losses": losses, "biases": biases, "weights": weights.float().numpy().tobytes()}


@pytest.fixture(scope="module")
def reference() -> list[float]:
    torch.set_num_threads(1)
    return reference_losses(STEPS)


@pytest.mark.parametrize(("world", "expert_parallel", "zero"), [(1, 1, 1), (2, 1, 1), (2, 2, 1), (2, 2, 2), (4, 2, 1)])
def test_losses_equal_an_independent_reference(
    reference: list[float], world: int, expert_parallel: int, zero: int
) -> None:
    results = on_ranks(world, train, expert_parallel, zero, 1, STEPS)
    assert np.abs(np.array(results[0]["losses"]) - reference).max() < 1e-5
    assert reference[-1] < reference[0] - 0.5, "it learns"
    assert all(result["biases"] == results[0]["biases"] for result in results)
    assert np.abs(results[0]["biases"]).max() > 0


def test_masked_targets_are_not_learned_and_the_others_weigh_what_they_did() -> None:
    network = CausalLM(MODEL, VOCAB, z_loss=1e-3)
    initialise(network, MODEL, TRAIN.seed)
    tokens = batch(1)
    masked = torch.zeros(BATCH, LENGTH - 1, dtype=torch.bool)
    masked[1, 3:9] = masked[4] = True
    found = network(tokens, masked)
    logits = network.logits(tokens[:, :-1])
    targets = tokens[:, 1:].masked_fill(masked, -100)
    nats = F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=-100, reduction="none")
    squares = logits.logsumexp(-1).square()[~masked]
    expected = (nats.sum() + 1e-3 * squares.sum()) / masked.numel()
    torch.testing.assert_close(found.total, expected)
    torch.testing.assert_close(found.per_sequence, nats.mean(-1).detach())
    assert found.per_sequence[4] == 0
    torch.testing.assert_close(network(tokens, torch.zeros_like(masked)).total, network(tokens).total)
    # What the masked targets are makes no difference, to the gradients neither.
    other = tokens.clone()
    other[4, -1] = (other[4, -1] + 1) % VOCAB
    gradients = []
    for given in (tokens, other):
        network.zero_grad()
        network(given, masked).total.backward()
        gradients.append(network.lm_head.weight.grad.clone())
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=0)


@pytest.mark.parametrize("world", [1, 2])
def test_a_growing_batch_equals_the_reference(world: int) -> None:
    expected = reference_losses(STEPS, grows=True)
    found = on_ranks(world, train, 1, 1, 1, STEPS, None, None, True)[0]["losses"]
    assert np.abs(np.array(found) - expected).max() < 1e-5


def test_initial_weights_depend_on_seed_and_name_alone() -> None:
    one, other = CausalLM(MODEL, VOCAB), CausalLM(MODEL, VOCAB)
    initialise(one, MODEL, 3)
    initialise(other, MODEL, 4)
    wide = CausalLM(MODEL, VOCAB, expert_parallel=4)
    for layer in moe_layers(wide):
        layer.ep_rank = 2
    initialise(wide, MODEL, 3)
    mine = dict(one.named_parameters())
    for name, parameter in wide.named_parameters():
        expected = mine[name][4:6] if ".experts." in name else mine[name]
        assert torch.equal(parameter, expected), name
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)


def test_logits_are_those_of_transformers_glm4_moe() -> None:
    import transformers

    fields = MODEL.model_dump(exclude={"rope_theta", "partial_rotary_factor"})
    config = transformers.Glm4MoeConfig(
        **fields,
        vocab_size=VOCAB,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
        attention_bias=False,
        n_group=1,
        topk_group=1,
        max_position_embeddings=64,
    )
    theirs = transformers.Glm4MoeForCausalLM(config).eval()
    ours = CausalLM(MODEL, VOCAB).eval()
    initialise(ours, MODEL, 3)
    state = {}
    for name, value in ours.state_dict().items():
        if name.endswith("experts.w1"):
            up = ours.state_dict()[name.replace("w1", "w3")]
            state[name.replace("w1", "gate_up_proj")] = torch.cat((value, up), 1)
        elif name.endswith("experts.w2"):
            state[name.replace("w2", "down_proj")] = value
        elif not name.endswith("experts.w3"):
            state[name] = value
    theirs.load_state_dict(state)
    tokens = batch(1)
    with torch.no_grad():
        assert (theirs(tokens).logits - ours.logits(tokens)).abs().max() < 1e-5


def test_learning_rates() -> None:
    cosine = Schedule(kind="cosine", warmup_steps=10, min_lr_ratio=0.1)
    rates = [learning_rate(step, 100, 1.0, cosine) for step in (1, 10, 55, 100)]
    assert rates == pytest.approx([0.1, 1.0, 0.55, 0.1])
    wsd = Schedule(kind="wsd", warmup_steps=10, decay_steps=20, min_lr_ratio=0.0)
    assert [learning_rate(step, 100, 2.0, wsd) for step in (5, 50, 80, 90, 100)] == pytest.approx([1, 2, 2, 1, 0])
    linear = Schedule(kind="linear", min_lr_ratio=0.5)
    assert [learning_rate(step, 100, 1.0, linear) for step in (50, 100)] == pytest.approx([0.75, 0.5])
    assert learning_rate(70, 100, 1.0, Schedule(kind="constant")) == 1.0


def test_evaluation_moves_no_bias() -> None:
    network = CausalLM(MODEL, VOCAB).eval()
    initialise(network, MODEL, 3)
    network(batch(1))
    assert all(layer.gate.pending.sum() == 0 for layer in moe_layers(network))
    assert dataclasses.is_dataclass(network(batch(1)))
