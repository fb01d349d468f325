"""Near duplicates: signatures as datatrove's, verified before anything goes, the same for any number of tasks."""

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import xxhash
from corpora import build, digests, documents, exclusions, recipe_dict, words, write_jsonl
from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature
from datatrove.utils.text import simplify_text
from datatrove.utils.word_tokenizers import load_word_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from test_mixture_rules import fuzzed_texts, real_texts

from millstream.errors import InputError
from millstream.mixture.kernels import xxh64
from millstream.mixture.minhash import signatures
from millstream.mixture.recipe import NearDedup

CASES = Path(__file__).parent / "cases" / "ingest"


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_the_hash_is_xxh64(data: bytes) -> None:
    assert int(xxh64(np.frombuffer(data, np.uint8), len(data))) == xxhash.xxh64_intdigest(data)


@pytest.mark.parametrize("kind", ["real", "fuzzed"])
def test_signatures_are_datatroves(kind: str, tmp_path: Path) -> None:
    given_texts = (real_texts() if kind == "real" else fuzzed_texts()[:400])[:400]
    ours = signatures(pl.Series(given_texts), NearDedup())
    theirs = MinhashDedupSignature(str(tmp_path), MinhashConfig())
    # datatrove 0.10 hands str to xxhash, which since version 4 takes bytes alone.
    theirs._hash_func = lambda joined: xxhash.xxh64_intdigest(joined.encode())
    compared = 0
    for row, text in zip(ours, given_texts, strict=True):
        hashed = theirs.get_shingles(text)
        if hashed.size == 0:
            assert (row == np.uint64(0xFFFFFFFFFFFFFFFF)).all()
        else:
            compared += 1
            assert row.tolist() == [h for band in theirs.get_signature(hashed) for h in band], repr(text)
    assert compared > 100


def near_recipe(root: Path, domains: list[str], **near: Any) -> dict[str, Any]:
    settings = {"min_jaccard": "0.7", "max_removed": "1"} | near
    return recipe_dict(root, domains, corpus={"dedup": {"near": settings}})


def jaccard(one: str, other: str) -> Fraction:
    """Similarity by the definition, shingles counted with repeats, with datatrove's words."""
    split = load_word_tokenizer("en").word_tokenize
    bags = []
    for text in (one, other):
        found = split(simplify_text(text))
        bags.append(Counter(tuple(found[n : n + 5]) for n in range(len(found) - 4)))
    return Fraction((bags[0] & bags[1]).total(), (bags[0] | bags[1]).total())


def test_the_near_one_goes_and_the_others_stay(tmp_path: Path) -> None:
    recipe = near_recipe(tmp_path, [])
    files = ["near-duplicates.jsonl"]
    recipe["corpus"]["sources"] = [{"name": "case", "root": str(CASES), "files": files, "licence": "CC0-1.0"}]
    recipe["corpus"]["domains"] = [{"name": "case", "sources": ["case"]}]
    recipe["corpus"]["seed"] = 3  # in this seed's order the original comes before its copy
    build(tmp_path, recipe)
    kept = {
        json.loads(m)["id"]: key
        for m, key in documents(tmp_path / "corpus", "case").select("metadata", "doc_key").rows()
    }
    raw = {json.loads(line)["id"]: json.loads(line)["text"] for line in (CASES / files[0]).read_bytes().splitlines()}
    assert set(kept) == {"orig", "half", "other"}
    (dropped,) = exclusions(tmp_path / "corpus").to_dicts()
    assert (dropped["stage"], dropped["rule"], dropped["threshold"]) == ("dedup", "near", "min_jaccard 0.7")
    assert dropped["kept_key"] == kept["orig"]
    assert Fraction(dropped["value"]) == jaccard(raw["orig"], raw["near"]) >= Fraction(7, 10)


def edited(text: str, every: int, tag: str) -> str:
    """A copy with every n-th word replaced."""
    parts = text.split()
    return " ".join(f"{tag}{n}" if n % every == 0 else part for n, part in enumerate(parts, 1))


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """Two domains with planted near duplicates, a chain, templated texts and a shared licence header."""
    base = [words(f"base{n}", 200) for n in range(20)]
    near = [edited(text, 60, f"e{n}x") for n, text in enumerate(base[:8])]
    chain = [base[19]]
    for link in range(4):
        chain.append(edited(chain[-1], 30, f"c{link}y"))
    header = words("licence", 60)
    books = [header + " " + words(f"book{n}", 300) for n in range(6)]
    first, second = base, [*near, *chain[1:], *books]
    for name, given_texts in (("first", first), ("second", second)):
        write_jsonl(tmp_path / "in" / name / "a.jsonl", [{"text": t, "n": n} for n, t in enumerate(given_texts)])
    return tmp_path


def test_planted_duplicates_go_and_lookalikes_stay(planted: Path) -> None:
    build(planted, near_recipe(planted / "in", ["first", "second"]))
    root = planted / "corpus"
    assert len(documents(root, "first")) == 20
    dropped = exclusions(root).to_dicts()
    assert {d["rule"] for d in dropped} == {"near"}
    lines = sorted(int(d["doc_id"].rsplit(":", 1)[1]) - 1 for d in dropped)
    assert set(range(8)) <= set(lines), "a planted near duplicate stayed"
    assert not set(range(12, 18)) & set(lines), "a book went for the header it shares"
    raw = {}
    for name in ("first", "second"):
        for n, line in enumerate((planted / "in" / name / "a.jsonl").read_text().splitlines(), 1):
            raw[f"{name}-files:a.jsonl:{n}"] = json.loads(line)["text"]
    keys = {
        key: doc_id
        for name in ("first", "second")
        for key, doc_id in documents(root, name).select("doc_key", "doc_id").rows()
    }
    for entry in dropped:
        # Whatever was dropped is truly similar to a document that is still there: no chains.
        assert entry["kept_key"] in keys
        similar = jaccard(raw[entry["doc_id"]], raw[keys[entry["kept_key"]]])
        assert similar == Fraction(entry["value"]) >= Fraction(7, 10)


def test_templated_documents_that_differ_in_names_stay(tmp_path: Path) -> None:
    template = words("template", 80).split()
    names = [[f"Mx{chr(97 + n)}{chr(97 + k)}" for k in range(8)] for n in range(12)]
    filled = []
    for people in names:
        parts = list(template)
        for k, name in enumerate(people):
            parts[k * 10 + 3] = name
        filled.append(" ".join(parts))
    # One more is the first with a single word changed: that is no other document.
    write_jsonl(tmp_path / "in" / "forms" / "a.jsonl", [{"text": t} for t in [*filled, filled[0] + " indeed"]])
    build(tmp_path, near_recipe(tmp_path / "in", ["forms"]))
    (dropped,) = exclusions(tmp_path / "corpus").to_dicts()
    assert dropped["locator"] in ("a.jsonl:1", "a.jsonl:13")
    assert len(documents(tmp_path / "corpus", "forms")) == 12


def test_tasks_and_order_of_files_decide_nothing(planted: Path) -> None:
    recipe = near_recipe(planted / "in", ["first", "second"])
    build(planted, recipe, tasks=1, corpus="one")
    build(planted, recipe, tasks=3, corpus="three")
    assert digests(planted / "one") == digests(planted / "three")
    assert not build(planted, recipe, tasks=2, corpus="one").did_work


def test_a_source_that_would_vanish_stops_the_build(planted: Path) -> None:
    with pytest.raises(
        InputError, match=r"near duplicates would remove \d+ of the 18 documents of source 'second-files'"
    ):
        build(planted, near_recipe(planted / "in", ["first", "second"], max_removed="0.1"))
    assert not (planted / "corpus" / "corpus.json").exists()


def test_an_audit_finds_the_twin_of_a_near_duplicate(planted: Path) -> None:
    from millstream.audit.lookup import Question, find

    manifest = build(planted, near_recipe(planted / "in", ["first", "second"])).manifest
    dropped = exclusions(planted / "corpus").row(0, named=True)
    kept = find(planted / "corpus", manifest, Question(by="key", value=dropped["kept_key"]))
    assert kept.kept["domain"].to_list() == ["first"]
