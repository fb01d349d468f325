"""The ledger costs no bit: a run with all its records, and the same batches trained on without any."""

import hashlib
import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from corpora import build, recipe_dict, write_domain
from ranks import on_ranks

from millstream.audit.records import open_records

MODEL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
TRAIN = {
    "precision": "fp32",
    "micro_batch": 2,
    "checkpoint_every": 3,
    "evaluate_every": 4,
    "router_bias_rate": 1e-2,
    "optimizer": {"lr": 1e-2},
    "wandb": None,
}
STEPS = 8


def weights(engine: Any) -> str:
    """Digest of a rank's parameters and buffers, to the bit."""
    state = sorted(engine.module.state_dict().items())
    return hashlib.sha256(
        b"".join(name.encode() + t.cpu().contiguous().numpy().tobytes() for name, t in state)
    ).hexdigest()


def recorded(home: str) -> tuple[list[str], str]:
    """Train as a user does, with the ledger, metrics, checkpoints and signed heads; losses and weights of a rank."""
    from millstream.train import loop, run

    losses: list[str] = []
    engines: list[Any] = []
    feed = loop._feed

    def kept(engine: Any, *given: Any) -> Any:
        fed = feed(engine, *given)
        losses.append(fed.losses.tobytes().hex())
        engines[:] = [engine]
        return fed

    loop._feed = kept
    folder = Path(home)
    run._train(
        Namespace(
            recipe=folder / "recipe.yaml",
            corpus=str(folder / "corpus"),
            run=folder / "run",
            cache=None,
            cache_gb=1,
            until=None,
        )
    )
    return losses, weights(engines[0])


def bare(home: str) -> tuple[list[str], str]:
    """The same batches through the same engine, and nothing else."""
    import numpy as np
    import torch
    import torch.distributed as dist

    from millstream.mixture.load import load_recipe
    from millstream.stream.corpora import open_corpus
    from millstream.stream.freeze import freeze_plan
    from millstream.stream.reader import open_stream
    from millstream.train.engine import build_engine, run_micro_batches
    from millstream.train.moe import routers
    from millstream.train.optimizer import set_rates
    from millstream.train.router import balance
    from millstream.train.schedule import rates_at

    recipe, corpus = load_recipe(Path(home) / "recipe.yaml"), open_corpus(Path(home) / "corpus")
    assert recipe.mixture is not None
    assert recipe.model is not None
    plan = freeze_plan(recipe.mixture, corpus.manifest, corpus.root)
    tokenizer, train = corpus.manifest.tokenizer, recipe.train
    engine = build_engine(recipe.model, train, tokenizer.vocab_size, plan.batch_of(1), eos=tokenizer.eos_id)
    losses = []
    for batch in open_stream(plan, [corpus]).iterate(1, STEPS, dist.get_rank(), dist.get_world_size(), dtype=np.int64):
        set_rates(engine, rates_at(batch.step, plan, train.optimizer, train.schedule))
        parts = [(part, None) for part in torch.from_numpy(batch.tokens).split(train.micro_batch)]
        own = torch.cat([output.per_sequence for output in run_micro_batches(engine, parts)]).float()
        engine.step()
        balance(routers(engine.module), train.router_bias_rate)
        everyone = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, own)
        losses.append(torch.cat(everyone).numpy().tobytes().hex())
    return losses, weights(engine)


def ranks_of(how: str, home: Path) -> Any:
    """Two ranks, of a process that built nothing: Polars does not survive a fork."""
    line = [sys.executable, __file__, how, str(home)]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    return json.loads(done.stdout.splitlines()[-1])


def test_losses_are_the_same_to_the_bit_with_the_ledger_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLSTREAM_KEY", str(tmp_path / "key"))
    for name in ("law", "news"):
        write_domain(tmp_path / "in", name, 60)
    mixture = {
        "seq_len": 24,
        "batch": 8,
        "steps": STEPS,
        "max_epochs": "20",
        "phases": [{"name": "a", "weights": {"law": "0.6", "news": "0.4"}}, {"name": "b", "weights": {"news": "1"}}],
    }
    recipe = recipe_dict(tmp_path / "in", ["law", "news"], mixture=mixture, model=MODEL, train=TRAIN)
    recipe["corpus"]["domains"][0]["holdout"] = 0.1
    build(tmp_path, recipe)
    without, with_ledger = (ranks_of(how, tmp_path) for how in ("bare", "recorded"))
    assert len(without[0][0]) == STEPS
    assert with_ledger == without
    kinds = [record.kind for record in open_records(tmp_path / "run")]
    assert kinds.count("step") == STEPS
    assert kinds.count("checkpoint") == 3
    assert kinds[-1] == "end"


if __name__ == "__main__":
    print(json.dumps(on_ranks(2, {"bare": bare, "recorded": recorded}[sys.argv[1]], sys.argv[2])))
