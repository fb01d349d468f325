"""``audit spike``: which documents made the loss of a step, from the recorded losses of its sequences.

A sequence's loss is apportioned to its documents by their targets. So a document that fills its sequence always has a
large share; what it has in excess of its domain's usual loss tells more where single documents are suspected.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from millstream.audit.document import exposures
from millstream.audit.losses import read_losses
from millstream.audit.mixture import shares_of
from millstream.audit.records import FedStep
from millstream.audit.runs import Run
from millstream.errors import InputError, UsageError
from millstream.stream.corpora import Corpora
from millstream.stream.documents import documents_of
from millstream.stream.plan import Plan

BEFORE = 16
"""Steps whose losses say what is usual."""

By = Literal["share", "excess"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SpikeAudit:
    """A step's loss, taken apart.

    ``domains``: ``domain``, ``planned`` (exact share of the step, in sequences), ``sequences``, ``off``, ``loss`` (mean
    of its sequences, nats), ``usual`` (the same over up to ``BEFORE`` learned steps before; null where there are none).

    ``documents``, ranked: ``doc_key``, ``doc_id``, ``url``, ``licence``, ``domain``, ``rows`` (of the batch),
    ``tokens`` (its targets in the step), ``n_tokens``, ``loss`` (of its sequences, weighed by its targets), ``share``
    (of the step's loss), ``excess`` (nats that it adds to the step's mean loss over what is usual in its domain), and
    of the first ones ``earlier`` (times it was learned from before) and ``last_step`` (the last of them).
    """

    fed: FedStep
    superseded: bool
    phase: str
    loss: float
    domains: pl.DataFrame
    documents: pl.DataFrame


def audit_spike(
    run: Run, corpora: Corpora, step: int, attempt: int | None = None, by: By = "share", most: int = 20
) -> SpikeAudit:
    """Take the loss of a step apart.

    Where a loss is no finite number, the documents of such sequences share the step's loss among themselves by targets.

    Args:
        run: the run.
        corpora: its corpora.
        step: which step.
        attempt: as that attempt fed it; by default as the lineage has it, or the newest one.
        by: what documents are ranked by.
        most: documents whose earlier exposures are counted.

    Raises:
        UsageError: the step was not fed, or not by that attempt.
        InputError: its losses were not recorded, or are missing or altered.
    """
    fed = _chosen(run, step, attempt)
    plan = run.plans[fed.segment]
    losses = read_losses(run, fed).astype(np.float64)
    located = plan.locate(_indices(fed))
    usual = _usual(run, plan, step)
    found = documents_of(corpora, plan, located, step)
    row = found["row"].to_numpy()
    tokens = found["tokens"].to_numpy().astype(np.float64)
    part = tokens / np.bincount(row, tokens, len(losses))[row]
    finite = bool(np.isfinite(losses).all())
    weight = np.where(np.isfinite(losses), 0 if not finite else losses, 1)
    excess = np.where(np.isfinite(losses), (losses - usual[located.domain]) / len(losses), np.inf)
    ring = located.ring[row]
    documents = (
        found.with_columns(
            corpus_id=pl.Series([plan.rings[number].corpus_id for number in ring.tolist()], dtype=pl.String),
            loss=pl.Series(losses[row] * tokens),
            share=pl.Series(weight[row] * part / max(weight.sum(), np.finfo(float).tiny)),
            excess=pl.Series(excess[row] * part),
        )
        .group_by("domain", "corpus_id", "token_start", maintain_order=True)
        .agg(
            pl.col("doc_key", "doc_id", "url", "licence", "n_tokens").first(),
            pl.col("row").unique(maintain_order=True).alias("rows"),
            pl.col("tokens", "loss", "share", "excess").sum(),
        )
        .with_columns(loss=pl.col("loss") / pl.col("tokens"), excess=pl.col("excess").fill_nan(None))
        .sort(by, descending=True, nulls_last=True, maintain_order=True)
    )
    return SpikeAudit(
        fed=fed,
        superseded=run.superseded(fed),
        phase=plan.phase_of_step(step).name,
        loss=float(losses.mean()),
        domains=_domains(plan, step, located.domain, losses, usual),
        documents=_with_earlier(run, documents, step, most),
    )


def _chosen(run: Run, step: int, attempt: int | None) -> FedStep:
    fed = [f for f in run.fed.get(step, []) if attempt in (None, f.attempt)]
    if not fed:
        by = f" by attempt {attempt}" if attempt is not None else ""
        raise UsageError(f"{run.path}: step {step} was not fed{by}; the run is at step {run.last_step}")
    return next((f for f in reversed(fed) if not run.superseded(f)), fed[-1])


def _indices(fed: FedStep) -> NDArray[np.uint64]:
    return np.arange(fed.first_index, fed.first_index + fed.sequences, dtype=np.uint64)


def _usual(run: Run, plan: Plan, step: int) -> NDArray[np.float64]:
    """Mean loss of each of the plan's domains over the learned steps before, NaN where there is none."""
    total, count = np.zeros(len(plan.domains)), np.zeros(len(plan.domains))
    places = {name: place for place, name in enumerate(plan.domains)}
    for before in range(max(1, step - BEFORE), step):
        fed = run.learned(before)
        if fed is None:
            continue
        try:
            losses = read_losses(run, fed).astype(np.float64)
        except InputError:
            continue
        own = run.plans[fed.segment]
        domain = np.array([places.get(name, -1) for name in own.domains])[own.running(_indices(fed))[0]]
        kept = np.isfinite(losses) & (domain >= 0)
        total += np.bincount(domain[kept], losses[kept], len(total))
        count += np.bincount(domain[kept], minlength=len(total))
    usual: NDArray[np.float64] = np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)
    return usual


def _domains(
    plan: Plan, step: int, domain: NDArray[np.int64], losses: NDArray[np.float64], usual: NDArray[np.float64]
) -> pl.DataFrame:
    count = np.bincount(domain, minlength=len(plan.domains))
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(domain, losses, len(plan.domains)) / count
    shares = shares_of(plan.phase_of_step(step))
    planned = np.array([float(shares.get(name, 0) * len(losses)) for name in plan.domains])
    table = pl.DataFrame(
        {
            "domain": list(plan.domains),
            "planned": planned,
            "sequences": count,
            "off": count - planned,
            "loss": mean,
            "usual": usual,
        }
    )
    return table.filter((pl.col("planned") > 0) | (pl.col("sequences") > 0)).with_columns(
        pl.col("usual").fill_nan(None), pl.when(pl.col("sequences") > 0).then("loss").alias("loss")
    )


def _with_earlier(run: Run, documents: pl.DataFrame, step: int, most: int) -> pl.DataFrame:
    earlier: list[int | None] = [None] * len(documents)
    last: list[int | None] = [None] * len(documents)
    for place, document in enumerate(documents.head(most).iter_rows(named=True)):
        start, end = document["token_start"], document["token_start"] + document["n_tokens"]
        seen = exposures(run, document["corpus_id"], document["domain"], start, end)
        steps = [e.step for e in seen if e.step < step and e.status == "learned"]
        earlier[place], last[place] = len(steps), max(steps, default=None)
    columns = (
        "doc_key",
        "doc_id",
        "url",
        "licence",
        "domain",
        "rows",
        "tokens",
        "n_tokens",
        "loss",
        "share",
        "excess",
    )
    return documents.select(columns).with_columns(
        earlier=pl.Series(earlier, dtype=pl.Int64), last_step=pl.Series(last, dtype=pl.Int64)
    )
