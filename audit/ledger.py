"""The ledger: a run's append-only record, one canonical JSON object a line, each hash-chained.

    {"body": {...}, "hash": H, "kind": "step", "prev": P, "seq": 17}

``hash`` is SHA-256 over the canonical form of the other four fields, ``prev`` the hash of the record
before (64 zeros at first). Bodies hold integers, strings, booleans, lists and objects of them: no
floats, so that the bytes are the same everywhere. One process writes at a time.
"""

import fcntl
import os
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import orjson

from millstream.audit import ledger_index
from millstream.audit.ledger_index import IndexWriter, known_rows, scan_rows
from millstream.canonical import canonical_bytes, digest
from millstream.errors import CheckFailed, InputError, SetupError, UsageError

FILE = "ledger.jsonl"
FIRST = "0" * 64
PATIENCE_S = 0.5
_STATED = re.compile(rb'"hash":"([0-9a-f]{64})","kind":"[a-z]+","prev":"[0-9a-f]{64}","seq":[0-9]+}\n$')
KINDS = (
    "run",
    "corpus",
    "forecast",
    "segment",
    "attempt",
    "step",
    "checkpoint",
    "pin",
    "stop",
    "rollback",
    "branch",
    "control",
    "redaction",
    "alert",
    "note",
    "paper",
    "end",
)


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a ledger."""

    seq: int
    kind: str
    body: dict[str, Any]
    prev: str
    hash: str


def record_hash(seq: int, kind: str, body: dict[str, Any], prev: str) -> str:
    """The hash that a record with these fields carries."""
    return digest({"seq": seq, "kind": kind, "body": body, "prev": prev})


class Ledger:
    """An open ledger, locked for this process. Use ``open_ledger``."""

    def __init__(self, path: Path, file: BinaryIO, index: IndexWriter, last: Record | None) -> None:
        self.path = path
        self._file = file
        self._index = index
        self._next = last.seq + 1 if last else 0
        self._prev = last.hash if last else FIRST

    @property
    def head(self) -> dict[str, Any]:
        """Number and hash of the last record."""
        return {"seq": self._next - 1, "hash": self._prev}

    def append(self, kind: str, body: dict[str, Any]) -> Record:
        """Write one record and hand it to the operating system.

        Raises:
            SetupError: the disk is full or fails; the ledger ends at the record before.
        """
        if kind not in KINDS:
            raise ValueError(f"unknown kind of record: {kind}")
        _refuse_floats(body)
        hashed = record_hash(self._next, kind, body, self._prev)
        record = Record(self._next, kind, body, self._prev, hashed)
        end = self._file.tell()
        line = canonical_bytes(asdict(record)) + b"\n"
        row = ledger_index.pack(kind, body, hashed, end + len(line))
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._file.truncate(end)
            self._file.seek(end)
            raise SetupError(f"{self.path}: record {self._next} cannot be written: {error.strerror}") from error
        self._index.add(row)
        self._next, self._prev = self._next + 1, hashed
        return record

    def hashes(self) -> list[bytes]:
        """Hashes of all records so far, 32 bytes each, as the lines state them."""
        return stated_hashes(self.path)

    def sync(self) -> None:
        """Wait until all records are on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Sync, release the lock and close."""
        self.sync()
        self._index.close()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_ledger(run_dir: Path) -> Ledger:
    """Open a run's ledger for writing; create it where there is none.

    An incomplete last line, as a crash leaves it, is cut off and a ``note`` says so.

    Raises:
        UsageError: another process is writing to it.
        InputError: the last whole record is damaged, or there are fewer records than a signed head covers.
    """
    path = run_dir / FILE
    path.touch()
    # Unbuffered: a failed write must not leave bytes behind that a later flush would bring out.
    file = path.open("r+b", buffering=0)
    try:
        _lock(file)
    except OSError as error:
        file.close()
        raise UsageError(f"{path}: another process is writing to this run; wait for it or stop it") from error
    whole, torn = _whole_end(file)
    try:
        last = _last_record(file, whole, path)
        count = last.seq + 1 if last else 0
        if (signed := covered(run_dir)) > count:
            raise InputError(
                f"{path}: holds {count} whole records, but a signed head covers {signed}: records are missing; "
                "restore the file"
            )
        file.truncate(whole)
        index = _open_index(run_dir, file)
    except InputError:
        file.close()
        raise
    file.seek(whole)
    ledger = Ledger(path, file, index, last)
    if torn:
        ledger.append("note", {"text": f"cut off {torn} bytes of an incomplete last record", "by": "millstream"})
    return ledger


def being_written(run_dir: Path) -> bool:
    """Whether some process holds a run's ledger for writing."""
    try:
        file = (run_dir / FILE).open("rb")
    except OSError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def read_ledger(run_dir: Path) -> Iterator[Record]:
    """Records of a ledger in order, without checking the chain; an incomplete last line is left out.

    Raises:
        UsageError: there is no ledger here.
        InputError: a line is not a record; names the line.
    """
    path = run_dir / FILE
    try:
        file = path.open("rb")
    except OSError as error:
        raise UsageError(f"{run_dir}: no run here (no {FILE})") from error
    with file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n"):
                yield parse_record(line, f"{path}:{number}")


def check_chain(run_dir: Path) -> int:
    """Check every record's number, hash and link, and its canonical form; returns their number.

    Raises:
        CheckFailed: names the first line that does not fit.
    """
    path = run_dir / FILE
    prev, count = FIRST, 0
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            where = f"{path}:{count + 1}"
            try:
                record = parse_record(line, where)
            except InputError as error:
                raise CheckFailed(str(error)) from error
            _check_link(record, count, prev, line, where)
            prev, count = record.hash, count + 1
    return count


def stated_hashes(path: Path) -> list[bytes]:
    """The hashes that the lines of a ledger state, unchecked; an incomplete last line is left out.

    Raises:
        InputError: a line states none; names it.
    """
    hashes = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n"):
                if (found := _STATED.search(line)) is None:
                    raise InputError(f"{path}:{number}: not a ledger record")
                hashes.append(bytes.fromhex(found[1].decode()))
    return hashes


def covered(run_dir: Path) -> int:
    """How many records the newest signed head of a run covers, its signature not looked at; 0 without one."""
    sizes = [int(path.stem) for path in (run_dir / "log" / "heads").glob("*.note") if path.stem.isdecimal()]
    return max(sizes, default=0)


def _check_link(record: Record, seq: int, prev: str, line: bytes, where: str) -> None:
    if record.seq != seq:
        raise CheckFailed(f"{where}: record number {record.seq}, expected {seq}")
    if record.prev != prev:
        raise CheckFailed(f"{where}: names {record.prev[:16]} as the record before, which is {prev[:16]}")
    found = record_hash(record.seq, record.kind, record.body, record.prev)
    if found != record.hash:
        raise CheckFailed(f"{where}: its hash is {found[:16]}, the record says {record.hash[:16]}")
    if canonical_bytes(asdict(record)) + b"\n" != line:
        raise CheckFailed(f"{where}: not in canonical form")


def parse_record(line: bytes, where: str) -> Record:
    """The record that a line holds, its hash unchecked; ``where`` names the line in errors.

    Raises:
        InputError: the line is not a record.
    """
    try:
        record = Record(**orjson.loads(line))
    except (orjson.JSONDecodeError, TypeError) as error:
        raise InputError(f"{where}: not a ledger record: {error}") from error
    if not isinstance(record.body, dict) or not isinstance(record.seq, int):
        raise InputError(f"{where}: not a ledger record: wrong types")
    return record


def move_ledger(old: Path, new: Path) -> None:
    """Move a closed ledger to another folder of the same disk; it is there when all of it is."""
    if (old / ledger_index.FILE).exists():
        (old / ledger_index.FILE).replace(new / ledger_index.FILE)
    (old / FILE).rename(new / FILE)


def _lock(file: BinaryIO) -> None:
    # A watcher holds a ledger for moments only: a run that starts in one of them must not fail over it.
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.02)
        else:
            return


def _open_index(run_dir: Path, ledger: BinaryIO) -> IndexWriter:
    """The index, brought up to the ledger."""
    known = known_rows(run_dir / ledger_index.FILE, ledger)
    index = IndexWriter(run_dir / ledger_index.FILE, len(known))
    for packed in scan_rows(ledger, known, str(run_dir / FILE)):
        index.add(packed)
    return index


def _whole_end(file: BinaryIO) -> tuple[int, int]:
    """End of the last whole line, and the number of bytes after it."""
    size = file.seek(0, os.SEEK_END)
    block, at = 1 << 16, size
    while at > 0:
        start = max(0, at - block)
        file.seek(start)
        newline = file.read(at - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1, size - (start + newline + 1)
        at = start
    return 0, size


def _last_record(file: BinaryIO, end: int, path: Path) -> Record | None:
    if end == 0:
        return None
    at = end - 1
    while at > 0:
        start = max(0, at - (1 << 16))
        file.seek(start)
        newline = file.read(at - start).rfind(b"\n")
        if newline >= 0:
            at = start + newline + 1
            break
        at = start
    file.seek(at)
    record = parse_record(file.read(end - at), f"{path}: last record")
    if record_hash(record.seq, record.kind, record.body, record.prev) != record.hash:
        raise InputError(
            f"{path}: the last record ({record.seq}) does not match its hash; run 'millstream audit verify'"
        )
    return record


def _refuse_floats(value: Any) -> None:
    if isinstance(value, float):
        raise ValueError(f"ledger bodies hold no floats, found {value}")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        _refuse_floats(inner)
