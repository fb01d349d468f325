"""The ledger's index: some numbers of every record, so that a question reads only the records that it needs.

``RUN/ledger.index`` is written along with the ledger and derived from it alone: a header, then a row of ``ROW`` for
each record. Whoever opens a run takes as much of it as fits the ledger and reads the rest of the ledger itself, so an
index that is missing, torn or behind costs time, never an answer. ``audit verify`` reads the ledger, and compares.
"""

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray

from millstream.errors import InputError

FILE = "ledger.index"
HEADER = b"millstream-ledger-index/1\n"
NAN, INF = -(1 << 63), (1 << 63) - 1
"""Losses that are no numbers."""

ROW = np.dtype(
    [
        ("end", "<u8"),  # byte of the ledger after the record's line
        ("first_index", "<u8"),
        ("loss", "<i8"),  # millionths of a nat, NAN or INF
        ("step", "<u4"),  # of an attempt, a rollback or a branch the step after which it goes on
        ("attempt", "<u4"),
        ("segment", "<u4"),
        ("sequences", "<u4"),
        ("check", "<u4"),  # first 32 bits of the record's hash
        ("kind", "S10"),
        ("applied", "u1"),
        ("", "V1"),
    ]
)
"""All but ``end``, ``check`` and ``kind`` are zeros where a record has no such number."""

Rows = NDArray[Any]
"""Rows of ``ROW``, (records,)."""

_PACKED = struct.Struct("<QQqIIIII10sBx")
_STEP_OF = {"step": "step", "checkpoint": "step", "attempt": "checkpoint_step", "rollback": "to_step", "branch": "at"}
_AT_ONCE = 1 << 12


class IndexWriter:
    """Adds a row a record; the ledger's lock guards it. A disk that is full ends the index, not the run."""

    def __init__(self, path: Path, known: int) -> None:
        """Keep the first ``known`` rows of the file, or begin it anew."""
        self._file: BinaryIO | None = path.open("r+b" if known else "w+b", buffering=0)
        if not known:
            self.add(HEADER.ljust(ROW.itemsize, b"\0"))
        if self._file is not None:
            self._file.truncate(ROW.itemsize * (1 + known))
            self._file.seek(0, os.SEEK_END)

    def add(self, packed: bytes) -> None:
        """Add rows."""
        try:
            if self._file is not None and self._file.write(packed) < len(packed):
                raise OSError
        except OSError:
            self.close()
            self._file = None

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def known_rows(path: Path, ledger: BinaryIO) -> Rows:
    """As many rows of an index file as fit a ledger, as of its last record among them."""
    nothing: Rows = np.empty(0, ROW)
    rows = mapped_rows(path)
    if not len(rows):
        return nothing
    with path.open("rb") as file:
        if file.read(len(HEADER)) != HEADER:
            return nothing
    ends = rows["end"]
    # After a power failure the file may hold rows of a tail that the ledger lost, and pages of zeros.
    if not ends[0] or not (ends[1:] > ends[:-1]).all():
        return nothing
    count = int(np.searchsorted(ends, ledger.seek(0, os.SEEK_END), side="right"))
    if not count:
        return nothing
    start, end = int(ends[count - 2]) if count > 1 else 0, int(ends[count - 1])
    ledger.seek(start)
    line = ledger.read(end - start)
    try:
        fits = line.find(b"\n") == len(line) - 1 and pack_line(line, end) == rows[count - 1].tobytes()
    except InputError:
        fits = False
    return rows[:count] if fits else nothing


def mapped_rows(path: Path) -> Rows:
    """Whatever whole rows lie in an index file, unchecked; none where there is no file."""
    count = path.stat().st_size // ROW.itemsize - 1 if path.is_file() else 0
    if count < 1:
        return np.empty(0, ROW)
    # As a plain array: each access to a field of a memmap object costs more than most questions.
    return np.asarray(np.memmap(path, ROW, "r", offset=ROW.itemsize, shape=(count,)))


def scan_rows(ledger: BinaryIO, known: Rows, where: str) -> Iterator[bytes]:
    """Packed rows of the records after those that are known, some thousands at a time.

    Raises:
        InputError: a whole line is not a record; names the line.
    """
    end, number = int(known["end"][-1]) if len(known) else 0, len(known)
    ledger.seek(end)
    packed: list[bytes] = []
    for line in ledger:
        if not line.endswith(b"\n"):
            break
        end, number = end + len(line), number + 1
        try:
            packed.append(pack_line(line, end))
        except InputError as error:
            raise InputError(f"{where}:{number}: {error}") from error
        if len(packed) == _AT_ONCE:
            yield b"".join(packed)
            packed = []
    if packed:
        yield b"".join(packed)


def unpack(packed: Iterator[bytes]) -> Rows:
    """Packed rows as one array."""
    return np.frombuffer(b"".join(packed), ROW)


def pack_line(line: bytes, end: int) -> bytes:
    """The packed row of a record's line that ends before byte ``end``.

    Raises:
        InputError: the line is not a record.
    """
    try:
        raw = orjson.loads(line)
        return pack(raw["kind"], raw["body"], raw["hash"], end)
    except (orjson.JSONDecodeError, TypeError, KeyError, AttributeError, ValueError, struct.error) as error:
        raise InputError(f"not a ledger record: {error}") from error


def pack(kind: str, body: Mapping[str, Any], hashed: str, end: int) -> bytes:
    """The packed row of a record whose line ends before byte ``end``."""
    loss = body.get("loss", 0)
    step = kind == "step"
    return _PACKED.pack(
        end,
        body["first_index"] if step else 0,
        (NAN if loss == "nan" else INF if loss == "inf" else loss) if step else 0,
        body.get(_STEP_OF[kind], 0) if kind in _STEP_OF else 0,
        body.get("attempt", 0),
        body["segment"] if step else 0,
        body["sequences"] if step else 0,
        int(hashed[:8], 16),
        kind.encode(),
        bool(body["update_applied"]) if step else 0,
    )
