"""The keyed permutation: bijective, inverted exactly, fixed for ever, and as good as random."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.stream.keys import plan_key
from millstream.stream.permutation import (
    MAX_SIZE,
    TABLE_LIMIT,
    distinct,
    invert,
    invert_groups,
    permute,
    permute_groups,
)

EDGES = [*range(1, 40), TABLE_LIMIT - 1, TABLE_LIMIT, TABLE_LIMIT + 1, 65_536, 65_537, 99_856]


@pytest.mark.parametrize("size", EDGES)
def test_it_is_a_bijection_with_an_exact_inverse(size: int) -> None:
    key = plan_key(3, "test", size)
    image = permute(key, size, np.arange(size))
    assert np.array_equal(np.sort(image), np.arange(size))
    assert np.array_equal(invert(key, size, image), np.arange(size))


@given(st.integers(1, MAX_SIZE), st.integers(0, 2**64 - 1))
@settings(deadline=None)
def test_inverse_is_exact_for_any_size(size: int, seed: int) -> None:
    index = np.random.default_rng(seed).integers(0, size, 500).astype(np.uint64)
    key = plan_key(seed, "test")
    image = permute(key, size, index)
    assert (image < size).all()
    assert (invert(key, size, image) == index).all()
    assert (permute(key, size, invert(key, size, index)) == index).all()


def test_groups_equal_single_calls() -> None:
    rng = np.random.default_rng(5)
    sizes = [1, 16, 4096, 4097, 70_000, 2**33 + 1]
    keys = [plan_key("g", n) for n in sizes]
    group = rng.integers(0, len(sizes), 3000)
    index = (rng.random(3000) * np.array(sizes)[group]).astype(np.uint64)
    image = permute_groups(keys, sizes, group, index)
    for g, (key, size) in enumerate(zip(keys, sizes, strict=True)):
        assert (image[group == g] == permute(key, size, index[group == g])).all()
    assert (invert_groups(keys, sizes, group, image) == index).all()


# Frozen for ever: a plan made by any release must be read the same way by every later one.
GOLDEN = {
    16: [11, 7, 4, 3, 12, 6, 1, 13],
    11_264: [9806, 7488, 3157, 8638, 7509, 5966, 9496, 10263],
    2_300_000_000: [970345388, 709509433, 1327381198, 1892163939, 1410985384, 1975061331, 1144050806, 1166926202],
    2**40: [
        741232785614,
        561176159290,
        1095575424097,
        76687265415,
        190471706931,
        697073966098,
        563191804321,
        888684970190,
    ],
}


def test_golden_vectors() -> None:
    assert plan_key(7, "order", "code", 0).hex() == "fe209600266bfc563c576ee4bfe90f4bd089ced8cb74012d55e9464a4d1036ff"
    assert plan_key("a", "bc") != plan_key("ab", "c")
    for size, expected in GOLDEN.items():
        assert permute(plan_key(7, "order", "code", 0), size, np.arange(8)).tolist() == expected


@pytest.mark.parametrize(("size", "index"), [(0, 0), (MAX_SIZE + 1, 0), (5, 5), (5, -1)])
def test_what_lies_outside_is_refused(size: int, index: int) -> None:
    with pytest.raises(ValueError, match=r"permutation|non-negative"):
        permute(plan_key(1), size, [index])


@pytest.mark.parametrize("size", [5000, 11_264, 1_000_003, 2_300_000_000])
def test_neighbours_look_random(size: int) -> None:
    """z scores of parity agreement, shard balance and serial correlation stay within chance."""
    n, keys = 4096, 24
    parity, serial, balance = [], [], []
    for k in range(keys):
        image = permute(plan_key(k, "quality"), size, np.arange(n)).astype(np.float64) / size
        bits = (permute(plan_key(k, "quality"), size, np.arange(n)) & np.uint64(1)).astype(int)
        parity.append(((bits[1:] == bits[:-1]).sum() - (n - 1) / 2) / np.sqrt((n - 1) / 4))
        serial.append(np.corrcoef(image[1:], image[:-1])[0, 1] * np.sqrt(n))
        cells = np.bincount((image * 64).astype(int), minlength=64)
        balance.append(((cells - n / 64) ** 2 / (n / 64)).sum())
    assert abs(np.mean(parity)) * np.sqrt(keys) < 5
    assert abs(np.mean(serial)) * np.sqrt(keys) < 5
    # Chi-square with 63 degrees of freedom, smaller where the sample is a large part of the whole.
    assert np.mean(balance) < 63 + 5 * np.sqrt(2 * 63 / keys)
    assert np.mean(balance) > (63 - 5 * np.sqrt(2 * 63 / keys)) * (1 - n / size)


def test_small_tables_reach_every_order_equally() -> None:
    seen: dict[tuple[int, ...], int] = {}
    for k in range(6000):
        order = tuple(permute(plan_key(k, "tiny"), 4, np.arange(4)).tolist())
        seen[order] = seen.get(order, 0) + 1
    assert len(seen) == 24
    chi = sum((n - 250) ** 2 / 250 for n in seen.values())
    assert chi < 23 + 5 * np.sqrt(2 * 23)


@given(
    st.lists(st.one_of(st.integers(0, 40), st.integers(0, 2**62)), max_size=40),
    st.sampled_from([np.uint64, np.int64]),
)
def test_distinct_is_numpys_unique(values: list[int], kind: type) -> None:
    given_values = np.array(values, kind)
    found, place = distinct(given_values)
    expected, inverse = np.unique(given_values, return_inverse=True)
    assert found.dtype == kind
    assert found.tolist() == expected.tolist()
    assert place.tolist() == inverse.tolist()
