"""Statistics before rules: what is measured is what the rules decide by, and the page shows it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from corpora import recipe_dict, words, write_domain, write_jsonl, write_recipe
from test_mixture_rules import fuzzed_texts, real_texts
from typer.testing import CliRunner

from millstream.cli import app
from millstream.mixture.documents import DOCUMENT_SCHEMA
from millstream.mixture.filters import apply_filters
from millstream.mixture.measures import measure
from millstream.mixture.rules import FinewebQuality, GopherQuality, GopherRepetition, LengthFilter, SymbolFilter

OFF: dict[str, dict[str, Any]] = {
    "gopher-quality": {
        name: None for name in GopherQuality.model_fields if name not in ("rule", "stop_words", "words")
    },
    "gopher-repetition": {
        **{name: None for name in GopherRepetition.model_fields if name.endswith("frac")},
        "top_n_grams": (),
        "dup_n_grams": (),
    },
}


def frame(texts: list[str]) -> pl.DataFrame:
    named = pl.DataFrame({"doc_id": [str(n) for n in range(len(texts))], "text": texts})
    columns = [
        pl.col(name) if name in named.columns else pl.lit([] if name == "edits" else None).cast(kind).alias(name)
        for name, kind in DOCUMENT_SCHEMA.items()
    ]
    return named.select(columns)


@pytest.mark.parametrize(
    "rule", [GopherQuality(rule="gopher-quality"), GopherRepetition(rule="gopher-repetition")], ids=lambda r: r.rule
)
def test_each_measure_drops_what_its_rule_alone_drops(rule: Any) -> None:
    documents = frame([*real_texts()[::3], *fuzzed_texts()[:300]])
    for found in measure(documents, rule):
        field = found.field.split(" ")[0]
        given = getattr(rule, field)
        if isinstance(given, tuple):
            given = [pair for pair in given if f"{field} {pair[0]}:" == found.field]
        alone = rule.model_copy(update=OFF[rule.rule] | {field: given})
        dropped = apply_filters(documents, [alone], "x").excluded
        # Two rules share a field; a document that breaks both is dropped by the first.
        other = {int(n) for n in dropped.filter(pl.col("rule") != found.rule)["doc_id"]}
        own = {int(n) for n in dropped.filter(pl.col("rule") == found.rule)["doc_id"]}
        assert own == set(np.flatnonzero(found.dropped).tolist()) - other, found.rule


@pytest.mark.parametrize(
    "rule",
    [LengthFilter(rule="length", min_chars=300), SymbolFilter(rule="symbols", max_ratio="0.1")],
    ids=lambda r: r.rule,
)
def test_simple_measures_too(rule: Any) -> None:
    documents = frame([t for t in real_texts() if t])
    (found,) = measure(documents, rule)
    dropped = apply_filters(documents, [rule], "x").excluded
    assert {int(n) for n in dropped["doc_id"]} == set(np.flatnonzero(found.dropped))
    assert 0 < len(dropped) < len(documents)


def test_fineweb_measures_every_document() -> None:
    documents = frame(real_texts()[:60])
    found = {each.rule: each for each in measure(documents, FinewebQuality(rule="fineweb-quality"))}
    assert set(found) == {"line_punct_ratio", "short_line_ratio", "char_dup_ratio", "list_ratio"}
    decided = apply_filters(documents, [FinewebQuality(rule="fineweb-quality")], "x").excluded
    any_dropped = np.logical_or.reduce([each.dropped for each in found.values()])
    assert {int(n) for n in decided["doc_id"]} == set(np.flatnonzero(any_dropped))


def test_the_command_shows_distributions_and_writes_a_page(tmp_path: Path) -> None:
    write_domain(tmp_path / "in", "law", 60)
    write_domain(tmp_path / "in", "art", 30)
    write_jsonl(tmp_path / "in" / "law" / "bad.jsonl", [{"text": "<script>alert(1)</script>"}, {"text": 5}])
    recipe = recipe_dict(tmp_path / "in", ["law", "art"], corpus={"filters": [{"rule": "length", "min_chars": 60}]})
    write_recipe(tmp_path / "recipe.yaml", recipe)
    page = tmp_path / "stats.html"
    asked = ["stats", str(tmp_path / "recipe.yaml"), "--output", str(page), "--documents", "40"]
    shown = CliRunner().invoke(app, [*asked, "--json"])
    assert shown.exit_code == 0, shown.output
    told = json.loads(shown.stdout)
    law, art = told["domains"]
    assert (law["domain"], law["documents"], law["unreadable"]) == ("law", 29, {"text-type": 1})
    assert art["documents"] == 30
    length = next(d for d in law["distributions"] if d["field"] == "min_chars")
    assert length["in_recipe"] and length["limit"] == 60
    assert length["dropped"] == law["chain"][0]["documents"] == law["documents"] - law["chain_kept"]
    assert sum(length["counts"]) == law["documents"]
    assert {each["rule"] for each in law["offered"]} <= {"too_few_sentences", "curly_bracket", "lorem_ipsum"}
    assert sum(each["documents"] for each in law["offered"]) > 0
    assert all(len(e["text"]) < 60 for e in length["dropped_examples"])
    html = page.read_text()
    assert "<script" not in html
    assert html.count("<figure>") == len(law["distributions"]) + len(art["distributions"])
    again = CliRunner().invoke(app, [*asked, "--json"])
    assert again.stdout == shown.stdout and page.read_text() == html, "a sample is the same each time"
    table = CliRunner().invoke(app, [*asked, "--domain", "art"])
    assert "gopher_short_doc" in table.stdout and "law" not in table.stdout
    assert isinstance(CliRunner().invoke(app, [*asked, "--domain", "lwa"]).exception, Exception)


def test_without_the_packages_it_says_what_to_install(tmp_path: Path) -> None:
    write_domain(tmp_path / "in", "law", 4)
    write_recipe(tmp_path / "recipe.yaml", recipe_dict(tmp_path / "in", ["law"]))
    # As where numba is not installed: neither found nor importable.
    hidden = (
        "import importlib.util, sys; find = importlib.util.find_spec; sys.modules['numba'] = None;"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'numba' else find(name, *rest);"
        "sys.argv = ['millstream', 'stats', 'recipe.yaml']; from millstream.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", hidden], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr == "millstream: rules that count words need numba: pip install 'millstream[filters]'\n"


def test_a_sample_is_spread_over_files(tmp_path: Path) -> None:
    for n in range(40):
        write_jsonl(tmp_path / "in" / "law" / f"{n}.jsonl", [{"text": words(f"{n}/{k}", 50)} for k in range(20)])
    recipe = recipe_dict(tmp_path / "in", ["law"])
    write_recipe(tmp_path / "recipe.yaml", recipe)
    asked = ["stats", str(tmp_path / "recipe.yaml"), "-o", str(tmp_path / "s.html"), "--documents", "64", "--json"]
    (law,) = json.loads(CliRunner().invoke(app, asked).stdout)["domains"]
    assert law["documents"] == 64
