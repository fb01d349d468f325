"""Serving a page while its run goes on: static files, and answers that no file holds.

    data/samples/STEP.js   any learned step from the inside
    data/ask/KEY.js        a document by its key, from the corpora themselves, however large they are

It listens on the loopback unless it is told otherwise, answers GET and HEAD alone, writes nothing that a visitor names,
and refuses names of hosts that are not its own: no page from elsewhere reads it through a visitor's browser.
"""

import ipaddress
import re
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import orjson

from millstream.audit.document import DocumentAudit, audit_document
from millstream.audit.lookup import Question
from millstream.errors import MillstreamError, UsageError
from millstream.train.page.history import History
from millstream.train.page.site import Page
from millstream.train.page.write import script

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types page",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
SAMPLE = re.compile(r"/data/samples/([1-9][0-9]{0,11})\.js")
ASK = re.compile(r"/data/ask/([0-9a-f]{64})\.js")
SERVED = (b'"served":false', b'"served":true')
LOCAL = ("localhost", "127.0.0.1", "::1")


class Follow:
    """The newest state of a run, brought up to date by a thread; one question at a time is answered from it."""

    def __init__(self, page: Page, history: History, tell: Callable[[str], None]) -> None:
        self.page, self.history = page, history
        self._tell, self._lock = tell, threading.Lock()

    def refresh(self) -> None:
        """Look at the run again; what goes wrong is said and the page stays as it was."""
        try:
            with self._lock:
                self.history = self.page.update()
        except MillstreamError as error:
            self._tell(f"the page stays as it was: {error}")

    def answer(self, path: str) -> Any | None:
        """The value of a data file that is not there; None where there can be none.

        Raises:
            MillstreamError: the run or its corpora are damaged.
        """
        sample, asked = SAMPLE.fullmatch(path), ASK.fullmatch(path)
        with self._lock:
            history = self.history
            corpora = self.page.corpora(history.run)
            if sample and corpora and self.page.settings.steps and history.is_learned(int(sample[1])):
                return self.page.sample(history, int(sample[1]))
            if asked and corpora:
                found = audit_document(history.run, corpora, Question(by="key", value=bytes.fromhex(asked[1])))
                return [_told(audit) for audit in found]
        return None


def serve_page(page: Page, host: str, port: int, every: float, tell: Callable[[str], None]) -> None:
    """Serve a page and follow its run, until interrupted.

    Args:
        page: the page.
        host: address to listen on.
        port: 0 takes a free one.
        every: seconds between looks at the run.
        tell: is given the address, and what went wrong.

    Raises:
        UsageError: the address cannot be listened on.
    """
    follow = Follow(page, page.update(), tell)
    with make_server(follow, host, port) as server:
        name = f"[{host}]" if ":" in host else host
        tell(f"serving http://{name}:{server.server_address[1]}/ (Ctrl-C ends it)")
        if not _is_loopback(host):
            tell("anybody who reaches this address can read the page")
        threading.Thread(target=_refresh, args=(follow, every), daemon=True).start()
        server.serve_forever()


def make_server(follow: Follow, host: str, port: int) -> ThreadingHTTPServer:
    """A server that is bound, not yet serving.

    Raises:
        UsageError: the address cannot be listened on.
    """

    class Handler(_Handler):
        following = follow
        # Beyond the loopback the server cannot know by which names people reach it.
        names = LOCAL if _is_loopback(host) else None

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

    try:
        return Server((host, port), Handler)
    except OSError as error:
        raise UsageError(f"--host {host} --port {port}: cannot be listened on: {error.strerror or error}") from error


class _Handler(SimpleHTTPRequestHandler):
    following: Follow
    names: tuple[str, ...] | None
    server_version, sys_version = "millstream", ""
    protocol_version = "HTTP/1.1"
    # Head and body go out apart; else the second waits for the first one's receipt, 40 ms a file.
    disable_nagle_algorithm = True
    timeout = 60

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments, directory=str(self.following.page.out))

    def do_GET(self) -> None:
        if self._is_ours() and not self._answered():
            super().do_GET()

    def do_HEAD(self) -> None:
        if self._is_ours():
            super().do_HEAD()

    def _is_ours(self) -> bool:
        named = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        if self.names is None or named in self.names:
            return True
        self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "Not the name of this server")
        return False

    def _answered(self) -> bool:
        """Answer what no file holds; False leaves it to the files."""
        path = urlsplit(self.path).path
        if path == "/data/state.js":
            # The file may be read without this server one day, and then promises nothing.
            self._send((self.following.page.out / "data" / "state.js").read_bytes().replace(*SERVED))
            return True
        if not (SAMPLE.fullmatch(path) or ASK.fullmatch(path)) or (self.following.page.out / path[1:]).is_file():
            return False
        try:
            value = self.following.answer(path)
        except MillstreamError:
            value = None
        if value is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return True
        encoded = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode()
        self._send(script(path.removeprefix("/data/").removesuffix(".js"), encoded).encode())
        return True

    def _send(self, body: bytes) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/javascript; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def list_directory(self, path: Any) -> None:
        """Folders have nothing to show."""
        self.send_error(HTTPStatus.NOT_FOUND)

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, *_: Any) -> None:
        """Visitors are not logged."""


def _refresh(follow: Follow, every: float) -> None:
    while True:
        time.sleep(every)
        follow.refresh()


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _told(audit: DocumentAudit) -> dict[str, Any]:
    """What an audit says of a document, as the page shows it."""
    told: dict[str, Any] = {"state": audit.state, "domain": audit.domain, "id": audit.document["doc_id"]}
    if audit.state == "excluded":
        told |= {name: audit.document[name] for name in ("stage", "rule", "value", "threshold")}
        told["twin"] = _told(audit.twin) if audit.twin else None
    told["exposures"] = [
        {
            "step": e.step,
            "row": e.row,
            "epoch": e.epoch,
            "phase": e.phase,
            "attempt": e.attempt,
            "tokens": e.tokens,
            "status": "not applied" if e.status == "skipped" else e.status,
        }
        for e in audit.exposures
    ]
    return told
