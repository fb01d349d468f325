"""The key trie of a corpus: one hash that says which keys are in it and, for any other key, that it is not.

A binary trie by the keys' own bits. A part without a key hashes to ``EMPTY``, a part with one key to that key's leaf,
any other to the hash of its two halves. A key's place follows from its bits, so nobody can hide one: at the place
where it belongs there is a single committed hash (the shape of CONIKS, Melara et al., USENIX Security 2015; facts
that a list of sorted neighbours would leave to trust). On disk:

    keys.bin      all keys, sorted, 32 bytes each
    offsets.bin   uint64 (2^bits + 1): where each bucket, the keys of one beginning of ``bits`` bits, begins
    nodes.bin     (2^(bits + 1), 32) bytes: the upper trie as a heap, the root at 1, buckets from 2^bits on

The root does not depend on ``bits``. Building holds one part of the keys in memory; a proof reads a bucket and
``bits`` nodes.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from millstream.audit.verifier import EMPTY, bit, key_leaf, node_hash

KEYS = "keys.bin"
OFFSETS = "offsets.bin"
NODES = "nodes.bin"
BUCKET = 128
"""Keys of a bucket, about."""
PART = 1 << 20
"""Keys of a part that is sorted in memory, about."""
MOST_PARTS = 12

Keys = NDArray[np.bytes_]
"""Keys as numpy has them: ``S32``, (n,)."""


def bits_for(keys: int) -> int:
    """How many bits a bucket of a trie of about so many keys is chosen by."""
    return min((keys // BUCKET).bit_length(), 32)


def write_trie(folder: Path, batches: Iterable[Keys], about: int) -> tuple[bytes, int]:
    """Write the trie of all keys into an empty folder; returns its root and the number of distinct keys.

    Args:
        folder: where the files go.
        batches: keys, in any order; they may repeat.
        about: how many there are, roughly.
    """
    bits = bits_for(about)
    shift = min(bits, (about // PART).bit_length(), MOST_PARTS)
    _divide(folder, batches, shift)
    counts = np.zeros(1 << bits, np.uint64)
    buckets = 1 << bits - shift
    nodes = np.memmap(folder / NODES, np.uint8, "w+", shape=(2 << bits, 32))
    with (folder / KEYS).open("wb") as file:
        for part in range(1 << shift):
            path = folder / f"part-{part}"
            keys = np.unique(np.frombuffer(path.read_bytes(), "S32")) if path.exists() else np.empty(0, "S32")
            path.unlink(missing_ok=True)
            raw = keys.tobytes()
            file.write(raw)
            number = _beginning(keys, bits) - part * buckets
            ends = np.searchsorted(number, np.arange(buckets + 1))
            counts[part * buckets : (part + 1) * buckets] = np.diff(ends).astype(np.uint64)
            listed = [raw[n : n + 32] for n in range(0, len(raw), 32)]
            roots = [
                root_of_keys(listed[a:b], bits) for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
            ]
            first = (1 << bits) + part * buckets
            nodes[first : first + buckets] = np.frombuffer(b"".join(roots), np.uint8).reshape(-1, 32)
    offsets = np.concatenate((np.zeros(1, np.uint64), np.cumsum(counts)))
    (folder / OFFSETS).write_bytes(offsets.astype("<u8").tobytes())
    _fill(nodes, counts, bits)
    nodes.flush()
    return nodes[1].tobytes(), int(offsets[-1])


def _divide(folder: Path, batches: Iterable[Keys], shift: int) -> None:
    """Append the keys to files by their first ``shift`` bits."""
    for keys in batches:
        number = _beginning(keys, shift)
        order = np.argsort(number, kind="stable")
        ordered, ends = keys[order], np.searchsorted(number[order], np.arange((1 << shift) + 1))
        for part in np.flatnonzero(np.diff(ends)).tolist():
            with (folder / f"part-{part}").open("ab") as file:
                file.write(ordered[ends[part] : ends[part + 1]].tobytes())


def _beginning(keys: Keys, bits: int) -> NDArray[np.int64]:
    """The first bits of each key as a number."""
    if not bits:
        return np.zeros(len(keys), np.int64)
    first = np.frombuffer(keys.tobytes(), ">u8").reshape(-1, 4)[:, 0]
    return (first >> np.uint64(64 - bits)).astype(np.int64)


def _fill(nodes: NDArray[np.uint8], counts: NDArray[np.uint64], bits: int) -> None:
    """Hash the heap's inner nodes; one key alone keeps its leaf's hash on the way up."""
    for depth in reversed(range(bits)):
        below = nodes[2 << depth : 4 << depth].tobytes()
        pairs = counts.reshape(-1, 2)
        alone = pairs.sum(1) < 2
        hashed = [
            (below[n * 64 : n * 64 + 32] if left or not right else below[n * 64 + 32 : n * 64 + 64])
            if single
            else node_hash(below[n * 64 : n * 64 + 32], below[n * 64 + 32 : n * 64 + 64])
            for n, (single, (left, right)) in enumerate(zip(alone.tolist(), pairs.tolist(), strict=True))
        ]
        nodes[1 << depth : 2 << depth] = np.frombuffer(b"".join(hashed), np.uint8).reshape(-1, 32)
        counts = pairs.sum(1)


def root_of_keys(keys: Sequence[bytes], depth: int) -> bytes:
    """Hash of the part of the trie, ``depth`` bits down, that holds these sorted keys."""
    if len(keys) < 2:
        return key_leaf(keys[0]) if keys else EMPTY
    middle = _middle(keys, depth)
    return node_hash(root_of_keys(keys[:middle], depth + 1), root_of_keys(keys[middle:], depth + 1))


def _middle(keys: Sequence[bytes], depth: int) -> int:
    """Where the keys whose bit at ``depth`` is set begin."""
    first = int.from_bytes(keys[0]) >> 256 - depth if depth else 0
    return bisect_left(keys, (first << 1 | 1) << 255 - depth, key=int.from_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """The way to where a key belongs: siblings from the top, and the key that stands at its end alone, if any."""

    siblings: tuple[bytes, ...]
    found: bytes | None


def way_to(folder: Path, key: bytes) -> Way:
    """The way to a key's place in a trie on disk; it is in the corpus where ``found`` is the key itself."""
    offsets = np.memmap(folder / OFFSETS, "<u8", "r")
    nodes = np.memmap(folder / NODES, np.uint8, "r").reshape(-1, 32)
    bits = (len(nodes) >> 1).bit_length() - 1
    size = (folder / KEYS).stat().st_size
    stored = np.memmap(folder / KEYS, np.uint8, "r").reshape(-1, 32) if size else np.empty((0, 32), np.uint8)
    siblings: list[bytes] = []
    for depth in range(bits + 1):
        at = int.from_bytes(key) >> 256 - depth if depth else 0
        low, high = (int(offsets[n << bits - depth]) for n in (at, at + 1))
        if high - low < 2 or depth == bits:
            break
        siblings.append(nodes[(1 << depth + 1) + (at << 1 | (1 - bit(key, depth)))].tobytes())
    raw = stored[low:high].tobytes()
    keys = [raw[n : n + 32] for n in range(0, len(raw), 32)]
    while len(keys) > 1:
        depth = len(siblings)
        middle = _middle(keys, depth)
        left, right = keys[:middle], keys[middle:]
        other, keys = (left, right) if bit(key, depth) else (right, left)
        siblings.append(root_of_keys(other, depth + 1))
    return Way(siblings=tuple(siblings), found=keys[0] if keys else None)
