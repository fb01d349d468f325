"""The line that tells a person how training goes: a bar on a terminal, plain lines elsewhere."""

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_EVERY = 20


class TrainProgress:
    """Shows step, loss, rate and time left."""

    def __init__(self, done: int, total: int, *, shown: bool) -> None:
        self.total = total
        self._plain = shown and not sys.stdout.isatty()
        self._bar: Progress | None = None
        if shown and not self._plain:
            columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, TimeRemainingColumn(), console=Console())
            self._task = self._bar.add_task("starting", total=total, completed=done)

    def update(self, step: int, loss: float, tokens_per_s: float) -> None:
        """Show a finished step."""
        text = f"loss {loss:.4f} · {tokens_per_s:,.0f} tokens/s"
        if self._bar is not None:
            self._bar.update(self._task, completed=step, description=text)
        elif self._plain and (step % PLAIN_EVERY == 0 or step in (1, self.total)):
            print(f"step {step} of {self.total} · {text}", flush=True)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
