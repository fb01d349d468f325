"""Rules on addresses, personal data, bad words and languages: decisions and texts equal to datatrove's classes."""

import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from corpora import build, documents, exclusions, recipe_dict, texts, write_jsonl
from datatrove.data import Document
from datatrove.pipeline.filters import FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter
from datatrove.pipeline.formatters import SymbolLinesFormatter
from datatrove.pipeline.formatters.pii import PIIFormatter
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from test_mixture_rules import fuzzed_texts, real_texts

from millstream.errors import RecipeError
from millstream.mixture.datatrove_filter import check_class
from millstream.mixture.native import judge
from millstream.mixture.pii import mask_pii
from millstream.mixture.rules import Filter


def rule_of(name: str, **params: Any) -> Any:
    return TypeAdapter(Filter).validate_python({"rule": name, **params})


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("gopher-quality", GopherQualityFilter),
        ("gopher-repetition", GopherRepetitionFilter),
        ("fineweb-quality", FineWebQualityFilter),
    ],
)
def test_unicode_words_are_what_datatrove_would_decide_on_them(
    name: str, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def split(text: str, language: str = "") -> list[str]:
        return re.findall(r"\w+|[^\w\s]", text)

    from datatrove.pipeline.filters import fineweb_quality_filter, gopher_quality_filter, gopher_repetition_filter

    for place in (fineweb_quality_filter, gopher_quality_filter, gopher_repetition_filter):
        monkeypatch.setattr(place, "split_into_words", split)
    theirs = module()
    cases = [*real_texts(), *fuzzed_texts()]
    judged = judge(pl.DataFrame({"text": cases}), rule_of(name, words="unicode"))
    for text, ours in zip(cases, judged["rule"], strict=True):
        verdict = theirs.filter(Document(text=text, id="x"))
        assert ours == (None if verdict is True else verdict[1]), repr(text)
    spacy = judge(pl.DataFrame({"text": cases}), rule_of(name))
    assert name != "gopher-quality" or spacy["rule"].to_list() != judged["rule"].to_list()


ADDRESSES = """a.b+c@mail.example.co.uk x@y ann@[8.8.8.8] ann@[fe:] é@b.de bob@straße.de BOB@B-.DE o'neil@a.io @ . ..
8.8.8.8 10.0.0.1 192.168.1.300 255.255.255.255 1.1.1.1.1 01.02.03.04 v1.2.3.4-rc 8.8.8 127.0.0.1 ٣.٣.٣.٣ 1.2.3.4@b.c
a@1.2.3.4 a@b.c.d,e@f.g 99 256.1.1.1"""
ADDRESS = st.sampled_from(ADDRESSES.split()) | st.text("ab.@[]-1258 \n", max_size=12)
TEXTS = st.lists(st.lists(ADDRESS, max_size=8).map(" ".join) | st.lists(ADDRESS, max_size=8).map("".join), max_size=5)
PII_SETTINGS = st.fixed_dictionaries(
    {name: st.booleans() for name in ("remove_emails", "remove_ips", "only_remove_public_ips")}
)


@given(TEXTS, PII_SETTINGS)
def test_masked_texts_are_datatroves(cases: list[str], settings: dict[str, bool]) -> None:
    masks = {"email_replacement": ("someone@8.8.4.4",), "ip_replacement": ("0.0.0.0",)}
    theirs = PIIFormatter(**settings, **masks)
    table = pl.DataFrame({"text": cases}, schema={"text": pl.String})
    ours = mask_pii(table, rule_of("pii", **settings, **masks))
    assert ours["new"].to_list() == [theirs.format(text) for text in cases]
    assert ours["rule"].is_null().all()
    assert table["text"].to_list() == cases


def test_masks_are_datatroves_on_real_texts_and_depend_on_nothing_else() -> None:
    cases = [*real_texts(), *fuzzed_texts()]
    theirs = PIIFormatter(email_replacement="e@e.org", ip_replacement="9.9.9.9")
    single = rule_of("pii", email_replacement=["e@e.org"], ip_replacement=["9.9.9.9"])
    masked = mask_pii(pl.DataFrame({"text": cases}), single)["new"].to_list()
    assert masked == [theirs.format(text) for text in cases]
    assert masked != cases
    text = " ".join(f"user{n}@mail.org 8.8.8.{n}" for n in range(100))
    rule = rule_of("pii")
    (alone,) = mask_pii(pl.DataFrame({"text": [text]}), rule)["new"]
    assert mask_pii(pl.DataFrame({"text": ["a@b.org", text, text]}), rule)["new"].to_list()[1:] == [alone, alone]
    assert set(alone.split()) == {*rule.email_replacement, *rule.ip_replacement}
    assert (rule.email_replacement, rule.ip_replacement) == (
        PIIFormatter().emails_replacer.replacements,
        PIIFormatter().ip_replacer.replacements,
    )


def test_masked_documents_say_so(tmp_path: Path) -> None:
    write_jsonl(
        tmp_path / "in" / "law" / "a.jsonl", [{"text": "Write to ann@mail.org, or 10.0.0.1."}, {"text": "No address."}]
    )
    rules = [{"rule": "pii", "email_replacement": ["(address)"]}]
    build(tmp_path, recipe_dict(tmp_path / "in", ["law"], corpus={"filters": rules}))
    assert sorted(texts(tmp_path / "corpus", "law").values()) == ["No address.", "Write to (address), or 10.0.0.1."]
    table = documents(tmp_path / "corpus", "law")
    edited = table.filter(pl.col("locator") == "a.jsonl:1")
    assert edited["edits"].to_list() == [["Pii"]]
    assert edited["doc_key"].item() != edited["text_key"].item()
    assert table.filter(pl.col("locator") == "a.jsonl:2")["edits"].to_list() == [[]]


def test_formatters_run_by_name_each_document_by_itself(tmp_path: Path) -> None:
    cases = ["Kept\n----\n\n***\nalso  kept", "---\n***", "ann@mail.org bob@mail.org", "plain"]
    write_jsonl(tmp_path / "in" / "law" / "a.jsonl", [{"text": text} for text in cases])
    rules = [
        {"rule": "datatrove-formatter", "formatter": "symbol_lines_remover.SymbolLinesFormatter"},
        {"rule": "datatrove-formatter", "formatter": "pii.PIIFormatter", "params": {"remove_ips": False}},
        {"rule": "datatrove-formatter", "formatter": "pii.PIIFormatter", "params": {"email_replacement": "x"}},
    ]
    build(tmp_path, recipe_dict(tmp_path / "in", ["law"], corpus={"filters": rules}))
    kept = {doc_id[-1]: text for doc_id, text in texts(tmp_path / "corpus", "law").items()}
    assert kept == {"1": SymbolLinesFormatter().format(cases[0]), "3": "x x", "4": "plain"}
    dropped = exclusions(tmp_path / "corpus").select("locator", "rule", "value").rows()
    assert dropped == [("a.jsonl:2", "SymbolLinesFormatter", "no text left")]
    edits = dict(documents(tmp_path / "corpus", "law").select("locator", "edits").iter_rows())
    assert edits["a.jsonl:3"] == ["PIIFormatter", "PIIFormatter"]


@pytest.mark.parametrize(
    ("path", "params", "message"),
    [
        ("os.system", {}, "no such class below datatrove.pipeline.formatters"),
        ("base.BaseFormatter", {}, "abstract"),
        ("pii.PIIReplacer", {}, "not a datatrove formatter"),
        ("datatrove.pipeline.filters.regex_filter.RegexFilter", {}, "no such class"),
        ("pii.PIIFormatter", {"no": 1}, "unexpected keyword argument"),
    ],
)
def test_a_formatter_that_cannot_be_made_is_named(path: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        check_class(rule_of("datatrove-formatter", formatter=path, params=params))
