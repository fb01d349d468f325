"""Detectors that judge a run by its ladder: the registered forecast, and envelopes of what the rungs had."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from millstream.audit.runs import Run
from millstream.train.forecast.varpro import Floats
from millstream.train.ladder.folder import Ladder
from millstream.train.ladder.registered import registered, score
from millstream.train.metrics import current, read_metrics
from millstream.train.watch.alarms import Alarm, Settings
from millstream.train.watch.readings import Readings, readings
from millstream.train.watch.statistics import in_a_row

ENVELOPED = ("grad_norm", "drop_rate", "expert_load_max", "expert_load_entropy", "router_bias_max")
PREFIXES = ("grad_norm/", "param_norm/")
"""Metrics of groups of parameters, whatever their names are."""
BINS = 50
LEAST = 1e-3
"""Below it a rate is none: rungs without any dropped token have no envelope of it."""


Envelope = tuple[Floats, Floats]
"""Lowest and highest value in each of ``BINS`` equal parts of a run, (bins,)."""


def off_forecast(run: Run, metrics: pl.DataFrame, settings: Settings) -> list[Alarm]:
    """Losses that leave the registered band and stay out of it.

    Args:
        run: the run.
        metrics: its numbers, as from ``current``.
        settings: thresholds.
    """
    forecast = registered(run)
    if forecast is None:
        return []
    alarms = []
    points = score(run, forecast, metrics).points
    for (name, domain), own in points.group_by("name", "domain", maintain_order=True):
        row = in_a_row(~own["inside"].to_numpy())
        for at in np.flatnonzero(row == settings.forecast_points).tolist():
            step, seen, low, high = own.select("step", "measured", "low", "high").row(at)
            text = (
                f"{name}{f' of {domain}' if domain else ''} {seen:.4f} has been outside the registered band for "
                f"{settings.forecast_points} points, {low:.4f} to {high:.4f} here"
            )
            limit = high if seen > high else low
            alarms.append(
                Alarm(
                    step=step, detector="forecast", name=str(name), domain=domain and str(domain), value=seen,
                    limit=limit, text=text,
                )
            )  # fmt: skip
    return alarms


def outside_envelope(found: Readings, envelopes: dict[str, Envelope], settings: Settings) -> list[Alarm]:
    """Norms and routing that leave what the rungs had at the same progress, widened by a factor."""
    alarms = []
    for name, (low, high) in envelopes.items():
        level = in_bins(found, name)
        out = (level < low / settings.envelope) | (level > high * settings.envelope)
        # Two bins: one may hold little.
        for place in np.flatnonzero(in_a_row(out & np.isfinite(level)) == 2).tolist():
            step = min(int(found.steps[-1]), int(np.ceil((place + 1) / BINS * found.total)))
            limit = high[place] * settings.envelope if level[place] > high[place] else low[place] / settings.envelope
            text = (
                f"{name} is {level[place]:.3g}, the ladder had {low[place]:.3g} to {high[place]:.3g} at this progress"
            )
            alarms.append(
                Alarm(
                    step=step, detector="envelope", name=name, domain=None, value=float(level[place]),
                    limit=float(limit), text=text,
                )
            )  # fmt: skip
    return alarms


def envelopes_of(ladder: Ladder) -> dict[str, Envelope]:
    """What a ladder's finished rungs had at each progress, and what a power of size makes of it at the hero's.

    A part's envelope spans the rungs' values, the value that a line through their logarithms has at the hero's size,
    and neighbouring parts. Metrics that a rung lacks, or has zeros of, have none.
    """
    found, sizes = [], []
    for rung in ladder.rungs:
        run = ladder.run_of(rung)
        if run is not None and run.finished:
            found.append(readings(current(read_metrics(run.path)), rung.steps))
            sizes.append(float(rung.active))
    envelopes: dict[str, Envelope] = {}
    if len(set(sizes)) < 2:
        return envelopes
    for name in _enveloped(found):
        levels = np.stack([in_bins(own, name) for own in found])
        usable = np.isfinite(levels) & (levels > LEAST)
        logs = np.log(np.where(usable, levels, np.nan))
        reached = _at_size(np.log(np.array(sizes)), logs, float(np.log(ladder.hero.active)))
        every = np.concatenate((logs, reached[None]))
        with np.errstate(all="ignore"):
            low, high = np.exp(np.min(every, 0)), np.exp(np.max(every, 0))
        envelopes[name] = (_spread(low, np.fmin), _spread(high, np.fmax))
    return envelopes


def in_bins(found: Readings, name: str) -> Floats:
    """Median of a metric in each of ``BINS`` equal parts of the run that it has passed, else NaN: (bins,)."""
    values = found.column(name)
    place = np.minimum(np.ceil(found.steps / found.total * BINS).astype(int), BINS) - 1
    levels = np.full(BINS, np.nan)
    done = int(found.steps[-1] / found.total * BINS) if len(found.steps) else 0
    for number in range(done):
        own = values[place == number]
        own = own[np.isfinite(own)]
        if len(own):
            levels[number] = np.median(own)
    return levels


def _enveloped(found: Sequence[Readings]) -> list[str]:
    names = {name for name, domain in found[0].columns if domain is None}
    wanted = [n for n in sorted(names) if n in ENVELOPED or n.startswith(PREFIXES)]
    return [name for name in wanted if all((name, None) in own.columns for own in found)]


def _at_size(sizes: Floats, logs: Floats, hero: float) -> Floats:
    """The line through each column (runs, bins) over sizes (runs,), at the hero's: (bins,)."""
    centred = sizes - sizes.mean()
    slope = (centred[:, None] * logs).sum(0) / np.square(centred).sum()
    return np.asarray(logs.mean(0) + slope * (hero - sizes.mean()))


def _spread(values: Floats, choose: np.ufunc) -> Floats:
    """The extreme of each value and its two neighbours."""
    before, after = np.append(np.nan, values[:-1]), np.append(values[1:], np.nan)
    return np.asarray(choose(values, choose(before, after)))
