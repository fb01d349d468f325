"""Merkle trees of RFC 6962 (section 2.1): SHA-256, leaves prefixed by 0x00, nodes by 0x01."""

import hashlib
from collections.abc import Sequence

LEAF = b"\x00"
NODE = b"\x01"


def leaf_hash(data: bytes) -> bytes:
    """Hash of one entry, 32 bytes."""
    return hashlib.sha256(LEAF + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Hash of an inner node, 32 bytes."""
    return hashlib.sha256(NODE + left + right).digest()


def tree_root(leaves: Sequence[bytes]) -> bytes:
    """Root over leaf hashes in order, 32 bytes; of no leaves, the hash of nothing."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    level = list(leaves)
    while len(level) > 1:
        # An odd last node moves up unchanged: the same tree as RFC 6962's split at a power of two.
        paired = [node_hash(a, b) for a, b in zip(level[::2], level[1::2], strict=False)]
        level = paired + level[len(paired) * 2 :]
    return level[0]
