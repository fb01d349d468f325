"""Ends a rank that does not get on: one that waits for another which died, or hangs in a collective.

Each rank watches itself with a thread, since a rank of another machine is told of nothing, and NCCL waits for ever or
breaks off without a word. The thread needs nothing of the one that hangs: collectives release Python's lock.
"""

import faulthandler
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LOOK_S = 0.25
HURRY_S = 20.0
"""After a signal to stop, seconds without a beat that are waited: the launcher kills after 30."""


class Watchdog:
    """Calls ``bark`` with one line when no beat came for too long.

    Args:
        start_s: seconds for what can take long: loading and compiling before the first step, writing to a slow disk.
        step_s: seconds for anything else.
        stacks: file for the threads' stacks, by which the place is found.
        bark: ends the process; gets what was being done, and how long nothing moved.
    """

    def __init__(self, *, start_s: float, step_s: float, stacks: Path, bark: Callable[[str], None]) -> None:
        self._start_s, self._step_s, self._stacks, self._bark = start_s, step_s, stacks, bark
        self._latest = (time.monotonic(), True, "starting")
        self._ended = threading.Event()
        self._read, self._write = os.pipe()

    def beat(self, what: str, *, slow: bool = False) -> None:
        """Say what is begun now, and whether it can take long; cheap enough for every micro-batch."""
        self._latest = (time.monotonic(), slow, what)

    @contextmanager
    def watching(self) -> Iterator["Watchdog"]:
        """Watch while the block runs; call from the main thread, after signal handlers were set."""
        # Python runs its handlers between two of its own instructions, which a hung collective never reaches; this
        # descriptor is written to at once.
        os.set_blocking(self._write, False)
        before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            signal.set_wakeup_fd(before)
            thread.join()
            os.close(self._read)
            os.close(self._write)

    def _watch(self) -> None:
        while not self._ended.is_set():
            if select.select([self._read], [], [], LOOK_S)[0] and os.read(self._read, 512):
                self._step_s = min(self._step_s, HURRY_S)
            since, slow, what = self._latest
            still = time.monotonic() - since
            if still > (self._start_s if slow else self._step_s):
                self._stacks.parent.mkdir(parents=True, exist_ok=True)
                with self._stacks.open("w") as file:
                    faulthandler.dump_traceback(file)
                self._bark(f"nothing moved for {still:.0f} s while {what}; stacks are in {self._stacks}")
                return
