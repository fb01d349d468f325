"""Which of several documents stays, over what scope, against what earlier corpus; sentences cut; scores and parts."""

import itertools
import json
import random  # noqa: TID251  permuted files, from a fixed seed
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from corpora import build, digests, documents, exclusions, recipe_dict, texts, words, write_jsonl
from datatrove.utils.text import split_into_sentences
from hypothesis import given
from hypothesis import strategies as st
from test_mixture_minhash import edited
from test_mixture_rules import fuzzed_texts, real_texts

from millstream.errors import InputError, RecipeError
from millstream.mixture.sentences import split_sentences
from millstream.tokenize.build import build_corpus
from millstream.tokenize.manifest import read_manifest


def domain(root: Path, name: str, given_texts: list[str], **fields: list[Any]) -> None:
    records = [{"text": t, **{k: v[n] for k, v in fields.items()}} for n, t in enumerate(given_texts)]
    write_jsonl(root / "in" / name / "a.jsonl", records)


def recipe_of(root: Path, names: list[str], **dedup: Any) -> dict[str, Any]:
    return recipe_dict(root / "in", names, corpus={"dedup": dedup})


def lines(frame: pl.DataFrame) -> list[str]:
    return sorted(f"{d.split('-files')[0]}{d.rsplit(':', 1)[1]}" for d in frame["doc_id"])


NEAR = {"min_jaccard": "0.7", "max_removed": "1"}


def test_the_longest_or_the_first_stays(tmp_path: Path) -> None:
    base = words("base", 200)
    longer = base + " " + words("more", 20)
    domain(tmp_path, "one", [base, words("x", 90)])
    domain(tmp_path, "two", [longer, words("y", 90)])
    build(tmp_path, recipe_of(tmp_path, ["one", "two"], near=NEAR), corpus="first")
    assert lines(exclusions(tmp_path / "first")) == ["two1"]
    build(tmp_path, recipe_of(tmp_path, ["one", "two"], near=NEAR, keep="longest"), corpus="longest")
    assert lines(exclusions(tmp_path / "longest")) == ["one1"]


def test_the_best_by_score_stays(tmp_path: Path) -> None:
    base = words("base", 200)
    copies = [edited(base, 70, f"v{n}x") for n in range(4)]
    domain(tmp_path, "one", [*copies, words("x", 90)], score=[0.1, 0.9, 0.5, None, 0.0])
    recipe = recipe_of(tmp_path, ["one"], near=NEAR, keep="best")
    recipe["corpus"]["scorers"] = [{"name": "edu", "field": "score"}]
    recipe["corpus"]["domains"][0]["score"] = "edu"
    build(tmp_path, recipe)
    assert lines(documents(tmp_path / "corpus", "one")) == ["one2", "one5"]
    assert dict(documents(tmp_path / "corpus", "one").select("locator", "score").rows()) == {
        "a.jsonl:2": 0.9,
        "a.jsonl:5": 0.0,
    }


def test_scope_domain_leaves_duplicates_in_other_domains(tmp_path: Path) -> None:
    base, other = words("base", 200), words("other", 200)
    domain(tmp_path, "one", [base, base, other])
    domain(tmp_path, "two", [base, edited(other, 70, "e")])
    build(tmp_path, recipe_of(tmp_path, ["one", "two"], near=NEAR, scope="domain"), corpus="apart")
    assert len(lines(exclusions(tmp_path / "apart"))) == 1
    assert len(documents(tmp_path / "apart", "two")) == 2
    domain(tmp_path, "two", [base, edited(other, 70, "e"), words("own", 90)])
    build(tmp_path, recipe_of(tmp_path, ["one", "two"], near=NEAR), corpus="together")
    assert len(documents(tmp_path / "together", "two")) == 1


def test_an_excerpt_goes_by_containment(tmp_path: Path) -> None:
    base = words("base", 300)
    excerpt = " ".join(base.split()[:170])
    domain(tmp_path, "one", [base, words("x", 90)])
    domain(tmp_path, "two", [excerpt, words("y", 90)])
    near = NEAR | {"bands": 60, "rows": 2}
    build(tmp_path, recipe_of(tmp_path, ["one", "two"], near=near), corpus="jaccard")
    assert exclusions(tmp_path / "jaccard").is_empty()
    build(tmp_path, recipe_of(tmp_path, ["one", "two"], near=near | {"min_containment": "0.95"}), corpus="contained")
    (dropped,) = exclusions(tmp_path / "contained").to_dicts()
    assert (dropped["locator"], dropped["value"], dropped["threshold"]) == ("a.jsonl:1", "1/1", "min_containment 0.95")


def test_an_earlier_corpus_keeps_its_documents(tmp_path: Path) -> None:
    old = [words(f"old{n}", 120) for n in range(6)]
    domain(tmp_path, "one", old)
    earlier = recipe_of(tmp_path, ["one"])
    earlier["name"] = "v1"
    build(tmp_path, earlier, corpus="v1")
    new = [words(f"new{n}", 120) for n in range(3)]
    domain(tmp_path, "two", [old[0], edited(old[1], 60, "e"), *new])
    recipe = recipe_of(tmp_path, ["two"], near=NEAR, against=["v1"])
    result = build(tmp_path, recipe, corpus="v2")
    dropped = exclusions(tmp_path / "v2").sort("locator")
    assert dropped.select("locator", "rule").rows() == [("a.jsonl:1", "exact"), ("a.jsonl:2", "near")]
    kept = {key: d for d, key in documents(tmp_path / "v1", "one").select("doc_id", "doc_key").rows()}
    assert [kept[key].rsplit(":", 1)[1] for key in dropped["kept_key"]] == ["1", "2"]
    twins = pl.read_parquet(tmp_path / "v2" / "duplicates" / "documents.parquet")
    assert twins["kept_domain"].to_list() == ["v1/one", "v1/one"]
    assert sorted(twins["kept_id"]) == ["one-files:a.jsonl:1", "one-files:a.jsonl:2"]
    assert twins["similarity"].max() == 1.0
    assert 0.7 <= twins["similarity"].min() < 1.0
    assert len(documents(tmp_path / "v2", "two")) == 3
    assert any(entry.path == "duplicates/documents.parquet" for entry in result.manifest.files())
    assert not build(tmp_path, recipe, corpus="v2").did_work
    with pytest.raises(RecipeError, match=r"corpus\.dedup\.against: .*no corpus here"):
        build(tmp_path, recipe_of(tmp_path, ["two"], against=["v0"]), corpus="v3")


@pytest.mark.parametrize("kind", [real_texts, fuzzed_texts])
def test_sentences_are_those_of_datatrove(kind: Any) -> None:
    given_texts = kind()
    for text, found in zip(given_texts, split_sentences(pl.Series(given_texts)), strict=True):
        expected = [s.strip() for s in split_into_sentences(text, "eng") if s.strip()]
        assert [text[a:b] for a, b in zip(found.starts, found.ends, strict=True)] == expected, repr(text)


def sentence(seed: str, n: int) -> str:
    return words(f"{seed}{n}", 9).capitalize() + "."


def test_repeated_sentences_are_cut_and_recorded(tmp_path: Path) -> None:
    notice = " ".join(sentence("notice", n) for n in range(4))
    own = [" ".join(sentence(f"own{d}", n) for n in range(8)) for d in range(4)]
    domain(tmp_path, "one", [f"{notice} {own[0]}", own[3]])
    domain(tmp_path, "two", [f"{own[1]}\n\n{notice.upper()}", f"{own[2]} {notice} {own[2][:-1]}! Tail.", notice])
    recipe = recipe_of(tmp_path, ["one", "two"], sentences={"min_doc_words": 20})
    build(tmp_path, recipe, tasks=1)
    root = tmp_path / "corpus"
    read = texts(root, "two") | texts(root, "one")
    assert read["one-files:a.jsonl:1"] == f"{notice} {own[0]}", "the first occurrence stays"
    assert read["two-files:a.jsonl:1"] == own[1]
    assert read["two-files:a.jsonl:2"].startswith(own[2])
    assert notice not in read["two-files:a.jsonl:2"]
    (dropped,) = exclusions(root).to_dicts()
    assert (dropped["locator"], dropped["rule"], dropped["value"]) == ("a.jsonl:3", "sentences", "0 words left")
    table = documents(root, "two")
    assert set(table["edits"].explode()) == {"SentenceDedup"}
    assert (table["text_key"] != table["doc_key"]).all()
    removed = pl.read_parquet(root / "duplicates" / "sentences.parquet")
    raw = {
        f"{name}-files:a.jsonl:{n}": json.loads(line)["text"]
        for name in ("one", "two")
        for n, line in enumerate((tmp_path / "in" / name / "a.jsonl").read_text().splitlines(), 1)
    }
    cut = {}
    for doc_id, first, end in removed.select("doc_id", "first_char", "end_char").iter_rows():
        cut.setdefault(doc_id, []).append((first, end))
    for doc_id, spans in cut.items():
        left, at = "", 0
        for first, end in spans:
            left, at = left + raw[doc_id][at:first], end
        assert (left + raw[doc_id][at:]).rstrip() == read.get(doc_id, ""), "what was cut and what is left make the text"
    keys = {key for name in ("one", "two") for key in documents(root, name)["doc_key"]}
    assert set(removed["kept_key"]) <= keys
    build(tmp_path, recipe, tasks=3, corpus="again")
    assert digests(root) == digests(tmp_path / "again")


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_spans_that_touch_are_one_stretch(gaps: list[int]) -> None:
    from millstream.mixture.sentences import _merged

    numbers = [sum(gaps[: n + 1]) + n for n in range(len(gaps))]
    stretches = list(_merged(numbers, [b""] * len(numbers), 3))
    covered = {s for n in numbers for s in range(n, n + 3)}
    assert sorted(s for first, last, _ in stretches for s in range(first, last)) == sorted(covered)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(stretches))


def scored_recipe(root: Path, **scorer: str) -> dict[str, Any]:
    recipe = recipe_of(root, ["web"])
    recipe["corpus"]["scorers"] = [{"name": "edu", **scorer}]
    recipe["corpus"]["domains"][0] |= {"score": "edu", "split": ["0.3", "0.6"]}
    return recipe


def test_a_source_splits_into_domains_by_score(tmp_path: Path) -> None:
    found = [0.0, 0.29, 0.3, 0.59, 0.6, 1.0, None, "high"]
    domain(tmp_path, "web", [words(f"w{n}", 60) for n in range(8)], score=found)
    with (tmp_path / "in" / "web" / "a.jsonl").open("a") as file:
        file.write("{broken\n")
    recipe = scored_recipe(tmp_path, field="score")
    manifest = build(tmp_path, recipe).manifest
    assert [(d.name, d.documents, d.read) for d in manifest.domains] == [
        ("web-q0", 4, 5),
        ("web-q1", 2, 2),
        ("web-q2", 2, 2),
    ]
    assert sum(d.exclusions.get("read/malformed-json", 0) for d in manifest.domains) == 1
    assert set(documents(tmp_path / "corpus", "web-q1")["score"]) == {0.3, 0.59}
    recipe["corpus"]["filters"] = [{"rule": "score", "min": "0.25", "max": "0.95"}]
    build(tmp_path, recipe)
    dropped = exclusions(tmp_path / "corpus").filter(pl.col("rule") == "score").sort("locator")
    assert dropped.select("locator", "domain", "value", "threshold").rows() == [
        ("a.jsonl:1", "web-q0", "0.0", "min 0.25"),
        ("a.jsonl:6", "web-q2", "1.0", "max 0.95"),
        ("a.jsonl:7", "web-q0", "no score", "min 0.25"),
        ("a.jsonl:8", "web-q0", "no score", "min 0.25"),
    ]


def test_a_function_scores_texts_when_it_is_trusted(tmp_path: Path) -> None:
    from corpora import write_recipe

    domain(tmp_path, "web", [words(f"w{n}", 20 + 30 * n) for n in range(3)])
    module = tmp_path / "scorer_beside_recipe.py"
    module.write_text("def by_length(texts):\n    return [len(t.split()) / 100 for t in texts]\n")
    recipe = write_recipe(tmp_path / "recipe.yaml", scored_recipe(tmp_path, function="scorer_beside_recipe:by_length"))
    run = {"tasks": 1, "progress": lambda *_: None}
    with pytest.raises(RecipeError, match="if you trust it, build with --allow-code"):
        build_corpus(recipe, tmp_path, tmp_path / "corpus", **run)
    build_corpus(recipe, tmp_path, tmp_path / "corpus", allow_code=True, **run)
    assert [d.documents for d in read_manifest(tmp_path / "corpus").domains] == [1, 1, 1]
    module.write_text("def by_length(texts):\n    return [0.5]\n")
    import sys

    del sys.modules["scorer_beside_recipe"]
    with pytest.raises(InputError, match="gave no finite number for each of 3 texts"):
        build_corpus(recipe, tmp_path, tmp_path / "corpus", allow_code=True, **run)


def test_a_classifier_scores_texts(tmp_path: Path) -> None:
    from test_mixture_masks import trained_model

    kinds = {"good": "the river carries stones to the sea", "bad": "buy cheap pills now click here"}
    trained_model(tmp_path / "quality.bin", kinds)
    given_texts = [f"{kinds[kind]} {n} {words(f'w{n}', 3)}" for n, kind in enumerate(["good", "bad"] * 3)]
    domain(tmp_path, "web", given_texts)
    recipe = recipe_of(tmp_path, ["web"])
    recipe["corpus"]["scorers"] = [{"name": "edu", "model": "quality.bin", "label": "good"}]
    recipe["corpus"]["domains"][0] |= {"score": "edu", "split": ["0.5"]}
    build(tmp_path, recipe)
    assert lines(documents(tmp_path / "corpus", "web-q1")) == ["web1", "web3", "web5"]
    recipe["corpus"]["scorers"][0]["label"] = "fine"
    with pytest.raises(InputError, match=r"quality\.bin: the model knows no label 'fine'; it knows bad, good"):
        build(tmp_path, recipe)
    recipe["corpus"]["scorers"][0]["model"] = "none.bin"
    with pytest.raises(InputError, match="the model of the scorer 'edu' is missing"):
        build(tmp_path, recipe)


def test_order_of_files_and_tasks_decide_nothing(tmp_path: Path) -> None:
    bases = [words(f"base{n}", 150) for n in range(12)]
    copies = [edited(text, 50 + n, f"c{n}x") for n, text in enumerate(bases * 2)]
    notice = " ".join(sentence("notice", n) for n in range(4))
    everything = [*bases, *copies, *(f"{notice} {words(f'z{n}', 80)}." for n in range(6))]
    recipe = recipe_of(tmp_path, ["one"], near=NEAR, sentences={}, keep="longest")
    found = []
    for run, tasks in enumerate((1, 3, 8)):
        random.Random(run).shuffle(order := list(range(5)))
        for part in order:
            write_jsonl(tmp_path / "in" / "one" / f"{part}.jsonl", [{"text": t} for t in everything[part::5]])
        build(tmp_path, recipe, tasks=tasks, corpus=f"run{run}")
        found.append(digests(tmp_path / f"run{run}"))
    assert found[0] == found[1] == found[2]
