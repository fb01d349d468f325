"""What a plan amounts to: tokens, sequences and epochs per phase and domain, and the closest repeats."""

import math
from fractions import Fraction

import numpy as np
import polars as pl
from numpy.typing import NDArray

from millstream.stream import quota
from millstream.stream.permutation import permute
from millstream.stream.plan import Phase, Plan
from millstream.stream.ring import Ring, epoch_offset, order_key


def phase_table(plan: Plan) -> pl.DataFrame:
    """One row a phase and domain with weight.

    Returns:
        ``phase``, ``steps`` (range), ``domain``, ``weight`` (as written), ``sequences``, ``tokens``,
        ``off`` (sequences away from the written share; rounding of quotas and of the phase's end),
        ``epochs`` (of the domain, at the end of the phase).
    """
    rows = []
    for phase in plan.phases:
        first = plan.batches.steps_within(phase.first) + 1
        last = plan.batches.steps_within(phase.end)
        for name in (n for n in plan.domains if n in phase.tree.domains):
            taken = phase.taken(name)
            rows.append(
                {
                    "phase": phase.name,
                    "steps": f"{first}-{last}",
                    "domain": name,
                    "weight": phase.weights[name],
                    "sequences": taken,
                    "tokens": taken * plan.seq_len,
                    "off": float(taken - written_share(phase, name) * phase.length),
                    "epochs": plan.epochs(name, phase.cursors[name] + taken),
                }
            )
    return pl.DataFrame(rows)


def written_share(phase: Phase, domain: str) -> Fraction:
    """The share of a phase that its weights, as written, give a domain."""
    if domain in phase.exact:
        return Fraction(phase.exact[domain], phase.length)
    weights = {n: Fraction(w) for n, w in phase.weights.items() if n not in phase.exact}
    free = 1 - Fraction(sum(phase.exact.values()), phase.length)
    return weights[domain] / sum(weights.values()) * free


def coarse_domains(plan: Plan) -> list[str]:
    """Warnings: domains whose weight is so small that its integer form is far from it."""
    return [
        f"phase '{phase.name}': the weight of '{name}' becomes {q}/2^28 of the phase; 'sequences: N' would be exact"
        for phase in plan.phases
        for name, q in phase.quotas.items()
        if q < quota.COARSE
    ]


def closest_repeat(plan: Plan, domain: str) -> int | None:
    """Fewest sequences of a domain between two that share tokens across an epoch's end.

    ``None`` where the domain is not repeated. Only the last and first ``min(N, 20 * isqrt(N))`` sequences
    at each border are compared: with independent orders the closest pair lies within them. What a domain goes on with
    in another corpus is not compared with what came before.
    """
    consumed = plan.consumed(domain)
    pieces = plan.pieces(domain)
    ends = [*(ring.running for ring in pieces[1:]), consumed]
    found = [
        _closest_in(plan, ring, min(end, consumed) - ring.running)
        for ring, end in zip(pieces, ends, strict=True)
        if min(end, consumed) > ring.running
    ]
    return min((gap for gap in found if gap is not None), default=None)


def _closest_in(plan: Plan, ring: Ring, consumed: int) -> int | None:
    per_epoch = ring.tokens // plan.seq_len
    closest: int | None = None
    for number in range(1, -(-consumed // per_epoch)):
        epoch = ring.epoch + number
        near = min(per_epoch, 20 * math.isqrt(per_epoch))
        late = _starts(plan, ring, epoch - 1, np.arange(per_epoch - near, per_epoch))
        early = _starts(plan, ring, epoch, np.arange(min(near, consumed - number * per_epoch)))
        order = np.argsort(early)
        for shift in (0, 1):
            # Of the sequences of the new epoch, at most two share tokens with an old one: the last that
            # begins at or before it, and the next.
            at = np.searchsorted(early[order], late, side="right") - 1 + shift
            inside = (at >= 0) & (at < len(early))
            candidates = order[at[inside]]
            overlap = np.abs(early[candidates] - late[inside]) < plan.seq_len
            gaps = (near - 1 - np.flatnonzero(inside)[overlap]) + candidates[overlap] + 1
            if gaps.size:
                closest = min(int(gaps.min()), closest if closest is not None else per_epoch)
    return closest


def _starts(plan: Plan, ring: Ring, epoch: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
    per_epoch = ring.tokens // plan.seq_len
    number = permute(order_key(plan.seed, ring, epoch), per_epoch, places).astype(np.int64)
    return (epoch_offset(plan.seed, ring, epoch) + number * plan.seq_len) % ring.tokens
