"""Inputs that broke real tools, each with its right outcome: kept, or excluded with file, line and reason."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from corpora import build, documents, exclusions, recipe_dict, texts

from millstream.audit.lookup import find, question_from_file
from millstream.errors import InputError
from millstream.mixture.documents import document_key
from millstream.tokenize.build import BuildResult

CASES = Path(__file__).parent / "cases" / "ingest"


def build_case(tmp_path: Path, name: str, *, dedup: bool = False, **source: Any) -> tuple[BuildResult, Path]:
    """Build one case; a second domain keeps corpora whose case keeps nothing alive."""
    recipe = recipe_dict(tmp_path, [])
    recipe["corpus"]["sources"] = [
        {"name": "case", "root": str(CASES), "files": [name], "licence": "CC0-1.0", **source}
    ]
    recipe["corpus"]["domains"] = [{"name": "case", "sources": ["case"]}]
    recipe["corpus"]["dedup"] = {"exact": dedup}
    return build(tmp_path, recipe), tmp_path / "corpus"


def metadata(root: Path) -> dict[str, dict[str, Any]]:
    table = documents(root, "case")
    return {doc_id: json.loads(text) for doc_id, text in table.select("doc_id", "metadata").iter_rows()}


@pytest.mark.parametrize(
    ("name", "kept", "dropped"),
    [
        ("bad-byte.jsonl", 300, [("bad-byte.jsonl:201", "invalid-utf8")]),
        ("malformed-line.jsonl", 10, [("malformed-line.jsonl:6", "malformed-json")]),
        ("not-an-object.jsonl", 6, [(f"not-an-object.jsonl:{n}", "not-an-object") for n in (4, 5, 6, 7)]),
        ("lone-surrogate.jsonl", 6, [("lone-surrogate.jsonl:4", "lone-surrogate")]),
        ("bom-first-line.jsonl", 4, []),
        ("nan-metadata.jsonl", 5, []),
        (
            "text-missing-or-wrong-type.jsonl",
            2,
            [
                (f"text-missing-or-wrong-type.jsonl:{n}", rule)
                for n, rule in zip(
                    range(1, 7),
                    ("text-type", "text-type", "empty-text", "text-type", "text-type", "empty-text"),
                    strict=True,
                )
            ],
        ),
        ("ids-duplicate-null-number.jsonl", 6, []),
        ("metadata-named-rank.jsonl", 4, []),
        ("key-first-seen-late.jsonl", 151, []),
        ("metadata-changes-type.jsonl", 6, []),
        ("special-token-in-text.jsonl", 3, []),
        ("crlf-no-final-newline.jsonl", 5, []),
        ("blank-lines-between.jsonl", 2, []),
        ("nul-and-controls.jsonl", 3, []),
        ("normal-forms.jsonl", 4, []),
        ("two-members.jsonl.gz", 20, []),
    ],
)
def test_counts_and_reasons(tmp_path: Path, name: str, kept: int, dropped: list[tuple[str, str]]) -> None:
    result, root = build_case(tmp_path, name)
    domain = result.manifest.domain("case")
    assert domain.documents == kept
    assert domain.read == kept + len(dropped)
    found = exclusions(root).sort("locator")
    assert found.select("locator", "rule").rows() == sorted(dropped)
    assert found["stage"].unique().to_list() == (["read"] if dropped else [])
    assert found["raw_sha256"].null_count() == 0
    source = CASES / name
    if name.endswith(".jsonl"):
        # What was kept is what stands in the file, to the character.
        lines = source.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
        for doc_id, text in texts(root, "case").items():
            line = int(doc_id.rsplit(":", 1)[1])
            assert json.loads(lines[line - 1])["text"] == text


def test_the_first_id_after_a_bom_is_kept(tmp_path: Path) -> None:
    _, root = build_case(tmp_path, "bom-first-line.jsonl")
    assert metadata(root)["case:bom-first-line.jsonl:1"]["id"] == "d0"


def test_nan_and_infinity_in_metadata_become_null(tmp_path: Path) -> None:
    _, root = build_case(tmp_path, "nan-metadata.jsonl")
    raw = [json.loads(line) for line in (CASES / "nan-metadata.jsonl").read_text().splitlines()]
    for line, record in enumerate(raw, 1):
        kept = metadata(root)[f"case:nan-metadata.jsonl:{line}"]
        for field, value in record.items():
            if field != "text":
                strange = isinstance(value, float) and (value != value or abs(value) == float("inf"))
                assert kept[field] == (None if strange else value)


def test_given_ids_survive_as_metadata_digits_unchanged(tmp_path: Path) -> None:
    _, root = build_case(tmp_path, "ids-duplicate-null-number.jsonl")
    table = documents(root, "case")
    assert table["doc_id"].n_unique() == 6
    raw = (CASES / "ids-duplicate-null-number.jsonl").read_text().splitlines()
    for doc_id, packed in table.select("doc_id", "metadata").iter_rows():
        line = raw[int(doc_id.rsplit(":", 1)[1]) - 1]
        as_text = json.loads(line, parse_int=str, parse_float=str)
        assert json.loads(packed, parse_int=str, parse_float=str).get("id") == as_text.get("id")


def test_metadata_never_steers_or_overwrites(tmp_path: Path) -> None:
    _, root = build_case(tmp_path, "metadata-named-rank.jsonl")
    assert [p.name for p in sorted(root.iterdir()) if p.is_dir() and p.name != ".work"] == ["case", "exclusions"]
    assert documents(root, "case")["shard"].unique().to_list() == [0]


def test_a_key_first_seen_late_is_kept(tmp_path: Path) -> None:
    _, root = build_case(tmp_path, "key-first-seen-late.jsonl")
    last = documents(root, "case").filter(pl.col("doc_id") == "case:key-first-seen-late.jsonl:151")
    raw = json.loads((CASES / "key-first-seen-late.jsonl").read_text().splitlines()[150])
    assert last["url"].item() == raw["url"]
    assert last["licence"].item() == raw.get("licence", "CC0-1.0")


def test_metadata_that_changes_type_survives_as_json(tmp_path: Path) -> None:
    _, root = build_case(tmp_path, "metadata-changes-type.jsonl")
    raw = [json.loads(line) for line in (CASES / "metadata-changes-type.jsonl").read_text().splitlines()]
    for line, record in enumerate(raw, 1):
        del record["text"]
        assert metadata(root)[f"case:metadata-changes-type.jsonl:{line}"] == record


def test_special_tokens_in_a_text_are_text(tmp_path: Path) -> None:
    from millstream.stream.shards import open_domain

    result, root = build_case(tmp_path, "special-token-in-text.jsonl")
    domain = result.manifest.domain("case")
    tokens = open_domain(root, domain, "uint16", domain.tokens).span(0, domain.tokens)
    table = documents(root, "case")
    ends = (table["token_start"] + table["n_tokens"] - 1).to_list()
    # Ids 0 to 2 are EOS, BOS and padding: EOS stands at documents' ends and nowhere else.
    assert [n for n, token in enumerate(tokens.tolist()) if token <= 2] == ends
    assert {tokens[n] for n in ends} == {result.manifest.tokenizer.eos_id}
    raw = [json.loads(line)["text"] for line in (CASES / "special-token-in-text.jsonl").read_text().splitlines()]
    assert sorted(texts(root, "case").values()) == sorted(raw)


def test_identical_short_documents_leave_one(tmp_path: Path) -> None:
    result, root = build_case(tmp_path, "identical-four-word-documents.jsonl", dedup=True)
    assert result.manifest.domain("case").documents == 1
    dropped = exclusions(root)
    assert len(dropped) == 49
    kept_key = documents(root, "case")["doc_key"].item()
    assert dropped["kept_key"].unique().to_list() == [kept_key]
    assert dropped.select("stage", "rule").unique().rows() == [("dedup", "exact")]


def test_normal_forms_share_a_key_and_keep_their_text(tmp_path: Path) -> None:
    _, root = build_case(tmp_path, "normal-forms.jsonl")
    raw = {
        json.loads(line)["id"]: json.loads(line)["text"]
        for line in (CASES / "normal-forms.jsonl").read_bytes().splitlines()
    }
    keys = {name: document_key(text) for name, text in raw.items()}
    assert keys["nfc"] == keys["nfd"] != keys["lf"] == keys["crlf"]
    table = documents(root, "case").select("doc_key", "metadata").iter_rows()
    assert {json.loads(m)["id"]: key for key, m in table} == keys
    assert sorted(texts(root, "case").values()) == sorted(raw.values())


def test_an_owners_own_copy_finds_the_document(tmp_path: Path) -> None:
    result, root = build_case(tmp_path, "normal-forms.jsonl")
    raw = {
        json.loads(line)["id"]: json.loads(line)["text"]
        for line in (CASES / "normal-forms.jsonl").read_bytes().splitlines()
    }
    mine = tmp_path / "mine.txt"
    mine.write_bytes(raw["crlf"].encode())
    found = find(root, result.manifest, question_from_file(mine))
    assert {json.loads(m)["id"] for m in found.kept["metadata"]} == {"crlf", "lf"}


def test_an_empty_file_is_no_error_but_an_empty_domain_is(tmp_path: Path) -> None:
    recipe = recipe_dict(tmp_path, [])
    files = ["empty.jsonl", "bom-first-line.jsonl"]
    recipe["corpus"]["sources"] = [{"name": "case", "root": str(CASES), "files": files, "licence": "CC0-1.0"}]
    recipe["corpus"]["domains"] = [{"name": "case", "sources": ["case"]}]
    assert build(tmp_path, recipe).manifest.domain("case").documents == 4
    with pytest.raises(InputError, match=r"domain 'case' ends with no document: its files hold no record"):
        build_case(tmp_path / "corpus", "empty.jsonl")


def test_a_truncated_file_stops_the_build_and_leaves_nothing_sealed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"case: truncated\.jsonl\.gz: damaged JSON lines after record \d+"):
        build_case(tmp_path, "truncated.jsonl.gz")
    assert not (tmp_path / "corpus" / "corpus.json").exists()


def test_a_truncated_file_can_be_skipped_and_is_recorded(tmp_path: Path) -> None:
    result, root = build_case(tmp_path, "truncated.jsonl.gz", on_bad_file="skip")
    assert result.manifest.domain("case").documents > 0
    dropped = exclusions(root)
    assert dropped["rule"].to_list() == ["damaged-file"]
    assert dropped["locator"].item() == "truncated.jsonl.gz"
