"""Merkle trees of RFC 6962 (section 2.1): SHA-256, leaves prefixed by 0x00, nodes by 0x01.

What a checker needs as well stands in ``millstream.audit.verifier``.
"""

import hashlib
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from millstream.audit.verifier import node_hash

LEAF = b"\x00"
NONE = hashlib.sha256(b"").digest()
"""Root of a tree without leaves."""


def levels_of(leaves: Sequence[bytes]) -> list[list[bytes]]:
    """Nodes of a tree from the leaves up to the root; an odd last node moves up unchanged.

    That is the tree of RFC 6962, which splits at the largest power of two below the number of leaves.
    """
    levels = [list(leaves)]
    while len(levels[-1]) > 1:
        level = levels[-1]
        paired = [node_hash(a, b) for a, b in zip(level[::2], level[1::2], strict=False)]
        levels.append(paired + level[len(paired) * 2 :])
    return levels


def tree_root(leaves: Sequence[bytes]) -> bytes:
    """Root over leaf hashes in order, 32 bytes; of no leaves, the hash of nothing."""
    if not leaves:
        return NONE
    # Every step of a run waits for one of thousands of leaves, so no call a node but the hash itself.
    level = list(leaves)
    while len(level) > 1:
        pairs = iter(level)
        above = [hashlib.sha256(b"\x01%b%b" % pair).digest() for pair in zip(pairs, pairs, strict=False)]
        level = above + level[len(above) * 2 :]
    return level[0]


def inclusion_path(levels: Sequence[Sequence[bytes]], index: int) -> list[bytes]:
    """The nodes that lead from a leaf to the root, from the bottom (RFC 6962, 2.1.1)."""
    if not 0 <= index < len(levels[0]):
        raise ValueError(f"leaf {index} of a tree of {len(levels[0])}")
    path = []
    for level in levels[:-1]:
        if (sibling := index ^ 1) < len(level):
            path.append(level[sibling])
        index >>= 1
    return path


def consistency_path(leaves: Sequence[bytes], old: int) -> list[bytes]:
    """The nodes that show the tree of the first ``old`` leaves to be a beginning of the whole one (RFC 6962, 2.1.2)."""
    if not 0 < old <= len(leaves):
        raise ValueError(f"no tree of {old} leaves within one of {len(leaves)}")
    return [] if old == len(leaves) else _subproof(leaves, old, whole=True)


def _subproof(leaves: Sequence[bytes], old: int, *, whole: bool) -> list[bytes]:
    if old == len(leaves):
        return [] if whole else [tree_root(leaves)]
    half = 1 << (len(leaves) - 1).bit_length() - 1
    if old <= half:
        return [*_subproof(leaves[:half], old, whole=whole), tree_root(leaves[half:])]
    return [*_subproof(leaves[half:], old - half, whole=False), tree_root(leaves[:half])]


@dataclass(slots=True)
class Frontier:
    """The root of a growing tree in O(log n) memory: the roots of its full subtrees, the largest first."""

    size: int
    peaks: list[bytes]

    def append(self, leaf: bytes) -> None:
        """Add a leaf hash."""
        node, filled = leaf, self.size
        while filled & 1:
            node, filled = node_hash(self.peaks.pop(), node), filled >> 1
        self.peaks.append(node)
        self.size += 1

    def root(self) -> bytes:
        """Root over all leaves so far, 32 bytes."""
        if not self.peaks:
            return NONE
        *rest, node = self.peaks
        for peak in reversed(rest):
            node = node_hash(peak, node)
        return node


def roots_at(leaves: Iterable[bytes], sizes: Container[int]) -> dict[int, bytes]:
    """Roots of the trees of the first leaf hashes, of those sizes that there are."""
    frontier = Frontier(0, [])
    roots = {0: NONE}
    for leaf in leaves:
        frontier.append(leaf)
        if frontier.size in sizes:
            roots[frontier.size] = frontier.root()
    return roots
