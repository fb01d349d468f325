"""``build --explain``: what will run and why, and nothing done."""

from pathlib import Path
from typing import Any

from corpora import build, digests, recipe_dict, words, write_domain, write_jsonl, write_recipe

from millstream.tokenize.explain import Planned, explain_build


def explained(folder: Path, recipe: dict[str, Any]) -> list[Planned]:
    loaded = write_recipe(folder / "recipe.yaml", recipe)
    return explain_build(loaded, folder, folder / "corpus")


def to_do(planned: list[Planned]) -> list[tuple[str, str]]:
    return [(p.what.split(" ")[0] if p.stage == "read" else p.stage, p.why) for p in planned if p.state != "done"]


def test_each_change_is_told_and_only_what_depends_on_it_is_done(tmp_path: Path) -> None:
    for name in ("law", "art"):
        write_domain(tmp_path / "in", name, 40)
    recipe = recipe_dict(tmp_path / "in", ["law", "art"], corpus={"dedup": {"near": {"max_removed": "1"}}})
    first = explained(tmp_path, recipe)
    assert not (tmp_path / "corpus").exists() or not list((tmp_path / "corpus").rglob("*.parquet"))
    assert [(p.stage, p.state, p.why) for p in first][:2] == [("read", "to do", "never read before")] * 2
    build(tmp_path, recipe)
    before = digests(tmp_path / "corpus")
    planned = explained(tmp_path, recipe)
    assert {p.state for p in planned} == {"done"}
    assert [p.stage for p in planned] == [
        *["read", "read", "dedup", "bands", "pairs", "clusters", "near", "encode", "shards", "seal"]
    ]

    recipe["corpus"]["domains"][1]["filters"] = [{"rule": "length", "min_chars": 5}]
    told = explained(tmp_path, recipe)
    assert to_do(told)[0] == ("art", "the filters, or a file that they name changed")
    assert [p.state for p in told if p.what.startswith("law from")] == ["done"]
    assert digests(tmp_path / "corpus") == before, "explaining does nothing"
    del recipe["corpus"]["domains"][1]["filters"]

    write_jsonl(tmp_path / "in" / "law" / "part-9.jsonl", [{"text": words("new", 30)}])
    assert to_do(explained(tmp_path, recipe))[0] == ("law", "part-9.jsonl new")
    build(tmp_path, recipe)
    (tmp_path / "in" / "law" / "part-9.jsonl").unlink()
    write_jsonl(tmp_path / "in" / "art" / "part-0.jsonl", [{"text": words("other", 30)}])
    assert to_do(explained(tmp_path, recipe))[0] == ("art", "part-0.jsonl changed")

    write_domain(tmp_path / "in", "new", 10)
    added = recipe_dict(tmp_path / "in", ["law", "art", "new"], corpus={"dedup": {"near": {"max_removed": "1"}}})
    assert ("new", "never read before") in to_do(explained(tmp_path, added))
    added["corpus"]["seed"] = 7
    assert ("law", "the corpus seed changed") in to_do(explained(tmp_path, added))
