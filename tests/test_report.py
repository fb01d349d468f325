"""The report of a build: every number of it counted again from the corpus, and the page without markup from texts."""

import json
from pathlib import Path

import polars as pl
from corpora import build, documents, exclusions, recipe_dict, words, write_domain, write_jsonl
from test_mixture_contamination import evaluation
from test_mixture_minhash import edited


def test_the_report_tells_what_is_there(tmp_path: Path) -> None:
    write_domain(tmp_path / "in", "law", 60)
    items = evaluation(tmp_path)
    base = [f"<script>alert({n})</script> {words(f'b{n}', 120)}" for n in range(5)]
    more = [*base, edited(base[0], 50, "e"), base[1], items[3], "short"]
    write_jsonl(tmp_path / "in" / "art" / "a.jsonl", [{"text": t} for t in more])
    recipe = recipe_dict(
        tmp_path / "in",
        ["law", "art"],
        corpus={
            "filters": [{"rule": "length", "min_chars": 20}],
            "dedup": {"near": {"max_removed": "1"}},
            "decontaminate": {"sets": [{"name": "quiz", "file": "eval/quiz.jsonl", "fields": ["question", "answer"]}]},
        },
    )
    recipe["corpus"]["domains"][0]["holdout"] = "0.2"
    manifest = build(tmp_path, recipe).manifest
    root = tmp_path / "corpus"
    report = json.loads((root / "report.json").read_text())
    assert report["corpus_id"] == manifest.corpus_id
    dropped = exclusions(root)
    for told in report["domains"]:
        table = documents(root, told["name"])
        own = dropped.filter(pl.col("domain") == told["name"])
        assert told["kept"] + told["held_out"] == len(table)
        assert told["excluded"] == len(own) == sum(e["documents"] for e in told["exclusions"])
        assert told["read"] == len(table) + len(own) and told["accounted_for"]
        for rule in told["exclusions"]:
            same = own.filter(pl.concat_str("stage", "rule", separator="/") == rule["rule"])
            assert rule["documents"] == len(same)
            assert {e["doc_id"] for e in rule["examples"]} <= set(same["doc_id"])
    (law, art) = report["domains"]
    assert law["held_out"] > 0
    assert {e["rule"] for e in art["exclusions"]} == {
        "dedup/exact",
        "dedup/near",
        "decontaminate/contaminated",
        "filter/length",
    }
    licences = {s["name"]: {x["licence"]: x["documents"] for x in s["licences"]} for s in report["sources"]}
    every = pl.concat([documents(root, d.name) for d in manifest.domains])
    for source, licence, n in every.group_by("source", "licence").len().rows():
        assert licences[source][licence] == n
    twins = pl.read_parquet(root / "duplicates" / "documents.parquet")
    assert report["duplicates"]["by_rule"] == {"exact": 1, "near": 1}
    assert report["duplicates"]["clusters"] == twins["kept_id"].n_unique()
    assert report["contamination"] == [
        {"set": "quiz", "dropped": 1, "planted": 40, "found": 40, "too_short": 40, "clean": 25, "flagged": 0}
    ]
    page = (root / "report.html").read_text()
    assert "<script" not in page
    assert any("<script>" in sample["text"] for sample in art["samples"])
    assert "&lt;script&gt;" in page
    assert manifest.corpus_id in page
    before = (root / "report.json").read_bytes(), page
    build(tmp_path, recipe, tasks=2)
    (root / "report.json").unlink()
    again = build(tmp_path, recipe, corpus="again").manifest
    assert again.corpus_id == manifest.corpus_id
    assert (
        (tmp_path / "again" / "report.json").read_bytes(),
        (tmp_path / "again" / "report.html").read_text(),
    ) == before
