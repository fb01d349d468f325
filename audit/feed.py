"""Digests of what was fed: a leaf a sequence, a Merkle root a step; and a quick one a micro-batch while it is fed.

The leaves are computed from the tensor that is handed to the engine, so a root says what was really
fed; the plan only says what should be. It depends neither on the world size nor on the shards' dtype.
"""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from millstream.audit.merkle import LEAF, tree_root
from millstream.errors import CheckFailed
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


def step_root(leaves: NDArray[np.uint8]) -> str:
    """Root over a step's leaves in row order, uint8 (rows, 32); as hex."""
    data = leaves.tobytes()
    return tree_root([data[at : at + 32] for at in range(0, len(data), 32)]).hex()


def tripwires(tokens: NDArray[Any], micro_batch: int) -> list[int]:
    """A quick digest of each micro-batch (xxh3, 128 bits), to see that the engine gets what the reader gave.

    Taken from the batch as it was read and once more from the tensor that the engine got, before the update is made. It
    is no proof and is not recorded.

    Args:
        tokens: integers, (rows, seq_len + 1).
        micro_batch: rows of one.
    """
    import xxhash

    parts = (np.ascontiguousarray(tokens[at : at + micro_batch]) for at in range(0, len(tokens), micro_batch))
    return [xxhash.xxh3_128_intdigest(part.data) for part in parts]


def check_tripwires(step: int, read: list[int], fed: list[int]) -> None:
    """Refuse an update from data that changed between the reader and the engine.

    Raises:
        CheckFailed: names the first micro-batch that differs.
    """
    for number, (before, after) in enumerate(zip(read, fed, strict=True)):
        if before != after:
            raise CheckFailed(
                f"step {step}: micro-batch {number} reached the engine other than it was read ({before:032x}, then "
                f"{after:032x}); no update was made. Check the memory of this machine before starting again"
            )
