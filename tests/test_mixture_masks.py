"""Rules on addresses, personal data, bad words and languages: decisions and texts equal to datatrove's classes."""

import hashlib
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from corpora import build, documents, exclusions, recipe_dict, texts, write_jsonl
from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4BadWordsFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    LanguageFilter,
    URLFilter,
)
from datatrove.pipeline.formatters import SymbolLinesFormatter
from datatrove.pipeline.formatters.pii import PIIFormatter
from datatrove.utils._import_utils import ASSETS_PATH
from fasttext import train_supervised
from fasttext.FastText import _FastText
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from test_mixture_rules import fuzzed_texts, real_texts
from tldextract import TLDExtract

from millstream.errors import InputError, RecipeError, SetupError
from millstream.mixture.bad_words import bad_words
from millstream.mixture.datatrove_filter import check_class
from millstream.mixture.documents import document_key
from millstream.mixture.language import by_language, check_language
from millstream.mixture.native import judge
from millstream.mixture.pii import mask_pii
from millstream.mixture.rules import Filter
from millstream.mixture.url_lists import check_lists, url_lists


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
def test_masked_texts_are_datatroves(cases: list[str], switches: dict[str, bool]) -> None:
    masks = {"email_replacement": ("someone@8.8.4.4",), "ip_replacement": ("0.0.0.0",)}
    theirs = PIIFormatter(**switches, **masks)
    table = pl.DataFrame({"text": cases}, schema={"text": pl.String})
    ours = mask_pii(table, rule_of("pii", **switches, **masks))
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


URL_LISTS: dict[str, list[str]] = {
    "domains": ["evil.com", "sub.fine.org", "bad.co.uk", "xn--bcher-kva.example", "#good.org", "user.github.io"],
    "urls": ["https://fine.org/bad page", "HTTP://fine.org/B"],
    "banned_words": ["Porn", "#fine", "x-rated"],
    "banned_subwords": ["Big Game", "#org", "zz"],
    "soft_banned_words": ["bet", "casino", "win", "#path"],
}
URL_PARTS = """http:// https:// HTTP:// // ftp:// a: evil.com Evil.COM www.evil.com. sub.fine.org fine.org bad.co.uk
co.uk github.io user.github.io bücher.example xn--bcher-kva.example 8.8.8.8 [::1] localhost user:pw@ :80 / ? # // . ..
% - _ é 。 bad Porn porn PORN xrated x-rated bet casino win big game BigGame zZ path index.html &q=1 ſ K"""
URL_PART = st.sampled_from([*URL_PARTS.split(), " "]) | st.text(max_size=2)
URLS = st.lists(st.lists(URL_PART, min_size=1, max_size=9).map("".join).filter(bool), max_size=20)
EXTRACTOR = TLDExtract(cache_dir=None, suffix_list_urls=())


def url_filter(**params: Any) -> URLFilter:
    made = URLFilter(**params)
    made.tldextractor = EXTRACTOR
    return made


def decisions(theirs: URLFilter, urls: list[str]) -> list[str | None]:
    verdicts = [theirs.filter(Document(text="", id="x", metadata={"url": url})) for url in urls]
    return [None if verdict is True else verdict[1] for verdict in verdicts]


@settings(deadline=None)
@given(URLS, st.integers(1, 3))
def test_addresses_are_judged_as_datatrove_does(urls: list[str], soft: int) -> None:
    lists = {("extra_" + name if name in ("domains", "urls") else name): given for name, given in URL_LISTS.items()}
    theirs = url_filter(soft_word_threshold=soft, use_integrated_lists=False, **lists)
    rule = rule_of("url-lists", soft_word_threshold=soft, use_integrated_lists=False, **URL_LISTS)
    judged = url_lists(pl.DataFrame({"url": urls}, schema={"url": pl.String}), rule)
    assert judged["rule"].to_list() == decisions(theirs, urls)
    assert (judged["rule"].is_null() == judged["value"].is_null()).all()
    assert (judged["rule"].is_null() == judged["threshold"].is_null()).all()


def test_an_address_says_what_dropped_it_and_none_is_kept() -> None:
    cases: list[tuple[str | None, tuple[str, ...] | None]] = [
        ("https://www.evil.com/", ("domain", "evil.com", "domains")),
        ("https://sub.fine.org/", ("subdomain", "sub.fine.org", "domains")),
        ("https://fine.org/bad page", ("url", "https://fine.org/bad page", "urls")),
        ("https://fine.org/xrated/porn", ("hard_blacklisted", "porn", "banned_words")),
        ("https://fine.org/win?bet", ("soft_blacklisted", "2: bet, win", "soft_word_threshold 2")),
        ("https://fine.org/a-BIG-game", ("blacklisted_subword", "biggame", "banned_subwords")),
        ("https://fine.org/good", None),
        (None, None),
        ("", None),
    ]
    table = pl.DataFrame({"url": [url for url, _ in cases]})
    judged = url_lists(table, rule_of("url-lists", use_integrated_lists=False, **URL_LISTS))
    assert judged.rows() == [expected or (None, None, None) for _, expected in cases]
    nothing = url_lists(table, rule_of("url-lists", use_integrated_lists=False))
    assert nothing["rule"].is_null().all()


def test_datatroves_own_lists_are_read_where_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(Path(ASSETS_PATH) / "url_filterblacklistsv0_3_0.tar.gz") as tar:
        members = {Path(m.name).name: tar.extractfile(m) for m in tar if m.isfile()}
        blocked = {name: file.read().decode().split("\n") for name, file in members.items() if file is not None}
    banned = [word for word in (Path(ASSETS_PATH) / "banned_words.txt").read_text().split() if word[0] != "#"]
    urls = [f"https://{www}{domain}/a" for domain in blocked["domains"][::20_000] for www in ("", "www.")]
    urls += [*blocked["urls"][::500], *(f"http://{url}" for url in blocked["urls"][::5000])]
    urls += [f"https://example.org/{word}/" for word in banned]
    urls += [f"https://docs{n}.example.org/guide/{n}.html" for n in range(50)]
    monkeypatch.setattr("datatrove.pipeline.filters.url_filter.cached_assets_path", lambda **_: str(tmp_path))
    judged = url_lists(pl.DataFrame({"url": urls}), rule_of("url-lists"))
    assert judged["rule"].to_list() == decisions(url_filter(), urls)
    assert set(judged["rule"]) >= {"domain", "subdomain", "url", "hard_blacklisted", None}


def test_a_list_file_is_found_from_the_recipe_and_its_content_counts(tmp_path: Path) -> None:
    records = [{"text": f"About {host}.", "url": f"https://{host}.com/"} for host in ("one", "two")]
    write_jsonl(tmp_path / "in" / "law" / "a.jsonl", [*records, {"text": "About nothing."}])
    blocked = tmp_path / "lists" / "domains.txt"
    blocked.parent.mkdir()
    blocked.write_text("# ours\none.com\n\n")
    rules = [{"rule": "url-lists", "domains": "lists/domains.txt", "use_integrated_lists": False}]
    recipe = recipe_dict(tmp_path / "in", ["law"], corpus={"filters": rules})
    build(tmp_path, recipe)
    root = tmp_path / "corpus"
    shown = ("locator", "rule", "value", "threshold")
    assert exclusions(root).select(shown).rows() == [("a.jsonl:1", "domain", "one.com", "domains")]
    blocked.write_text("two.com")
    build(tmp_path, recipe)
    assert exclusions(root).select(shown).rows() == [("a.jsonl:2", "domain", "two.com", "domains")]
    noted = json.loads((root / "corpus.json").read_text())["build"]["rule_files"]
    assert noted == {"lists/domains.txt": hashlib.sha256(b"two.com").hexdigest()}
    keys = {path.name for path in (root / ".work" / "read").iterdir()}
    (tmp_path / "domains.txt").write_text("two.com")
    rules[0]["domains"] = "domains.txt"
    build(tmp_path, recipe)
    assert keys >= {path.name for path in (root / ".work" / "read").iterdir()}
    (tmp_path / "domains.txt").unlink()
    with pytest.raises(InputError, match=r"domains\.txt: the file that 'domains' of the rule"):
        build(tmp_path, recipe)


BAD = [
    "mill",
    "two words",
    "naïve",
    "c++",
    "Upper",
    "istanbul",
    "straße",
    "ς",
    "性",
    "sm",
    "世界",
    "don't",
    "x_y",
    "^a$",
]
BAD_TEXT = """mill MILL mills two words naïve NAÏVE c++ C++ upper Upper İstanbul ISTANBUL straße STRASSE Σ ΑΣ 性 sm 世界
你世界 don't x_y x_y_ ^a$ _ ½ é e\u0301 \u0301 ² Ⅷ ٣ - . , K ſ"""
BAD_PARTS = [*BAD_TEXT.split(), "", " ", "\n", "\u00a0", "\x1c", " ", "-"]
BAD_TEXTS = st.lists(st.lists(st.sampled_from(BAD_PARTS), max_size=10).map("".join), max_size=20)


def with_keys(cases: list[str]) -> pl.DataFrame:
    columns = {"text": cases, "doc_key": [document_key(text) for text in cases]}
    return pl.DataFrame(columns, schema={"text": pl.String, "doc_key": pl.Binary})


def bad_words_filter(path: Path, language: str) -> C4BadWordsFilter:
    """datatrove's class with a list in place of the one that it downloads."""
    made = C4BadWordsFilter(default_language=language)
    place = "datatrove.pipeline.filters.c4_filters.cached_asset_path_or_download"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, lambda *_, **__: str(path))
        made._get_badwords(language)
    return made


@pytest.mark.parametrize("language", ["en", "fr", "ja", "zh"])
def test_bad_words_are_found_as_datatrove_finds_them(
    language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "words"
    path.write_text("".join(f"{word} \n" for word in BAD))
    theirs = bad_words_filter(path, language)
    rule = rule_of("bad-words", words=str(path), language=language)

    def check(cases: list[str]) -> None:
        expected = [theirs.filter(Document(text=text, id="x")) is not True for text in cases]
        judged = bad_words(with_keys(cases), rule)
        assert judged["rule"].is_not_null().to_list() == expected
        for text, word in zip(cases, judged["value"], strict=True):
            assert word is None or (word in BAD and word in text.lower())

    @settings(deadline=None)
    @given(BAD_TEXTS)
    def fuzzed(cases: list[str]) -> None:
        check(cases)

    check([*real_texts(), *fuzzed_texts()])
    fuzzed()
    monkeypatch.setattr("millstream.mixture.bad_words.HINT_CHARS", 0)
    rule = rule_of("bad-words", words=BAD, language=language)
    check([*real_texts(), *fuzzed_texts()])


def test_a_share_of_documents_with_bad_words_stays_whatever_comes_before() -> None:
    cases = [f"the mill, number {n}" for n in range(2000)]
    rule = rule_of("bad-words", words=["mill"], keep_fraction="0.25")
    judged = bad_words(with_keys(cases), rule)
    assert 400 < judged["rule"].is_null().sum() < 600
    assert bad_words(with_keys(cases[1000:]), rule)["rule"].to_list() == judged["rule"].to_list()[1000:]
    assert bad_words(with_keys(cases), rule_of("bad-words", words=["mill"], keep_fraction=1))["rule"].is_null().all()
    other = bad_words(with_keys(cases), rule_of("bad-words", words=["mill"], keep_fraction="0.25", seed=1))
    assert other["rule"].to_list() != judged["rule"].to_list()
    assert judged.drop_nulls().row(0) == ("document_removed_with_badwords", "mill", "keep_fraction 0.25")


def test_a_word_file_is_found_from_the_recipe_and_must_hold_words(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "law" / "a.jsonl", [{"text": "The #mill."}, {"text": "The river."}])
    rules = [{"rule": "bad-words", "words": "words.txt"}]
    recipe = recipe_dict(tmp_path / "in", ["law"], corpus={"filters": rules})
    (tmp_path / "words.txt").write_text("#mill\n")
    build(tmp_path, recipe)
    assert exclusions(tmp_path / "corpus").select("locator", "value").rows() == [("a.jsonl:1", "#mill")]
    (tmp_path / "words.txt").write_text("\n")
    with pytest.raises(InputError, match=r"words\.txt: the rule 'bad-words' has no word to look for"):
        build(tmp_path, recipe)
    (tmp_path / "words.txt").write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"words\.txt: not UTF-8 at byte 0"):
        build(tmp_path, recipe)


SENTENCES = {
    "en": "the cat and the dog number {} have been here",
    "de": "der hund und die katze nummer {} sind hier gewesen",
    "fr": "le chien et le chat numéro {} sont ici avec nous",
}


def trained_model(path: Path, sentences: dict[str, str]) -> Path:
    """A model of a few kilobytes that knows a sentence of each language."""
    lines = [f"__label__{label} {text.format(n)}\n" for n in range(100) for label, text in sentences.items()]
    path.with_suffix(".txt").write_text("".join(lines))
    # Each thread sets a tenth of the first weights: with fewer than 11, the rest is whatever memory held, NaN too.
    settings = {"dim": 16, "epoch": 25, "lr": 0.5, "minn": 2, "maxn": 3, "bucket": 2000, "thread": 11, "verbose": 0}
    train_supervised(str(path.with_suffix(".txt")), **settings).save_model(str(path))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_model(tmp_path_factory.mktemp("model") / "tiny.bin", SENTENCES)


SPOKEN = " ".join(SENTENCES.values()).split()
SPOKEN_TEXTS = st.lists(st.lists(st.sampled_from([*SPOKEN, "\n", "\0", "世界"]), max_size=9).map(" ".join), max_size=9)


@pytest.mark.parametrize("languages", [[], ["en"], ["de", "fr"]])
@pytest.mark.parametrize("threshold", [0.65, 0.2, 0.999])
def test_languages_are_told_as_datatrove_tells_them(languages: list[str], threshold: float, model: Path) -> None:
    theirs = LanguageFilter(languages or None, threshold)
    theirs.model._model = _FastText(str(model))
    rule = rule_of("language", model=str(model), languages=languages, threshold=threshold)

    def check(cases: list[str]) -> None:
        judged = by_language(pl.DataFrame({"text": cases}, schema={"text": pl.String}), rule)
        for text, verdict in zip(cases, judged.rows(), strict=True):
            document = Document(text=text, id="x")
            assert (verdict == (None, None, None)) == bool(theirs.filter(document)), repr(text)
            if verdict[0]:
                told = f"{document.metadata['language']} {document.metadata['language_score']:.6g}"
                assert verdict[:2] == ("language", told)

    @settings(deadline=None)
    @given(SPOKEN_TEXTS)
    def fuzzed(cases: list[str]) -> None:
        check(cases)

    check([*real_texts(), *fuzzed_texts()])
    fuzzed()


def test_a_build_drops_by_language_and_the_models_content_counts(tmp_path: Path) -> None:
    cases = [text.format(n) for n, text in enumerate(SENTENCES.values())]
    write_jsonl(tmp_path / "in" / "law" / "a.jsonl", [{"text": text} for text in cases])
    trained_model(tmp_path / "tiny.bin", SENTENCES)
    rules = [{"rule": "language", "model": "tiny.bin", "languages": ["en", "de"]}]
    recipe = recipe_dict(tmp_path / "in", ["law"], corpus={"filters": rules})
    build(tmp_path, recipe)
    ((place, value, threshold),) = exclusions(tmp_path / "corpus").select("locator", "value", "threshold").rows()
    assert place == "a.jsonl:3"
    assert value.startswith(("fr 0.9", "fr 1"))
    assert threshold == "languages en, de; threshold 0.65"
    trained_model(tmp_path / "tiny.bin", {"de": SENTENCES["fr"], "fr": SENTENCES["en"], "en": SENTENCES["de"]})
    build(tmp_path, recipe)
    assert exclusions(tmp_path / "corpus")["locator"].to_list() == ["a.jsonl:1"]


def test_what_is_missing_for_languages_is_named(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="the model knows no language 'xx'; it knows de, en, fr"):
        check_language(rule_of("language", model=str(model), languages=["en", "xx"]))
    (tmp_path / "broken.bin").write_bytes(b"not a model" * 9)
    with pytest.raises(InputError, match=r"broken\.bin: no fastText model that tells labels"):
        check_language(rule_of("language", model=str(tmp_path / "broken.bin")))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SetupError, match=r"need fastText: pip install 'millstream\[language\]'"):
        check_language(rule_of("language", model=str(model)))
    with pytest.raises(SetupError, match=r"needs tldextract: pip install 'millstream\[urls\]'"):
        check_lists(rule_of("url-lists"))
