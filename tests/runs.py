"""Runs without a trainer: the corpus, plan, ledger, roots and numbers are real, only the losses are made up."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from millstream.audit.commitments import commit, record_commitments
from millstream.audit.corpora import open_corpora
from millstream.audit.feed import leaf_hashes, step_root
from millstream.audit.heads import head_signer
from millstream.audit.ledger import open_ledger
from millstream.audit.runs import create_run, open_run
from millstream.audit.signing import own_key
from millstream.mixture.load import load_recipe
from millstream.stream.corpora import open_corpus
from millstream.stream.freeze import freeze_plan
from millstream.stream.reader import open_stream
from millstream.train.metrics import MetricsWriter, Value


def begin(folder: Path, run: Path) -> None:
    """Begin a run of ``folder/recipe.yaml`` over ``folder/corpus``, which is committed to."""
    recipe = load_recipe(folder / "recipe.yaml")
    corpus = open_corpus(folder / "corpus")
    assert isinstance(corpus.root, Path)
    commit(corpus.root, corpus.manifest)
    assert recipe.mixture is not None
    plan = freeze_plan(recipe.mixture, corpus.manifest, corpus.root)
    create_run(run, recipe, plan, corpus, signer=own_key().verifier_key)


def feed(run_dir: Path, first: int, last: int, *, refused: Sequence[int] = ()) -> None:
    """Feed steps as a new attempt, with a checkpoint and a signed head at the end; ``refused`` are not applied."""
    with open_ledger(run_dir) as ledger:
        run = open_run(run_dir)
        corpora = open_corpora(run)
        record_commitments(ledger, run, corpora)
        attempt = len(run.attempts) + 1
        begun = {"attempt": attempt, "segment": run.segment_of(first).id, "checkpoint_step": first - 1, "world": 1}
        ledger.append("attempt", begun | {"hosts": ["node-1"], "versions": {}})
        stream = open_stream(run.plan, corpora.values())
        metrics = MetricsWriter(run_dir, attempt)
        for step in range(first, last + 1):
            batch = stream.batch(step)
            losses = loss_at(step) + 0.3 * np.sin(batch.indices.astype(np.float64))
            segment = run.segment_of(step).id
            body = {
                "step": step,
                "attempt": attempt,
                "segment": segment,
                "first_index": batch.first_index,
                "sequences": len(losses),
                "tokens": len(losses) * run.plan.seq_len,
                "root": step_root(leaf_hashes(batch.indices, batch.tokens, batch.buried)),
                "update_applied": step not in refused,
                "loss": round(float(losses.mean()) * 1e6),
            }
            ledger.append("step", body)
            metrics.add(step, segment, numbers(step, losses, batch.domains, run.plan.domains))
        metrics.close()
        saved = {
            "step": last,
            "attempt": attempt,
            "path": f"checkpoints/step-{last:08}",
            "digest": "0" * 64,
            "files": {},
        }
        ledger.append("checkpoint", saved)
        if last == run.plan.total_steps:
            ledger.append("end", {"step": last, "attempt": attempt})
        head_signer(run, ledger)()


def loss_at(step: float) -> float:
    """A loss that falls as losses do."""
    return 2 + 6 * math.exp(-step / 8) + 2 / math.sqrt(step)


def numbers(step: int, losses: Any, domains: Any, names: Sequence[str]) -> list[Value]:
    """What a trainer would record of a step."""
    values = [
        Value(name="loss", value=float(losses.mean())),
        Value(name="grad_norm", value=1 / step),
        Value(name="lr", value=1e-3 * min(1, step / 5)),
        Value(name="tokens_per_s", value=1000.0),
        Value(name="expert_load_max", value=1.5),
    ]
    for number in np.unique(domains).tolist():
        own = losses[domains == number]
        values.append(Value(name="loss", domain=names[number], value=float(own.mean())))
        values.append(Value(name="sequences", domain=names[number], value=len(own)))
    if step % 5 == 0:
        values.append(Value(name="loss_held_out", value=float(losses.mean()) + 0.1))
    return values
