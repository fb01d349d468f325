"""A corpus in an object store, at any fsspec URL: verified files, byte ranges, retries with an end.

What a read proves:

    whole files (tables, indexes, shards in the cache)   their SHA-256 is the manifest's
    byte ranges                                          the object has the manifest's size, every answer the length
                                                         asked for, and all answers to a process come from one version
                                                         of the object (S3, HTTP: by ETag)

A range cannot be hashed against the manifest, which knows whole files only; the ledger's roots say what was fed.
"""

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from threading import Event
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from millstream.errors import InputError, MillstreamError, SetupError, UsageError
from millstream.stream.cache import ShardCache
from millstream.stream.remote import Fetch, Reply, StoreSettings, open_fetch
from millstream.tokenize.manifest import MANIFEST, FileEntry, Manifest, parse_manifest, with_redactions
from millstream.tokenize.redactions import REDACTIONS, parse_redactions

Task = TypeVar("Task")
Result = TypeVar("Result")

PAUSE = 0.05
"""Seconds between looks at whether a waiting reader shall stop."""


class Stopped(Exception):
    """Nobody waits for the answer any more."""


@dataclass(frozen=True)
class _Connection:
    """What belongs to one process: sessions and threads do not survive a fork."""

    fetch: Fetch
    pool: ThreadPoolExecutor
    cache: ShardCache | None
    tags: dict[str, str] = field(default_factory=dict)
    """ETag of each object, from its first answer."""


@dataclass(frozen=True)
class Store:
    """Reads the files of one corpus below a URL. Safe for threads and forks; pickles without its connections."""

    url: str
    settings: StoreSettings
    stops: tuple[Event, ...] = ()
    _connections: dict[int, _Connection] = field(default_factory=dict, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.url, self.settings)

    def __str__(self) -> str:
        return self.url

    def connect(self) -> None:
        """Open this process's sessions, which reading does by itself too.

        Raises:
            UsageError: fsspec knows no such protocol.
            SetupError: a package for it is missing, or credentials.
        """
        self._connection()

    def until(self, stop: Event) -> "Store":
        """The same store, whose reads raise ``Stopped`` once ``stop`` is set."""
        return replace(self, stops=(*self.stops, stop))

    def manifest(self) -> Manifest:
        """The corpus's manifest.

        Raises:
            UsageError: there is no corpus at the URL.
            InputError: the manifest is damaged or of a newer format.
        """
        try:
            reply = self._fetch(MANIFEST, 0, None, None)
        except InputError as error:
            raise UsageError(f"{self.url}: no corpus here ({error})") from error
        manifest = parse_manifest(reply.data, f"{self.url}/{MANIFEST}")
        try:
            reply = self._fetch(REDACTIONS, 0, None, None)
        except (InputError, SetupError):
            # Nothing was redacted; if there were a list that cannot be read, the files would not be the manifest's.
            return manifest
        where = f"{self.url}/{REDACTIONS}"
        return with_redactions(manifest, parse_redactions(reply.data, where), where)

    def read(self, entry: FileEntry) -> bytes:
        """A whole file, verified.

        Raises:
            InputError: the file is missing, or its size or SHA-256 is not the manifest's.
            SetupError: the store did not deliver it within the retry budget.
        """
        if (cache := self._connection().cache) is not None:
            return cache.use(entry, self.download, Path.read_bytes)
        data = b"".join(self.fetch(entry, start, end) for start, end in self._parts(entry))
        self._check(entry, hashlib.sha256(data).hexdigest())
        return data

    def download(self, entry: FileEntry, path: Path) -> None:
        """Write a whole file to ``path``, verified; several requests at once.

        Raises:
            InputError: the file is missing, or its size or SHA-256 is not the manifest's.
            SetupError: the store did not deliver it within the retry budget.
        """
        with path.open("wb") as file:
            for part in self._verified(entry):
                file.write(part)

    def verify(self, entry: FileEntry) -> None:
        """Read a whole file from the store and let it go; errors as of ``download``."""
        for _ in self._verified(entry):
            pass

    def fetch(self, entry: FileEntry, start: int, end: int) -> bytes:
        """Bytes ``[start, end)`` of a file.

        Raises:
            InputError: the object is missing, has another size than the manifest says, or was replaced.
            SetupError: the store did not deliver the range within the retry budget.
        """
        return self._fetch(entry.path, start, end, entry.bytes).data

    def each(
        self, tasks: Iterable[Task], work: Callable[["Store", Task], Result], hold: int | None = None
    ) -> Iterator[Result]:
        """``work(store, task)`` of each task, in the tasks' order, ``requests`` of them at once.

        At most ``hold`` results are under way or wait to be taken. The first failure stops the others and is raised.
        """
        abort = Event()
        store, pool = self.until(abort), self._connection().pool
        failures: list[Exception] = []
        running: deque[Future[Result]] = deque()

        def guarded(task: Task) -> Result:
            try:
                return work(store, task)
            except Exception as error:
                if not isinstance(error, Stopped):
                    failures.append(error)
                abort.set()
                raise

        try:
            for task in tasks:
                if len(running) == hold:
                    yield running.popleft().result()
                running.append(pool.submit(guarded, task))
            while running:
                yield running.popleft().result()
        except Stopped:
            # What waited was stopped by a failure elsewhere; that one tells why.
            raise failures[0] if failures else Stopped from None
        finally:
            abort.set()
            for future in running:
                future.cancel()
            wait(running)

    def map(self, entry: FileEntry) -> NDArray[np.uint8]:
        """The bytes of a file in the local cache, fetched if need be and mapped into memory; errors as of ``read``."""
        cache = self._connection().cache
        assert cache is not None, "the settings name no cache_dir"
        return cache.map(entry, self.download)

    def _fetch(self, path: str, start: int, end: int | None, size: int | None) -> Reply:
        if ".." in PurePosixPath(path).parts or path.startswith("/"):
            raise InputError(f"{self.url}/{MANIFEST}: '{path}' lies outside the corpus")
        connection, settings = self._connection(), self.settings
        began, pause = time.monotonic(), settings.backoff_seconds
        for attempt in range(1, settings.attempts + 1):
            self._look_for_stop()
            try:
                reply = connection.fetch(path, start, end, connection.tags.get(path))
                self._accept(connection, path, reply, size)
                wanted = (reply.total if end is None else end) or 0
                if len(reply.data) == wanted - start:
                    return reply
                cause = f"{len(reply.data)} bytes came"
            except (MillstreamError, Stopped, AttributeError, NameError, TypeError, ValueError):
                raise
            # Stores raise whatever their libraries do; all that is known not to pass was turned into our errors.
            except Exception as error:
                cause = f"{type(error).__name__}: {error}".removesuffix(": ")
            spent = time.monotonic() - began
            if attempt == settings.attempts or spent + pause > settings.retry_seconds:
                asked = f"bytes {start}-{'end' if end is None else end - 1}"
                tries = f"{attempt} attempt{'s' if attempt > 1 else ''} in {spent:.1f} s"
                raise SetupError(f"{self.url}/{path}: {asked} could not be read: {tries}, the last: {cause}")
            self._pause(pause)
            pause = min(2 * pause, settings.longest_backoff)
        raise AssertionError("attempts is at least one")

    def _accept(self, connection: _Connection, path: str, reply: Reply, size: int | None) -> None:
        if size is not None and reply.total is not None and reply.total != size:
            raise InputError(f"{self.url}/{path}: {reply.total} bytes, the manifest says {size}")
        if reply.tag is not None and connection.tags.setdefault(path, reply.tag) != reply.tag:
            raise InputError(f"{self.url}/{path}: replaced in the store while it was being read (its ETag changed)")

    def _verified(self, entry: FileEntry) -> Iterator[bytes]:
        """The parts of a file; its SHA-256 is checked behind the last."""
        digest = hashlib.sha256()
        fetch = lambda store, part: store.fetch(entry, *part)  # noqa: E731
        for part in self.each(self._parts(entry), fetch, self.settings.requests):
            digest.update(part)
            yield part
        self._check(entry, digest.hexdigest())

    def _check(self, entry: FileEntry, found: str) -> None:
        if found != entry.sha256:
            raise InputError(f"{self.url}/{entry.path}: altered: its SHA-256 is not the manifest's")

    def _parts(self, entry: FileEntry) -> Iterator[tuple[int, int]]:
        most = self.settings.range_bytes
        return ((at, min(at + most, entry.bytes)) for at in range(0, entry.bytes, most))

    def _connection(self) -> _Connection:
        number = os.getpid()
        if number not in self._connections:
            settings = self.settings
            cache = ShardCache(settings.cache_dir, settings.cache_bytes) if settings.cache_dir else None
            pool = ThreadPoolExecutor(settings.requests, "store")
            self._connections.setdefault(number, _Connection(open_fetch(self.url, settings), pool, cache))
        return self._connections[number]

    def _look_for_stop(self) -> None:
        if any(stop.is_set() for stop in self.stops):
            raise Stopped

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._look_for_stop()
            time.sleep(min(left, PAUSE))
