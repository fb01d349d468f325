"""Asking a running job to stop or to save: by a signal to a rank, or by a file in the run's folder.

    RUN/requests/stop         save a checkpoint after the step in progress, and end
    RUN/requests/checkpoint   save a checkpoint after the step in progress, and go on

Signals reach a rank where the job runs under a scheduler; but the ``deepspeed`` launcher that gets one kills its ranks
half a minute later, so ``millstream train`` leaves a file instead. All ranks act on a request after the same step.
"""

import signal
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""What schedulers send before they take a machine away, and what a person does."""
FOLDER = "requests"

Kind = Literal["stop", "checkpoint"]


@dataclass(frozen=True, slots=True)
class Request:
    """What all ranks were asked for."""

    stop: bool
    checkpoint: bool


class Requests:
    """One rank's ear; rank 0 looks at the run's folder too."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.signal: int | None = None

    def listen(self) -> None:
        """Take signals as requests from now on; call from the main thread."""
        for number in SIGNALS:
            signal.signal(number, self._hear)

    def agreed(self, device: "torch.device") -> Request:
        """What any rank was asked for since the last call; all ranks take part and get the same."""
        # Whoever only asks does without torch.
        import torch
        import torch.distributed as dist

        stop, checkpoint = self.signal is not None, False
        if dist.get_rank() == 0:
            stop |= _take(self.run_dir, "stop")
            checkpoint = _take(self.run_dir, "checkpoint")
        flags = torch.tensor([stop, checkpoint], dtype=torch.int32, device=device)
        if dist.get_world_size() > 1:
            dist.all_reduce(flags, dist.ReduceOp.MAX)
        return Request(*(bool(flag) for flag in flags.tolist()))

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.signal = number


def ask(run_dir: Path, kind: Kind) -> None:
    """Leave a request in a run's folder."""
    (run_dir / FOLDER).mkdir(parents=True, exist_ok=True)
    (run_dir / FOLDER / kind).touch()


def forget(run_dir: Path) -> None:
    """Remove requests that an earlier job did not live to see."""
    for kind in ("stop", "checkpoint"):
        (run_dir / FOLDER / kind).unlink(missing_ok=True)


def _take(run_dir: Path, kind: Kind) -> bool:
    try:
        (run_dir / FOLDER / kind).unlink()
    except FileNotFoundError:
        return False
    return True
