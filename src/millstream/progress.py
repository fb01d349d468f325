"""Progress of long work: bars on a terminal, a plain line a stage elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


@contextmanager
def stages() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function to be told (stage, finished, number) as often as one likes; draws on stderr."""
    if not sys.stderr.isatty():
        yield _plain()
        return
    columns = (TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        known: dict[str, TaskID] = {}

        def update(stage: str, finished: int, number: int) -> None:
            if stage not in known:
                known[stage] = bars.add_task(stage, total=number)
            bars.update(known[stage], completed=finished, total=number)

        yield update


def _plain() -> Callable[[str, int, int], None]:
    said: set[tuple[str, int]] = set()

    def update(stage: str, finished: int, number: int) -> None:
        if finished == number and (stage, number) not in said:
            said.add((stage, number))
            print(f"{stage}: {number} of {number}", file=sys.stderr, flush=True)

    return update
