"""One request to an object store: a byte range of an object, with what the store says about the whole object.

S3 and HTTP are asked directly, over fsspec's sessions, so that every answer carries the object's size and ETag and
no layer below retries by rules of its own. Any other fsspec file system is asked for its size once and then for bytes.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import fsspec
from fsspec.asyn import AsyncFileSystem, sync

from millstream.errors import InputError, MillstreamError, SetupError, UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreSettings:
    """How an object store is read. Sizes in bytes, times in seconds."""

    requests: int = 16
    """Requests at once, a process."""
    memory_bytes: int = 64 << 20
    """Most bytes of answers held at once; a request asks for at most its share of it."""
    gap_bytes: int = 64 << 10
    """Ranges of one object that lie no further apart are fetched as one."""
    attempts: int = 8
    retry_seconds: float = 120.0
    """No attempt at a request begins later than this after its first."""
    backoff_seconds: float = 0.1
    """Pause after the first failure; doubled after each further one, up to ``longest_backoff``."""
    longest_backoff: float = 10.0
    connect_seconds: float = 10.0
    read_seconds: float = 30.0
    """Longest silence inside an answer."""
    attempt_seconds: float = 60.0
    """Longest time of one attempt, however steadily it trickles."""
    cache_dir: Path | None = None
    """Folder for whole, verified shards; without it, rows are read by byte range."""
    cache_bytes: int = 256 << 30
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    """fsspec's options for the file system, such as ``endpoint_url`` or ``anon``."""

    @property
    def range_bytes(self) -> int:
        """Most bytes of one request."""
        return max(self.memory_bytes // self.requests, 1)


@dataclass(frozen=True, slots=True)
class Reply:
    """Bytes of an object, the object's size, and its ETag where the store gives one."""

    data: bytes
    total: int | None
    tag: str | None


Fetch = Callable[[str, int, int | None, str | None], Reply]
"""``fetch(path, start, end, tag)``: bytes ``[start, end)`` of a path below the root, to the object's end where ``end``
is None; with a tag, only if the object still has it. Raises a MillstreamError where trying again is of no use."""


def open_fetch(url: str, settings: StoreSettings) -> Fetch:
    """Connect to the store at a URL.

    Raises:
        UsageError: fsspec knows no such protocol.
        SetupError: a package for it is missing, or it refuses its options.
    """
    protocol = url.split("://")[0].split("::")[-1]
    try:
        options = _options(protocol, settings) | settings.options
        filesystem, root = fsspec.url_to_fs(url, **options)
    except ImportError as error:
        extra = {"s3": "millstream[s3]", "s3a": "millstream[s3]", "http": "aiohttp", "https": "aiohttp"}
        what = f": pip install '{extra[protocol]}'" if protocol in extra else ""
        raise SetupError(f"{url}: {error}{what}") from error
    except ValueError as error:
        raise UsageError(f"{url}: {error}") from error
    root = root.rstrip("/")
    if protocol in ("s3", "s3a"):
        return _s3(filesystem, root, settings)
    if protocol in ("http", "https"):
        return _http(filesystem, root, settings)
    return _generic(filesystem, root, settings)


def _options(protocol: str, settings: StoreSettings) -> dict[str, Any]:
    """Timeouts, and no retries below ours."""
    if protocol in ("s3", "s3a"):
        config = {
            "connect_timeout": settings.connect_seconds,
            "read_timeout": settings.read_seconds,
            "max_pool_connections": settings.requests,
            "retries": {"max_attempts": 0},
            # Some stores send the whole object's checksum with a part of it.
            "response_checksum_validation": "when_required",
        }
        return {"config_kwargs": config, "skip_instance_cache": True}
    if protocol in ("http", "https"):
        import aiohttp

        timeout = aiohttp.ClientTimeout(
            total=settings.attempt_seconds, sock_connect=settings.connect_seconds, sock_read=settings.read_seconds
        )
        return {"client_kwargs": {"timeout": timeout}, "skip_instance_cache": True}
    return {}


def _s3(filesystem: Any, root: str, settings: StoreSettings) -> Fetch:
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        NoCredentialsError,
        ParamValidationError,
        PartialCredentialsError,
    )

    try:
        # Once and here: s3fs would let concurrent first requests make a client each.
        _run(filesystem, settings, filesystem.set_session)
    except (BotoCoreError, TimeoutError) as error:
        raise SetupError(f"s3://{root}: {error}") from error

    async def ask(path: str, start: int, end: int | None, tag: str | None) -> Reply:
        bucket, key, _ = filesystem.split_path(f"{root}/{path}")
        client = await filesystem.get_s3(bucket)
        guard = {"IfMatch": tag} if tag else {}
        try:
            reply = await client.get_object(
                Bucket=bucket, Key=key, Range=_range(start, end), **filesystem.req_kw, **guard
            )
        except (NoCredentialsError, PartialCredentialsError, ParamValidationError) as error:
            raise SetupError(f"s3://{bucket}/{key}: {error}") from error
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            raise _refusal(f"s3://{bucket}/{key}", status) or error from error
        async with reply["Body"] as body:
            data = await body.read()
        total = _total(f"s3://{bucket}/{key}", reply.get("ContentRange"), start, len(data), whole=end is None)
        return Reply(data, total, reply.get("ETag"))

    return lambda *asked: _run(filesystem, settings, ask, *asked)


def _http(filesystem: Any, root: str, settings: StoreSettings) -> Fetch:
    async def ask(path: str, start: int, end: int | None, tag: str | None) -> Reply:
        where = f"{root}/{quote(path)}"
        session = await filesystem.set_session()
        given = dict(filesystem.kwargs)
        headers = dict(given.pop("headers", {})) | {"Range": _range(start, end), "Accept-Encoding": "identity"}
        # A weak tag matches nothing by the rules of If-Match; it is compared when the answer is here.
        if tag and not tag.startswith("W/"):
            headers["If-Match"] = tag
        async with session.get(filesystem.encode_url(where), headers=headers, **given) as reply:
            if refused := _refusal(where, reply.status):
                raise refused
            if reply.status == 200 and (start or end not in (None, reply.content_length)):
                raise SetupError(f"{where}: the server does not answer byte ranges; use one that does, or a local copy")
            if reply.status not in (200, 206):
                raise OSError(f"HTTP status {reply.status} {reply.reason}")
            data = await reply.read()
            given_range = reply.headers.get("Content-Range")
            total = _total(where, given_range, start, len(data), whole=end is None or reply.status == 200)
            return Reply(data, total, reply.headers.get("ETag"))

    return lambda *asked: _run(filesystem, settings, ask, *asked)


def _generic(filesystem: Any, root: str, settings: StoreSettings) -> Fetch:
    sizes: dict[str, int] = {}

    def call(name: str, *args: Any) -> Any:
        if isinstance(filesystem, AsyncFileSystem):
            return _run(filesystem, settings, getattr(filesystem, f"_{name}"), *args)
        return getattr(filesystem, name)(*args)

    def ask(path: str, start: int, end: int | None, _: str | None) -> Reply:
        where = f"{root}/{path}"
        try:
            total = sizes[where] if where in sizes else sizes.setdefault(where, int(call("info", where)["size"]))
            stop = total if end is None else min(end, total)
            return Reply(call("cat_file", where, start, stop) if stop > start else b"", total, None)
        except FileNotFoundError as error:
            raise _missing(where) from error
        except PermissionError as error:
            raise _denied(where) from error

    return ask


def _run(filesystem: Any, settings: StoreSettings, ask: Callable[..., Any], *asked: Any) -> Any:
    return sync(filesystem.loop, ask, *asked, timeout=settings.attempt_seconds)


def _range(start: int, end: int | None) -> str:
    return f"bytes={start}-{'' if end is None else end - 1}"


def _total(where: str, content_range: str | None, start: int, length: int, *, whole: bool) -> int | None:
    """The object's size by the answer's Content-Range, which must begin where we asked."""
    if content_range is None:
        return length if whole and not start else None
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", content_range)
    if found is None or int(found[1]) != start or int(found[2]) - start + 1 != length:
        raise OSError(f"asked {where} from byte {start}, got '{content_range}' with {length} bytes")
    return None if found[3] == "*" else int(found[3])


def _refusal(where: str, status: int) -> MillstreamError | None:
    """The error for an answer that will not change, None for one that may."""
    if status in (404, 410):
        return _missing(where)
    if status in (401, 403):
        return _denied(where)
    if status == 412:
        return InputError(f"{where}: replaced in the store while it was being read (its ETag changed)")
    if status == 416:
        return InputError(f"{where}: shorter in the store than the manifest says")
    return None


def _missing(where: str) -> InputError:
    return InputError(f"{where}: missing in the store")


def _denied(where: str) -> SetupError:
    return SetupError(f"{where}: the store denies access; check the credentials and that the object exists")
