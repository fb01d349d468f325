"""The quota tree: exact shares in every prefix, an exact inverse, and clear refusals."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import UsageError
from millstream.stream.quota import MAX_LENGTH, TOTAL, build_tree, count, counts, items_of, place, quotas


@st.composite
def mixes(draw: st.DrawFn) -> dict[str, int]:
    """Quotas of 2 to 500 domains, every one at least 1."""
    size = draw(st.integers(2, 500))
    seed = draw(st.integers(0, 2**32 - 1))
    alpha = draw(st.sampled_from([0.05, 0.3, 1.0, 30.0]))
    weights = np.random.default_rng(seed).dirichlet(np.full(size, alpha)) + 2e-8
    return quotas({f"d{i:03}": Decimal(repr(float(w))) for i, w in enumerate(weights)})


@given(mixes(), st.integers(0, MAX_LENGTH - 5000))
@settings(max_examples=60, deadline=None)
def test_every_prefix_is_within_two_sequences_of_its_share(mix: dict[str, int], start: int) -> None:
    tree = build_tree(mix, {}, MAX_LENGTH - 1)
    for at in (0, 1, 2, 7, 100, start, start + 4999):
        total = 0
        for name, quota in mix.items():
            found = count(tree, name, at)
            total += found
            assert abs(found - Fraction(at * quota, TOTAL)) <= 2
        assert total == at
        assert counts(tree, np.array([at], np.uint64))[:, 0].tolist() == [count(tree, n, at) for n in tree.domains]


@given(mixes(), st.integers(0, MAX_LENGTH - 2001))
@settings(max_examples=60, deadline=None)
def test_place_counts_and_inverts_exactly_up_to_the_largest_phase(mix: dict[str, int], start: int) -> None:
    tree = build_tree(mix, {}, MAX_LENGTH - 1)
    items = np.arange(start, start + 2000, dtype=np.uint64)
    domain, rank = place(tree, items)
    for number in np.unique(domain).tolist():
        name = tree.domains[number]
        chosen = domain == number
        assert (items_of(tree, name, rank[chosen]) == items[chosen]).all()
        first = int(items[chosen][0])
        assert count(tree, name, first) == int(rank[chosen][0])
        assert count(tree, name, start + 2000) == int(rank[chosen][-1]) + 1


@given(st.integers(1, 400), st.integers(0, 60), st.integers(0, 60))
def test_exact_numbers_come_out_exactly(length: int, first: int, second: int) -> None:
    exact = {name: n for name, n in (("x", first), ("y", second)) if n}
    if sum(exact.values()) >= length:
        with pytest.raises(UsageError, match="domains ask for exactly"):
            build_tree(quotas({"a": Decimal(1), "b": Decimal(2)}), exact, length)
        return
    tree = build_tree(quotas({"a": Decimal(1), "b": Decimal(2)}), exact, length)
    domain, rank = place(tree, np.arange(length, dtype=np.uint64))
    for name in tree.domains:
        chosen = np.flatnonzero(domain == tree.domains.index(name))
        assert len(chosen) == exact.get(name, len(chosen)) == count(tree, name, length)
        assert rank[chosen].tolist() == list(range(len(chosen)))
        assert (items_of(tree, name, rank[chosen]) == chosen.astype(np.uint64)).all()


def test_a_large_exact_number_inverts_in_a_long_phase() -> None:
    length = 3_600_000_000
    tree = build_tree(quotas({"a": Decimal(1), "b": Decimal(2)}), {"x": 800, "y": 1_000_000_000}, length)
    items = np.arange(length - 3000, length, dtype=np.uint64)
    domain, rank = place(tree, items)
    for number, name in enumerate(tree.domains):
        assert (items_of(tree, name, rank[domain == number]) == items[domain == number]).all()
    assert count(tree, "x", length) == 800
    assert count(tree, "y", length) == 1_000_000_000


def test_largest_remainder_ties_go_by_name() -> None:
    assert quotas({"b": Decimal(1), "a": Decimal(1), "c": Decimal(1)}) == {
        "a": 89478486,
        "b": 89478485,
        "c": 89478485,
    }


def test_a_weight_that_would_become_zero_is_refused() -> None:
    with pytest.raises(UsageError, match=r"weight 1E-10 of domain 'tiny' is below 1/2\^28"):
        quotas({"big": Decimal(1), "tiny": Decimal("1e-10")})


@given(mixes(), st.integers(1, 10**6))
@settings(max_examples=20, deadline=None)
def test_a_rank_outside_the_phase_is_refused(mix: dict[str, int], length: int) -> None:
    tree = build_tree(mix, {}, length)
    for name in list(mix)[:5]:
        inside = count(tree, name, length)
        if inside:
            assert items_of(tree, name, np.array([inside - 1], np.uint64))[0] < length
        with pytest.raises(ValueError, match="has ranks below"):
            items_of(tree, name, np.array([inside], np.uint64))


def test_one_domain_is_a_leaf() -> None:
    tree = build_tree(quotas({"only": Decimal("0.3")}), {}, 10)
    domain, rank = place(tree, np.arange(10, dtype=np.uint64))
    assert domain.tolist() == [0] * 10
    assert rank.tolist() == list(range(10))
    assert count(tree, "only", 7) == 7
