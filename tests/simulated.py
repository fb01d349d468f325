"""Runs that were never trained: ledgers as training writes them, for audits that need no model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from corpora import build, recipe_dict, write_domain, write_recipe

from millstream.audit.ledger import open_ledger
from millstream.audit.losses import LossWriter
from millstream.audit.runs import Run, create_run, open_run
from millstream.stream.corpora import open_corpus
from millstream.stream.freeze import freeze_plan


def begin(home: Path, mixture: dict[str, Any], documents: dict[str, int]) -> Path:
    """A corpus of some domains and a run over it that has no step yet; returns the run's folder."""
    for name, count in documents.items():
        write_domain(home / "in", name, count)
    recipe = recipe_dict(home / "in", list(documents), mixture=mixture)
    build(home, recipe)
    loaded = write_recipe(home / "recipe.yaml", recipe)
    corpus = open_corpus(home / "corpus")
    assert loaded.mixture is not None
    create_run(home / "run", loaded, freeze_plan(loaded.mixture, corpus.manifest, corpus.root), corpus)
    return home / "run"


def losses_of(step: int, attempt: int, sequences: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Losses that differ by step, attempt and row."""
    return (4 - step / 100 + attempt / 8 + np.arange(sequences) / 64).astype(np.float32)


def train(path: Path, after: int, last: int, applied: Callable[[int], bool] = lambda step: True) -> Run:
    """An attempt that continues after a checkpoint and feeds steps up to ``last``, each with a checkpoint."""
    with open_ledger(path) as ledger:
        run = open_run(path)
        attempt = len(run.attempts) + 1
        writer = LossWriter(path, attempt)
        ledger.append("attempt", {"attempt": attempt, "segment": 0, "checkpoint_step": after, "world": 1})
        for step in range(after + 1, last + 1):
            first, end = run.plan.span(step)
            losses = losses_of(step, attempt, end - first)
            body = {
                "step": step,
                "attempt": attempt,
                "segment": run.segment_of(step).id,
                "first_index": first,
                "sequences": end - first,
                "tokens": (end - first) * run.plan.seq_len,
                "root": "0" * 64,
                "update_applied": applied(step),
                "loss": "nan" if np.isnan(losses).any() else round(float(losses.mean()) * 1e6),
                "losses": writer.add(losses),
            }
            ledger.append("step", body)
            saved = path / "checkpoints" / f"step-{step:08}"
            saved.mkdir(parents=True, exist_ok=True)
            about = {"path": f"checkpoints/{saved.name}", "digest": "0" * 64, "files": {}}
            ledger.append("checkpoint", {"step": step, "attempt": attempt, **about})
        writer.close()
    return open_run(path)
