"""How many sequences of each domain a stretch of the plan holds, counted at its borders and not one by one.

At a border of windows the quota tree says it in closed form, whatever lies before; only the rest of a border that
lies inside a window is looked at sequence by sequence.
"""

import numpy as np
from numpy.typing import NDArray

from millstream.errors import UsageError
from millstream.stream import quota
from millstream.stream.permutation import distinct
from millstream.stream.plan import Phase, Plan

Counts = NDArray[np.int64]


def taken_before(plan: Plan, borders: NDArray[np.int64], until: Counts | None = None) -> Counts:
    """Sequences of every domain at global indices below each border.

    Args:
        plan: the plan.
        borders: global indices from 0 to ``total_sequences``, (n,).
        until: of each domain the running index from which on a sequence is not counted, (domains,); all count by
            default.

    Returns:
        int64 (domains, n), the domains in the order of ``Plan.domains``; skipped sequences count too.

    Raises:
        UsageError: a border lies outside the plan.
    """
    if borders.size and not 0 <= int(borders.min()) <= int(borders.max()) <= plan.total_sequences:
        raise UsageError(f"the plan has borders from 0 to {plan.total_sequences}, asked for {borders.max()}")
    limits = np.full(len(plan.domains), np.iinfo(np.int64).max) if until is None else until
    taken = np.empty((len(plan.domains), borders.size), np.int64)
    at = np.maximum(np.searchsorted([p.first for p in plan.phases], borders, side="right") - 1, 0)
    for number in distinct(at)[0].tolist():
        chosen = np.flatnonzero(at == number)
        taken[:, chosen] = _in_phase(plan, plan.phases[number], borders[chosen], limits)
    return taken


def _in_phase(plan: Plan, phase: Phase, borders: NDArray[np.int64], limits: Counts) -> Counts:
    inside = borders - phase.first
    whole = np.where(inside == phase.length, inside, inside // phase.window * phase.window)
    places = {name: place for place, name in enumerate(plan.domains)}
    cursors = np.array([phase.cursors.get(name, 0) for name in plan.domains], np.int64)
    taken = np.repeat(cursors[:, None], borders.size, axis=1)
    taken[[places[name] for name in phase.tree.domains]] += quota.counts(phase.tree, whole.astype(np.uint64))
    np.minimum(taken, limits[:, None], out=taken)
    broken = np.flatnonzero(inside > whole)
    windows, group = distinct(whole[broken])
    for number, first in enumerate(windows.tolist()):
        own = broken[group == number]
        begin = phase.first + first
        domain, running = plan.running(np.arange(begin, int(borders[own].max()), dtype=np.uint64))
        counted = running < limits[domain]
        for column in own.tolist():
            some = domain[: borders[column] - begin][counted[: borders[column] - begin]]
            taken[:, column] += np.bincount(some, minlength=len(plan.domains))
    return taken
