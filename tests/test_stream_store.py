"""Corpora in object stores: the same batches as from disk, or a clear error; never a wrong byte and never a hang."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from corpora import build, recipe_dict, write_domain, write_recipe
from stores import BUCKET, options, s3_server, upload

from millstream.audit.feed import leaf_hashes, step_root
from millstream.stream.freeze import freeze_plan
from millstream.stream.plan import Plan
from millstream.stream.reader import Batch, Stream, open_stream
from millstream.stream.remote import StoreSettings
from millstream.stream.store import open_root
from millstream.tokenize.manifest import read_manifest

MIXTURE: dict[str, Any] = {
    "seq_len": 24,
    "batch": 8,
    "steps": 30,
    "phases": [{"name": "a", "weights": {"law": 2, "news": 1}}, {"name": "b", "weights": {"law": 1, "news": 5}}],
    "limits": {"news": 800},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    for name in ("law", "news"):
        write_domain(folder / "in", name, 80)
    recipe = recipe_dict(folder / "in", ["law", "news"], mixture=MIXTURE)
    recipe["corpus"] |= {"shard_bytes": 4096, "chunk_bytes": 512}
    build(folder, recipe)
    return folder


@pytest.fixture(scope="module")
def plan(home: Path) -> Plan:
    recipe = write_recipe(home / "again.yaml", recipe_dict(home / "in", ["law", "news"], mixture=MIXTURE))
    assert recipe.mixture is not None
    return freeze_plan(recipe.mixture, read_manifest(home / "corpus"), home / "corpus")


@pytest.fixture(scope="module")
def local(home: Path, plan: Plan) -> Stream:
    return open_stream(plan, home / "corpus")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def url(server: str, home: Path) -> str:
    return upload(server, home / "corpus", "corpus")


def settings(endpoint: str, **more: Any) -> StoreSettings:
    return StoreSettings(options=options(endpoint), **more)


def root_of(batches: list[Batch]) -> str:
    return step_root([leaf for b in batches for leaf in leaf_hashes(b.indices, b.tokens)])


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("mode", ["ranges", "small ranges", "cache"])
def test_every_step_has_the_root_that_it_has_on_disk(
    local: Stream, server: str, url: str, world: int, mode: str, tmp_path: Path
) -> None:
    more: dict[str, Any] = {
        "ranges": {},
        # 18 bytes a request, so that a row is several; nothing is joined.
        "small ranges": {"requests": 4, "memory_bytes": 72, "gap_bytes": 0},
        "cache": {"cache_dir": tmp_path / "cache"},
    }[mode]
    stream = open_stream(local.plan, url, settings(server, **more))
    assert stream.manifest == local.manifest
    steps = range(1, 31) if mode != "small ranges" else (1, 30)
    for step in steps:
        parts = [stream.batch(step, rank, world) for rank in range(world)]
        assert root_of(parts) == root_of([local.batch(step)])
    # A restart is a new stream and a step.
    resumed = open_stream(local.plan, url, settings(server, **more)).iterate(17, 20, world - 1, world)
    for batch in resumed:
        expected = local.batch(batch.step, world - 1, world)
        assert np.array_equal(batch.tokens, expected.tokens)
        assert batch.indices.tolist() == expected.indices.tolist()


def test_other_stores_are_read_alike(local: Stream, home: Path, server: str, url: str) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(f"{home / 'corpus'}/", "/mill/corpus/", recursive=True)
    filesystem = fsspec.filesystem("s3", **options(server))
    policy = (
        '{"Statement":[{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::mill/*"}]}'
    )
    filesystem.call_s3("put_bucket_policy", Bucket=BUCKET, Policy=policy)
    for place in (f"file://{home / 'corpus'}", "memory://mill/corpus", f"{server}/{BUCKET}/corpus"):
        stream = open_stream(local.plan, place)
        for batch in stream.iterate(1, 30, stride=7):
            assert np.array_equal(batch.tokens, local.batch(batch.step).tokens)
    assert open_root(f"file://{home / 'corpus'}") == home / "corpus"
