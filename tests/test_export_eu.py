"""``export eu``: the counts are those of the tokens that were targets of learned steps, found one by one."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from fed_runs import feed, start
from typer.testing import CliRunner

from millstream.audit.change import amend_run, reason, roll_back
from millstream.audit.content import learned_content, totals
from millstream.audit.corpora import open_corpora
from millstream.audit.disclosures import Disclosures
from millstream.audit.export_eu import eu_summary
from millstream.audit.lookup import question
from millstream.audit.runs import Run, open_run
from millstream.audit.takedown import take_down
from millstream.cli import app
from millstream.errors import RecipeError, UsageError
from millstream.stream.amend import Amendment
from millstream.stream.documents import documents_of

WHY = reason("test", "ann")
TOLD: dict[str, Any] = {
    "format": "millstream-disclosures/1",
    "provider": {"name_and_contact": "Example Lab, lab@example.org"},
    "sources": {
        "law-files": {"category": "public", "title": "Laws", "link": "https://example.org/law", "language": "en"},
        "news-files": {"category": "crawled"},
        "verse-files": {"category": "synthetic", "generated_by": "Bard | v2"},
    },
    "languages": {"verse-files:part-?.jsonl:1*": "cy"},
    "crawling": {"crawlers": "examplebot"},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Several epochs, a step without an update, one rolled back, a document taken down on the way."""
    path = start(tmp_path_factory.mktemp("eu"))
    feed(path, 6, skipped=(4,))
    feed(path, 9)
    roll_back(path, 6, reason("bad node", "bob"), undo=False)
    amend_run(path, Amendment(from_step=7, weights={"law": "0.2", "news": "0.2", "verse": "0.6"}), WHY)
    feed(path, 9)
    verse = pl.read_parquet(path.parent / "corpus" / "verse" / "documents-00000.parquet")
    take_down(path, [question(verse["doc_id"][0])], None, WHY)
    feed(path, 20)
    return open_run(path)


@pytest.fixture(scope="module")
def disclosures(run: Run) -> Path:
    path = run.path.parent / "told.yaml"
    path.write_text(yaml.safe_dump(TOLD))
    return path


def by_hand(run: Run) -> tuple[dict[str, set[tuple[str, int]]], dict[str, int]]:
    """Tokens of documents, each by itself, that were targets of learned steps, and how often any was, by source."""
    corpora, distinct, learned = open_corpora(run), defaultdict(set), defaultdict(int)
    for step in range(1, run.last_step + 1):
        fed = run.learned(step)
        assert fed is not None
        if not fed.update_applied:
            continue
        plan = run.plans[fed.segment]
        located = plan.locate(np.arange(fed.first_index, fed.first_index + fed.sequences, dtype=np.uint64))
        for row in documents_of(corpora, plan, located, step).to_dicts():
            source = row["doc_id"].split(":")[0]
            if row["tokens"]:
                assert row["tokens"] == row["last"] - row["first"] + 1
                places = range(row["from_token"], row["from_token"] + row["tokens"])
                distinct[source] |= {(row["doc_id"], place) for place in places}
                learned[source] += row["tokens"]
    return distinct, learned


def test_counts_are_those_of_every_learned_target(run: Run) -> None:
    distinct, learned = by_hand(run)
    content = learned_content(run, open_corpora(run), Disclosures.model_validate(TOLD))
    found = {row["source"]: row for row in totals(content, "source").to_dicts()}
    assert found.keys() == distinct.keys() == {"law-files", "news-files", "verse-files"}
    for source, row in found.items():
        assert row["distinct_tokens"] == len(distinct[source])
        assert row["learned_tokens"] == learned[source]
        assert row["documents"] == len({doc_id for doc_id, _ in distinct[source]})
    assert found["verse-files"]["learned_tokens"] > found["verse-files"]["distinct_tokens"]
    assert sum(row["share"] for row in found.values()) == pytest.approx(1)


def test_languages_come_from_documents_then_patterns_then_sources(run: Run) -> None:
    corpora = open_corpora(run)
    languages = {row["language"] for row in summary_of(run, TOLD)["1.3"]["languages"]}
    assert languages == {"en", "cy", None}
    distinct, _ = by_hand(run)
    welsh = {p for p in distinct["verse-files"] if p[0].split(":")[2].startswith("1")}
    (row,) = (r for r in summary_of(run, TOLD)["1.3"]["languages"] if r["language"] == "cy")
    assert row["distinct_tokens"] == len(welsh)
    # Every document of these corpora has a field 'id'.
    own = learned_content(run, corpora, Disclosures.model_validate(TOLD | {"language_field": "id"}))
    assert set(own["language"]) >= {"law-0-1", "verse-1-3"}


def summary_of(run: Run, told: dict[str, Any]) -> dict[str, Any]:
    disclosed = Disclosures.model_validate(told)
    corpora = open_corpora(run)
    return eu_summary(run, corpora, learned_content(run, corpora, disclosed), disclosed)


def test_sections_hold_what_was_said_and_what_was_counted(run: Run, disclosures: Path, tmp_path: Path) -> None:
    files = [tmp_path / "s.json", tmp_path / "s.md"]
    arguments = ["export", "eu", str(run.path), "--disclosures", str(disclosures)]
    done = CliRunner().invoke(app, [*arguments, "--out", str(files[0]), "--out", str(files[1])])
    assert done.exit_code == 0, done.output
    summary = json.loads(files[0].read_bytes())
    _, learned = by_hand(run)
    assert summary["run"]["run_id"] == run.run_id
    assert summary["1.1"] == {
        "name_and_contact": "Example Lab, lab@example.org",
        "authorised_representative": "to be provided",
    }
    assert summary["1.3"]["size"] == "less than 1 billion tokens"
    (law,), (news,), (verse,) = (summary["2"][c] for c in ("public", "crawled", "synthetic"))
    assert (law["title"], law["large"], law["share_of_category"]) == ("Laws", True, 1)
    assert (news["source"], verse["learned_tokens"]) == ("news-files", learned["verse-files"])
    assert not summary["2"]["unassigned"]
    assert summary["2.3"]["crawlers"] == "examplebot"
    (host,) = summary["2.3"]["internet_domains"]["listed"]
    assert (host["host"], host["learned_tokens"]) == ("example.org", learned["news-files"])
    assert summary["2.5"]["share"] == pytest.approx(learned["verse-files"] / sum(learned.values()))
    assert summary["2.5"]["not_stated_tokens"] == 0
    page = files[1].read_text()
    assert "- Authorised representative: to be provided" in page
    assert "Bard \\| v2" in page
    assert f"| {learned['verse-files']:,} |" in page


def test_nothing_is_made_up_where_nothing_was_said(run: Run) -> None:
    summary = summary_of(run, {"format": "millstream-disclosures/1"})
    assert [row["source"] for row in summary["2"]["unassigned"]]
    assert summary["2.5"]["not_stated_share"] == 1
    assert summary["3"] == dict.fromkeys(summary["3"], "to be provided")
    assert summary["2.3"]["internet_domains"] == {"number": 0, "listed": []}


def test_a_wrong_file_is_refused_with_line_and_field(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "told.yaml"

    def refused(text: str, out: str = "s.json") -> Exception | None:
        path.write_text(text)
        error = CliRunner().invoke(
            app, ["export", "eu", str(run.path), "--out", str(tmp_path / out), "--disclosures", str(path)]
        )
        return error.exception if isinstance(error.exception, UsageError) else None

    first = "format: millstream-disclosures/1\n"
    assert "told.yaml:2: providr: unknown key; did you mean 'provider'?" in str(refused(first + "providr: {}\n"))
    wrong = first + "sources:\n  law-files: {category: publik}\n"
    assert "sources.law-files.category: unknown choice 'publik'; did you mean 'public'?" in str(refused(wrong))
    assert "expected a mapping that begins with 'format: millstream-disclosures/1'" in str(refused("- 1\n"))
    assert "ends in .json or .md" in str(refused(first, "s.txt"))
    assert isinstance(refused("a: *b\n"), RecipeError)
