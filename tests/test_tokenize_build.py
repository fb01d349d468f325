"""Builds: the same bytes whatever the tasks, restart after a kill, only what changed is redone, plain shards."""

import json
import os
import random  # noqa: TID251  moments to kill at, from a fixed seed
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import webdataset
from corpora import build, digests, documents, exclusions, recipe_dict, texts, words, write_domain, write_jsonl

from millstream.errors import InputError, RecipeError, SetupError, UsageError
from millstream.stream.shards import open_domain
from millstream.tokenize.manifest import read_manifest

DOMAINS = ("law", "news", "verse")


@pytest.fixture
def three(tmp_path: Path) -> dict[str, Any]:
    """A recipe over three domains, with a few duplicates across them and small shards."""
    for name, count in zip(DOMAINS, (120, 80, 40), strict=True):
        write_domain(tmp_path / "in", name, count)
    same = [{"text": f"law 0 {n}. " + words(f"law0{n}", 5 + (n * 37) % 60)} for n in range(4)]
    write_jsonl(tmp_path / "in" / "verse" / "copies.jsonl", same)
    corpus = {"shard_bytes": 4096, "chunk_bytes": 512}
    recipe = recipe_dict(tmp_path / "in", DOMAINS, corpus=corpus)
    recipe["corpus"]["domains"][0]["holdout"] = 0.1
    return recipe


def test_one_and_four_tasks_give_the_same_bytes(tmp_path: Path, three: dict[str, Any]) -> None:
    one = build(tmp_path, three, tasks=1, corpus="one")
    four = build(tmp_path, three, tasks=4, corpus="four")
    assert one.manifest.corpus_id == four.manifest.corpus_id
    assert digests(tmp_path / "one") == digests(tmp_path / "four")
    assert len(one.manifest.domain("law").shards) > 1
    assert one.manifest.domain("law").holdout is not None


def test_every_record_is_kept_held_out_or_excluded(tmp_path: Path, three: dict[str, Any]) -> None:
    result = build(tmp_path, three)
    root = tmp_path / "corpus"
    for name, lines in zip(DOMAINS, (120, 80, 44), strict=True):
        domain = result.manifest.domain(name)
        held_out = domain.holdout.document_count if domain.holdout else 0
        assert domain.read == lines == domain.documents + held_out + sum(domain.exclusions.values())
    dropped = exclusions(root)
    assert dropped.select("domain", "stage", "rule").unique().rows() == [("verse", "dedup", "exact")]
    law = documents(root, "law")
    # The first domain of the recipe keeps its copy.
    assert set(dropped["kept_key"]) <= set(law["doc_key"])
    assert len(dropped) == 4


def test_a_second_build_does_nothing(tmp_path: Path, three: dict[str, Any]) -> None:
    assert build(tmp_path, three).did_work
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "corpus").rglob("*.*") if ".work" not in p.parts}
    assert not build(tmp_path, three).did_work
    assert before == {p: p.stat().st_mtime_ns for p in before}


def test_a_changed_filter_redoes_its_own_domain_alone(tmp_path: Path, three: dict[str, Any]) -> None:
    build(tmp_path, three)
    root = tmp_path / "corpus"
    before = digests(root)
    times = {p: p.stat().st_mtime_ns for p in root.glob("*/*.tar")}
    three["corpus"]["domains"][1]["filters"] = [{"rule": "length", "min_chars": 150}]
    assert build(tmp_path, three).did_work
    changed = {name.split("/")[0] for name, digest in digests(root).items() if before.get(name) != digest}
    assert changed == {"news", "exclusions", "report.json", "report.html"}
    assert all(p.stat().st_mtime_ns == t for p, t in times.items() if p.parent.name != "news")
    filtered = exclusions(root).filter(pl.col("stage") == "filter")
    assert filtered["rule"].unique().to_list() == ["length"]
    assert all(int(value) < 150 for value in filtered["value"])
    assert filtered["threshold"].unique().to_list() == ["min_chars 150"]


def test_another_domain_or_a_renamed_file_moves_no_other_domain(tmp_path: Path, three: dict[str, Any]) -> None:
    # One locked tokenizer, so that only order could differ.
    three["corpus"]["tokenizer"]["domains"] = ["law"]
    build(tmp_path, three)
    before = digests(tmp_path / "corpus")
    (tmp_path / "in" / "news" / "part-0.jsonl").rename(tmp_path / "in" / "news" / "renamed.jsonl")
    write_domain(tmp_path / "in", "extra", 20)
    three["corpus"]["sources"].append({"name": "extra-files", "root": str(tmp_path / "in" / "extra"), "licence": "MIT"})
    three["corpus"]["domains"].append({"name": "extra", "sources": ["extra-files"]})
    build(tmp_path, three)
    after = digests(tmp_path / "corpus")
    for name in before:
        if name.startswith(("law/", "verse/")):
            assert before[name] == after[name], name
    assert before["news/documents-00000.parquet"] != after["news/documents-00000.parquet"]


def test_a_killed_build_goes_on_to_the_same_bytes(tmp_path: Path, three: dict[str, Any]) -> None:
    three["corpus"]["dedup"] = {"near": {"max_removed": "1"}, "sentences": {"min_doc_words": 5}}
    build(tmp_path, three, corpus="whole")
    command = [sys.executable, "-m", "millstream", "build", "recipe.yaml", "--corpus", "killed", "--tasks", "2"]
    chance = random.Random(0)
    for delay in [chance.uniform(0.6, 2.0) for _ in range(20)]:
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        killed = tmp_path / "killed" / "corpus.json"
        assert not killed.exists() or read_manifest(tmp_path / "killed")
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    subprocess.run([*command[:3], "prove", "index", "whole"], cwd=tmp_path, check=True, capture_output=True)
    assert digests(tmp_path / "killed") == digests(tmp_path / "whole")


def test_a_tokenizer_whose_eos_stands_in_texts_is_refused(tmp_path: Path, three: dict[str, Any]) -> None:
    build(tmp_path, three, corpus="first")
    (tmp_path / "first" / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    three["corpus"]["tokenizer"] = {"kind": "file", "path": "tokenizer.json", "eos": "e"}
    with pytest.raises(InputError, match="the tokenizer gives the id of EOS inside a text"):
        build(tmp_path, three, corpus="second")


def test_plain_webdataset_reads_the_same_tokens(tmp_path: Path, three: dict[str, Any]) -> None:
    result = build(tmp_path, three)
    root = tmp_path / "corpus"
    for domain in result.manifest.domains:
        urls = [str(root / shard.tar.path) for shard in domain.shards]
        reader = open_domain(root, domain, result.manifest.tokenizer.dtype, domain.tokens)
        position = 0
        keys = []
        for sample in webdataset.WebDataset(urls, shardshuffle=False, empty_check=False).decode():
            tokens, about = sample["tokens.npy"], sample["json"]
            assert about["domain"] == domain.name
            assert about["token_start"] == position
            assert tokens.dtype == np.uint16
            assert np.array_equal(tokens, reader.span(position, position + len(tokens)))
            assert about["documents"][-1]["end"] == len(tokens)
            keys += [document["key"] for document in about["documents"]]
            position += len(tokens)
        assert position == domain.tokens
        table = pl.concat([pl.read_parquet(root / shard.documents.path) for shard in domain.shards])
        assert keys == [key.hex() for key in table["doc_key"]]


def test_tokens_decode_to_the_texts_and_start_on_borders_of_64(tmp_path: Path, three: dict[str, Any]) -> None:
    result = build(tmp_path, three)
    root = tmp_path / "corpus"
    raw = {
        f"{name}-files:{path.name}:{line}": json.loads(text)["text"]
        for name in DOMAINS
        for path in (tmp_path / "in" / name).glob("*.jsonl")
        for line, text in enumerate(path.read_text().splitlines(), 1)
    }
    for domain in result.manifest.domains:
        found = texts(root, domain.name)
        assert found
        assert all(raw[doc_id] == text for doc_id, text in found.items())
        for shard in domain.shards:
            assert (pl.read_parquet(root / shard.chunks.path)["data_offset"] % 64 == 0).all()


def test_missing_short_and_altered_shards_are_named(tmp_path: Path, three: dict[str, Any]) -> None:
    result = build(tmp_path, three)
    root = tmp_path / "corpus"
    domain = result.manifest.domain("news")
    path = root / domain.shards[0].tar.path
    whole = path.read_bytes()
    path.write_bytes(whole[:-512])
    with pytest.raises(InputError, match=rf"news-00000\.tar: {len(whole) - 512} bytes, the manifest says {len(whole)}"):
        open_domain(root, domain, "uint16", domain.tokens).span(0, 4)
    path.unlink()
    with pytest.raises(InputError, match=r"news-00000\.tar: missing"):
        open_domain(root, domain, "uint16", domain.tokens).span(0, 4)
    assert build(tmp_path, three).did_work
    assert path.read_bytes() == whole


def test_datatrove_filters_run_by_name_and_their_reason_is_kept(tmp_path: Path) -> None:
    write_domain(tmp_path / "in", "law", 40)
    rules = [{"rule": "datatrove", "filter": "regex_filter.RegexFilter", "params": {"regex_exp": "law 1 "}}]
    build(tmp_path, recipe_dict(tmp_path / "in", ["law"], corpus={"filters": rules}))
    dropped = exclusions(tmp_path / "corpus")
    assert len(dropped) == 20
    assert dropped["rule"].unique().to_list() == ["RegexFilter"]
    assert all(key is not None for key in dropped["doc_key"])


def test_datatroves_gopher_filter_decides_as_it_does_alone(tmp_path: Path) -> None:
    from datatrove.data import Document
    from datatrove.pipeline.filters import GopherQualityFilter

    write_domain(tmp_path / "in", "law", 60, length=120)
    params = {"min_doc_words": 40, "min_stop_words": 2, "min_avg_word_length": None}
    rules = [{"rule": "datatrove", "filter": "gopher_quality_filter.GopherQualityFilter", "params": params}]
    build(tmp_path, recipe_dict(tmp_path / "in", ["law"], corpus={"filters": rules}))
    alone = GopherQualityFilter(**params)
    dropped = dict(exclusions(tmp_path / "corpus").select("doc_id", "value").rows())
    assert 0 < len(dropped) < 60
    for path in (tmp_path / "in" / "law").glob("*.jsonl"):
        for line, raw in enumerate(path.read_text().splitlines(), 1):
            verdict = alone.filter(Document(text=json.loads(raw)["text"], id="x"))
            expected = None if verdict is True else verdict[1]
            assert dropped.get(f"law-files:{path.name}:{line}") == expected


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"filter": "regex_filter.NoSuchFilter"}, "no such class below datatrove.pipeline.filters"),
        ({"filter": "os.system"}, "no such class below datatrove.pipeline.filters"),
        ({"filter": "base_filter.get_filter_result"}, "not a datatrove filter"),
        ({"filter": "regex_filter.RegexFilter", "params": {"wrong": 1}}, "filter RegexFilter: .*wrong"),
    ],
)
def test_wrong_filters_are_found_before_work_starts(tmp_path: Path, rule: dict[str, Any], message: str) -> None:
    write_domain(tmp_path / "in", "law", 10)
    recipe = recipe_dict(tmp_path / "in", ["law"], corpus={"filters": [{"rule": "datatrove", **rule}]})
    with pytest.raises(RecipeError, match=message):
        build(tmp_path, recipe)
    assert not (tmp_path / "corpus").exists()


def test_a_changed_tokenizer_section_asks_before_it_retrains(tmp_path: Path, three: dict[str, Any]) -> None:
    build(tmp_path, three)
    three["corpus"]["tokenizer"]["vocab_size"] = 300
    with pytest.raises(RecipeError, match="--retrain-tokenizer"):
        build(tmp_path, three)


def test_more_text_keeps_the_locked_tokenizer(tmp_path: Path, three: dict[str, Any]) -> None:
    first = build(tmp_path, three).manifest.tokenizer
    write_jsonl(tmp_path / "in" / "law" / "more.jsonl", [{"text": words(f"more{n}", 40)} for n in range(30)])
    assert build(tmp_path, three).manifest.tokenizer == first


def test_a_missing_package_or_version_says_what_to_install(tmp_path: Path) -> None:
    recipe = recipe_dict(tmp_path, [])
    recipe["corpus"]["domains"] = [{"name": "a", "sources": ["p"]}]
    recipe["corpus"]["sources"] = [{"name": "p", "package": "no-such-package"}]
    with pytest.raises(SetupError, match="pip install 'no-such-package'"):
        build(tmp_path, recipe)
    recipe["corpus"]["sources"] = [{"name": "p", "package": "networkx", "version": "0.1"}]
    with pytest.raises(SetupError, match=r"needs networkx==0\.1, but version .* is installed"):
        build(tmp_path, recipe)


def test_no_file_and_a_link_out_of_the_root_are_refused(tmp_path: Path) -> None:
    write_domain(tmp_path / "in", "law", 10)
    recipe = recipe_dict(tmp_path / "in", ["law"])
    recipe["corpus"]["sources"][0]["files"] = ["*.csv"]
    with pytest.raises(RecipeError, match=r"source 'law-files': no file of .* matches \*\.csv"):
        build(tmp_path, recipe)
    (tmp_path / "secret.jsonl").write_text('{"text": "not yours"}\n')
    (tmp_path / "in" / "law" / "link.jsonl").symlink_to(tmp_path / "secret.jsonl")
    with pytest.raises(InputError, match=r"link\.jsonl is a link out of"):
        build(tmp_path, recipe_dict(tmp_path / "in", ["law"]))


def test_a_hostile_manifest_cannot_name_files_outside(tmp_path: Path, three: dict[str, Any]) -> None:
    from millstream.tokenize.manifest import check_size

    build(tmp_path, three)
    path = tmp_path / "corpus" / "corpus.json"
    path.write_text(path.read_text().replace("news/news-00000.tar", "../../../etc/passwd"))
    manifest = read_manifest(tmp_path / "corpus")
    with pytest.raises(InputError, match="lies outside the corpus"):
        check_size(tmp_path / "corpus", manifest.domain("news").shards[0].tar)


def test_two_builds_at_once_are_refused(tmp_path: Path, three: dict[str, Any]) -> None:
    import fcntl

    (tmp_path / "corpus" / ".work").mkdir(parents=True)
    with (tmp_path / "corpus" / ".work" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="another build is at work here"):
            build(tmp_path, three)


def test_a_full_disk_is_one_clear_error_and_seals_nothing(tmp_path: Path, three: dict[str, Any]) -> None:
    build(tmp_path, three)
    # A limit on file sizes makes the kernel refuse the shard's bytes, as a full disk does.
    code = """
import resource, signal, sys
from millstream.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
sys.argv = ["millstream", "build", "recipe.yaml", "--corpus", "full", "--tasks", "1"]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert "cannot be written: File too large" in done.stderr
    assert not (tmp_path / "full" / "corpus.json").exists()


def test_parquet_and_compressed_sources_give_the_same_documents(tmp_path: Path) -> None:
    import gzip

    import zstandard

    records = [{"text": words(f"p{n}", 30), "n": n, "url": f"https://example.org/{n}"} for n in range(50)]
    lines = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records).encode()
    forms = {
        "plain": ("a.jsonl", lines),
        "gz": ("a.jsonl.gz", gzip.compress(lines)),
        "zst": ("a.jsonl.zst", zstandard.compress(lines[:700]) + zstandard.compress(lines[700:])),
    }
    found = {}
    for form, (name, data) in forms.items():
        (tmp_path / form).mkdir()
        (tmp_path / form / name).write_bytes(data)
    (tmp_path / "parquet").mkdir()
    pl.DataFrame(records).write_parquet(tmp_path / "parquet" / "a.parquet")
    for form in (*forms, "parquet"):
        recipe = recipe_dict(tmp_path, [form])
        build(tmp_path, recipe, corpus=f"corpus-{form}")
        table = documents(tmp_path / f"corpus-{form}", form).sort("doc_key")
        found[form] = table.select("doc_key", "url", "metadata").rows()
    assert found["plain"] == found["gz"] == found["zst"] == found["parquet"]
    cut = zstandard.compress(lines)[:-20]
    (tmp_path / "zst" / "a.jsonl.zst").write_bytes(cut)
    with pytest.raises(InputError, match="the last zstd frame is cut off"):
        build(tmp_path, recipe_dict(tmp_path, ["zst"]), corpus="cut")


def test_parquet_without_the_column_or_with_bad_utf8(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "p").mkdir()
    pl.DataFrame({"body": ["x"]}).write_parquet(tmp_path / "p" / "a.parquet")
    recipe = recipe_dict(tmp_path, ["p"])
    with pytest.raises(InputError, match=r"p-files: a\.parquet: has no column 'text'; it has body"):
        build(tmp_path, recipe)
    bad = pa.array([b"good text here", b"bad \xff text", None, b"more good text"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": bad}), tmp_path / "p" / "a.parquet")
    build(tmp_path, recipe)
    dropped = exclusions(tmp_path / "corpus").sort("locator").select("locator", "rule").rows()
    assert dropped == [("a.parquet:2", "invalid-utf8"), ("a.parquet:3", "text-type")]


def test_text_sections_docstrings_and_json_values(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "play.md").write_text("# Title\n\nprologue\n\n## Scene 1\n\nfirst\n\n## Scene 2\n\nsecond\n")
    (tmp_path / "t" / "code.py").write_text('"""Module."""\n\n\ndef f():\n    """Function f."""\n')
    (tmp_path / "t" / "wiki.json").write_text('{"a": {"title": "A", "extract": "about a"}, "b": {"title": "B"}}')
    recipe = recipe_dict(tmp_path, [])
    kinds = {
        "play": {"files": ["*.md"], "extract": "sections", "section": "(?m)^(?=## )"},
        "code": {"files": ["*.py"], "extract": "docstrings"},
        "wiki": {"files": ["*.json"], "extract": "json-values", "text": "{title}: {extract}"},
    }
    recipe["corpus"]["sources"] = [
        {"name": n, "root": str(tmp_path / "t"), "licence": "MIT", **k} for n, k in kinds.items()
    ]
    recipe["corpus"]["domains"] = [{"name": n, "sources": [n]} for n in kinds]
    build(tmp_path, recipe)
    root = tmp_path / "corpus"
    assert sorted(texts(root, "play").values()) == [
        "# Title\n\nprologue",
        "## Scene 1\n\nfirst",
        "## Scene 2\n\nsecond",
    ]
    assert sorted(texts(root, "code").values()) == ["Function f.", "Module."]
    assert list(texts(root, "wiki").values()) == ["A: about a"]
    assert documents(root, "code")["locator"].sort().to_list() == ["code.py:1", "code.py:5"]
    assert exclusions(root).select("locator", "rule", "value").rows() == [
        ("wiki.json#b", "text-type", "extract: missing")
    ]


def test_a_tokenizer_file_is_taken_and_checked(tmp_path: Path, three: dict[str, Any]) -> None:
    build(tmp_path, three)
    tokenizer = tmp_path / "corpus" / "tokenizer.json"
    kept = tmp_path / "mine.json"
    kept.write_bytes(tokenizer.read_bytes())
    three["corpus"]["tokenizer"] = {"kind": "file", "path": "mine.json", "eos": "<|eos|>", "bos": "<|bos|>"}
    result = build(tmp_path, three, corpus="own")
    assert result.manifest.tokenizer.bos_id == 1
    domain = result.manifest.domain("law")
    first = open_domain(tmp_path / "own", domain, "uint16", domain.tokens).span(0, 1)
    assert first.tolist() == [1]
    three["corpus"]["tokenizer"]["eos"] = "<|nope|>"
    with pytest.raises(RecipeError, match=r"has no EOS token '<\|nope\|>'"):
        build(tmp_path, three, corpus="own")
    lossy = json.loads(kept.read_text())
    lossy["normalizer"] = {"type": "Lowercase"}
    kept.write_text(json.dumps(lossy))
    three["corpus"]["tokenizer"]["eos"] = "<|eos|>"
    with pytest.raises(InputError, match=r"mine\.json: not lossless"):
        build(tmp_path, three, corpus="own")
