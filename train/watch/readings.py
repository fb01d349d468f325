"""A run's numbers as arrays: one column a metric and domain, one row a step that still counts."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from millstream.train.forecast.varpro import Floats

Key = tuple[str, str | None]
"""Metric, and domain or None for all."""


@dataclass(frozen=True)
class Readings:
    """``steps`` (n,), rising; ``columns`` (n,) each, NaN where a step has no such number.

    ``total`` is the number of steps that are planned. ``given`` says where a number was recorded, since a recorded one
    may be NaN itself.
    """

    steps: NDArray[np.int64]
    columns: dict[Key, Floats]
    given: dict[Key, NDArray[np.bool_]]
    total: int

    def column(self, name: str, domain: str | None = None) -> Floats:
        """A metric's values (n,); NaN everywhere where it was never recorded."""
        return self.columns.get((name, domain), np.full(len(self.steps), np.nan))

    def domains(self, name: str) -> Iterator[tuple[str, Floats]]:
        """A metric's domains with their values."""
        for (metric, domain), values in self.columns.items():
            if metric == name and domain is not None:
                yield domain, values

    def since(self, step: int) -> "Readings":
        """The steps from one on."""
        first = int(np.searchsorted(self.steps, step))
        columns = {key: values[first:] for key, values in self.columns.items()}
        given = {key: there[first:] for key, there in self.given.items()}
        return Readings(self.steps[first:], columns, given, self.total)


def readings(metrics: pl.DataFrame, total: int) -> Readings:
    """Arrange a run's numbers, as from ``millstream.train.metrics.current``; ``total`` is the plan's steps."""
    steps = metrics["step"].unique().sort().to_numpy()
    columns: dict[Key, Floats] = {}
    given: dict[Key, NDArray[np.bool_]] = {}
    for (name, domain), rows in metrics.group_by("name", "domain", maintain_order=True):
        at = np.searchsorted(steps, rows["step"].to_numpy())
        key = (str(name), None if domain is None else str(domain))
        columns[key] = np.full(len(steps), np.nan)
        columns[key][at] = rows["value"].to_numpy()
        given[key] = np.zeros(len(steps), np.bool_)
        given[key][at] = True
    return Readings(steps, columns, given, total)
