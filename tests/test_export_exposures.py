"""``export exposures`` says of every document what replaying every record says, branches and controls too."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from fed_runs import feed, start
from typer.testing import CliRunner

from millstream.audit import exposures as exposures_module
from millstream.audit.branches import branch_run, control_run
from millstream.audit.change import amend_run, reason, roll_back
from millstream.audit.corpora import open_corpora
from millstream.audit.document import audit_document
from millstream.audit.exposures import EXPOSURE_SCHEMA, exposure_slices, open_course
from millstream.audit.lookup import Question, question
from millstream.audit.runs import Run, open_run
from millstream.audit.takedown import take_down
from millstream.cli import app
from millstream.stream.amend import Amendment
from millstream.stream.documents import documents_of

WHY = reason("test", "ann")
KEYS = ["branch", "step", "attempt", "segment", "row", "domain", "doc_id", "epoch", "sequence_start", "document_start"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Amended, skipped, rolled back, branched, repeated, taken down from; in two phases over several epochs."""
    home = tmp_path_factory.mktemp("exposures")
    path = start(home)
    feed(path, 6, skipped=(4,))
    amend_run(path, Amendment(from_step=8, weights={"law": "0.2", "news": "0.5", "verse": "0.3"}), WHY)
    feed(path, 10)
    control = control_run(path, 6, "ann")
    feed(control, 9)
    roll_back(path, 6, reason("bad node", "bob"), undo=False)
    feed(path, 9)
    branch_run(path, home / "side", 9, WHY)
    amend_run(home / "side", Amendment(from_step=10, weights={"law": "0.5", "news": "0.5"}), WHY)
    feed(home / "side", 12)
    branch_run(home / "side", home / "deep", 12, WHY)
    feed(home / "deep", 13)
    amend_run(path, Amendment(from_step=10, batch=16, skip=1), WHY)
    feed(path, 11)
    run = open_run(path)
    for wanted in seen_and_to_come(run):
        take_down(path, [wanted], None, WHY)
    feed(path, open_run(path).plan.total_steps)
    return open_run(path)


def seen_and_to_come(run: Run) -> Iterator[Question]:
    found = 0
    for corpus in open_corpora(run).values():
        table = pl.read_parquet(corpus.root / "verse" / "documents-00000.parquet")
        for doc_id in table["doc_id"]:
            (audit,) = audit_document(run, open_corpora(run), question(doc_id))
            if {e.status for e in audit.exposures} >= {"learned", "planned"}:
                yield question(doc_id)
                found += 1
                if found == 3:
                    return


def replayed(run: Run, since: int, branch: str, standing: str | None) -> pl.DataFrame:
    """Brute force: the documents of every record's step, by the plan that it was fed under."""
    corpora, frames = open_corpora(run), []
    for step, records in run.fed.items():
        for fed in records:
            if fed.seq < since:
                continue
            plan = run.plans[fed.segment]
            located = plan.locate(np.arange(fed.first_index, fed.first_index + fed.sequences, dtype=np.uint64))
            gone = run.superseded(fed)
            found = documents_of(corpora, plan, located, step)
            frames.append(
                found.select(
                    pl.lit(branch).alias("branch"),
                    pl.lit(standing or ("superseded" if gone else "accepted")).alias("standing"),
                    pl.lit(fed.update_applied and not gone).alias("learned"),
                    pl.lit(fed.attempt, pl.Int32).alias("attempt"),
                    pl.lit(fed.segment, pl.Int32).alias("segment"),
                    pl.lit(plan.phase_of_step(step).name).alias("phase"),
                    pl.lit(step, pl.Int64).alias("step"),
                    pl.col("row").cast(pl.Int32),
                    (pl.col("row") + fed.first_index).alias("sequence"),
                    pl.col("epoch").cast(pl.Int32),
                    pl.lit(next(iter(corpora))).alias("corpus_id"),
                    "domain",
                    "doc_key",
                    "doc_id",
                    pl.col("from_token").alias("document_start"),
                    (pl.col("from_token") + pl.col("last") - pl.col("first") + 1).alias("document_end"),
                    pl.col("first").cast(pl.Int32).alias("sequence_start"),
                    (pl.col("last") + 1).cast(pl.Int32).alias("sequence_end"),
                    pl.col("tokens").cast(pl.Int32),
                )
            )
    return pl.concat(frames)


def own(run: Run) -> int:
    return max(r.seq for r in run.records if r.kind == "branch" and "of" in r.body)


@pytest.mark.parametrize("size", [3, 1 << 13])
def test_every_exposure_is_found_as_by_replaying_every_record(
    run: Run, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exposures_module, "SLICE", size)
    home = run.path.parent
    side, deep, control = (open_run(p) for p in (home / "side", home / "deep", run.path / "controls" / "0001"))
    expected = [
        replayed(run, 0, "test", None),
        replayed(side, own(side), "test/side", "trial"),
        replayed(deep, own(deep), "test/deep", "trial"),
        replayed(control, own(control), "test/control-0001", "control"),
    ]
    slices = list(exposure_slices(open_course(run, open_corpora(run))))
    assert all(0 < frame["doc_id"].n_unique() <= size for frame in slices)
    found = pl.concat(slices)
    assert found.schema == EXPOSURE_SCHEMA
    assert found.sort(KEYS).equals(pl.concat(expected).sort(KEYS))
    assert set(found["standing"]) == {"accepted", "superseded", "trial", "control"}
    assert found.filter(pl.col("step") == 4)["learned"].any() is False
    # Of a document, in order of the steps.
    assert all(
        part["step"].is_sorted() for frame in slices for _, part in frame.group_by("domain", "doc_id", "corpus_id")
    )


def test_a_branch_answers_for_the_steps_that_it_shares(run: Run) -> None:
    deep = open_run(run.path.parent / "deep")
    found = pl.concat(list(exposure_slices(open_course(deep, open_corpora(deep)))))
    accepted = found.filter(pl.col("standing") == "accepted")
    assert accepted["step"].unique().sort().to_list() == list(range(1, 14))
    assert dict(accepted.select("step", "branch").unique().rows()) == {
        step: "test" if step <= 9 else "test/side" if step <= 12 else "test/deep" for step in range(1, 14)
    }
    alone = pl.concat(list(exposure_slices(open_course(run, open_corpora(run), alone=True))))
    assert set(alone["standing"]) == {"accepted", "superseded"}


def test_targets_add_up_to_what_was_fed(run: Run) -> None:
    """Every target of every record is some document's, but for those that were taken down."""
    found = pl.concat(list(exposure_slices(open_course(run, open_corpora(run), alone=True))))
    fed = sum(fed.tokens for records in run.fed.values() for fed in records)
    untouched = replace(run.plan, tombstones=())
    gone = 0
    for stone in run.plan.tombstones:
        planned = untouched.exposures(stone.domain, stone.start, stone.end)
        gone += int(planned.tokens[planned.step >= stone.from_step].sum())
    assert gone > 0
    assert found["tokens"].sum() == fed - gone


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_the_command_writes_a_table(run: Run, suffix: str, tmp_path: Path) -> None:
    out = tmp_path / f"exposures{suffix}"
    done = CliRunner().invoke(app, ["export", "exposures", str(run.path), "--out", str(out)])
    assert done.exit_code == 0, done.output
    found = pl.read_parquet(out) if suffix == ".parquet" else pl.read_csv(out)
    whole = pl.concat(list(exposure_slices(open_course(run, open_corpora(run)))))
    assert found.columns == whole.columns
    assert len(found) == len(whole)
    assert found["doc_key"].to_list() == [key.hex() for key in whole["doc_key"]]
    assert found["tokens"].to_list() == whole["tokens"].to_list()


def test_another_suffix_is_refused_in_one_line(run: Run, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["export", "exposures", str(run.path), "--out", str(tmp_path / "a.xlsx")])
    assert "a name that ends in .parquet or .csv" in str(done.exception)
