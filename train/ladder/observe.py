"""What a ladder's runs measured, at the same fractions of their way: tables of losses by size.

Held-out losses are taken where they were evaluated and read off at the hero's evaluations in between; the training loss
is the mean over each twentieth of the run. Only steps that the run still counts are used.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from millstream.errors import UsageError
from millstream.train.forecast.next_size import Ladder as Sizes
from millstream.train.forecast.varpro import Floats
from millstream.train.ladder.folder import Entry, Ladder
from millstream.train.metrics import current, read_metrics

EVALUATED = ("loss_held_out",)
BINNED = ("loss",)
BINS = 20

Series = tuple[str, str | None]
"""Name of a metric, and a domain or None for all."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Losses of a ladder's runs.

    ``names``: metric names; ``fractions`` of each (points,), rising to 1; ``series`` of each; ``losses`` of each
    (points, runs, series); ``size`` active parameters (runs,).
    """

    size: Floats
    fractions: dict[str, Floats]
    series: dict[str, tuple[Series, ...]]
    losses: dict[str, Floats]

    def at(self, name: str, point: int) -> Sizes:
        """A metric at one fraction, as the forecast takes it."""
        return Sizes(size=self.size, group=np.zeros(len(self.size), np.int64), losses=self.losses[name][point])


def observe(ladder: Ladder, rungs: Sequence[Entry]) -> Observed:
    """Read the finished runs of some rungs.

    Raises:
        UsageError: one was not begun or is not finished, or they measured nothing in common.
    """
    tables = []
    for rung in rungs:
        run = ladder.run_of(rung)
        if run is None or not run.finished:
            state = f"is at step {run.last_step} of {rung.steps}" if run is not None else "was not begun"
            raise UsageError(f"{ladder.path}: {rung.name} {state}; 'millstream ladder run' trains what is left")
        tables.append(current(read_metrics(run.path)))
    fractions: dict[str, Floats] = {}
    series: dict[str, tuple[Series, ...]] = {}
    losses: dict[str, Floats] = {}
    for metric in (*EVALUATED, *BINNED):
        found = [_series(table, metric) for table in tables]
        common = tuple(s for s in found[0] if all(s in other for other in found))
        at = points_of(metric, ladder.hero)
        if not common or not len(at):
            continue
        rows = [
            [measured(table, which, at, rung.steps) for which in common]
            for table, rung in zip(tables, rungs, strict=True)
        ]
        values = np.array(rows).transpose(2, 0, 1)
        whole = np.isfinite(values).all((1, 2))
        fractions[metric], series[metric], losses[metric] = at[whole], common, values[whole]
    if not any(len(values) for values in losses.values()):
        raise UsageError(f"{ladder.path}: its runs measured no loss in common")
    size = np.array([float(rung.active) for rung in rungs])
    return Observed(size=size, fractions=fractions, series=series, losses=losses)


def points_of(name: str, hero: Entry) -> Floats:
    """Fractions of the way at which a metric is compared, (points,): the hero's evaluations, or bins."""
    if name in BINNED:
        return (np.arange(BINS) + 1) / BINS
    every = hero.evaluate_every
    if every is None:
        return np.zeros(0)
    return np.unique(np.append(np.arange(every, hero.steps + 1, every), hero.steps)) / hero.steps


def measured(table: pl.DataFrame, which: Series, fractions: Floats, steps: int) -> Floats:
    """A run's losses at fractions of its way, (points,); NaN where it has not come so far.

    Args:
        table: the run's numbers, as from ``current``.
        which: metric and domain.
        fractions: (points,).
        steps: of the whole run.
    """
    name, domain = which
    rows = table.filter((pl.col("name") == name) & pl.col("domain").eq_missing(pl.lit(domain, pl.String)))
    at, value = rows["step"].to_numpy() / steps, rows["value"].to_numpy()
    if name in EVALUATED:
        # Rounded to whole steps, a rung's evaluations lie up to two of them beside the hero's.
        known = (fractions >= at[0] - 2 / steps) & (fractions <= at[-1] + 2 / steps) if len(at) else fractions < 0
        return np.where(known, np.interp(fractions, at, value) if len(at) else np.nan, np.nan)
    place = np.minimum(np.ceil(at * len(fractions)).astype(int), len(fractions)) - 1
    count = np.bincount(place, minlength=len(fractions))
    total = np.bincount(place, value, len(fractions))
    whole = fractions <= (at[-1] if len(at) else 0) + 1e-9
    return np.where(whole & (count > 0), total / np.maximum(count, 1), np.nan)


def _series(table: pl.DataFrame, name: str) -> list[Series]:
    domains = table.filter(pl.col("name") == name)["domain"].unique(maintain_order=True).to_list()
    return [(name, domain) for domain in sorted(domains, key=lambda d: (d is not None, d or ""))]
