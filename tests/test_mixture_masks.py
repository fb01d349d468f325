"""Rules on addresses, personal data, bad words and languages: decisions and texts equal to datatrove's classes."""

import re
from typing import Any

import polars as pl
import pytest
from datatrove.data import Document
from datatrove.pipeline.filters import FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter
from pydantic import TypeAdapter
from test_mixture_rules import fuzzed_texts, real_texts

from millstream.mixture.native import judge
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
    given = [*real_texts(), *fuzzed_texts()]
    judged = judge(pl.DataFrame({"text": given}), rule_of(name, words="unicode"))
    for text, ours in zip(given, judged["rule"], strict=True):
        verdict = theirs.filter(Document(text=text, id="x"))
        assert ours == (None if verdict is True else verdict[1]), repr(text)
    spacy = judge(pl.DataFrame({"text": given}), rule_of(name))
    assert name != "gopher-quality" or spacy["rule"].to_list() != judged["rule"].to_list()
