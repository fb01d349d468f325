"""Corpora in object stores: the same batches as from disk, or a clear error; never a wrong byte and never a hang."""

import hashlib
import json
import multiprocessing
import os
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import fsspec
import numpy as np
import pytest
from corpora import build, recipe_dict, write_domain, write_recipe
from polars import read_parquet as read_table
from stores import BUCKET, PASSING, Trouble, faulty, options, s3_server, upload
from typer.testing import CliRunner

from millstream.audit.feed import leaf_hashes, step_root
from millstream.audit.runs import create_run
from millstream.cli import app
from millstream.errors import InputError, MillstreamError, SetupError, UsageError
from millstream.stream.cache import ShardCache
from millstream.stream.corpora import open_corpus
from millstream.stream.freeze import freeze_plan
from millstream.stream.plan import Plan
from millstream.stream.prefetch import read_ahead
from millstream.stream.ranges import Piece, coalesce
from millstream.stream.reader import Batch, Stream, open_stream
from millstream.stream.remote import StoreSettings
from millstream.stream.roots import open_root, read_corpus, whole_file
from millstream.stream.store import Store
from millstream.tokenize.manifest import FileEntry, read_manifest

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
    return step_root(np.concatenate([leaf_hashes(b.indices, b.tokens) for b in batches]))


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


# --- the local cache


def cached_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_a_small_cache_lets_the_longest_unused_go(local: Stream, server: str, url: str, tmp_path: Path) -> None:
    tars = [shard.tar for domain in local.manifest.domains for shard in domain.shards]
    room = 2 * max(tar.bytes for tar in tars)
    assert sum(tar.bytes for tar in tars) > 1.5 * room
    stream = open_stream(local.plan, url, settings(server, cache_dir=tmp_path, cache_bytes=room))
    for batch in stream.iterate(1, 10, ahead=0):
        assert root_of([batch]) == root_of([local.batch(batch.step)])
        assert cached_bytes(tmp_path) <= room
        # A shard that is gone from the cache is mapped no longer.
        mapped = Path("/proc/self/maps").read_text()
        assert f"{tmp_path}/" in mapped
        assert not re.search(rf"{tmp_path}/.*\(deleted\)", mapped)
    with pytest.raises(SetupError, match=r"a cache of 10000 bytes cannot hold (law|news)/.*\.tar, \d+"):
        open_stream(local.plan, url, settings(server, cache_dir=tmp_path, cache_bytes=10000)).batch(1)


def entry(name: str, size: int = 100) -> tuple[FileEntry, bytes]:
    data = name.encode().ljust(size, b".")
    return FileEntry(path=name, bytes=size, sha256=hashlib.sha256(data).hexdigest()), data


def test_the_order_of_removal_is_that_of_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A clock of our own: stamps of the disk's may be equal.
    ticks = iter(range(10**9, 2 * 10**9))
    utime = os.utime
    monkeypatch.setattr(os, "utime", lambda path: utime(path, (tick := next(ticks), tick)))
    fetched: list[str] = []

    def use(cache: ShardCache, name: str) -> None:
        def download(wanted: FileEntry, path: Path) -> None:
            fetched.append(wanted.path)
            path.write_bytes(data)

        wanted, data = entry(name)
        assert cache.use(wanted, download, Path.read_bytes) == data
        assert cache.ready(wanted)
        assert cached_bytes(tmp_path) <= 300

    cache = ShardCache(tmp_path, 300)
    for name in "abcab":
        use(cache, name)
    assert fetched == [*"abc"]
    use(cache, "d")
    for name in "abd":
        use(cache, name)
    assert fetched == [*"abcd"]
    use(cache, "c")
    use(cache, "a")
    assert fetched == [*"abcdca"]
    # What another process left is looked at, not fetched.
    use(ShardCache(tmp_path, 300), "a")
    assert fetched == [*"abcdca"]


def test_what_a_killed_download_left_is_swept(tmp_path: Path) -> None:
    wanted, data = entry("a")
    for name, age in (("old", 7200), ("new", 0)):
        left = tmp_path / "00" / f".{name}.1.tmp"
        left.parent.mkdir(exist_ok=True)
        left.write_bytes(b"half")
        os.utime(left, (time.time() - age,) * 2)
    ShardCache(tmp_path, 1000).use(wanted, lambda _, path: path.write_bytes(data) and None, Path.read_bytes)
    assert sorted(p.name for p in (tmp_path / "00").iterdir()) == [".new.1.tmp"]


def test_damage_in_the_cache_is_found_and_mended(local: Stream, server: str, url: str, tmp_path: Path) -> None:
    given = settings(server, cache_dir=tmp_path)
    read_all(open_stream(local.plan, url, given))
    tar = local.manifest.domain("law").shards[0].tar
    path = tmp_path / tar.sha256[:2] / tar.sha256
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    for bytes_there in (bytes(damaged), bytes(damaged[:100]), b""):
        path.write_bytes(bytes_there)
        stream = open_stream(local.plan, url, given)
        with pytest.warns(UserWarning, match=f"damaged in the cache \\(for {tar.path}\\); it is fetched again"):
            for step in range(1, 31):
                assert root_of([stream.batch(step)]) == root_of([local.batch(step)])
    # What is sound is not fetched again.
    with faulty(server, trouble := Trouble()) as proxy:
        read_all(open_stream(local.plan, url, settings(proxy, cache_dir=tmp_path)))
    assert [made for made in trouble.made if "corpus.json" not in made and "redactions.json" not in made] == []


def test_a_file_that_is_altered_in_the_store_never_enters_the_cache(
    local: Stream, server: str, own: tuple[str, Any], tmp_path: Path
) -> None:
    url, filesystem = own
    tar = local.manifest.domain("law").shards[0].tar
    filesystem.pipe_file(f"{url}/{tar.path}", bytes(tar.bytes))
    with pytest.raises(InputError, match=rf"{tar.path}: altered: its SHA-256 is not the manifest's"):
        read_all(open_stream(local.plan, url, settings(server, cache_dir=tmp_path)))
    assert not list(tmp_path.rglob(f"*{tar.sha256}*"))


def read_shared(url: str, given: StoreSettings, plan: Plan, order: list[int], results: Any) -> None:
    stream = open_stream(plan, url, given)
    results.put([(step, root_of([stream.batch(step)])) for step in order])


def test_processes_share_a_cache(local: Stream, server: str, url: str, tmp_path: Path) -> None:
    room = 3 * max(shard.tar.bytes for domain in local.manifest.domains for shard in domain.shards)
    given = settings(server, cache_dir=tmp_path, cache_bytes=room)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    orders = (list(range(1, 31)), list(range(30, 0, -1)))
    workers = [context.Process(target=read_shared, args=(url, given, local.plan, o, results)) for o in orders]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    expected = {step: root_of([local.batch(step)]) for step in range(1, 31)}
    assert [dict(f) for f in found] == [expected, expected]
    assert not list(tmp_path.rglob("*.tmp"))


# --- reading ahead


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_no_more_is_read_ahead_than_agreed(depth: int) -> None:
    begun: list[int] = []
    ahead = read_ahead(((begun.append(n), n)[1] for n in range(50)), depth)
    for taken, got in enumerate(ahead):
        assert got == taken
        # The consumer's own, and those ahead of it.
        assert len(begun) <= taken + 1 + depth
    assert begun == list(range(50))


def test_an_error_comes_in_its_turn_and_ends_the_reading() -> None:
    read: list[int] = []

    def work(n: int) -> int:
        read.append(n)
        if n == 3:
            raise InputError("the fourth")
        return n

    ahead = read_ahead(map(work, range(50)), 10)
    assert [next(ahead) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(InputError, match="the fourth"):
        next(ahead)
    assert read == [0, 1, 2, 3]
    assert not readers_alive()


def readers_alive() -> list[Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "read-ahead"]


def test_closing_stops_the_thread_even_where_the_store_is_silent(local: Stream, server: str, url: str) -> None:
    with faulty(server, trouble := Trouble()) as proxy:
        patient = settings(proxy, attempts=10**6, backoff_seconds=10**4, longest_backoff=10**5, retry_seconds=10**6)
        stream = open_stream(local.plan, url, patient)
        batches = stream.iterate(ahead=1000)
        assert next(batches).step == 1
        trouble.per_mille = 1000
        while not trouble.counts:
            assert readers_alive()
            time.sleep(0.01)
        # The reader now waits for hours.
        batches.close()
        assert not readers_alive()
        trouble.per_mille = 0
        assert np.array_equal(stream.batch(2).tokens, local.batch(2).tokens)


def test_the_answers_in_flight_are_bounded(
    local: Stream, server: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flying, most, lock = 0, 0, threading.Lock()
    fetch = Store.fetch

    def counted(self: Store, wanted: FileEntry, start: int, end: int) -> bytes:
        nonlocal flying, most
        with lock:
            flying += end - start
            most = max(most, flying)
        try:
            return fetch(self, wanted, start, end)
        finally:
            with lock:
                flying -= end - start

    monkeypatch.setattr(Store, "fetch", counted)
    stream = open_stream(local.plan, url, settings(server, requests=4, memory_bytes=1200, gap_bytes=1 << 30))
    for batch in stream.iterate(1, 5):
        assert np.array_equal(batch.tokens, local.batch(batch.step).tokens)
    assert 300 < most <= 1200


@pytest.mark.parametrize(("workers", "start"), [(0, None), (2, "fork"), (2, "spawn")])
def test_loaders_and_their_workers_read_from_a_store(
    local: Stream, server: str, url: str, workers: int, start: str | None
) -> None:
    from torch.utils.data import DataLoader

    from millstream.stream.torch_data import StepIterator

    stream = open_stream(local.plan, url, settings(server))
    stream.batch(1)
    dataset = StepIterator(stream, rank=1, world=2, next_step=21)
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=start)
    items = list(loader)
    assert [item["step"] for item in items] == list(range(21, 31))
    for item in items:
        assert np.array_equal(item["tokens"].numpy(), local.batch(item["step"], 1, 2).tokens)


def test_the_state_counts_what_was_taken_not_what_was_read(local: Stream, server: str, url: str) -> None:
    from millstream.stream.torch_data import StepIterator

    dataset = StepIterator(open_stream(local.plan, url, settings(server)))
    items = iter(dataset)
    assert [next(items)["step"] for _ in range(3)] == [1, 2, 3]
    assert dataset.state_dict()["next_step"] == 4


@pytest.mark.parametrize(("gap", "most"), [(0, 1000), (10, 60), (200, 1000), (0, 7)])
def test_requests_hold_every_piece_and_no_more_than_asked(gap: int, most: int) -> None:
    tar = entry("x", 4000)[0]
    spans = [(n * 37 % 1900, 5 + n * 13 % 90) for n in range(40)]
    pieces = [Piece(first, size, row, 0) for row, (first, size) in enumerate(spans)]
    requests = list(coalesce(tar, pieces, gap, most))
    covered: Counter[tuple[int, int]] = Counter()
    for request in requests:
        assert 0 < request.end - request.start <= most
        for piece in request.pieces:
            assert request.start <= piece.first < piece.first + piece.size <= request.end
            covered.update((piece.row, piece.at + n) for n in range(piece.size))
    assert covered == Counter((row, n) for row, (_, size) in enumerate(spans) for n in range(size))
    for one, after in pairwise(requests):
        assert (
            after.start - one.end > gap or max(one.end, after.pieces[0].first + after.pieces[0].size) - one.start > most
        )


# --- commands ---------------------------------------------------------------------------------------------------------


def test_commands_answer_from_a_url_as_from_the_folder(
    home: Path, server: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_dict(home / "in", ["law", "news"], mixture=MIXTURE)
    loaded = write_recipe(tmp_path / "recipe.yaml", recipe)
    assert loaded.mixture is not None
    corpus = home / "corpus"
    create_run(
        tmp_path / "run", loaded, freeze_plan(loaded.mixture, read_manifest(corpus), corpus), open_corpus(corpus)
    )
    for name, value in (("ACCESS_KEY_ID", "k"), ("SECRET_ACCESS_KEY", "s"), ("ENDPOINT_URL", server)):
        monkeypatch.setenv(f"AWS_{name}", value)
    key = read_table(corpus / "law" / "documents-00000.parquet")["doc_key"][0].hex()
    asked = (
        ["plan", str(tmp_path / "recipe.yaml")],
        ["audit", "step", str(tmp_path / "run"), "3", "--text"],
        ["audit", "doc", str(tmp_path / "run"), key],
        ["audit", "verify", str(tmp_path / "run")],
    )
    for command in asked:
        shown = [CliRunner().invoke(app, [*command, "--json", "--corpus", place]) for place in (str(corpus), url)]
        assert [s.exit_code for s in shown] == [0, 0], shown[1]
        assert shown[0].output.replace(str(corpus), url) == shown[1].output
        assert len(shown[0].output) > 200
