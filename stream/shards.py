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

from millstream.stream.chunks import read_chunks
from millstream.stream.ranges import StoredDomain, Tokens
from millstream.stream.store import Root, Store, whole_file
from millstream.tokenize.manifest import DomainManifest, Shard


@dataclass(frozen=True, slots=True)
class _MappedShard:
    """A shard's bytes and where its chunks lie, as arrays over the chunks."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    """First token of each chunk, in the domain."""
    counts: NDArray[np.int64]
    offsets: NDArray[np.int64]
    """Byte of the tar at which each chunk's tokens begin."""


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
            chunks = np.searchsorted(shard.starts, begins, side="right") - 1
            inside = begins - shard.starts[chunks]
            firsts = shard.offsets[chunks] + inside * self.dtype.itemsize
            whole = (inside + length <= shard.counts[chunks]) & (begins + length <= self.tokens)
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
        chunk = int(np.searchsorted(shard.starts, start, side="right")) - 1
        inside = start - int(shard.starts[chunk])
        count = min(int(shard.counts[chunk]) - inside, most, self.tokens - start)
        first = int(shard.offsets[chunk]) + inside * self.dtype.itemsize
        piece: Tokens = np.frombuffer(shard.data, self.dtype, count, first)
        return piece

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return np.array([shard.token_start for shard in self.shards], np.int64)

    def _shard(self, number: int) -> _MappedShard:
        if number not in self._mapped:
            self._mapped[number] = _map_shard(self.root, self.shards[number], self.dtype.itemsize)
        return self._mapped[number]


@dataclass(frozen=True)
class CachedDomain(DomainReader):
    """A domain of a store whose shards are mapped from the local cache.

    A shard that was removed from the cache, here or by another process, is let go and fetched again.
    """

    def _shard(self, number: int) -> _MappedShard:
        assert isinstance(self.root, Store)
        if number in self._mapped and self.root.cached(self.shards[number].tar):
            return self._mapped[number]
        shard = _map_shard(self.root, self.shards[number], self.dtype.itemsize)
        for other in [n for n in list(self._mapped) if not self.root.cached(self.shards[n].tar, use=False)]:
            # Mapped, a removed file would go on to take up space.
            self._mapped.pop(other, None)
        self._mapped[number] = shard
        return shard


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


def _map_shard(root: Root, shard: Shard, itemsize: int) -> _MappedShard:
    tar = whole_file(root, shard.tar)
    chunks = read_chunks(root, shard, itemsize)
    # As a plain array: slicing a memmap object costs more than the copy of a short sequence.
    data = np.asarray(np.memmap(tar, np.uint8, mode="r"))
    return _MappedShard(data, chunks.starts, chunks.counts, chunks.offsets)
