"""Keys of the plan: SHA-256 over named fields, so that no two purposes share randomness.

The plan uses no library's random numbers; their streams change between versions.
"""

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

DOMAIN_SEPARATOR = b"plan/v1\0"


def plan_key(*fields: str | int) -> bytes:
    """32 bytes that depend on every field and on where one ends and the next begins.

    Each field is hashed as its length (u32, little-endian) and its UTF-8 text; integers in decimal.
    """
    return hashlib.sha256(DOMAIN_SEPARATOR + b"".join(map(_field, fields))).digest()


def plan_keys(*fields: str | int, last: Iterable[int]) -> list[bytes]:
    """``plan_key(*fields, number)`` of each number in ``last``; the fields are hashed once."""
    state = hashlib.sha256(DOMAIN_SEPARATOR + b"".join(map(_field, fields)))
    lengths = [size.to_bytes(4, "little") for size in range(21)]
    keys = []
    for number in last:
        text, each = b"%d" % number, state.copy()
        each.update(lengths[len(text)] + text)
        keys.append(each.digest())
    return keys


def _field(value: str | int) -> bytes:
    text = str(value).encode()
    return len(text).to_bytes(4, "little") + text


def words32(keys: list[bytes]) -> NDArray[np.uint64]:
    """The keys as little-endian 32-bit words, widened: uint64 (keys, 8)."""
    return np.frombuffer(b"".join(keys), "<u4").reshape(len(keys), 8).astype(np.uint64)


def words64(keys: list[bytes]) -> NDArray[np.uint64]:
    """The keys as little-endian 64-bit words: uint64 (keys, 4)."""
    return np.frombuffer(b"".join(keys), "<u8").reshape(len(keys), 4).astype(np.uint64)
