"""Weights & Biases: the same numbers that the run's folder holds, offline unless a key is set."""

import os
from typing import Any

from millstream.audit.runs import Run
from millstream.train.metrics import Value


def start_wandb(run: Run) -> Any | None:
    """Begin or continue the run's W&B history; None where the recipe wants none."""
    settings = run.recipe.train.wandb
    if settings is None:
        return None
    # Silent: the progress line and the run's folder say what there is to say.
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    return wandb.init(
        project=settings.project,
        entity=settings.entity,
        id=run.run_id[:32],
        name=run.info["name"],
        dir=str(run.path),
        resume="allow",
        mode="online" if os.environ.get("WANDB_API_KEY") else "offline",
        config={"recipe": run.info["recipe"], "plan_id": run.plan.plan_id, "corpus_id": run.info["corpus"]["id"]},
        settings=wandb.Settings(console="off", x_disable_stats=True, silent=True),
    )


def wandb_names(values: list[Value]) -> dict[str, float]:
    """Numbers under W&B's names: ``train/loss``, ``train/loss/DOMAIN``."""
    return {f"train/{v.name}" + (f"/{v.domain}" if v.domain else ""): v.value for v in values}
