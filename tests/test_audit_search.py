"""Searching by words and passages: the documents that reading every text finds, and the steps of a run."""

import json
import re
import shutil
import sys
from pathlib import Path

import polars as pl
import pytest
from corpora import build, documents, recipe_dict, texts, words, write_domain, write_jsonl
from simulated import train
from test_story import millstream

from millstream.audit.document import exposures
from millstream.audit.runs import create_run, open_run
from millstream.audit.search import search_passage, search_words
from millstream.audit.search_index import index_words, search_folder, text_reader, words_of
from millstream.errors import SetupError, UsageError
from millstream.mixture.load import load_recipe
from millstream.stream.corpora import Corpus, open_corpus
from millstream.stream.freeze import freeze_plan
from millstream.stream.tables import tables_of

MIXTURE = {
    "seq_len": 32,
    "batch": 8,
    "steps": 30,
    "max_epochs": "9",
    "phases": [{"name": "a", "weights": {"law": 1, "news": 1}}],
}
NOVEL = (
    "It was a dark and stormy night; the rain fell in torrents, except at occasional intervals, when it was checked."
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search")
    for name in ("law", "news"):
        write_domain(folder / "in", name, 100)
    strangers = [
        f"First. {NOVEL} Last.",
        f"{words('x', 20)} {NOVEL[:60]} {words('y', 20)}",
        "世界你好, hello 世界 again",
    ]
    write_jsonl(folder / "in" / "news" / "strangers.jsonl", [{"text": text} for text in strangers])
    recipe = recipe_dict(folder / "in", ["law", "news"], mixture=MIXTURE)
    recipe["corpus"]["domains"][0]["holdout"] = 0.2
    recipe["corpus"] |= {"shard_bytes": 8192, "chunk_bytes": 1024}
    build(folder, recipe)
    corpus = open_corpus(folder / "corpus")
    loaded = load_recipe(folder / "recipe.yaml")
    assert loaded.mixture is not None
    create_run(folder / "run", loaded, freeze_plan(loaded.mixture, corpus.manifest, corpus.root), corpus)
    train(folder / "run", 0, 24)
    assert index_words(corpus) == sum(d.documents for d in corpus.manifest.domains) + len(held_out(corpus))
    return folder


@pytest.fixture(scope="module")
def corpus(home: Path) -> Corpus:
    return open_corpus(home / "corpus")


def held_out(corpus: Corpus) -> pl.DataFrame:
    return pl.read_parquet(Path(str(corpus.root)) / "law" / "holdout-documents-00000.parquet")


def whole(corpus: Corpus) -> dict[str, str]:
    """Every document's text, held-out ones too."""
    found = {i: t for name in ("law", "news") for i, t in texts(Path(str(corpus.root)), name).items()}
    (table,) = [t for t in tables_of(corpus.manifest) if t.kind == "held out"]
    rows = held_out(corpus)
    read = text_reader(corpus)(table, rows["token_start"].to_list(), rows["n_tokens"].to_list())
    return found | dict(zip(rows["doc_id"].to_list(), read, strict=True))


def found_by(corpus: Corpus, asked: str) -> set[str]:
    hits = search_words(corpus, asked, most=1000)
    assert hits.matching == len(hits.hits)
    assert [h.score for h in hits.hits] == sorted((h.score for h in hits.hits), reverse=True)
    return {hit.document["doc_id"] for hit in hits.hits}


@pytest.mark.parametrize(
    ("asked", "pattern"),
    [
        ("mountain", r"\bmountain\b"),
        ("MOUNTAIN grain", r"(?s)(?=.*\bmountain\b)(?=.*\bgrain\b)"),
        ('"the sea"', r"\bthe sea\b"),
        ("café", r"\bcafé\b"),
        ("мир -stone", r"(?s)\A(?=.*\bмир\b)(?!.*\bstone\b)"),
        ("世", "世"),
        ("世界", "世界"),
        ('"hello 世"', "hello 世"),
        ("nothingofthesort", r"nothingofthesort"),
    ],
)
def test_words_find_what_reading_everything_finds(corpus: Corpus, asked: str, pattern: str) -> None:
    expected = {i for i, text in whole(corpus).items() if re.search(pattern, text.lower())}
    assert found_by(corpus, asked) == expected
    assert bool(expected) == (asked != "nothingofthesort")


def test_words_are_cut_alike_in_texts_and_questions() -> None:
    cut = words_of(pl.Series(["Don't  STOP—naïve_1.5x", "東京タワー2 ok", "a" * 100 + " b", "...", "ไทย"])).to_list()
    assert cut == ["don t stop naïve_1 5x", "東 京 タ ワ ー2 ok", "a" * 64 + " b", "", "ไ ท ย"]


def test_a_passage_finds_what_shares_most_of_it(corpus: Corpus) -> None:
    hits = search_passage(corpus, NOVEL).hits
    assert [(h.document["locator"], h.state) for h in hits[:2]] == [
        ("strangers.jsonl:1", "kept"),
        ("strangers.jsonl:2", "kept"),
    ]
    assert hits[0].shared == 1
    assert 0.3 < (hits[1].shared or 0) < 0.8
    assert "dark and stormy" in hits[0].excerpt
    longer = search_passage(corpus, f"{words('p', 300)} {NOVEL} {words('q', 300)}", most=1).hits[0]
    assert longer.document["locator"] == "strangers.jsonl:1"
    assert search_passage(corpus, "dark and stormy night").hits[0].shared == 1
    assert search_passage(corpus, "a text that nobody wrote anywhere at all").hits == ()
    for held in held_out(corpus).head(3).iter_rows(named=True):
        best = search_passage(corpus, whole(corpus)[held["doc_id"]]).hits[0]
        assert (best.document["doc_id"], best.state) == (held["doc_id"], "held out")
    with pytest.raises(UsageError, match="has no words"):
        search_passage(corpus, " ... ")
    with pytest.raises(UsageError, match="no word to look for"):
        search_words(corpus, "-only")


def test_the_command_tells_the_steps_of_a_run(home: Path, corpus: Corpus) -> None:
    answer = json.loads(millstream(home, "audit", "search", "run", '"dark and stormy"', "--json").stdout)
    assert answer["run"] == "test"
    run = open_run(home / "run")
    assert len(answer["documents"]) == 2
    for document in answer["documents"]:
        row = documents(home / "corpus", "news").filter(pl.col("doc_id") == document["document"]["doc_id"])
        start, count = row["token_start"][0], row["n_tokens"][0]
        seen = exposures(run, corpus.manifest.corpus_id, "news", start, start + count)
        assert [e["step"] for e in document["exposures"]] == [e.step for e in seen]
        assert "learned" in {e["status"] for e in document["exposures"]}
    (home / "novel.txt").write_text(NOVEL)
    shown = millstream(home, "audit", "search", "run", "--passage", "novel.txt").stdout
    assert "100% of the passage" in shown
    assert "learned at step" in shown
    alone = json.loads(millstream(home, "audit", "search", "corpus", "hello", "--json").stdout)
    assert [d["document"]["locator"] for d in alone["documents"]] == ["strangers.jsonl:3"]
    assert "exposures" not in alone["documents"][0]
    refused = millstream(home, "audit", "search", "nothing", "x", check=False)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)


def test_part_of_a_corpus_can_be_indexed(home: Path, corpus: Corpus, tmp_path: Path) -> None:
    shutil.copytree(str(corpus.root), tmp_path / "corpus", ignore=shutil.ignore_patterns(".work", "search"))
    copy = open_corpus(tmp_path / "corpus")
    with pytest.raises(UsageError, match="no full-text index of this corpus; make it: millstream audit index"):
        search_words(copy, "sea")
    shown = millstream(tmp_path, "audit", "index", "corpus", "--words", "--share", "0.3").stdout
    assert "words of" in shown
    chosen = {hit.document["doc_id"] for hit in search_words(copy, "the", most=1000).hits}
    keys = {r["doc_id"]: r["doc_key"] for n in ("law", "news") for r in documents(tmp_path / "corpus", n).to_dicts()}
    inside = {i for i, key in keys.items() if int.from_bytes(key[:8], "big") < 0.3 * 2**64}
    assert 0 < len(inside) < len(keys) / 2
    assert chosen == {i for i, text in whole(copy).items() if i in inside and re.search(r"\bthe\b", text.lower())}
    assert "only 30.00% of a corpus" in millstream(tmp_path, "audit", "search", "corpus", "the").stdout
    with pytest.raises(UsageError, match="above 0 and at most 1"):
        index_words(copy, 0)
    again = index_words(copy)
    assert again == len(keys)
    assert index_words(copy) == again
    assert search_folder(copy).name == "search"


def test_without_tantivy_the_extra_is_named(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tantivy", None)
    with pytest.raises(SetupError, match=r"pip install 'millstream\[search\]'"):
        search_words(corpus, "sea")
