"""Documents are found by key, id, URL and text: by the index exactly as by reading every table."""

import json
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl
import pytest
from corpora import build, recipe_dict, words, write_domain, write_jsonl

from millstream.audit import lookup_index
from millstream.audit.lookup import Found, Question, find, question, question_from_file, questions_from_file
from millstream.audit.lookup_index import index_lookups, open_lookup
from millstream.audit.verifier import document_key as key_at_check
from millstream.errors import InputError
from millstream.mixture.documents import document_key
from millstream.stream import tables
from millstream.stream.corpora import Corpus, open_corpus
from millstream.stream.tables import FOLDER, rows_at, rows_between, tables_of

VECTORS = Path(__file__).parent / "cases" / "document-keys.json"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Several shards a domain, held-out documents, duplicates, edited texts, records that cannot be read."""
    home = tmp_path_factory.mktemp("lookup")
    for name in ("law", "news"):
        write_domain(home / "in", name, 120)
    more: list[Any] = [{"text": f"mail me at a{n}@example.com please. " + words(f"m{n}", 30)} for n in range(20)]
    more += [{"text": f"law 0 {n}. " + words(f"law0{n}", 5 + (n * 37) % 60), "url": "https://twice"} for n in range(9)]
    more += [{"text": " "}, {"no": "text"}]
    write_jsonl(home / "in" / "news" / "more.jsonl", more)
    rules = [{"rule": "length", "min_chars": 60}, {"rule": "pii"}]
    recipe = recipe_dict(home / "in", ["law", "news"], corpus={"filters": rules})
    recipe["corpus"] |= {"shard_bytes": 4096, "chunk_bytes": 512}
    recipe["corpus"]["domains"][1]["holdout"] = 0.2
    build(home, recipe)
    return open_corpus(home / "corpus")


def questions(corpus: Corpus) -> list[Question]:
    """Every key, id and URL of every table, and some of nobody."""
    asked: dict[tuple[str, Any], Question] = {}
    for table in tables_of(corpus.manifest):
        rows = pl.read_parquet(corpus.root / table.file.path)
        for by, column in (("key", "doc_key"), ("key", "text_key"), ("id", "doc_id"), ("url", "url")):
            for value in rows[column].drop_nulls().to_list() if column in rows.columns else ():
                asked[by, value] = Question(by=by, value=value)  # type: ignore[arg-type]
    nobody = [Question(by="key", value=document_key(f"nobody {n}")) for n in range(50)]
    return [*asked.values(), *nobody, Question(by="id", value="x:y:1"), Question(by="url", value="https://nowhere")]


def as_rows(found: Found) -> list[list[dict[str, Any]]]:
    return [part.to_dicts() for part in (found.kept, found.held_out, found.excluded)]


def test_the_index_finds_what_reading_every_table_finds(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = questions(corpus)[::3]
    assert open_lookup(corpus) is None
    scanned = [as_rows(find(corpus.root, corpus.manifest, one)) for one in asked]
    # Small parts, so that many are joined, and few bits a bucket.
    monkeypatch.setattr(lookup_index, "PART", 64)
    monkeypatch.setattr(lookup_index, "BUCKET", 8)
    assert index_lookups(corpus) > 600
    assert index_lookups(corpus) == 0
    index = open_lookup(corpus)
    assert index is not None
    assert index.bits > 5
    looked_up = [as_rows(find(corpus.root, corpus.manifest, one)) for one in asked]
    assert looked_up == scanned
    assert max(len(kept) for kept, _, _ in scanned) == 1
    assert max(len(held) for _, held, _ in scanned) == 1
    assert {len(dropped) for _, _, dropped in scanned} >= {0, 1}
    twice = find(corpus.root, corpus.manifest, Question(by="url", value="https://twice"))
    assert len(twice.kept) + len(twice.held_out) == 0, "duplicates of the first domain's documents were dropped"
    edited = sum(row["doc_key"] != row["text_key"] for kept, _, _ in scanned for row in kept)
    assert edited
    entries = np.fromfile(corpus.root / FOLDER / "entries.bin", "<u8").reshape(-1, 2)  # type: ignore[operator]
    assert (entries[1:, 0] >= entries[:-1, 0]).all()


def test_an_index_of_another_corpus_or_release_is_not_used(corpus: Corpus, tmp_path: Path) -> None:
    index_lookups(corpus)
    shutil.copytree(str(corpus.root), tmp_path / "corpus", ignore=shutil.ignore_patterns(".work"))
    copy = open_corpus(tmp_path / "corpus")
    path = tmp_path / "corpus" / FOLDER / "index.json"
    about = orjson.loads(path.read_bytes())
    for change in ({"corpus_id": "0" * 64}, {"tables": "0" * 64}, {"format": "millstream-lookup/9"}, {"bits": None}):
        path.write_bytes(orjson.dumps(about | change))
        assert open_lookup(copy) is None
    assert index_lookups(copy) == about["entries"]
    entries = tmp_path / "corpus" / FOLDER / "entries.bin"
    entries.write_bytes(entries.read_bytes()[:1000])
    with pytest.raises(InputError, match=r"entries\.bin: short; remove the folder"):
        for one in questions(copy):
            find(copy.root, copy.manifest, one)


def test_pieces_hold_the_rows_of_the_tables(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows by number and by tokens are those of the tables, with the index and without."""
    chance = np.random.default_rng(5)
    shutil.rmtree(corpus.root / FOLDER, ignore_errors=True)  # type: ignore[operator]
    monkeypatch.setattr(tables, "PIECE", 4)
    monkeypatch.setattr(tables, "GROUP", 16)
    asked: list[tuple[Any, Any, Any, list[pl.DataFrame]]] = []
    for table in tables_of(corpus.manifest):
        rows = pl.read_parquet(corpus.root / table.file.path)
        numbers = sorted(set(chance.integers(0, len(rows), 6).tolist()))
        starts = chance.integers(0, 6000, 3)
        ends = starts + chance.integers(1, 300, 3)
        if table.kind != "excluded":
            at, n = rows["token_start"].to_numpy()[:, None], rows["n_tokens"].to_numpy()[:, None]
            inside = rows.filter(((at < ends) & (at + n > starts)).any(1))
        asked.append((table, numbers, (starts, ends), [rows[numbers], inside]))
    columns = ["doc_key", "token_start", "n_tokens", "url"]
    for indexed in (False, True):
        if indexed:
            index_lookups(corpus)
        for table, numbers, (starts, ends), (own, inside) in asked:
            assert rows_at(corpus, table, numbers).equals(own)
            assert rows_at(corpus, table, numbers, ["doc_id"]).equals(own.select("doc_id"))
            if table.kind == "excluded":
                continue
            found = rows_between(corpus, table, starts, ends, columns)
            at, end = found["token_start"].to_numpy()[:, None], (found["token_start"] + found["n_tokens"]).to_numpy()
            wanted = found.filter(((at < ends) & (end[:, None] > starts)).any(1))
            assert wanted.equals(inside.select(columns))
            assert len(found) <= len(wanted) + 2 * 4 * len(starts)
            assert (np.diff(at[:, 0]) > 0).all()
    damaged = corpus.root / FOLDER / "table-00000.arrow"  # type: ignore[operator]
    damaged.write_bytes(damaged.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"table-00000\.arrow: damaged: .*; remove the folder, and 'millstream audit"):
        rows_at(corpus, asked[0][0], [0])
    shutil.rmtree(corpus.root / FOLDER)  # type: ignore[operator]


def test_rows_that_only_begin_alike_are_told_apart(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every hash the same: each question reads rows of other documents, too."""
    asked = questions(corpus)[::7]
    expected = [as_rows(find(corpus.root, corpus.manifest, one)) for one in asked]
    shutil.rmtree(corpus.root / FOLDER, ignore_errors=True)  # type: ignore[operator]
    monkeypatch.setattr(lookup_index, "hash_of", lambda by, value: 7)
    index_lookups(corpus)
    assert [as_rows(find(corpus.root, corpus.manifest, one)) for one in asked] == expected
    shutil.rmtree(corpus.root / FOLDER)  # type: ignore[operator]


def test_keys_of_texts_are_frozen() -> None:
    """The vectors that docs and other implementations are held to; none may ever change."""
    vectors = json.loads(VECTORS.read_text(encoding="utf-8"))
    assert vectors["format"] == "millstream-document-keys/1"
    assert len(vectors["vectors"]) >= 15
    for vector in vectors["vectors"]:
        assert document_key(vector["text"]).hex() == vector["key"], vector["about"]
        assert key_at_check(vector["text"]).hex() == vector["key"], vector["about"]
    keys = [vector["key"] for vector in vectors["vectors"]]
    same = [(v["about"], v["same_as"]) for v in vectors["vectors"] if "same_as" in v]
    by_name = {v["about"]: v["key"] for v in vectors["vectors"]}
    assert all(by_name[a] == by_name[b] for a, b in same)
    assert len(set(keys)) == len(keys) - len(same)


def test_an_owners_copy_is_found_with_the_change_that_it_needed(tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"

    def asked(data: bytes) -> dict[str, bytes | str]:
        mine.write_bytes(data)
        assert question_from_file(mine) == next(iter(questions_from_file(mine).values()))
        return {change: one.value for change, one in questions_from_file(mine).items()}

    plain = document_key("two\nlines")
    assert asked(b"two\nlines")[""] == plain
    assert asked(b"two\r\nlines")[""] == plain
    assert asked(b"two\nlines\n")["without the newline at its end"] == plain
    assert asked(b"\xef\xbb\xbftwo\nlines")["without its byte order mark"] == plain
    assert asked(b"two\nlines")["with a newline at its end"] == document_key("two\nlines\n")
    assert asked(b"  two\nlines \n\n")["without the blank space around it"] == plain
    assert len(asked(b"two\nlines")) == 2
    assert asked(unicodedata.normalize("NFD", "café").encode())[""] == document_key("café")
    mine.write_bytes(b"\xff")
    with pytest.raises(InputError, match="not UTF-8 at byte 0"):
        questions_from_file(mine)
    assert question("ab" * 32).by == "key"
    assert question("https://a.org/b").by == "url"
    assert question("books:a/b.txt:1").by == "id"
