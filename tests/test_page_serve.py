"""The server of a page: what it answers, to whom, and what it lets nobody have."""

import http.client
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fed_runs import feed, start

from millstream.audit.corpora import open_corpora
from millstream.audit.runs import open_run
from millstream.errors import UsageError
from millstream.train.page.serve import HEADERS, Follow, make_server
from millstream.train.page.site import Page, Settings

Answer = tuple[int, dict[str, str], bytes]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = start(tmp_path_factory.mktemp("serve"))
    feed(run, 6)
    return run


@pytest.fixture(scope="module")
def port(run: Path) -> Iterator[int]:
    page = Page(run, run / "page", Settings(documents=0, steps=1))
    with make_server(Follow(page, page.update(), print), "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def ask(port: int, path: str, method: str = "GET", host: str | None = None) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.putrequest(method, path, skip_host=host is not None)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def test_every_answer_carries_the_policy(port: int) -> None:
    for path, expected in (("/", 200), ("/data/state.js", 200), ("/data/samples/3.js", 200), ("/nothing", 404)):
        status, headers, _ = ask(port, path)
        assert status == expected
        assert HEADERS.items() <= headers.items(), path
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert ask(port, "/", "HEAD")[2] == b""


def test_only_reading_is_answered_and_only_under_our_own_name(port: int) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(port, "/", method)[0] == 501
    for host in ("evil.example", f"evil.example:{port}", "", "localhost.evil.example"):
        assert ask(port, "/", host=host)[0] == 421, host
    for host in ("localhost", f"127.0.0.1:{port}", f"[::1]:{port}"):
        assert ask(port, "/", host=host)[0] == 200, host


@pytest.mark.parametrize(
    "path",
    [
        "/../run.json",
        "/..%2frun.json",
        "/data/../../run.json",
        "/%2e%2e/ledger.jsonl",
        "//etc/passwd",
        "/data/",
        "/data",
        "/data/samples/7.js",
        "/data/samples/0.js",
        "/data/samples/99999999999999.js",
        "/data/samples/-1.js",
        "/data/ask/xyz.js",
    ],
)
def test_nothing_but_the_page_is_had(port: int, path: str) -> None:
    status, _, body = ask(port, path)
    assert status in (301, 404)
    assert b"plan_id" not in body
    assert b"root:" not in body


def test_a_step_and_a_document_are_answered_from_the_corpus(port: int, run: Path) -> None:
    step = ask(port, "/data/samples/6.js")[2]
    assert step.startswith(b'page.loaded("samples/6",')
    (corpus,) = open_corpora(open_run(run)).values()
    shard = corpus.manifest.domains[0].shards[0]
    assert isinstance(corpus.root, Path)
    import polars as pl

    row = pl.read_parquet(corpus.root / shard.documents.path).row(0, named=True)
    answer = ask(port, f"/data/ask/{row['doc_key'].hex()}.js")[2].decode()
    assert row["doc_id"] in answer
    assert ask(port, f"/data/ask/{'0' * 64}.js")[2].decode().endswith("'[]')\n")


def test_the_file_does_not_promise_what_only_the_server_does(port: int, run: Path) -> None:
    assert b'"served":true' in ask(port, "/data/state.js")[2]
    assert b'"served":false' in (run / "page" / "data" / "state.js").read_bytes()


def test_no_text_is_answered_where_none_is_to_be_shown(run: Path) -> None:
    page = Page(run, run / "page", Settings(documents=0, steps=0))
    follow = Follow(page, page.update(), print)
    assert follow.answer("/data/samples/3.js") is None
    assert not list((run / "page" / "data").glob("samples/*"))


def test_an_address_that_is_taken_is_one_clear_line(run: Path) -> None:
    page = Page(run, run / "page", Settings(documents=0, steps=1))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match=r"--host 127\.0\.0\.1 --port [0-9]+: cannot be listened on: .*in use"):
            make_server(Follow(page, page.update(), print), "127.0.0.1", taken.getsockname()[1])


def test_a_folder_that_holds_something_else_is_left_alone(run: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match="holds something that is no page of a run"):
        Page(run, tmp_path, Settings())
