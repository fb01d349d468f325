"""The quota tree: which domain the n-th sequence of a phase comes from, without any state.

Weights become integers that sum to 2^28; a binary tree over the domains splits every prefix of the
phase in proportion, rounding once a node: of the first ``n`` items ``L(n) = (2an + t) // 2t`` go
left. So every domain's count in every prefix stays within 1.5 sequences of its exact share, for
ever, and both directions cost O(depth):

    place     item n -> (domain, rank)         which sequence of which domain
    items_of  (domain, rank) -> item n         its exact inverse

Domains with an exact number of sequences are split off above the weighted ones, with the phase's
own length as total, so that they get exactly that number.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from millstream.errors import UsageError
from millstream.stream.permutation import U64

ALGORITHM = "quota-tree/1"
TOTAL = 1 << 28
MAX_LENGTH = 1 << 34
COARSE = 1000
"""Quotas below this are far from the written weight; ``plan`` warns."""


def quotas(weights: Mapping[str, Decimal]) -> dict[str, int]:
    """Positive weights as integers that sum to 2^28, by largest remainder (ties by name).

    Raises:
        UsageError: a positive weight is so small that it would become 0.
    """
    positive = {name: Fraction(weight) for name, weight in sorted(weights.items()) if weight > 0}
    total = sum(positive.values())
    exact = {name: weight * TOTAL / total for name, weight in positive.items()}
    whole = {name: int(value) for name, value in exact.items()}
    missing = TOTAL - sum(whole.values())
    by_remainder = sorted(positive, key=lambda name: (whole[name] - exact[name], name))
    for name in by_remainder[:missing]:
        whole[name] += 1
    for name, quota in whole.items():
        if quota == 0:
            raise UsageError(
                f"the weight {weights[name]} of domain '{name}' is below 1/2^28 of the phase's total; "
                "raise it or ask for an exact number with 'sequences: N'"
            )
    return whole


@dataclass(frozen=True, slots=True)
class QuotaTree:
    """A built tree: node ``i`` sends ``left[i]`` of every ``total[i]`` items left.

    A child ``>= 0`` is a node, a child ``-1 - d`` is the leaf of domain number ``d``.
    """

    domains: tuple[str, ...]
    left: U64
    total: U64
    children: NDArray[np.int64]
    """(nodes, 2)."""
    root: int
    length: int
    """Items in the phase."""

    def path(self, domain: str) -> list[tuple[int, int, bool]]:
        """Nodes from the root to the domain's leaf: (left, total, goes left)."""
        children = self.children.ravel()
        steps: list[tuple[int, int, bool]] = []
        at = -1 - self.domains.index(domain)
        while at != self.root:
            at, side = divmod(int((children == at).argmax()), 2)
            steps.append((int(self.left[at]), int(self.total[at]), side == 0))
        return steps[::-1]


def build_tree(weighted: Mapping[str, int], exact: Mapping[str, int], length: int) -> QuotaTree:
    """Build the tree of a phase.

    Args:
        weighted: quotas by domain, as from ``quotas``; zero quotas are not allowed.
        exact: exact numbers of sequences by domain.
        length: sequences in the phase.

    Raises:
        UsageError: the phase is too long, or the exact numbers do not fit into it.
    """
    if not 1 <= length < MAX_LENGTH:
        raise UsageError(f"a phase holds 1 to 2^34 - 1 sequences, not {length}")
    asked = sum(exact.values())
    if asked > length or (asked < length and not weighted) or (asked == length and weighted):
        rest = f"leave {length - asked}" if asked <= length else "exceed it"
        raise UsageError(
            f"domains ask for exactly {asked} of the phase's {length} sequences, which {rest} for the weighted ones"
        )
    domains = tuple(sorted({*weighted, *exact}))
    number = {name: -1 - i for i, name in enumerate(domains)}
    nodes: list[tuple[int, int, int, int]] = []

    def split(names: list[str]) -> int:
        if len(names) == 1:
            return number[names[0]]
        total = sum(weighted[name] for name in names)
        running, best = 0, (total + 1, 0, 0)
        for place in range(1, len(names)):
            running += weighted[names[place - 1]]
            best = min(best, (abs(2 * running - total), place, running))
        _, place, left = best
        lower, upper = split(names[:place]), split(names[place:])
        nodes.append((left, total, lower, upper))
        return len(nodes) - 1

    root = split(sorted(weighted, key=lambda name: (-weighted[name], name))) if weighted else None
    remaining = length - asked
    for name in sorted(exact, key=lambda name: (exact[name], name)):
        remaining += exact[name]
        if 2 * exact[name] * length + remaining >= 1 << 63:
            raise UsageError(
                f"'sequences: {exact[name]}' for '{name}' is too large in a phase of {length}; use a weight"
            )
        if root is None:
            root = number[name]
            continue
        nodes.append((exact[name], remaining, number[name], root))
        root = len(nodes) - 1
    assert root is not None
    table = np.array(nodes, np.int64).reshape(len(nodes), 4)
    left, total = table[:, 0].astype(np.uint64), table[:, 1].astype(np.uint64)
    return QuotaTree(domains, left, total, table[:, 2:], root, length)


def place(tree: QuotaTree, items: U64) -> tuple[NDArray[np.int64], U64]:
    """Domain number (into ``tree.domains``) and rank in the domain of each item; both (n,)."""
    at = np.full(items.shape, tree.root, np.int64)
    rank = items.copy()
    active = np.flatnonzero(at >= 0)
    while active.size:
        node, n = at[active], rank[active]
        twice_left, twice_total = tree.left[node] * np.uint64(2), tree.total[node] * np.uint64(2)
        scaled = twice_left * n + tree.total[node]
        before = scaled // twice_total
        # L(n + 1) > L(n) exactly when the remainder overflows once more.
        goes_left = scaled - before * twice_total + twice_left >= twice_total
        rank[active] = np.where(goes_left, before, n - before)
        at[active] = tree.children[node, np.where(goes_left, 0, 1)]
        active = active[at[active] >= 0]
    return -1 - at, rank


def items_of(tree: QuotaTree, domain: str, ranks: U64) -> U64:
    """Items that hold the given ranks of a domain; uint64, the shape of ``ranks``.

    Raises:
        ValueError: a rank lies outside the phase, where the formula would answer with a wrong item.
    """
    inside = count(tree, domain, tree.length)
    if ranks.size and int(ranks.max()) >= inside:
        raise ValueError(f"'{domain}' has ranks below {inside} in this phase, asked for {int(ranks.max())}")
    items = ranks.astype(np.uint64)
    for left, total, goes_left in reversed(tree.path(domain)):
        if goes_left:
            scaled = np.uint64(2 * total) * (items + np.uint64(1)) - np.uint64(total)
            items = (scaled + np.uint64(2 * left - 1)) // np.uint64(2 * left) - np.uint64(1)
        else:
            # (2tr + t) // 2b with t = a + b, written so that the product stays below 2^63.
            right = total - left
            odd = np.uint64(2) * items + np.uint64(1)
            items = items + (np.uint64(left) * odd + np.uint64(right)) // np.uint64(2 * right)
    return items


def count(tree: QuotaTree, domain: str, items: int) -> int:
    """How many of the first ``items`` items come from a domain (0 where it is not in the tree)."""
    if domain not in tree.domains:
        return 0
    for left, total, goes_left in tree.path(domain):
        to_left = (2 * left * items + total) // (2 * total)
        items = to_left if goes_left else items - to_left
    return items


def counts(tree: QuotaTree, items: U64) -> NDArray[np.int64]:
    """``count`` for all of ``tree.domains`` and many prefixes at once: (domains, n)."""
    out = np.zeros((len(tree.domains), items.size), np.int64)
    waiting = [(tree.root, items)]
    while waiting:
        at, n = waiting.pop()
        if at < 0:
            out[-1 - at] = n
            continue
        to_left = (np.uint64(2) * tree.left[at] * n + tree.total[at]) // (np.uint64(2) * tree.total[at])
        left, right = tree.children[at].tolist()
        waiting += [(left, to_left), (right, n - to_left)]
    return out
