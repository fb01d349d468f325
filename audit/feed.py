"""Digests of what was fed: a leaf a sequence, a Merkle root a step.

The leaves are computed from the tensor that is handed to the engine, so a root says what was really
fed; the plan only says what should be. It depends neither on the world size nor on the shards' dtype.
"""

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from millstream.audit.merkle import LEAF, tree_root
from millstream.stream.permutation import U64
from millstream.stream.tombstones import NONE

PREFIX = LEAF + b"seq/v1\0"


def leaf_hashes(indices: U64, tokens: ArrayLike, buried: NDArray[np.int64] = NONE) -> NDArray[np.uint8]:
    """Leaf hashes of sequences: uint8 (n, 32).

    A leaf is SHA-256 over 0x00, ``seq/v1`` and a zero byte, the global index (u64, little-endian), the tokens as they
    were fed (u32 each, little-endian), and of every stretch that is not fed any more its first token and the one after
    its last (u32 each, little-endian).

    Args:
        indices: global sequence indices, (n,).
        tokens: integers, (n, seq_len + 1).
        buried: (m, 3): row, first token, the one after the last; as ``Batch.buried``.
    """
    rows = np.ascontiguousarray(np.asarray(tokens), "<u4")
    heads = np.ascontiguousarray(indices, "<u8")
    stones = [b""] * len(rows)
    for row, first, end in buried.tolist():
        stones[row] += first.to_bytes(4, "little") + end.to_bytes(4, "little")
    digests = b"".join(
        hashlib.sha256(PREFIX + head.tobytes() + row.tobytes() + stone).digest()
        for head, row, stone in zip(heads, rows, stones, strict=True)
    )
    return np.frombuffer(digests, np.uint8).reshape(len(rows), 32)


def step_root(leaves: NDArray[np.uint8] | Iterable[bytes]) -> str:
    """Root over a step's leaves in row order, as hex."""
    return tree_root([bytes(leaf) for leaf in leaves]).hex()
