"""Corpora in object stores: the same batches as from disk, or a clear error; never a wrong byte and never a hang."""

import json
import os
import re
import socket
from collections import Counter
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import fsspec
import numpy as np
import pytest
from corpora import build, recipe_dict, write_domain, write_recipe
from stores import BUCKET, PASSING, Trouble, faulty, options, s3_server, upload

from millstream.audit.feed import leaf_hashes, step_root
from millstream.errors import InputError, MillstreamError, SetupError, UsageError
from millstream.stream.freeze import freeze_plan
from millstream.stream.plan import Plan
from millstream.stream.reader import Batch, Stream, open_stream
from millstream.stream.remote import StoreSettings
from millstream.stream.store import Store, open_root, read_corpus, whole_file
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
    allow_reading(fsspec.filesystem("s3", **options(server)))
    for place in (f"file://{home / 'corpus'}", "memory://mill/corpus", f"{server}/{BUCKET}/corpus"):
        stream = open_stream(local.plan, place)
        for batch in stream.iterate(1, 30, stride=7):
            assert np.array_equal(batch.tokens, local.batch(batch.step).tokens)
    assert open_root(f"file://{home / 'corpus'}") == home / "corpus"


# --- faults -----------------------------------------------------------------------------------------------------------

FAULTS = int(os.environ.get("MILLSTREAM_FAULTS", "2000"))
"""How many faults to inject; before a release: MILLSTREAM_FAULTS=10000."""

HASTY: dict[str, Any] = {"attempts": 5, "backoff_seconds": 0.001, "longest_backoff": 0.004, "read_seconds": 0.2}


def outcome(stream: Stream, step: int, local: Stream) -> str:
    """``equal`` or the kind of clear error; anything else fails the test."""
    try:
        batch = stream.batch(step)
    except SetupError as error:
        assert re.search(
            r"s3://mill/corpus/\S+: bytes \d+-\d+ could not be read: 5 attempts in .* the last: ", str(error)
        )
        return "budget spent"
    except InputError as error:
        assert re.fullmatch(r"s3://mill/corpus/\S+: missing in the store", str(error))
        return "missing"
    assert np.array_equal(batch.tokens, local.batch(step).tokens)
    return "equal"


def test_thousands_of_faults_end_in_the_same_bytes_or_a_clear_error(local: Stream, server: str, url: str) -> None:
    # Faults that cost the client a time-out, or that end the batch at once, are rarer than the others.
    faults = (*[f for f in PASSING if f != "slow"] * 8, "slow", "missing")
    trouble = Trouble(seed=7, faults=faults)
    outcomes: Counter[str] = Counter()
    with faulty(server, trouble) as proxy:
        number = 0
        while trouble.counts.total() < FAULTS:
            if number % 24 == 0:
                # Now and then anew, so that indexes are read under faults too.
                trouble.per_mille = 0
                stream = open_stream(local.plan, url, settings(proxy, memory_bytes=1 << 16, gap_bytes=0, **HASTY))
                trouble.per_mille = (300, 450, 600)[number // 24 % 3]
            outcomes[outcome(stream, number % 30 + 1, local)] += 1
            number += 1
    assert set(trouble.counts) == {*PASSING, "missing"}
    assert set(outcomes) == {"equal", "budget spent", "missing"}
    assert outcomes["equal"] > 20


def test_a_wrong_bit_in_a_whole_file_is_found(local: Stream, server: str, url: str, tmp_path: Path) -> None:
    trouble = Trouble(seed=3, per_mille=1000, faults=("flipped",))
    with faulty(server, trouble) as proxy:
        with pytest.raises(MillstreamError, match=r"corpus\.json: damaged"):
            open_stream(local.plan, url, settings(proxy))
        trouble.per_mille = 0
        for more in ({}, {"cache_dir": tmp_path / "cache"}):
            stream = open_stream(local.plan, url, settings(proxy, **more))
            trouble.per_mille = 1000
            with pytest.raises(InputError, match=r"(law|news)/\S+: altered: its SHA-256 is not the manifest's"):
                stream.batch(1)
            trouble.per_mille = 0
            assert np.array_equal(stream.batch(1).tokens, local.batch(1).tokens)
    assert not list((tmp_path / "cache").rglob("*.tmp"))


def test_silence_is_an_error_and_not_a_hang(local: Stream, url: str) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        endpoint = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        more = {"attempts": 2, "backoff_seconds": 0.01, "read_seconds": 0.2}
        for place, given in ((url, settings(endpoint, **more)), (f"{endpoint}/corpus", StoreSettings(**more))):
            with pytest.raises(SetupError, match=r"corpus\.json: bytes 0-end could not be read: 2 attempts"):
                open_stream(local.plan, place, given)
        # A trickle never lets the time between two bytes grow; the time of the whole attempt ends it.
        more["read_seconds"], more["attempt_seconds"] = 60, 0.2
        with pytest.raises(SetupError, match="Timeout"):
            open_stream(local.plan, url, settings(endpoint, **more))
    with pytest.raises(SetupError, match=r"could not be read: 3 attempts in .* the last: EndpointConnectionError"):
        open_stream(local.plan, url, settings(endpoint, attempts=3, backoff_seconds=0.01))


def test_the_retry_budget_is_time_too(local: Stream, server: str, url: str) -> None:
    trouble = Trouble(per_mille=1000, faults=("503",))
    with (
        faulty(server, trouble) as proxy,
        pytest.raises(SetupError, match=r"could not be read: 1 attempt in .*SlowDown"),
    ):
        open_stream(local.plan, url, settings(proxy, attempts=1000, backoff_seconds=3, retry_seconds=2))
    assert trouble.counts == {"503": 1}


def test_pauses_double_up_to_the_longest(server: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(Store, "_pause", lambda _, seconds: pauses.append(seconds))
    with (
        faulty(server, Trouble(per_mille=1000, faults=("500",))) as proxy,
        pytest.raises(SetupError, match="6 attempts"),
    ):
        read_corpus(open_root(url, settings(proxy, attempts=6, backoff_seconds=1, longest_backoff=5)))
    assert pauses == [1, 2, 4, 5, 5]


# --- what lies in the store -------------------------------------------------------------------------------------------


@pytest.fixture
def own(server: str, home: Path, request: pytest.FixtureRequest) -> tuple[str, Any]:
    """A corpus of the test's own, and the store's file system."""
    return upload(server, home / "corpus", request.node.name), fsspec.filesystem("s3", **options(server))


def test_what_is_missing_or_of_another_size_is_named_at_once(local: Stream, server: str, own: tuple[str, Any]) -> None:
    url, filesystem = own
    tar = local.manifest.domain("law").shards[0].tar
    once = settings(server, attempts=50, backoff_seconds=1000)
    data = filesystem.cat_file(f"{url}/{tar.path}")
    filesystem.pipe_file(f"{url}/{tar.path}", data + b"\0")
    with pytest.raises(InputError, match=rf"{tar.path}: {tar.bytes + 1} bytes, the manifest says {tar.bytes}"):
        read_all(open_stream(local.plan, url, once))
    filesystem.pipe_file(f"{url}/{tar.path}", data[:10])
    with pytest.raises(InputError, match=rf"{tar.path}: (10 bytes|shorter in the store)"):
        read_all(open_stream(local.plan, url, once))
    filesystem.rm_file(f"{url}/{tar.path}")
    with pytest.raises(InputError, match=rf"{tar.path}: missing in the store"):
        read_all(open_stream(local.plan, url, once))


def read_all(stream: Stream) -> None:
    for _ in stream.iterate():
        pass


def test_an_object_that_is_swapped_under_the_run_is_an_error(local: Stream, server: str, own: tuple[str, Any]) -> None:
    url, filesystem = own
    http = f"{server}/{url.removeprefix('s3://')}"
    allow_reading(filesystem)
    streams = [open_stream(local.plan, url, settings(server)), open_stream(local.plan, http)]
    for stream in streams:
        read_all(stream)
    tar = local.manifest.domain("law").shards[0].tar
    filesystem.pipe_file(f"{url}/{tar.path}", bytes(tar.bytes))
    for stream in streams:
        with pytest.raises(InputError, match=rf"{tar.path}: replaced in the store while it was being read"):
            read_all(stream)


def allow_reading(filesystem: Any) -> None:
    statement = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{BUCKET}/*"}
    filesystem.call_s3("put_bucket_policy", Bucket=BUCKET, Policy=json.dumps({"Statement": [statement]}))


def test_places_that_are_no_corpus_are_refused(local: Stream, server: str, home: Path) -> None:
    with pytest.raises(UsageError, match=r"s3://mill/none: no corpus here"):
        open_stream(local.plan, "s3://mill/none", settings(server))
    with pytest.raises(UsageError, match="Protocol not known: nonsense"):
        open_stream(local.plan, "nonsense://x")
    manifest = (home / "corpus" / "corpus.json").read_text()
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/twisted/corpus.json", manifest.replace("law/law-00000.tar", "../law-00000.tar").encode())
    root = open_root("memory://twisted")
    with pytest.raises(InputError, match=r"'\.\./law-00000\.tar' lies outside the corpus"):
        whole_file(root, read_corpus(root).domain("law").shards[0].tar)


def test_a_server_without_ranges_is_refused(local: Stream, home: Path) -> None:
    class Whole(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(home))

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Whole) as plain:
        thread = Thread(target=plain.serve_forever, args=(0.05,))
        thread.start()
        try:
            stream = open_stream(local.plan, f"http://127.0.0.1:{plain.server_port}/corpus")
            with pytest.raises(SetupError, match="does not answer byte ranges"):
                stream.batch(1)
        finally:
            plain.shutdown()
            thread.join()
