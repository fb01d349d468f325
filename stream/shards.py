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
from millstream.stream.ranges import StoredDomain, Tokens
from millstream.stream.roots import Root
from millstream.stream.store import Store
from millstream.tokenize.manifest import DomainManifest, Shard, check_size


@dataclass(frozen=True, slots=True)
class _MappedShard:
    data: NDArray[np.uint8]
    chunks: Chunks


@dataclass(frozen=True)
class DomainReader:
    """Reads any span of one domain's tokens.

    ``tokens`` is the ring's length: smaller than the domain where a plan limits it.
    """

    root: Root
    shards: tuple[Shard, ...]
    tokens: int
    dtype: np.dtype[np.unsignedinteger[Any]]
    _mapped: dict[int, _MappedShard] = field(default_factory=dict)

    def gather(self, starts: NDArray[np.int64], length: int, out: Tokens, rows: NDArray[np.intp]) -> None:
        """Copy ``length`` tokens from each start, round the ring's end, into ``out[rows]``.

        Args:
            starts: positions in the ring, (n,).
            length: tokens a row; at most the ring's length plus one.
            out: (any, length) of the corpus's dtype.
            rows: row of ``out`` for each start, (n,).
        """
        numbers = np.searchsorted(self._starts, starts, side="right") - 1
        size = length * self.dtype.itemsize
        for number in np.unique(numbers).tolist():
            shard = self._shard(number)
            chosen = numbers == number
            begins, targets = starts[chosen], rows[chosen]
            index = shard.chunks
            chunks = np.searchsorted(index.starts, begins, side="right") - 1
            inside = begins - index.starts[chunks]
            firsts = index.offsets[chunks] + inside * self.dtype.itemsize
            whole = (inside + length <= index.counts[chunks]) & (begins + length <= self.tokens)
            # Nearly all sequences lie in one chunk and are one copy each.
            for row, first in zip(targets[whole].tolist(), firsts[whole].tolist(), strict=True):
                out[row] = shard.data[first : first + size].view(self.dtype)
            for row, begin in zip(targets[~whole].tolist(), begins[~whole].tolist(), strict=True):
                self._gather_pieces(begin, out[row])

    def _gather_pieces(self, start: int, out: Tokens) -> None:
        """Fill a row that passes the border of a chunk, a shard or the ring."""
        filled = 0
        while filled < len(out):
            piece = self._piece((start + filled) % self.tokens, len(out) - filled)
            out[filled : filled + len(piece)] = piece
            filled += len(piece)

    def span(self, start: int, end: int) -> Tokens:
        """Tokens ``[start, end)`` as a new array."""
        out = np.empty((1, end - start), self.dtype)
        self.gather(np.array([start]), end - start, out, np.array([0]))
        tokens: Tokens = out[0]
        return tokens

    def _piece(self, start: int, most: int) -> Tokens:
        """A view of the tokens from ``start`` to the end of their chunk, the ring or ``most``."""
        number = int(np.searchsorted(self._starts, start, side="right")) - 1
        shard = self._shard(number)
        index = shard.chunks
        chunk = int(np.searchsorted(index.starts, start, side="right")) - 1
        inside = start - int(index.starts[chunk])
        count = min(int(index.counts[chunk]) - inside, most, self.tokens - start)
        first = int(index.offsets[chunk]) + inside * self.dtype.itemsize
        piece: Tokens = np.frombuffer(shard.data, self.dtype, count, first)
        return piece

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return np.array([shard.token_start for shard in self.shards], np.int64)

    def _shard(self, number: int) -> _MappedShard:
        if number not in self._mapped:
            assert isinstance(self.root, Path)
            self._mapped[number] = _map_shard(self.root, self.shards[number], self.dtype.itemsize)
        return self._mapped[number]


@dataclass(frozen=True)
class CachedDomain(DomainReader):
    """A domain of a store, whose shards are mapped from the local cache for as long as they stay there."""

    _chunks: dict[int, Chunks] = field(default_factory=dict)

    def _shard(self, number: int) -> _MappedShard:
        assert isinstance(self.root, Store)
        shard = self.shards[number]
        if number not in self._chunks:
            self._chunks[number] = read_chunks(self.root, shard, self.dtype.itemsize)
        return _MappedShard(self.root.map(shard.tar), self._chunks[number])


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


def _map_shard(root: Path, shard: Shard, itemsize: int) -> _MappedShard:
    tar = check_size(root, shard.tar)
    chunks = read_chunks(root, shard, itemsize)
    # As a plain array: slicing a memmap object costs more than the copy of a short sequence.
    return _MappedShard(np.asarray(np.memmap(tar, np.uint8, mode="r")), chunks)
