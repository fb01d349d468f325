"""Awkward documents through every rule and pass: a line of 5 MB, 70,000 lines, very many tiny ones, no spaces."""

from pathlib import Path

import polars as pl
from corpora import build, documents, exclusions, recipe_dict, words, write_jsonl

ALL = [
    {"rule": "pii"},
    {
        "rule": "gopher-repetition",
        "dup_line_frac": None,
        "dup_line_char_frac": None,
        "top_n_grams": [[2, 2.0], [3, 2.0]],
        "dup_n_grams": [[5, 2.0], [10, 2.0]],
    },
    {
        "rule": "gopher-quality",
        "min_stop_words": 0,
        "min_doc_words": 0,
        "max_doc_words": None,
        "max_non_alpha_words_ratio": 0.1,
    },
    {"rule": "c4-quality", "filter_no_terminal_punct": False, "min_num_sentences": -1},
    {
        "rule": "fineweb-quality",
        "line_punct_thr": 0,
        "short_line_thr": 1,
        "char_duplicates_ratio": 1,
        "new_line_ratio": 1,
    },
]


def test_huge_and_tiny_documents_pass_through_everything(tmp_path: Path) -> None:
    long_line = words("long", 60_000) + " " + "".join(f" w{n}x" for n in range(600_000))
    many_lines = "\n".join(f"Line {n} of the {n % 977} mills in town {n * 31 % 1009}." for n in range(70_000))
    solid = "x" * 3_000_000
    dots = "." * 1_000_000
    tiny = [f"tiny {n} text" for n in range(20_000)]
    write_jsonl(tmp_path / "in" / "law" / "big.jsonl", [{"text": t} for t in (long_line, many_lines, solid, dots)])
    write_jsonl(tmp_path / "in" / "law" / "tiny.jsonl", [{"text": t} for t in tiny])
    dedup = {"near": {"max_removed": "1"}, "sentences": {"min_doc_words": 1}}
    recipe = recipe_dict(tmp_path / "in", ["law"], corpus={"filters": ALL, "dedup": dedup})
    assert len(long_line) > 5_000_000
    manifest = build(tmp_path, recipe, tasks=2).manifest
    kept, dropped = documents(tmp_path / "corpus", "law"), exclusions(tmp_path / "corpus")
    assert len(kept) + len(dropped) == manifest.domain("law").read == 20_004
    assert dropped["value"].null_count() == 0
    ours = pl.concat([kept.select("doc_id"), dropped.select("doc_id")])
    assert ours["doc_id"].n_unique() == 20_004
    assert {"law-files:big.jsonl:1", "law-files:big.jsonl:2"} <= set(kept["doc_id"]), dropped.head()
