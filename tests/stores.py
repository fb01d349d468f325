"""An S3 server on loopback, and a proxy before it that does everything a network may do to an answer."""

import contextlib
import hashlib
import http.client
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

import fsspec

BUCKET = "mill"
PASSING = ("500", "503", "429", "reset", "truncated", "short", "shifted", "slow")
"""Faults that pass: a status, a connection cut before or inside the body, half a body announced as whole, a body from
another place, silence inside the body. ``missing`` does not pass; ``flipped`` is one wrong bit."""


@contextmanager
def s3_server() -> Iterator[str]:
    """Run moto's server in a process of its own; yields its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_for(port, process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        assert process.poll() is None, "the server ended"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise AssertionError("the server did not start")


def options(endpoint: str) -> dict[str, Any]:
    """Options of s3fs for a server."""
    return {"key": "k", "secret": "s", "endpoint_url": endpoint, "client_kwargs": {"region_name": "us-east-1"}}


def upload(endpoint: str, corpus: Path, name: str) -> str:
    """Copy a corpus into the bucket; returns its URL."""
    filesystem = fsspec.filesystem("s3", **options(endpoint))
    filesystem.call_s3("create_bucket", Bucket=BUCKET)
    for path in corpus.rglob("*"):
        if path.is_file() and ".work" not in path.parts:
            filesystem.pipe_file(f"{BUCKET}/{name}/{path.relative_to(corpus).as_posix()}", path.read_bytes())
    return f"s3://{BUCKET}/{name}"


@dataclass
class Trouble:
    """What the proxy does: of 1,000 requests ``per_mille`` meet one of ``faults``, chosen by hash of the seed, the
    request and how often it was made, so not by the order in which threads come."""

    seed: int = 0
    per_mille: int = 0
    faults: tuple[str, ...] = PASSING
    slow_seconds: float = 1.0
    counts: Counter[str] = field(default_factory=Counter)
    made: Counter[str] = field(default_factory=Counter)
    lock: Lock = field(default_factory=Lock)
    gate: Event = field(default_factory=Event)

    def of(self, request: str) -> str | None:
        """The fault that this request meets."""
        with self.lock:
            self.made[request] += 1
            drawn = hashlib.sha256(f"{self.seed}/{request}/{self.made[request]}".encode()).digest()
            draw, choice = int.from_bytes(drawn[:4], "big"), int.from_bytes(drawn[4:8], "big")
            fault = None
            if draw % 1000 < self.per_mille:
                fault = self.faults[choice % len(self.faults)]
                self.counts[fault] += 1
            return fault


@contextmanager
def faulty(upstream: str, trouble: Trouble) -> Iterator[str]:
    """A proxy before a server; yields its URL."""
    host = upstream.removeprefix("http://")
    answers: dict[str, tuple[int, dict[str, str], bytes]] = {}

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            request = f"{self.path} {self.headers.get('Range')}"
            fault = trouble.of(request)
            if fault in ("500", "503", "429"):
                return self._send(int(fault), {}, b"<Error><Code>SlowDown</Code></Error>")
            if fault == "missing":
                return self._send(404, {}, b"<Error><Code>NoSuchKey</Code></Error>")
            if fault == "reset":
                return self._reset()
            status, headers, body = self._upstream(f"{request} {self.headers.get('If-Match')}")
            if fault == "short":
                body = body[: len(body) // 2]
            if fault == "flipped" and body:
                body = bytes([body[0] ^ 1]) + body[1:]
            if fault == "shifted" and "Content-Range" in headers:
                headers = dict(headers)
                first, rest = headers["Content-Range"].removeprefix("bytes ").split("-")
                headers["Content-Range"] = f"bytes {int(first) + 1}-{rest}"
            cut = len(body) // 2 if fault in ("truncated", "slow") else len(body)
            self._send(status, headers, body[:cut], announced=len(body))
            if fault == "slow":
                trouble.gate.wait(trouble.slow_seconds)
            if cut < len(body):
                self.close_connection = True
            return None

        def _upstream(self, request: str) -> tuple[int, dict[str, str], bytes]:
            """The server's answer, asked for once."""
            if request not in answers:
                connection = http.client.HTTPConnection(host, timeout=30)
                with contextlib.closing(connection):
                    connection.request("GET", self.path, headers=dict(self.headers))
                    answer = connection.getresponse()
                    body = answer.read()
                ours = ("content-length", "connection")
                headers = {k: v for k, v in answer.headers.items() if k.lower() not in ours}
                answers[request] = answer.status, headers, body
            return answers[request]

        def _send(self, status: int, headers: dict[str, str], body: bytes, announced: int | None = None) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body) if announced is None else announced))
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()

        def _reset(self) -> None:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True

        def finish(self) -> None:
            with contextlib.suppress(OSError):
                super().finish()

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_: Any) -> None:
            """Clients that gave up."""

    with Server(("127.0.0.1", 0), Proxy) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            trouble.gate.set()
            server.shutdown()
            thread.join()
