"""The ledger: chained, repaired after a crash, one writer, every change found; Merkle roots as RFC 6962."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.audit.feed import leaf_hashes, step_root
from millstream.audit.ledger import FILE, check_chain, open_ledger, read_ledger
from millstream.audit.merkle import tree_root
from millstream.audit.verifier import leaf_hash, node_hash
from millstream.errors import CheckFailed, InputError, UsageError


def write(run: Path, count: int) -> None:
    with open_ledger(run) as ledger:
        for n in range(count):
            ledger.append("note", {"text": f"entry {n}", "n": n})


def test_records_are_chained_and_canonical(tmp_path: Path) -> None:
    write(tmp_path, 3)
    write(tmp_path, 2)
    records = list(read_ledger(tmp_path))
    assert [r.seq for r in records] == [0, 1, 2, 3, 4]
    assert records[0].prev == "0" * 64
    assert [r.prev for r in records[1:]] == [r.hash for r in records[:-1]]
    assert check_chain(tmp_path) == 5
    line = (tmp_path / FILE).read_bytes().splitlines()[0]
    assert list(json.loads(line)) == ["body", "hash", "kind", "prev", "seq"]
    body = b'{"body":{"n":0,"text":"entry 0"},"kind":"note","prev":"' + b"0" * 64 + b'","seq":0}'
    assert records[0].hash == hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize("keep", [0, 1, 40, 150])
def test_a_torn_last_line_is_cut_off_and_noted(tmp_path: Path, keep: int) -> None:
    write(tmp_path, 4)
    path = tmp_path / FILE
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]) + lines[3][:keep])
    assert [r.seq for r in read_ledger(tmp_path)] == [0, 1, 2]
    write(tmp_path, 1)
    kinds = [r.body["text"] for r in read_ledger(tmp_path)]
    torn = [f"cut off {keep} bytes of an incomplete last record"] if keep else []
    assert kinds == ["entry 0", "entry 1", "entry 2", *torn, "entry 0"]
    check_chain(tmp_path)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_single_change_is_found(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    run = tmp_path_factory.mktemp("ledger")
    write(run, 5)
    path = run / FILE
    lines = path.read_bytes().splitlines(keepends=True)
    at = data.draw(st.integers(0, 4))
    kind = data.draw(st.sampled_from(["edit", "delete", "swap", "repeat", "space"]))
    if kind == "edit":
        where = data.draw(st.integers(0, len(lines[at]) - 2))
        byte = data.draw(st.integers(32, 126).filter(lambda b: b != lines[at][where]))
        lines[at] = lines[at][:where] + bytes([byte]) + lines[at][where + 1 :]
    elif kind == "delete":
        # The last record alone can go unseen: that is what signed heads are for.
        del lines[min(at, 3)]
    elif kind == "swap":
        other = (at + 1) % 5
        lines[at], lines[other] = lines[other], lines[at]
    elif kind == "repeat":
        lines.insert(at, lines[at])
    else:
        lines[at] = lines[at].replace(b'"seq":', b'"seq": ')
    path.write_bytes(b"".join(lines))
    with pytest.raises(CheckFailed, match=r"ledger\.jsonl:\d"):
        check_chain(run)


def test_a_damaged_last_record_is_not_built_upon(tmp_path: Path) -> None:
    write(tmp_path, 2)
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes().replace(b"entry 1", b"entry 7"))
    with pytest.raises(InputError, match="does not match its hash"):
        open_ledger(tmp_path)


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with open_ledger(tmp_path):
        code = "from millstream.audit.ledger import open_ledger; from pathlib import Path; "
        code += f"open_ledger(Path({str(tmp_path)!r}))"
        second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "UsageError" in second.stderr
        assert "another process is writing to this run" in second.stderr
        with pytest.raises(UsageError):
            open_ledger(tmp_path)


def test_a_full_disk_leaves_the_ledger_at_the_record_before(tmp_path: Path) -> None:
    # A file-size limit makes the kernel cut a write short and then refuse it, as a full disk does.
    code = f"""
import resource, signal
from pathlib import Path
from millstream.audit.ledger import open_ledger
from millstream.errors import SetupError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
ledger = open_ledger(Path({str(tmp_path)!r}))
ledger.append("note", {{"text": "first"}})
resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))
try:
    ledger.append("note", {{"text": "x" * 1000}})
except SetupError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
ledger.append("note", {{"text": "second"}})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "record 1 cannot be written: File too large" in done.stdout
    assert [r.body["text"] for r in read_ledger(tmp_path)] == ["first", "second"]
    assert check_chain(tmp_path) == 2


def test_kill_during_writes_loses_no_record_that_was_reported(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from millstream.audit.ledger import open_ledger
ledger = open_ledger(Path({str(tmp_path)!r}))
for n in range(100_000):
    ledger.append("note", {{"n": n}})
    print(n, flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    reported = [int(process.stdout.readline()) for _ in range(200)]
    process.kill()
    reported += [int(rest) for rest in process.stdout.read().split("\n")[:-1] if rest]
    process.wait()
    process.stdout.close()
    write(tmp_path, 1)
    found = [r.body["n"] for r in read_ledger(tmp_path) if "n" in r.body and "text" not in r.body]
    assert found[: len(reported)] == reported
    check_chain(tmp_path)


def test_floats_are_refused(tmp_path: Path) -> None:
    with open_ledger(tmp_path) as ledger, pytest.raises(ValueError, match="no floats"):
        ledger.append("note", {"deep": [{"loss": 0.5}]})


def test_merkle_roots_are_rfc_6962() -> None:
    """The test vectors of the Certificate Transparency reference implementation."""
    entries = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
    leaves = [leaf_hash(bytes.fromhex(e)) for e in entries]
    assert tree_root([]).hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert tree_root(leaves[:1]).hex() == "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
    assert tree_root(leaves[:2]).hex() == "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"
    assert tree_root(leaves[:3]).hex() == "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77"
    assert tree_root(leaves).hex() == "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"


@given(st.integers(1, 70))
def test_tree_splits_at_the_largest_power_of_two(size: int) -> None:
    leaves = [leaf_hash(bytes([n])) for n in range(size)]

    def recursive(part: list[bytes]) -> bytes:
        if len(part) == 1:
            return part[0]
        split = 1 << (len(part) - 1).bit_length() - 1
        return node_hash(recursive(part[:split]), recursive(part[split:]))

    assert tree_root(leaves) == recursive(leaves)


def test_leaves_are_the_written_definition_whatever_the_dtype() -> None:
    tokens = np.array([[1, 2, 3], [65535, 0, 7]])
    indices = np.array([5, 2**40], np.uint64)
    expected = hashlib.sha256(
        b"\x00seq/v1\x00" + (2**40).to_bytes(8, "little") + b"".join(n.to_bytes(4, "little") for n in (65535, 0, 7))
    ).digest()
    for dtype in (np.uint16, np.uint32, np.int64):
        leaves = leaf_hashes(indices, tokens.astype(dtype))
        assert leaves.shape == (2, 32)
        assert leaves[1].tobytes() == expected
    # Frozen for ever: the root that any release must derive for this step.
    assert step_root(leaf_hashes(indices, tokens)) == "382476b465bdc1f0604631d7e39ccd936682c0e4639fa02f685aa2fddfcc9ec3"
