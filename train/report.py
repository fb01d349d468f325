"""Weights & Biases: the same numbers that the run's folder holds, under Marin's names; offline unless a key is set.

The axis is ``global_step``, the run's own step. W&B's counter only rises: a run that goes back to a checkpoint would
lose its second feeding of a step there. Nothing of W&B may end a run: when it fails, that is said once and training
goes on.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from millstream.audit.runs import Run
from millstream.mixture.training import Wandb
from millstream.train.metrics import Value

NAMES = {
    "loss": "train/loss",
    "loss_held_out": "eval/macro_loss",
    "bits_per_byte_held_out": "eval/macro_bpb",
    "grad_norm": "grad/norm/total",
    "lr": "optim/learning_rate",
    "beta1": "optim/beta1",
    "beta2": "optim/beta2",
    "momentum": "optim/momentum",
    "tokens_per_s": "throughput/tokens_per_second",
    "total_tokens": "throughput/total_tokens",
    "mfu": "throughput/mfu",
    "step_s": "throughput/iteration_time",
    "loading_s": "throughput/loading_time",
    "hook_s": "throughput/hook_time",
    "checkpoint_s": "throughput/checkpoint_time",
    "memory": "throughput/peak_memory_bytes",
    "host_memory": "throughput/host_memory_bytes",
    "expert_load_max": "train/router/load_max",
    "expert_load_entropy": "train/router/load_entropy",
    "router_z_loss": "train/router/z_loss",
    "router_sequence_loss": "train/router/sequence_loss",
    "router_bias_max": "moe_bias/max",
    "drop_rate": "moe/dropped_assignments",
    "z_loss": "train/z_loss",
    "update_applied": "train/update_applied",
    "phase": "mixture/stage",
}
"""Numbers of the whole run; what is not named here is below ``train/``."""
DOMAIN_NAMES = {
    "loss": "train/loss/{}",
    "loss_held_out": "eval/{}/loss",
    "bits_per_byte_held_out": "eval/{}/bpb",
    "sequences": "mixture/sequences/{}",
    "epochs": "mixture/epochs/{}",
    "weight": "mixture/weight/{}",
}
PREFIXES = {"grad_norm/": "grad/norm/", "param_norm/": "params/norm/"}


class Report:
    """An open W&B run, or what is left of one that failed."""

    def __init__(self, wandb_run: Any) -> None:
        self._run: Any | None = wandb_run

    def log(self, step: int, values: list[Value]) -> None:
        """Send a step's numbers."""
        self._try("log", {"global_step": step} | {wandb_name(v): v.value for v in values})

    def warn(self, alerts: Sequence[Mapping[str, Any]]) -> None:
        """Pass on alerts of the ledger."""
        for alert in alerts:
            self._try("alert", f"step {alert['step']}: {alert['detector']}", str(alert["text"]))

    def finish(self) -> None:
        """Close the run."""
        self._try("finish")

    def _try(self, call: str, *arguments: Any) -> None:
        try:
            if self._run is not None:
                getattr(self._run, call)(*arguments)
        except Exception as error:
            self._run = None
            _say(error)


def start_report(run: Run, settings: Wandb | None) -> Report:
    """Begin or continue the run's W&B history; an empty report where none is wanted or W&B cannot start."""
    if settings is None:
        return Report(None)
    # Silent: the progress line and the run's folder say what there is to say.
    os.environ.setdefault("WANDB_SILENT", "true")
    try:
        import wandb

        opened = wandb.init(
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
        opened.define_metric("*", step_metric="global_step")
    except Exception as error:
        _say(error)
        return Report(None)
    return Report(opened)


def wandb_name(value: Value) -> str:
    """The name of a number at W&B."""
    if value.domain is not None:
        return DOMAIN_NAMES.get(value.name, f"train/{value.name}/{{}}").format(value.domain)
    for prefix, theirs in PREFIXES.items():
        if value.name.startswith(prefix):
            return theirs + value.name.removeprefix(prefix)
    return NAMES.get(value.name, f"train/{value.name}")


def _say(error: Exception) -> None:
    told = " ".join(str(error).split())
    print(f"millstream: W&B gets nothing more: {type(error).__name__}: {told}", file=sys.stderr, flush=True)
