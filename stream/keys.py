"""Keys of the plan: SHA-256 over named fields, so that no two purposes share randomness.

The plan uses no library's random numbers; their streams change between versions.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

DOMAIN_SEPARATOR = b"plan/v1\0"


def plan_key(*fields: str | int) -> bytes:
    """32 bytes that depend on every field and on where one ends and the next begins.

    Each field is hashed as its length (u32, little-endian) and its UTF-8 text; integers in decimal.
    """
    state = hashlib.sha256(DOMAIN_SEPARATOR)
    for field in fields:
        text = str(field).encode()
        state.update(len(text).to_bytes(4, "little") + text)
    return state.digest()


def words32(keys: list[bytes]) -> NDArray[np.uint64]:
    """The keys as little-endian 32-bit words, widened: uint64 (keys, 8)."""
    return np.frombuffer(b"".join(keys), "<u4").reshape(len(keys), 8).astype(np.uint64)


def words64(keys: list[bytes]) -> NDArray[np.uint64]:
    """The keys as little-endian 64-bit words: uint64 (keys, 4)."""
    return np.frombuffer(b"".join(keys), "<u8").reshape(len(keys), 4).astype(np.uint64)
