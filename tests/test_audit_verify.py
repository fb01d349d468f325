"""``audit verify`` finds every altered bit of a corpus and names the file."""

import numpy as np
import pytest
from corpora import build, recipe_dict, write_domain, write_recipe

from millstream.audit.runs import Run, create_run, open_run
from millstream.audit.verify import Check, verify_run
from millstream.stream.corpora import open_corpus
from millstream.stream.freeze import freeze_plan

MIXTURE = {"seq_len": 24, "batch": 8, "steps": 4, "phases": [{"name": "a", "weights": {"law": 2, "news": 1}}]}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run, begun but not trained, over a corpus of several shards."""
    home = tmp_path_factory.mktemp("verify")
    for name in ("law", "news"):
        write_domain(home / "in", name, 80)
    recipe = recipe_dict(home / "in", ["law", "news"], mixture=MIXTURE)
    recipe["corpus"] |= {"shard_bytes": 4096, "chunk_bytes": 512}
    recipe["corpus"]["domains"][0]["holdout"] = 0.1
    build(home, recipe)
    loaded = write_recipe(home / "again.yaml", recipe)
    corpus = open_corpus(home / "corpus")
    assert loaded.mixture is not None
    create_run(home / "run", loaded, freeze_plan(loaded.mixture, corpus.manifest, corpus.root), corpus)
    return open_run(home / "run")


def corpus_check(run: Run) -> Check:
    return next(check for check in verify_run(run) if check.name == "corpus")


def test_any_bit_of_any_file_of_the_corpus_is_found_and_its_file_named(run: Run) -> None:
    assert not corpus_check(run).findings
    root = run.path.parent / "corpus"
    names = [entry.path for entry in open_corpus(root).manifest.files()]
    assert sum(name.endswith(".tar") for name in names) >= 5
    assert any("holdout" in name for name in names)
    rng = np.random.default_rng(0)
    for name in names:
        path = root / name
        whole = path.read_bytes()
        for bit in {0, 8 * len(whole) - 1, *rng.integers(0, 8 * len(whole), 4).tolist()}:
            altered = bytearray(whole)
            altered[bit // 8] ^= 1 << bit % 8
            path.write_bytes(altered)
            assert corpus_check(run).findings == (f"{path}: altered: its SHA-256 is not the manifest's",), (name, bit)
        path.write_bytes(whole)
    assert not corpus_check(run).findings


@pytest.mark.parametrize("change", ["flip", "cut", "remove"])
def test_a_changed_manifest_is_found(run: Run, change: str) -> None:
    path = run.path.parent / "corpus" / "corpus.json"
    whole = path.read_bytes()
    rng = np.random.default_rng(1)
    try:
        for at in rng.integers(0, len(whole), 20).tolist():
            altered = bytearray(whole)
            altered[at] ^= 1
            changed = {"flip": bytes(altered), "cut": whole[:at], "remove": None}[change]
            path.unlink() if changed is None else path.write_bytes(changed)
            found = corpus_check(run).findings
            in_build_block = change == "flip" and at < whole.index(b',"corpus":')
            assert in_build_block or any("corpus" in finding for finding in found), at
            path.write_bytes(whole)
    finally:
        path.write_bytes(whole)
