"""``export croissant``: the reference implementation accepts the metadata and reads the corpus by it."""

import io
import json
import logging
from pathlib import Path
from typing import Any

import mlcroissant
import numpy as np
import pytest
from corpora import build, documents, exclusions, recipe_dict, write_domain
from etils import epath
from typer.testing import CliRunner

from millstream.audit.commitments import commit
from millstream.audit.origins import licence_url, origins_of
from millstream.cli import app
from millstream.errors import UsageError
from millstream.stream.corpora import open_corpus
from millstream.tokenize.manifest import read_manifest


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two domains in several shards, one with held-out documents, one with dropped ones."""
    home = tmp_path_factory.mktemp("croissant")
    write_domain(home / "in", "law", 60)
    write_domain(home / "in", "verse", 30)
    recipe = recipe_dict(home / "in", ["law", "verse"])
    recipe["corpus"] |= {"shard_bytes": 4096, "chunk_bytes": 512, "filters": [{"rule": "length", "min_chars": 60}]}
    recipe["corpus"]["domains"][0]["holdout"] = 0.1
    recipe["corpus"]["sources"][1]["licence"] = "terms of the poets"
    build(home, recipe)
    commit(home / "corpus", read_manifest(home / "corpus"))
    return home / "corpus"


def export(root: Path, *more: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["export", "croissant", str(root), *more])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads((root / "croissant.json").read_bytes())
    return found


@pytest.fixture(scope="module")
def dataset(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """As the package of the format's authors reads it, who complain about what is wrong."""
    export(root, "--url", "https://example.org/c", "--creator", "Example Lab", "--description", "Law and verse.")
    with pytest.MonkeyPatch.context() as patch:
        cache = epath.Path(tmp_path_factory.mktemp("cache"))
        patch.setattr("mlcroissant._src.operation_graph.operations.extract.EXTRACT_PATH", cache)
        logging.getLogger("absl").setLevel(logging.ERROR)
        yield mlcroissant.Dataset(root / "croissant.json")


def test_it_is_valid_and_lacks_only_a_citation(dataset: Any) -> None:
    issues = dataset.metadata.ctx.issues
    assert not issues.errors
    assert all("citeAs" in warning for warning in issues.warnings)
    assert dataset.metadata.conforms_to == ["http://mlcommons.org/croissant/1.1"]
    assert dataset.metadata.url == "https://example.org/c"
    assert [creator.name for creator in dataset.metadata.creators] == ["Example Lab"]


def test_every_file_of_the_corpus_is_listed_with_its_digest(root: Path, dataset: Any) -> None:
    manifest = read_manifest(root)
    listed = {f.id: (f.content_size, f.sha256) for f in dataset.metadata.file_objects}
    assert listed == {entry.path: (f"{entry.bytes} B", entry.sha256) for entry in manifest.files()}
    names = {i["propertyID"]: i["value"] for i in export(root)["identifier"]}
    roots = json.loads((root / "proofs" / "roots.json").read_bytes())
    assert names == {"corpus_id": manifest.corpus_id} | {n: roots[n] for n in ("documents_root", "keys_root")}


def test_documents_exclusions_and_tokens_are_read_by_it(root: Path, dataset: Any) -> None:
    kept = {
        (r["documents/doc_id"].decode(), r["documents/n_tokens"], r["documents/doc_key"])
        for r in dataset.records("documents")
    }
    held_out = {r["holdout/doc_id"].decode() for r in dataset.records("holdout")}
    tables = [documents(root, name) for name in ("law", "verse")]
    every = {row for table in tables for row in table.select("doc_id", "n_tokens", "doc_key").rows()}
    assert {row for row in every if row[0] not in held_out} == kept
    assert held_out
    dropped = {r["exclusions/doc_id"].decode(): r["exclusions/rule"].decode() for r in dataset.records("exclusions")}
    assert dropped == dict(exclusions(root).select("doc_id", "rule").rows())
    assert dropped
    arrays = {r["tokens/key"].decode(): np.load(io.BytesIO(r["tokens/npy"])) for r in dataset.records("tokens")}
    assert len(arrays) > 4
    assert sum(map(len, arrays.values())) == sum(d.tokens for d in read_manifest(root).domains)


def test_sources_and_licences_are_those_of_the_documents(root: Path, dataset: Any) -> None:
    found = [{k.split("/")[1]: v for k, v in r.items()} for r in dataset.records("origins")]
    expected = origins_of(open_corpus(root)).to_dicts()
    assert found == expected
    for name in ("law", "verse"):
        own = [row for row in expected if row["domain"] == name]
        assert sum(row["documents"] for row in own) == len(documents(root, name))
    metadata = export(root)
    spdx = "https://spdx.org/licenses/"
    assert metadata["license"] == [
        f"{spdx}CC0-1.0",
        f"{spdx}MIT",
        {"@type": "sc:CreativeWork", "name": "terms of the poets"},
    ]
    law, verse = metadata["prov:wasDerivedFrom"]
    assert (law["name"], law["license"]) == ("law-files", [f"{spdx}CC0-1.0", f"{spdx}MIT"])
    assert str(root.parent) not in json.dumps(metadata)
    assert "url" not in verse
    assert licence_url("MIT OR Apache-2.0") is None
    assert licence_url("mit") == f"{spdx}MIT"


def test_what_nobody_said_is_named_and_not_made_up(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "c.json"
    done = CliRunner().invoke(app, ["export", "croissant", str(root), "--out", str(out)])
    assert "also requires creator and url" in done.output
    assert not {"creator", "url"} & json.loads(out.read_bytes()).keys()
    before = out.read_bytes()
    CliRunner().invoke(app, ["export", "croissant", str(root), "--out", str(out)])
    assert out.read_bytes() == before
    nowhere = CliRunner().invoke(app, ["export", "croissant", str(tmp_path)])
    assert isinstance(nowhere.exception, UsageError)
    assert "no corpus of that name or folder" in str(nowhere.exception)
