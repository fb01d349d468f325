"""Planted evaluation items are found with set, item and n-gram; lookalikes stay; missing sets stop the build."""

import json
from pathlib import Path
from typing import Any

import pytest
from corpora import build, documents, exclusions, recipe_dict, words, write_jsonl

from millstream.errors import InputError


def evaluation(folder: Path, count: int = 40) -> list[str]:
    items = [f"Question {n}: " + words(f"eval{n}", 30) + "?" for n in range(count)]
    write_jsonl(folder / "eval" / "quiz.jsonl", [{"question": q, "answer": "forty two"} for q in items])
    return items


def recipe_with(folder: Path, **settings: Any) -> dict[str, Any]:
    sets = [{"name": "quiz", "file": "eval/quiz.jsonl", "fields": ["question", "answer"]}]
    return recipe_dict(folder / "in", ["law"], corpus={"decontaminate": {"sets": sets, **settings}})


def test_every_planted_leak_is_found_and_nothing_else(tmp_path: Path) -> None:
    items = evaluation(tmp_path)
    clean = [words(f"clean{n}", 150) for n in range(60)]
    disguised = [item.upper().replace(" ", "  ").replace("?", "!!") for item in items]
    leaks = [f"{words(f'before{n}', 40)}\n\n{text}\n\n{words(f'after{n}', 40)}" for n, text in enumerate(disguised)]
    write_jsonl(tmp_path / "in" / "law" / "a.jsonl", [{"text": t} for t in [*clean, *leaks]])
    result = build(tmp_path, recipe_with(tmp_path))
    assert any("40 texts have fewer than 13 words" in warning for warning in result.warnings)
    dropped = exclusions(tmp_path / "corpus")
    assert dropped.select("stage", "rule", "threshold").unique().rows() == [
        ("decontaminate", "contaminated", "max_overlap 0")
    ]
    found = {int(d.rsplit(":", 1)[1]): value for d, value in dropped.select("doc_id", "value").rows()}
    assert sorted(found) == list(range(61, 101))
    for line, value in found.items():
        assert value.startswith(f"quiz:{line - 60}, ")
        assert len(value.split(": ")[-1].split()) == 13
    assert len(documents(tmp_path / "corpus", "law")) == 60


def test_a_share_of_a_paragraph_can_be_allowed(tmp_path: Path) -> None:
    (item, *_) = evaluation(tmp_path, 1)
    long, short = words("around", 300) + " " + item, item
    write_jsonl(tmp_path / "in" / "law" / "a.jsonl", [{"text": long}, {"text": short}, {"text": words("other", 90)}])
    build(tmp_path, recipe_with(tmp_path, max_overlap="0.5"))
    assert exclusions(tmp_path / "corpus")["locator"].to_list() == ["a.jsonl:2"]


def test_n_grams_do_not_reach_across_paragraphs(tmp_path: Path) -> None:
    (item, *_) = evaluation(tmp_path, 1)
    parts = item.split()
    broken = "\n\n".join(" ".join(parts[at : at + 8]) for at in range(0, len(parts), 8))
    write_jsonl(tmp_path / "in" / "law" / "a.jsonl", [{"text": broken}, {"text": words("other", 90)}])
    build(tmp_path, recipe_with(tmp_path))
    assert exclusions(tmp_path / "corpus").is_empty()


def test_missing_and_broken_sets_stop_the_build(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "law" / "a.jsonl", [{"text": words("other", 90)}])
    with pytest.raises(InputError, match=r"quiz\.jsonl: evaluation set 'quiz' is missing"):
        build(tmp_path, recipe_with(tmp_path))
    write_jsonl(tmp_path / "eval" / "quiz.jsonl", [{"question": "x", "answer": "y"}, {"question": 5}])
    with pytest.raises(InputError, match=r"quiz\.jsonl:2: evaluation set 'quiz' has no text in the field 'question'"):
        build(tmp_path, recipe_with(tmp_path))


def test_a_changed_set_is_looked_for_anew(tmp_path: Path) -> None:
    items = evaluation(tmp_path)
    write_jsonl(tmp_path / "in" / "law" / "a.jsonl", [{"text": items[0]}, {"text": words("other", 90)}])
    build(tmp_path, recipe_with(tmp_path))
    assert len(exclusions(tmp_path / "corpus")) == 1
    kept = (tmp_path / "eval" / "quiz.jsonl").read_text().splitlines()[1:]
    (tmp_path / "eval" / "quiz.jsonl").write_text("\n".join(kept) + "\n")
    build(tmp_path, recipe_with(tmp_path))
    assert exclusions(tmp_path / "corpus").is_empty()
    assert json.loads((tmp_path / "corpus" / "corpus.json").read_text())["corpus"]["decontaminate"]["n_grams"] == 13
