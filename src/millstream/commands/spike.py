"""``millstream audit spike``: the loss of a step, taken apart."""

from enum import StrEnum
from typing import Annotated

import polars as pl
import typer

from millstream import show
from millstream.audit.document import hex_keys
from millstream.audit.spike import SpikeAudit, audit_spike
from millstream.commands.audit import open_run_and_corpora
from millstream.commands.options import AsJson, CorpusPlace, RunName

SHOWN = 20


class By(StrEnum):
    """What documents are ranked by."""

    share = "share"
    excess = "excess"


def spike_command(
    run_name: RunName,
    step: Annotated[int, typer.Argument(help="Step, from 1.")],
    by: Annotated[
        By, typer.Option(help="Rank by the share of the loss, or by what exceeds the usual loss of the domain.")
    ] = By.share,
    attempt: Annotated[int | None, typer.Option(help="As this attempt fed it [default: as it was learned].")] = None,
    documents: Annotated[int, typer.Option(help="Documents to show.", min=1)] = SHOWN,
    corpus: CorpusPlace = None,
    as_json: AsJson = False,
) -> None:
    """Which documents made the loss of a step: their shares, what was mixed, and whether they were seen before.

    Examples: millstream audit spike demo 118

    millstream audit spike demo 118 --by excess --documents 50 --json
    """
    run, corpora = open_run_and_corpora(run_name, corpus)
    audit = audit_spike(run, corpora, step, attempt, by.value, documents)
    if as_json:
        shown = [hex_keys(row) for row in audit.documents.head(documents).to_dicts()]
        answer = {"run": run.name, "fed": audit.fed, "superseded": audit.superseded, "phase": audit.phase}
        show.json(answer | {"loss": audit.loss, "domains": audit.domains.to_dicts(), "documents": shown})
    else:
        _print(audit, run.name, documents)


def _print(audit: SpikeAudit, name: str, most: int) -> None:
    state = "superseded" if audit.superseded else "learned" if audit.fed.update_applied else "update not applied"
    show.line(
        f"run {name} · step {audit.fed.step} · phase {audit.phase} · attempt {audit.fed.attempt} · {state} · "
        f"loss {audit.loss:.4f}"
    )
    show.table(None, audit.domains.columns, audit.domains.rows())
    shown = audit.documents.head(most).select(
        (pl.col("share") * 100).alias("share %"),
        (pl.col("excess") * 1000).alias("excess /1000"),
        "loss",
        pl.col("rows").list.len().alias("sequences"),
        "tokens",
        "domain",
        pl.col("doc_id").alias("document"),
        "url",
        "earlier",
        "last_step",
    )
    show.table(None, shown.columns, shown.rows())
    if len(shown) < len(audit.documents):
        rest = len(audit.documents) - len(shown)
        show.line(f"... and {rest} more, {100 * audit.documents['share'][most:].sum():.1f}% of the loss (--documents)")


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("spike")(spike_command)
