"""Every exposure of every document in a run, streamed: which document was a target where, under which standing.

    table of documents -> slices -> sequences of the plan that hold them (its inverse) -> steps that were fed

Each table is read once, whatever the number of steps, and no more than a slice of documents and its exposures is in
memory, beside the run's own records.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from millstream.audit.branches import branches_of, controls_of
from millstream.audit.corpora import open_corpora
from millstream.audit.records import fed_step
from millstream.audit.runs import Run
from millstream.errors import InputError
from millstream.stream.corpora import Corpora, Corpus
from millstream.stream.documents import overlaps, unwrap
from millstream.stream.plan import Plan, Sequences
from millstream.stream.ring import Ring
from millstream.stream.roots import whole_file
from millstream.stream.tombstones import buried, masked_targets
from millstream.tokenize.manifest import Shard

SLICE = 1 << 13
"""Documents that are looked at together."""

FED_SCHEMA = pl.Schema(
    {
        "plan_id": pl.String,
        "branch": pl.String,
        "standing": pl.String,
        "learned": pl.Boolean,
        "attempt": pl.Int32,
        "segment": pl.Int32,
        "record": pl.Int64,
        "step": pl.Int64,
    }
)

EXPOSURE_SCHEMA = pl.Schema(
    {
        "branch": pl.String,
        "standing": pl.String,
        "learned": pl.Boolean,
        "attempt": pl.Int32,
        "segment": pl.Int32,
        "phase": pl.String,
        "step": pl.Int64,
        "row": pl.Int32,
        "sequence": pl.Int64,
        "epoch": pl.Int32,
        "corpus_id": pl.String,
        "domain": pl.String,
        "doc_key": pl.Binary,
        "doc_id": pl.String,
        "document_start": pl.Int64,
        "document_end": pl.Int64,
        "sequence_start": pl.Int32,
        "sequence_end": pl.Int32,
        "tokens": pl.Int32,
    }
)
"""One row a stretch of a document in a row of a step that was fed.

``standing`` is ``accepted`` (in the run's lineage), ``superseded`` (the run went back to before it), ``trial`` (fed by
a branch since it left) or ``control``; ``branch`` names the run that fed it. ``learned``: in that run's lineage, and
the update was applied. ``sequence`` is the global index, ``document_start`` to ``document_end`` tokens of the document,
``sequence_start`` to ``sequence_end`` targets of the sequence, both half-open; ``tokens`` are the targets that counted:
fewer where some were taken down.
"""


@dataclass(frozen=True, slots=True)
class Course:
    """What a run and those who left it were fed: step records, the plans that they were fed by, the corpora."""

    fed: pl.DataFrame
    """``FED_SCHEMA``."""
    plans: dict[str, Plan]
    """By plan id."""
    corpora: dict[str, Corpus]


def open_course(run: Run, corpora: Corpora, *, alone: bool = False) -> Course:
    """The course of a run.

    Args:
        run: the run.
        corpora: its corpora.
        alone: leave out branches and controls.

    Raises:
        InputError: a corpus of a branch is not there.
    """
    frames: list[pl.DataFrame] = []
    plans: dict[str, Plan] = {}
    known = dict(corpora)
    for member, since, standing in [(run, 0, None)] if alone else _family(run):
        frames.append(_fed(member, since, standing))
        plans |= {plan.plan_id: plan for plan in member.plans.values()}
        if wanted := {i for plan in member.plans.values() for i in plan.corpus_ids} - known.keys():
            known |= {i: corpus for i, corpus in open_corpora(member).items() if i in wanted}
    return Course(pl.concat(frames), plans, known)


def exposure_slices(course: Course, columns: Sequence[str] = ()) -> Iterator[pl.DataFrame]:
    """All exposures of a course, a slice of documents after another, each document's in order of step and record.

    Args:
        course: of which run.
        columns: of the document tables, beside those of ``EXPOSURE_SCHEMA``; not ``token_start``.

    Returns:
        Frames of ``EXPOSURE_SCHEMA`` and ``columns``; none is empty.

    Raises:
        InputError: a document table is missing or damaged.
    """
    fed_by = {str(key[0]): frame for key, frame in course.fed.group_by("plan_id")}
    plans = {plan_id: course.plans[plan_id] for plan_id in fed_by}
    wanted = tuple(dict.fromkeys(("doc_key", "doc_id", "token_start", "n_tokens", *columns)))
    for corpus_id, corpus in course.corpora.items():
        for domain in corpus.manifest.domains:
            reading = {i: ring for i, p in plans.items() if (ring := _ring(p, domain.name, corpus_id)) is not None}
            for shard in domain.shards if reading else ():
                for table in document_slices(corpus, shard, wanted):
                    found = [_in_plan(table, plans[i], ring, fed_by[i], columns) for i, ring in reading.items()]
                    frame = pl.concat(found)
                    if len(frame):
                        yield frame.sort("at", "step", "record", "row", "sequence_start").drop("at", "record")


def document_slices(corpus: Corpus, shard: Shard, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    """A shard's documents, ``SLICE`` at a time, without holding the table.

    Raises:
        InputError: the table is missing or damaged.
    """
    where = f"{corpus.root}/{shard.documents.path}"
    try:
        with pq.ParquetFile(whole_file(corpus.root, shard.documents)) as file:
            for batch in file.iter_batches(SLICE, columns=list(columns)):
                yield pl.DataFrame(pl.from_arrow(batch))
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{where}: damaged: {str(error).splitlines()[0]}") from error


def _family(run: Run) -> Iterator[tuple[Run, int, str | None]]:
    """The run, its branches and theirs, and all controls: each with its first own record and standing."""
    pending: list[tuple[Run, int, str | None]] = [(run, 0, None)]
    while pending:
        member, since, standing = pending.pop(0)
        yield member, since, standing
        leaving = [(branch, "trial") for branch in branches_of(member)]
        leaving += [(control, "control") for control in controls_of(member)]
        pending += [(r, _own(r), "control" if standing == "control" else s) for r, s in leaving]


def _own(run: Run) -> int:
    """The first record that a branch does not share with the run it left."""
    return max(r.seq for r in run.records.of("branch") if "of" in r.body)


def _fed(run: Run, since: int, standing: str | None) -> pl.DataFrame:
    names, rows = {0: str(run.info["name"])}, []
    for record in run.records.of("branch"):
        if "of" in record.body:
            names[record.seq] = f"{run.info['name']}/{record.body['name']}"
    starts = np.array(list(names), np.int64)
    called = list(names.values())
    for fed in map(fed_step, run.records.of("step")):
        if fed.seq < since:
            continue
        gone = run.superseded(fed)
        rows.append(
            (
                run.plans[fed.segment].plan_id,
                called[int(np.searchsorted(starts, fed.seq, side="right")) - 1],
                standing or ("superseded" if gone else "accepted"),
                fed.update_applied and not gone,
                fed.attempt,
                fed.segment,
                fed.seq,
                fed.step,
            )
        )
    return pl.DataFrame(rows, schema=FED_SCHEMA, orient="row")


def _ring(plan: Plan, domain: str, corpus_id: str) -> Ring | None:
    return next((r for r in plan.rings if (r.name, r.corpus_id) == (domain, corpus_id)), None)


def _in_plan(table: pl.DataFrame, plan: Plan, ring: Ring, fed: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Exposures of documents that lie end to end, in the steps that were fed by one plan."""
    # A limit cuts a domain at a document.
    table = table.filter(pl.col("token_start") + pl.col("n_tokens") <= ring.tokens)
    taken = tuple(dict.fromkeys(("doc_key", "doc_id", "token_start", *columns)))
    start = int(table["token_start"][0]) if len(table) else 0
    end = int(table["token_start"][-1] + table["n_tokens"][-1]) if len(table) else 0
    planned = plan.exposures(ring.name, start, end, ring.corpus_id)
    chosen = np.flatnonzero(np.isin(planned.step, fed["step"].to_numpy()))
    located = plan.locate(planned.index[chosen])
    step = planned.step[chosen]
    first = (located.start + 1) % ring.tokens
    found = overlaps(table, unwrap(np.arange(chosen.size), first, plan.seq_len, ring.tokens), taken)
    at = found["row"].to_numpy()
    found = found.with_columns(tokens=pl.Series(_counted(plan, located, step, found), dtype=pl.Int64))
    placed = found.select(
        pl.col("token_start").alias("at"),
        pl.Series("step", step[at], dtype=pl.Int64),
        pl.Series("row", planned.row[chosen][at], dtype=pl.Int32),
        pl.Series("sequence", planned.index[chosen][at].astype(np.int64), dtype=pl.Int64),
        pl.Series("epoch", planned.epoch[chosen][at], dtype=pl.Int32),
        pl.Series("phase", [plan.phases[n].name for n in planned.phase[chosen][at].tolist()], dtype=pl.String),
        pl.lit(ring.corpus_id).alias("corpus_id"),
        pl.lit(ring.name).alias("domain"),
        *(name for name in taken if name != "token_start"),
        pl.col("from_token").alias("document_start"),
        (pl.col("from_token") + pl.col("last") - pl.col("first") + 1).alias("document_end"),
        pl.col("first").cast(pl.Int32).alias("sequence_start"),
        (pl.col("last") + 1).cast(pl.Int32).alias("sequence_end"),
        pl.col("tokens").cast(pl.Int32),
    ).filter(pl.col("tokens") > 0)
    joined = placed.join(fed.drop("plan_id"), on="step", how="inner")
    return joined.select("at", "record", *EXPOSURE_SCHEMA, *columns)


def _counted(plan: Plan, located: Sequences, step: NDArray[np.int64], found: pl.DataFrame) -> NDArray[np.int64]:
    """Targets of each stretch that were not taken down at its step."""
    tokens: NDArray[np.int64] = found["tokens"].to_numpy().copy()
    borders = sorted({stone.from_step for stone in plan.tombstones})
    if not borders:
        return tokens
    row, first, last = (found[name].to_numpy() for name in ("row", "first", "last"))
    since = np.searchsorted(borders, step, side="right")
    for number in range(1, len(borders) + 1):
        rows = np.flatnonzero(since == number)
        if not rows.size:
            continue
        own = Sequences(**{name: getattr(located, name)[rows] for name in Sequences.__slots__})
        masked = masked_targets(buried(plan, own, slice(None), borders[number - 1]), rows.size, plan.seq_len)
        if masked is None:
            continue
        before = np.pad(masked.cumsum(1), ((0, 0), (1, 0)))
        at = np.flatnonzero(np.isin(row, rows))
        place = np.searchsorted(rows, row[at])
        tokens[at] -= before[place, last[at] + 1] - before[place, first[at]]
    return tokens
