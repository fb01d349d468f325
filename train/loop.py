"""The training loop: batch, forward and backward, update, record; checkpoints on the way.

A step's record is written after its update, from the tensors that were handed to the engine. Rank 0
writes; every rank hashes its own rows.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from millstream.audit.alerts import take_alerts
from millstream.audit.feed import check_tripwires, leaf_hashes, step_root, tripwires
from millstream.audit.ledger import Ledger
from millstream.audit.losses import LossWriter
from millstream.audit.notes import take_notes
from millstream.audit.runs import Run, saved_checkpoint
from millstream.errors import CheckFailed
from millstream.mixture.training import Train
from millstream.stream.reader import Batch, Stream
from millstream.stream.tombstones import masked_targets
from millstream.stream.torch_data import page_locked
from millstream.train.checkpoint import Saver
from millstream.train.engine import run_micro_batches, set_batch
from millstream.train.evaluate import held_out_losses
from millstream.train.keeping import Shelf, prune
from millstream.train.metrics import MetricsWriter, Value
from millstream.train.moe import routers
from millstream.train.optimizer import rate_of, set_rates
from millstream.train.progress import TrainProgress
from millstream.train.report import Report
from millstream.train.requests import Requests
from millstream.train.router import balance, routing_numbers
from millstream.train.schedule import rates_at
from millstream.train.watchdog import Watchdog

AHEAD = 2
"""Batches read while one is trained on."""


@dataclass(frozen=True, kw_only=True)
class Recorder:
    """What rank 0 writes to."""

    ledger: Ledger
    losses: LossWriter
    sign: Callable[[], None]
    """Signs a head over the ledger as it is."""
    metrics: MetricsWriter
    report: Report
    progress: TrainProgress
    shelf: Shelf

    def sync(self) -> None:
        """Wait until the record is on the disk."""
        self.losses.sync()
        self.ledger.sync()


@dataclass(frozen=True, kw_only=True, slots=True)
class Fed:
    """A step as it was fed, over all ranks: leaves (rows, 32), losses and domains (rows,)."""

    batch: Batch
    leaves: NDArray[np.uint8]
    losses: NDArray[np.float32]
    domains: NDArray[np.int64]


def train_steps(
    engine: Any,
    run: Run,
    train: Train,
    stream: Stream,
    first: int,
    last: int,
    attempt: int,
    recorder: Recorder | None,
    requests: Requests,
    watchdog: Watchdog,
) -> int:
    """Train steps ``first`` to ``last``, or until asked to stop; returns the last step that was done.

    Args:
        engine: DeepSpeed's.
        run: as its ledger tells it at the start.
        train: the recipe's section as it is now: it may differ from the run's own in where and how the run is laid out.
        stream: of the plan in force.
        first: step to begin with.
        last: the last step, after which a checkpoint is saved.
        attempt: number of this start.
        recorder: rank 0's, None elsewhere.
        requests: where this rank hears of wishes to stop.
        watchdog: told of everything that is begun.

    Raises:
        SetupError: a checkpoint or record cannot be written.
        CheckFailed: too many steps in a row could not be applied, or the engine got other tokens than were read.
    """
    saver = Saver(engine, run.path)
    rank, world = dist.get_rank(), dist.get_world_size()
    gates = routers(engine.module)
    total = stream.plan.total_steps
    allocate = page_locked if engine.device.type == "cuda" else np.empty
    step, skipped, ready = first - 1, 0, time.perf_counter()
    for batch in stream.iterate(first, last, rank, world, ahead=AHEAD, dtype=np.int64, allocate=allocate):
        step, loading = batch.step, time.perf_counter() - ready
        rates = rates_at(batch.step, stream.plan, train.optimizer, train.schedule)
        set_rates(engine, rates)
        set_batch(engine, stream.plan.batch_of(batch.step))
        tokens = torch.from_numpy(batch.tokens).to(engine.device, non_blocking=True)
        fed = _feed(engine, batch, tokens, train.micro_batch, watchdog)
        applied = bool(engine.was_step_applied())
        # What routers made of numbers that were not finite says nothing of the experts.
        routing = balance(gates, train.router_bias_rate if applied else 0.0)
        skipped = 0 if applied else skipped + 1
        numbers = _numbers(engine, stream, fed, loading, time.perf_counter() - ready)
        numbers += [Value(name=name, value=value) for name, value in routing_numbers(routing, gates).items()]
        if train.evaluate_every and (batch.step % train.evaluate_every == 0 or batch.step == total):
            watchdog.beat(f"evaluating after step {step}")
            numbers += held_out_losses(engine, stream, train.micro_batch)
        if recorder is not None:
            _record(run, recorder, applied, fed, numbers, attempt)
        if skipped >= train.stop_after_skipped:
            raise _not_finite(run, step, skipped, attempt, recorder)
        asked = requests.agreed(engine.device)
        due = step % train.checkpoint_every == 0 or step == last or asked.stop or asked.checkpoint
        if due or saver.finished():
            watchdog.beat(f"sealing the checkpoint before step {step}", slow=True)
            _keep(saver, train, recorder)
        if due:
            watchdog.beat(f"saving the checkpoint of step {step}")
            saver.begin(step, _about(attempt, train, recorder))
        watchdog.beat(f"reading step {step + 1}")
        if asked.stop:
            break
        ready = time.perf_counter()
    watchdog.beat("sealing the last checkpoint", slow=True)
    _keep(saver, train, recorder)
    return step


def _feed(engine: Any, batch: Batch, tokens: Tensor, micro_batch: int, watchdog: Watchdog) -> Fed:
    """Run forward, backward and update over a rank's rows, and gather what was fed.

    Raises:
        CheckFailed: the engine got other tokens than were read; no update was made.
    """
    read = tripwires(batch.tokens, micro_batch)
    gone = masked_targets(batch.buried, len(tokens), tokens.shape[1] - 1)
    masks = [None] * len(tokens) if gone is None else torch.from_numpy(gone).to(engine.device).split(micro_batch)
    parts = list(zip(tokens.split(micro_batch), masks, strict=False))
    losses = []
    watchdog.beat(f"in micro-batch 1 of step {batch.step}")
    for number, output in enumerate(run_micro_batches(engine, parts), 2):
        losses.append(output.per_sequence)
        watchdog.beat(f"in micro-batch {number} of step {batch.step}")
    # All digests are of the very tensor that the engine got, after it was used.
    fed = tokens.cpu().numpy()
    check_tripwires(batch.step, read, tripwires(fed, micro_batch))
    watchdog.beat(f"in the update of step {batch.step}")
    engine.step()
    leaves = leaf_hashes(batch.indices, fed, batch.buried)
    gathered = [
        _gather(t.to(tokens.device)).cpu().numpy()
        for t in (torch.from_numpy(leaves.copy()), torch.cat(losses).float(), torch.from_numpy(batch.domains))
    ]
    return Fed(batch=batch, leaves=gathered[0], losses=gathered[1], domains=gathered[2])


def _gather(mine: Tensor) -> Tensor:
    """Every rank's rows, in rank order."""
    world = dist.get_world_size()
    if world == 1:
        return mine
    everyone = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(everyone, mine.contiguous())
    return torch.cat(everyone)


def _numbers(engine: Any, stream: Stream, fed: Fed, loading: float, seconds: float) -> list[Value]:
    """A step's numbers; ``seconds`` from the end of the one before, of which ``loading`` were waiting for data."""
    norm = engine.get_global_grad_norm()
    tokens = len(fed.losses) * stream.plan.seq_len
    values = [
        Value(name="loss", value=float(fed.losses.mean())),
        Value(name="grad_norm", value=float(norm) if norm is not None else math.nan),
        Value(name="lr", value=rate_of(engine)),
        Value(name="tokens_per_s", value=tokens / seconds),
        Value(name="step_s", value=seconds),
        Value(name="loading_s", value=loading),
    ]
    for number in np.unique(fed.domains).tolist():
        own = fed.losses[fed.domains == number]
        domain = stream.plan.domains[number]
        values.append(Value(name="loss", domain=domain, value=float(own.mean())))
        values.append(Value(name="sequences", domain=domain, value=len(own)))
    return values


def _record(run: Run, recorder: Recorder, applied: bool, fed: Fed, values: list[Value], attempt: int) -> None:
    step, segment = fed.batch.step, run.segment_of(fed.batch.step).id
    loss = values[0].value
    recorder.ledger.append(
        "step",
        {
            "step": step,
            "attempt": attempt,
            "segment": segment,
            "first_index": fed.batch.first_index,
            "sequences": len(fed.losses),
            "tokens": len(fed.losses) * run.plan.seq_len,
            "root": step_root(fed.leaves),
            "update_applied": applied,
            "loss": micro_nats(loss),
            "losses": recorder.losses.add(fed.losses),
        },
    )
    recorder.metrics.add(step, segment, values)
    recorder.report.log(step, values)
    take_notes(run.path, recorder.ledger)
    recorder.report.warn(take_alerts(run.path, recorder.ledger))
    recorder.progress.update(step, loss, next(v.value for v in values if v.name == "tokens_per_s"))


def _not_finite(run: Run, step: int, skipped: int, attempt: int, recorder: Recorder | None) -> CheckFailed:
    """Record why training stops, and say it."""
    first = step - skipped + 1
    if recorder is not None:
        body = {"what": "not finite", "first_step": first, "last_step": step, "attempt": attempt}
        recorder.ledger.append("alert", body)
        recorder.sync()
    return CheckFailed(
        f"{run.path}: loss or gradients of steps {first} to {step} were not finite and no update was made; see "
        f"'millstream audit step {run.path} {first}', then go back with 'millstream rollback' or pass over the data "
        "with 'millstream amend'"
    )


def micro_nats(loss: float) -> int | str:
    """A loss as the ledger holds it: millionths of a nat, or ``nan`` or ``inf``."""
    if math.isnan(loss):
        return "nan"
    return "inf" if math.isinf(loss) else round(loss * 1e6)


def _about(attempt: int, train: Train, recorder: Recorder | None) -> dict[str, Any]:
    """What a checkpoint says of itself; the ledger's records up to it are on the disk before it is."""
    if recorder is None:
        return {}
    recorder.sync()
    layout = {
        "world": dist.get_world_size(),
        "expert_parallel": train.expert_parallel,
        "zero_stage": train.zero_stage,
    }
    return {"attempt": attempt, "head": recorder.ledger.head, "layout": layout}


def _keep(saver: Saver, train: Train, recorder: Recorder | None) -> None:
    """Wait for the checkpoint that is being written, record it, and remove those that it makes superfluous."""
    body = saver.take()
    if recorder is not None and body is not None:
        record = recorder.ledger.append("checkpoint", body)
        recorder.ledger.sync()
        recorder.sign()
        recorder.shelf.lineage.append(saved_checkpoint(record))
        prune(recorder.shelf, train.keep_checkpoints, train.keep_every)
