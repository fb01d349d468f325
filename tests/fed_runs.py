"""Runs that were fed without a network being trained: a ledger as training writes it, roots over the very batches."""

from pathlib import Path
from typing import Any

from corpora import build, recipe_dict, write_domain, write_recipe

from millstream.audit.corpora import open_corpora
from millstream.audit.feed import leaf_hashes, step_root
from millstream.audit.ledger import open_ledger
from millstream.audit.runs import create_run, open_run
from millstream.files import sha256_file
from millstream.stream.corpora import open_corpus
from millstream.stream.freeze import freeze_plan
from millstream.stream.reader import open_stream

DOMAINS = ("law", "news", "verse")
MIXTURE: dict[str, Any] = {
    "seq_len": 24,
    "batch": 8,
    "steps": 24,
    "max_epochs": "20",
    "phases": [
        {"name": "pretrain", "weights": {"law": "0.5", "news": "0.3", "verse": "0.2"}},
        {"name": "midtrain", "weights": {"law": "0.1", "news": "0.1", "verse": "0.8"}},
    ],
    "limits": {"law": 1500},
}


def start(home: Path, *, counts: tuple[int, ...] = (80, 60, 30), signer: str | None = None, **sections: Any) -> Path:
    """Build a corpus of small shards in ``home/corpus`` and begin the run ``home/run``, returned."""
    for name, count in zip(DOMAINS, counts, strict=True):
        write_domain(home / "in", name, count)
    recipe = recipe_dict(home / "in", DOMAINS, mixture=MIXTURE, **sections)
    recipe["corpus"] |= {"shard_bytes": 4096, "chunk_bytes": 512}
    recipe["corpus"]["domains"][1]["holdout"] = 0.1
    build(home, recipe)
    begin(home, "run", signer)
    return home / "run"


def begin(home: Path, name: str, signer: str | None = None) -> Path:
    """Begin a run of ``home/recipe.yaml`` over ``home/corpus``."""
    import yaml

    loaded = write_recipe(home / "recipe.yaml", yaml.safe_load((home / "recipe.yaml").read_text()))
    corpus = open_corpus(home / "corpus")
    assert loaded.mixture is not None
    create_run(home / name, loaded, freeze_plan(loaded.mixture, corpus.manifest, corpus.root), corpus, signer=signer)
    return home / name


def feed(path: Path, until: int, *, skipped: tuple[int, ...] = ()) -> None:
    """One attempt: every step after the newest checkpoint up to ``until``, and a checkpoint of it.

    Args:
        path: the run.
        until: its last step.
        skipped: steps whose update is not applied.
    """
    run = open_run(path)
    kept = [c.step for c in run.checkpoints if not run.given_up(c)]
    first = max(kept, default=0) + 1
    stream = open_stream(run.plan, open_corpora(run).values())
    attempt = len(run.attempts) + 1
    with open_ledger(path) as ledger:
        ledger.append("attempt", {"attempt": attempt, "checkpoint_step": first - 1, "world": 1})
        for batch in stream.iterate(first, until):
            body = {
                "step": batch.step,
                "attempt": attempt,
                "segment": run.segment_of(batch.step).id,
                "first_index": batch.first_index,
                "sequences": len(batch.tokens),
                "tokens": len(batch.tokens) * run.plan.seq_len,
                "root": step_root(leaf_hashes(batch.indices, batch.tokens, batch.buried)),
                "update_applied": batch.step not in skipped,
                "loss": 5_000_000 - batch.step,
            }
            ledger.append("step", body)
        ledger.append("checkpoint", _checkpoint(path, until) | {"attempt": attempt})
        if until == run.plan.total_steps:
            ledger.append("end", {"step": until, "attempt": attempt})


def _checkpoint(path: Path, step: int) -> dict[str, Any]:
    folder = path / "checkpoints" / f"step-{step:08}"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("checkpoint.json", "rank-00000.safetensors"):
        (folder / name).write_text(f"{path.name} {name} {step}\n")
    files = {file.name: sha256_file(file) for file in sorted(folder.iterdir())}
    index = files["checkpoint.json"]
    return {"step": step, "path": f"checkpoints/{folder.name}", "digest": index, "files": files}
