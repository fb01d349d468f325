"""``audit mixture``: what was really mixed, beside what the recipe asked for."""

from fractions import Fraction

import numpy as np
import polars as pl
from numpy.typing import NDArray

from millstream.audit.runs import Run
from millstream.stream import quota
from millstream.stream.plan import Phase

CHUNK = 1 << 16

SCHEMA = {
    "phase": pl.String,
    "domain": pl.String,
    "weight": pl.String,
    "planned": pl.Int64,
    "expected": pl.Float64,
    "realised": pl.Int64,
    "deviation": pl.Float64,
    "tokens": pl.Int64,
    "share": pl.Float64,
    "epochs": pl.Float64,
}


def audit_mixture(run: Run) -> pl.DataFrame:
    """Planned and realised sequences per phase and domain.

    Realised are the sequences that the lineage learned: fed, not superseded, the update applied. They are
    counted from the ledger's index ranges through the plan, not from the weights.

    Returns:
        One row a phase and domain with weight: ``planned`` (sequences in the whole phase), ``expected``
        (exact share of what the phase has fed so far), ``realised``, ``deviation`` (realised - expected),
        ``tokens`` (realised), ``share`` (of the phase's realised sequences), ``epochs`` (of the domain, at
        the end of what was realised).
    """
    counts = _realised(run)
    rows = []
    for phase in run.plan.phases:
        done = int(counts[phase.number].sum())
        for name in [n for n in run.plan.domains if n in phase.tree.domains]:
            number = run.plan.domains.index(name)
            realised = int(counts[phase.number, number])
            expected = _share(phase, name) * done
            before = int(counts[: phase.number, number].sum())
            rows.append(
                {
                    "phase": phase.name,
                    "domain": name,
                    "weight": phase.weights[name],
                    "planned": phase.taken(name),
                    "expected": float(expected),
                    "realised": realised,
                    "deviation": float(realised - expected),
                    "tokens": realised * run.plan.seq_len,
                    "share": realised / done if done else 0.0,
                    "epochs": run.plan.epochs(name, before + realised),
                }
            )
    return pl.DataFrame(rows, schema=SCHEMA)


def _realised(run: Run) -> NDArray[np.int64]:
    """Learned sequences: int64 (phases, domains)."""
    counts = np.zeros((len(run.plan.phases), len(run.plan.domains)), np.int64)
    firsts = [phase.first for phase in run.plan.phases]
    for first, end in _learned_spans(run):
        for start in range(first, end, CHUNK):
            indices = np.arange(start, min(end, start + CHUNK), dtype=np.uint64)
            phases = np.searchsorted(firsts, indices.astype(np.int64), side="right") - 1
            np.add.at(counts, (phases, run.plan.locate(indices).domain), 1)
    return counts


def _learned_spans(run: Run) -> list[tuple[int, int]]:
    """Index ranges of learned steps, adjoining ones joined."""
    spans: list[tuple[int, int]] = []
    for step in sorted(run.fed):
        fed = run.learned(step)
        if fed is None or not fed.update_applied:
            continue
        end = fed.first_index + fed.sequences
        if spans and spans[-1][1] == fed.first_index:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((fed.first_index, end))
    return spans


def _share(phase: Phase, domain: str) -> Fraction:
    if domain in phase.exact:
        return Fraction(phase.exact[domain], phase.length)
    weighted = 1 - Fraction(sum(phase.exact.values()), phase.length)
    return Fraction(phase.quotas[domain], quota.TOTAL) * weighted
