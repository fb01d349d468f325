"""Rows of tokens from a store by byte range: many rows of several domains at once.

    rows -> pieces (a row's bytes within one chunk) -> requests (neighbouring pieces of one tar) -> rows

A request's bytes are copied into its rows as they come and let go, so beside the rows themselves no more is held than
the answers in flight.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.stream.chunks import Chunks, read_chunks
from millstream.stream.store import Store
from millstream.tokenize.manifest import FileEntry, Shard

Tokens = NDArray[np.unsignedinteger[Any]]
"""Token ids in a corpus's own dtype, uint16 or uint32."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes ``[first, first + size)`` of a tar, which fill a row from its byte ``at``."""

    first: int
    size: int
    row: int
    at: int


@dataclass(frozen=True, slots=True)
class Request:
    """Bytes ``[start, end)`` of a tar and the pieces within."""

    tar: FileEntry
    start: int
    end: int
    pieces: list[Piece]


@dataclass(frozen=True)
class StoredDomain:
    """Reads spans of one domain's tokens from a store; ``tokens`` is the ring's length, as in ``DomainReader``."""

    root: Store
    shards: tuple[Shard, ...]
    tokens: int
    dtype: np.dtype[np.unsignedinteger[Any]]
    _chunks: dict[int, Chunks] = field(default_factory=dict)

    def gather(self, starts: NDArray[np.int64], length: int, out: Tokens, rows: NDArray[np.intp]) -> None:
        """Copy ``length`` tokens from each start, round the ring's end, into ``out[rows]``.

        Args:
            starts: positions in the ring, (n,).
            length: tokens a row; at most the ring's length plus one.
            out: (any, length) of the corpus's dtype, C-contiguous.
            rows: row of ``out`` for each start, (n,).

        Raises:
            InputError: a shard is missing in the store, or altered.
            SetupError: the store did not deliver within the retry budget.
        """
        gather_rows([(self, starts, rows)], out)

    def span(self, start: int, end: int) -> Tokens:
        """Tokens ``[start, end)`` as a new array."""
        out = np.empty((1, end - start), self.dtype)
        self.gather(np.array([start]), end - start, out, np.array([0]))
        tokens: Tokens = out[0]
        return tokens

    @cached_property
    def _firsts(self) -> NDArray[np.int64]:
        return np.array([shard.token_start for shard in self.shards], np.int64)

    def touched(self, starts: NDArray[np.int64], length: int) -> list[int]:
        """Shards in which the spans of ``length`` tokens from ``starts`` lie."""
        begins, ends = starts % self.tokens, (starts + length - 1) % self.tokens
        low, high = (np.searchsorted(self._firsts, at, side="right") - 1 for at in (begins, ends))
        numbers = {*low.tolist(), *high.tolist()}
        last = int(np.searchsorted(self._firsts, self.tokens, side="left")) - 1
        for a, b, wrapped in zip(low.tolist(), high.tolist(), (ends < begins).tolist(), strict=True):
            numbers.update((*range(a, last + 1), *range(b + 1)) if wrapped else range(a, b + 1))
        return sorted(numbers)

    def pieces(
        self, starts: NDArray[np.int64], length: int, rows: NDArray[np.intp]
    ) -> Iterator[tuple[FileEntry, Piece]]:
        """The pieces of rows; the indexes of their shards were read."""
        size = self.dtype.itemsize
        for start, row in zip(starts.tolist(), rows.tolist(), strict=True):
            filled = 0
            while filled < length:
                at = (start + filled) % self.tokens
                number = int(np.searchsorted(self._firsts, at, side="right")) - 1
                chunks = self._chunks[number]
                chunk = int(np.searchsorted(chunks.starts, at, side="right")) - 1
                inside = at - int(chunks.starts[chunk])
                count = min(int(chunks.counts[chunk]) - inside, length - filled, self.tokens - at)
                first = int(chunks.offsets[chunk]) + inside * size
                yield self.shards[number].tar, Piece(first, count * size, row, filled * size)
                filled += count


Wanted = tuple[StoredDomain, NDArray[np.int64], NDArray[np.intp]]
"""A domain, where its rows start in its ring, and which rows they are; both (n,)."""


def gather_rows(wanted: Sequence[Wanted], out: Tokens) -> None:
    """Fill rows of ``out`` from several domains of one store, all fetched together.

    Raises:
        InputError: a shard is missing in the store, or altered.
        SetupError: the store did not deliver within the retry budget.
    """
    store, length = wanted[0][0].root, out.shape[1]
    _read_indexes(store, wanted, length)
    by_tar: dict[str, tuple[FileEntry, list[Piece]]] = {}
    for domain, starts, rows in wanted:
        for tar, piece in domain.pieces(starts, length, rows):
            by_tar.setdefault(tar.path, (tar, []))[1].append(piece)
    gap, most = store.settings.gap_bytes, store.settings.range_bytes
    requests = [r for tar, pieces in by_tar.values() for r in coalesce(tar, pieces, gap, most)]
    target = out.view(np.uint8)

    def fill(store: Store, request: Request) -> None:
        data = np.frombuffer(store.fetch(request.tar, request.start, request.end), np.uint8)
        for piece in request.pieces:
            first = piece.first - request.start
            target[piece.row, piece.at : piece.at + piece.size] = data[first : first + piece.size]

    for _ in store.each(requests, fill):
        pass


def coalesce(tar: FileEntry, pieces: Sequence[Piece], gap: int, most: int) -> Iterator[Request]:
    """Requests of at most ``most`` bytes that hold all pieces of a tar; ranges at most ``gap`` apart become one."""
    request: Request | None = None
    for piece in sorted((part for whole in pieces for part in _parts(whole, most)), key=lambda p: p.first):
        end = piece.first + piece.size
        if request is not None and piece.first - request.end <= gap and max(end, request.end) - request.start <= most:
            request = Request(tar, request.start, max(end, request.end), [*request.pieces, piece])
            continue
        if request is not None:
            yield request
        request = Request(tar, piece.first, end, [piece])
    if request is not None:
        yield request


def _parts(piece: Piece, most: int) -> Iterator[Piece]:
    for at in range(0, piece.size, most):
        yield Piece(piece.first + at, min(most, piece.size - at), piece.row, piece.at + at)


def _read_indexes(store: Store, wanted: Sequence[Wanted], length: int) -> None:
    missing = [
        (domain, number)
        for domain, starts, _ in wanted
        for number in domain.touched(starts, length)
        if number not in domain._chunks
    ]

    def read(store: Store, one: tuple[StoredDomain, int]) -> None:
        domain, number = one
        domain._chunks[number] = read_chunks(store, domain.shards[number], domain.dtype.itemsize)

    for _ in store.each(missing, read):
        pass
