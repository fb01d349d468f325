"""Token shards mapped into memory: one domain's ring of tokens, read by position.

A shard is a webdataset tar whose token arrays are addressed by the chunk index that lies beside
it. Shards are opened and checked when first touched, so opening a corpus costs nothing that
grows with it.
"""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.stream.chunks import Chunks, read_chunks
from millstream.stream.permutation import distinct
from millstream.stream.ranges import StoredDomain, Tokens
from millstream.stream.roots import Root
from millstream.stream.store import Store
from millstream.tokenize.manifest import DomainManifest, Shard, check_size


@dataclass(frozen=True, slots=True)
class MappedShard:
    """A shard in memory: the whole tar as tokens, since members lie on borders of 64 bytes, and its chunks."""

    tokens: Tokens
    starts: NDArray[np.int64]
    """First token of each chunk, in the domain."""
    counts: NDArray[np.int64]
    offsets: NDArray[np.int64]
    """Place in ``tokens`` at which each chunk begins."""


@dataclass(frozen=True)
class DomainReader:
    """Reads any span of one domain's tokens.

    ``tokens`` is the ring's length: smaller than the domain where a plan limits it.
    """

    root: Root
    shards: tuple[Shard, ...]
    tokens: int
    dtype: np.dtype[np.unsignedinteger[Any]]
    _mapped: dict[int, MappedShard] = field(default_factory=dict)

    def find(self, starts: NDArray[np.int64], length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where sequences lie: for each start the shard, and the place in its tokens; both int64 (n,).

        A sequence that passes a border of a chunk, a shard or the ring has shard -1; ``fill`` copies it.
        """
        numbers = np.searchsorted(self._starts, starts, side="right") - 1
        places = np.empty(starts.shape, np.int64)
        for number in distinct(numbers)[0].tolist():
            shard = self.shard(number)
            chosen = np.flatnonzero(numbers == number)
            begins = starts[chosen]
            chunks = np.searchsorted(shard.starts, begins, side="right") - 1
            inside = begins - shard.starts[chunks]
            places[chosen] = shard.offsets[chunks] + inside
            broken = (inside + length > shard.counts[chunks]) | (begins + length > self.tokens)
            numbers[chosen[broken]] = -1
        return numbers, places

    def gather(self, starts: NDArray[np.int64], length: int, out: NDArray[Any], rows: NDArray[np.intp]) -> None:
        """Copy ``length`` tokens from each start, round the ring's end, into ``out[rows]``.

        Args:
            starts: positions in the ring, (n,).
            length: tokens a row; at most the ring's length plus one.
            out: (any, length) of integers.
            rows: row of ``out`` for each start, (n,).
        """
        for start, row in zip(starts.tolist(), rows.tolist(), strict=True):
            self.fill(start, out[row, :length])

    def fill(self, start: int, out: NDArray[Any]) -> None:
        """Copy ``len(out)`` tokens from ``start`` on, past the borders of chunks, shards and the ring."""
        filled = 0
        while filled < len(out):
            piece = self._piece((start + filled) % self.tokens, len(out) - filled)
            out[filled : filled + len(piece)] = piece
            filled += len(piece)

    def span(self, start: int, end: int) -> Tokens:
        """Tokens ``[start, end)`` as a new array."""
        out = np.empty(end - start, self.dtype)
        self.fill(start, out)
        return out

    def shard(self, number: int) -> MappedShard:
        """One of the domain's shards; mapped and checked when first touched.

        Raises:
            InputError: it is missing, short or altered in size, or its index does not fit.
        """
        if number not in self._mapped:
            assert isinstance(self.root, Path)
            tar = check_size(self.root, self.shards[number].tar)
            chunks = read_chunks(self.root, self.shards[number], self.dtype.itemsize)
            # As a plain array: slicing a memmap object costs more than the copy of a short sequence.
            self._mapped[number] = _as_tokens(np.asarray(np.memmap(tar, np.uint8, mode="r")), chunks, self.dtype)
        return self._mapped[number]

    def _piece(self, start: int, most: int) -> Tokens:
        """A view of the tokens from ``start`` to the end of their chunk, the ring or ``most``."""
        shard = self.shard(int(self._starts.searchsorted(start, "right")) - 1)
        chunk = int(shard.starts.searchsorted(start, "right")) - 1
        inside = start - int(shard.starts[chunk])
        count = min(int(shard.counts[chunk]) - inside, most, self.tokens - start)
        first = int(shard.offsets[chunk]) + inside
        return shard.tokens[first : first + count]

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return np.array([shard.token_start for shard in self.shards], np.int64)


@dataclass(frozen=True)
class CachedDomain(DomainReader):
    """A domain of a store, whose shards are mapped from the local cache for as long as they stay there."""

    _chunks: dict[int, Chunks] = field(default_factory=dict)

    def shard(self, number: int) -> MappedShard:
        """As of ``DomainReader``; fetched first where the cache does not have it."""
        assert isinstance(self.root, Store)
        shard = self.shards[number]
        if number not in self._chunks:
            self._chunks[number] = read_chunks(self.root, shard, self.dtype.itemsize)
        return _as_tokens(self.root.map(shard.tar), self._chunks[number], self.dtype)


def open_domain(root: Root, domain: DomainManifest, dtype: str, tokens: int) -> DomainReader | StoredDomain:
    """A reader of a domain's training tokens; shards without a token are left out.

    From a store without a cache it reads byte ranges; else whole shards are mapped.
    """
    shards = tuple(shard for shard in domain.shards if shard.tokens)
    return _reader(root, shards, tokens, dtype)


def open_holdout(root: Root, domain: DomainManifest, dtype: str) -> DomainReader | StoredDomain | None:
    """A reader of a domain's held-out tokens, where it has any."""
    if domain.holdout is None or not domain.holdout.tokens:
        return None
    return _reader(root, (domain.holdout,), domain.holdout.tokens, dtype)


def _reader(root: Root, shards: tuple[Shard, ...], tokens: int, dtype: str) -> DomainReader | StoredDomain:
    wanted = np.dtype(dtype).newbyteorder("<")
    if isinstance(root, Path):
        return DomainReader(root, shards, tokens, wanted)
    if root.settings.cache_dir is None:
        return StoredDomain(root, shards, tokens, wanted)
    return CachedDomain(root, shards, tokens, wanted)


def _as_tokens(data: NDArray[np.uint8], chunks: Chunks, dtype: np.dtype[np.unsignedinteger[Any]]) -> MappedShard:
    size = dtype.itemsize
    tokens: Tokens = data[: data.size // size * size].view(dtype)
    return MappedShard(tokens, chunks.starts, chunks.counts, chunks.offsets // size)
