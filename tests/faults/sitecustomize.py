"""Faults for ranks that the real launcher starts: on ``PYTHONPATH``, read by every Python, acts only in a rank.

``FAULT=nan:1:2-3,die:1:8`` makes rank 1's loss NaN in the 2nd and 3rd step since the start and kills the rank in the
8th; ``hang`` lets it sleep. ``PASSES`` is the number of forward passes a rank makes a step.
"""

import dataclasses
import os
import signal
import sys
import time
from typing import Any

Fault = tuple[str, int, int]


def _mine(text: str, rank: str) -> list[Fault]:
    """The faults of a rank: what happens, in which steps."""
    faults = []
    for one in text.split(","):
        what, where, steps = one.split(":")
        first, _, last = steps.partition("-")
        if where == rank:
            faults.append((what, int(first), int(last or first)))
    return faults


def _install(faults: list[Fault], passes: int) -> None:
    from millstream.train.model import CausalLM

    forward = CausalLM.forward
    done = {"passes": 0}

    def faulty(self: Any, *args: Any, **named: Any) -> Any:
        losses = forward(self, *args, **named)
        if not self.training:
            return losses
        step = done["passes"] // passes + 1
        done["passes"] += 1
        for what in [what for what, first, last in faults if first <= step <= last]:
            if what == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "hang":
                time.sleep(3600)
            losses = dataclasses.replace(losses, total=losses.total * float("nan"))
        return losses

    CausalLM.forward = faulty  # type: ignore[method-assign]


if "FAULT" in os.environ and "millstream.train.run" in sys.orig_argv and "RANK" in os.environ:
    _install(_mine(os.environ["FAULT"], os.environ["RANK"]), int(os.environ["PASSES"]))
