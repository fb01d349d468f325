"""One rank of a training run: ``deepspeed --module millstream.train.run RECIPE``.

Rank 0 opens or creates the run, decides where to continue, and holds the ledger; the others are told.
"""

import argparse
import os
import re
import socket
import sys
import threading
import time
import traceback
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream.audit.commitments import record_commitments
from millstream.audit.corpora import open_corpora
from millstream.audit.heads import head_signer
from millstream.audit.ledger import Ledger, open_ledger
from millstream.audit.losses import LossWriter
from millstream.audit.notes import record_papers, take_notes
from millstream.audit.redaction import bury_redacted
from millstream.audit.replay import check_recent_roots
from millstream.audit.runs import Run, SavedCheckpoint, environment, is_run, open_run, require_same
from millstream.errors import InputError, Interrupted, MillstreamError, RecipeError, UsageError
from millstream.mixture.load import load_recipe
from millstream.mixture.papers import read_papers
from millstream.mixture.training import Train
from millstream.places import corpus_place, run_folder
from millstream.stream.corpora import Corpus, open_corpus
from millstream.stream.freeze import freeze_plan
from millstream.stream.reader import check_batches, open_stream
from millstream.stream.remote import StoreSettings
from millstream.train.keeping import adopt_unrecorded, give_up, newest_checkpoint, open_shelf
from millstream.train.launch import FAILURE, WATCHED
from millstream.train.requests import Requests, forget
from millstream.train.watchdog import Watchdog

LOST = re.compile(r"[Cc]onnection (?:closed|reset|refused)|Broken pipe|DistBackendError|Timed out waiting")
"""In the words of gloo, NCCL and the store."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """What all ranks must agree on: the attempt, the checkpoint to load, the steps."""

    attempt: int
    checkpoint: SavedCheckpoint | None
    first: int
    last: int


def main() -> None:
    """Train as one rank; a failure is reported to the launching process as one line."""
    arguments = _arguments()
    _watch_launcher()
    try:
        _train(arguments)
    except MillstreamError as error:
        _fail(type(error).__name__, str(error), error.exit_code)
    except Exception as error:
        if os.environ.get("MILLSTREAM_DEBUG"):
            traceback.print_exc()
        _fail("SetupError", f"rank {os.environ.get('RANK', '?')}: {_described(error)}", 3)


def _train(arguments: argparse.Namespace) -> None:
    from millstream.train.engine import build_engine, init_distributed
    from millstream.train.loop import Recorder, train_steps
    from millstream.train.metrics import MetricsWriter
    from millstream.train.plot import plot_run
    from millstream.train.progress import TrainProgress
    from millstream.train.report import start_report

    recipe = load_recipe(arguments.recipe)
    place = corpus_place(recipe, arguments.corpus)
    settings = StoreSettings(cache_dir=arguments.cache, cache_bytes=arguments.cache_gb * 10**9)
    run_dir = run_folder(recipe, arguments.run)
    if recipe.model is None or recipe.mixture is None:
        raise RecipeError(f"{arguments.recipe}: training needs the sections 'mixture' and 'model'")
    requests = Requests(run_dir)
    requests.listen()
    with ExitStack() as stack:
        watchdog = stack.enter_context(_watchdog(recipe.train, run_dir).watching())
        rank, world = init_distributed()
        ledger: Ledger | None = None
        start: Start | MillstreamError | None = None
        if rank == 0:
            try:
                ledger, start = _begin(arguments, run_dir, open_corpus(place, settings), world, stack)
            except MillstreamError as error:
                start = error
        start = _from_rank_0(start)
        run = open_run(run_dir)
        stream = open_stream(run.plan, open_corpora(run, place, settings).values())
        tokenizer = stream.manifest.tokenizer
        engine = build_engine(
            recipe.model, recipe.train, tokenizer.vocab_size, run.plan.batch_of(1), eos=tokenizer.eos_id
        )
        if start.checkpoint is not None:
            _load(engine, run, start.checkpoint, ledger)
        recorder = None
        if ledger is not None:
            ledger.append("attempt", _attempt_body(run, recipe.train, start, world))
            ledger.sync()
            progress = stack.enter_context(TrainProgress(start.first - 1, run.plan.total_steps, shown=True))
            recorder = Recorder(
                ledger=ledger,
                losses=stack.enter_context(LossWriter(run_dir, start.attempt)),
                sign=head_signer(run, ledger),
                metrics=MetricsWriter(run_dir, start.attempt),
                report=start_report(run, recipe.train.wandb),
                progress=progress,
                shelf=open_shelf(run),
            )
        reached = train_steps(
            engine, run, recipe.train, stream, start.first, start.last, start.attempt, recorder, requests, watchdog
        )
        watchdog.beat("closing the record", slow=True)
        if recorder is not None:
            recorder.metrics.close()
            if reached < start.last:
                recorder.ledger.append("note", {"text": f"asked to stop after step {reached}", "by": "millstream"})
            elif start.last == run.plan.total_steps:
                recorder.ledger.append("end", {"step": start.last, "attempt": start.attempt})
                recorder.sign()
            plot_run(run_dir, run.plan, recipe.public.title or recipe.name)
            recorder.report.finish()
        if rank == 0 and reached < start.last:
            raise Interrupted(
                f"{run_dir}: stopped as asked after step {reached} of {run.plan.total_steps}, with a checkpoint; run "
                "the command again to go on"
            )


def _watchdog(train: Train, run_dir: Path) -> Watchdog:
    rank = os.environ.get("RANK", "?")

    def bark(what: str) -> None:
        _fail("SetupError", f"rank {rank} on {socket.gethostname()} ended itself: {what}", 3)

    return Watchdog(
        start_s=train.watchdog.start_s,
        step_s=train.watchdog.step_s,
        stacks=run_dir / "hangs" / f"rank-{rank:0>5}.txt",
        bark=bark,
    )


def _begin(
    arguments: argparse.Namespace, run_dir: Path, corpus: Corpus, world: int, stack: ExitStack
) -> tuple[Ledger, Start]:
    """Open or create the run, and choose where to continue."""
    from millstream.train.begin import begin_run

    recipe = load_recipe(arguments.recipe)
    assert recipe.mixture is not None
    plan = freeze_plan(recipe.mixture, corpus.manifest, corpus.root)
    check_batches(plan, world, recipe.train.micro_batch)
    if WATCHED not in os.environ:
        # Else the process that started the launcher has done so, before anybody could ask.
        forget(run_dir)
    if not is_run(run_dir):
        begin_run(run_dir, recipe, plan, corpus)
    bury_redacted(run_dir, open_corpora(open_run(run_dir), corpus.root))
    ledger = stack.enter_context(open_ledger(run_dir))
    run = open_run(run_dir)
    require_same(run, recipe, plan)
    plan = run.plan
    check_batches(plan, world, recipe.train.micro_batch)
    run = adopt_unrecorded(run, ledger)
    saved = newest_checkpoint(run)
    step = saved.step if saved else 0
    check_recent_roots(run, open_corpora(run, corpus.root), step)
    last = min(arguments.until or plan.total_steps, plan.total_steps)
    if step >= last:
        raise UsageError(f"{run_dir}: step {step} is done already; nothing to train up to step {last}")
    record_commitments(ledger, run, open_corpora(run, corpus.root))
    record_papers(run, ledger, read_papers(recipe, arguments.recipe))
    take_notes(run_dir, ledger)
    return ledger, Start(attempt=len(run.attempts) + 1, checkpoint=saved, first=step + 1, last=last)


def _load(engine: Any, run: Run, saved: SavedCheckpoint, ledger: Ledger | None) -> None:
    """Load a checkpoint on all ranks; where that fails the ledger says so."""
    from millstream.train.checkpoint import load_checkpoint

    try:
        load_checkpoint(engine, run.path / saved.path)
    except InputError as error:
        if ledger is not None:
            ledger.append("note", {"text": f"did not continue after step {saved.step}: {error}", "by": "millstream"})
        raise InputError(f"{error}; restore it, or {give_up(run, saved)}") from error


def _attempt_body(run: Run, train: Train, start: Start, world: int) -> dict[str, Any]:
    import torch

    return {
        "attempt": start.attempt,
        "segment": run.segment_of(start.first).id,
        "checkpoint_step": start.first - 1,
        "world": world,
        "expert_parallel": train.expert_parallel,
        "zero_stage": train.zero_stage,
        "micro_batch": train.micro_batch,
        # Sums are bracketed by it: the same bits need the same number.
        "threads": torch.get_num_threads(),
        "hosts": [socket.gethostname()],
        "versions": environment()["libraries"],
        "corpora": list(run.plan.corpus_ids),
    }


def _from_rank_0(start: Start | MillstreamError | None) -> Start:
    """Rank 0's decision on every rank; its refusal ends them all."""
    import torch.distributed as dist

    told: list[Any] = [start]
    dist.broadcast_object_list(told, src=0)
    decided = told[0]
    if isinstance(decided, MillstreamError):
        raise decided
    assert isinstance(decided, Start)
    return decided


def _described(error: Exception) -> str:
    """What failed; backends say in many ways that the other end is gone."""
    text = f"{type(error).__name__}: {error}"
    if LOST.search(text):
        return f"lost another rank, which died or was stopped; run the command again to go on ({text.splitlines()[0]})"
    return text


def _watch_launcher() -> None:
    """End this process when the one that launched the run is gone, however it ended."""
    launcher = int(os.environ.get(WATCHED, "0"))
    if not launcher:
        return

    def watch() -> None:
        while Path(f"/proc/{launcher}").exists():
            time.sleep(0.25)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _fail(kind: str, message: str, code: int) -> None:
    line = " ".join(message.split())
    # Under our own launch it goes to the process that waits; else a person reads it.
    print(f"{FAILURE}{kind} {line}" if WATCHED in os.environ else f"millstream: {line}", file=sys.stderr, flush=True)
    # Not sys.exit: other ranks may hang in a collective, and theirs must not hold up this one.
    os._exit(code)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="millstream.train.run", description="One rank of a training run.")
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--corpus", help="corpus folder or URL [default: corpora/NAME]")
    parser.add_argument("--cache", type=Path, help="folder for whole shards of a corpus at a URL")
    parser.add_argument("--cache-gb", type=int, default=256, help="most that it may hold")
    parser.add_argument("--run", type=Path, help="run folder [default: runs/NAME]")
    parser.add_argument("--until", type=int, help="stop after this step, with a checkpoint")
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
