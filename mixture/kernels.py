"""Kernels for what no column expression can say, compiled by numba when first called and cached on disk."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

_P1, _P2 = np.uint64((1 << 31) - 1), np.uint64((1 << 31) - 19)
_B1, _B2 = np.uint64(1_000_003), np.uint64(69_069)
"""Primes and bases of the hashes of joined words."""
_ONE, _S31 = np.uint64(1), np.uint64(31)
_M1, _M2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_S29, _S32 = np.uint64(29), np.uint64(32)


@njit(cache=True)
def _mix(x: np.uint64) -> np.uint64:
    x = (x ^ (x >> _S31)) * _M1
    x = (x ^ (x >> _S29)) * _M2
    return x ^ (x >> _S32)


@njit(cache=True)
def word_hashes(pool: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Polynomial hash of each word's bytes and the base's power, modulo two primes: uint64 (words, 4).

    The hash of joined words follows from those of the words.
    """
    out = np.empty((len(ends) - 1, 4), np.uint64)
    for word in range(len(ends) - 1):
        one, two, power_one, power_two = np.uint64(0), np.uint64(0), _ONE, _ONE
        for at in range(ends[word], ends[word + 1]):
            byte = np.uint64(pool[at]) + _ONE
            one, power_one = (one * _B1 + byte) % _P1, power_one * _B1 % _P1
            two, power_two = (two * _B2 + byte) % _P2, power_two * _B2 % _P2
        out[word, 0], out[word, 1], out[word, 2], out[word, 3] = one, power_one, two, power_two
    return out


@njit(cache=True)
def top_ngram_chars(
    ids: NDArray[np.int32], lengths: NDArray[np.int32], n: int, keys: NDArray[np.uint64], counts: NDArray[np.int64]
) -> int:
    """Characters of the most frequent n-gram times its count (ties: the first seen), joined by spaces.

    Args:
        ids: a text's words, (words,).
        lengths: characters of each distinct word.
        n: words in an n-gram.
        keys: zeros, (capacity,), a power of two of at least twice the words; zeros again on return.
        counts: (2, capacity) scratch: count and first place of each key.
    """
    size = len(ids) - n + 1
    if size <= 0:
        return 0
    mask = np.uint64(len(keys) - 1)
    best, first = 0, 0
    for i in range(size):
        key = np.uint64(n)
        for j in range(n):
            key = _mix(key ^ (np.uint64(ids[i + j]) + _M1))
        key |= _ONE
        slot = key & mask
        while keys[slot] != 0 and keys[slot] != key:
            slot = (slot + _ONE) & mask
        if keys[slot] == 0:
            keys[slot] = key
            counts[0, slot] = 0
            counts[1, slot] = i
        counts[0, slot] += 1
        if counts[0, slot] > best or (counts[0, slot] == best and counts[1, slot] < first):
            best, first = counts[0, slot], counts[1, slot]
    keys[:] = 0
    chars = n - 1
    for j in range(n):
        chars += lengths[ids[first + j]]
    return chars * best


@njit(cache=True)
def repeated_ngram_chars(
    ids: NDArray[np.int32], lengths: NDArray[np.int32], hashes: NDArray[np.uint64], n: int, keys: NDArray[np.uint64]
) -> int:
    """Characters in n-grams that occurred before, jumping over each that is found.

    N-grams are equal where their words joined without a space are.
    """
    size = len(ids) - n + 1
    if size <= 0:
        return 0
    mask = np.uint64(len(keys) - 1)
    chars, i = 0, 0
    while i < size:
        one, two = np.uint64(0), np.uint64(0)
        length = 0
        for j in range(n):
            word = ids[i + j]
            one = (one * hashes[word, 1] + hashes[word, 0]) % _P1
            two = (two * hashes[word, 3] + hashes[word, 2]) % _P2
            length += lengths[word]
        # Both hashes fit into 62 bits; the low bit marks a taken slot.
        key = ((one << _S32) | (two << _ONE)) | _ONE
        slot = _mix(key) & mask
        while keys[slot] != 0 and keys[slot] != key:
            slot = (slot + _ONE) & mask
        if keys[slot] == key:
            chars += length
            i += n
        else:
            keys[slot] = key
            i += 1
    keys[:] = 0
    return chars


@njit(cache=True)
def repetition(
    ids: NDArray[np.int32],
    starts: NDArray[np.int64],
    chars: NDArray[np.int64],
    lengths: NDArray[np.int32],
    hashes: NDArray[np.uint64],
    top: NDArray[np.int64],
    top_limits: NDArray[np.float64],
    repeated: NDArray[np.int64],
    repeated_limits: NDArray[np.float64],
) -> NDArray[np.int64]:
    """First n-gram rule that each text breaks.

    Args:
        ids: words of all texts, end to end.
        starts: (texts + 1,) where each text's words begin.
        chars: (texts,) characters of each text.
        lengths: characters of each distinct word.
        hashes: (distinct words, 4) as from ``word_hashes``.
        top: sizes of the most-frequent-n-gram rules, in order.
        top_limits: largest share of a text's characters, one a rule.
        repeated: sizes of the repeated-n-gram rules, in order.
        repeated_limits: largest share of a text's characters, one a rule.

    Returns:
        int64 (texts, 2): number of the rule (``top`` first, then ``repeated``; -1 for none) and its characters.
    """
    texts = len(chars)
    out = np.full((texts, 2), -1, np.int64)
    most = 0
    for t in range(texts):
        most = max(most, starts[t + 1] - starts[t])
    capacity = 16
    while capacity < 2 * most + 2:
        capacity *= 2
    all_keys = np.zeros(capacity, np.uint64)
    all_counts = np.zeros((2, capacity), np.int64)
    for t in range(texts):
        if chars[t] == 0:
            continue
        text = ids[starts[t] : starts[t + 1]]
        room = 16
        while room < 2 * len(text) + 2:
            room *= 2
        keys, counts = all_keys[:room], all_counts[:, :room]
        for r in range(len(top)):
            found = top_ngram_chars(text, lengths, top[r], keys, counts)
            if found / chars[t] > top_limits[r]:
                out[t, 0], out[t, 1] = r, found
                break
        if out[t, 0] >= 0:
            continue
        for r in range(len(repeated)):
            found = repeated_ngram_chars(text, lengths, hashes, repeated[r], keys)
            if found / chars[t] > repeated_limits[r]:
                out[t, 0], out[t, 1] = len(top) + r, found
                break
    return out


_X1, _X2, _X3 = np.uint64(11400714785074694791), np.uint64(14029467366897019727), np.uint64(1609587929392839161)
_X4, _X5 = np.uint64(9650029242287828579), np.uint64(2870177450012600261)
_MERSENNE = np.uint64((1 << 61) - 1)


@njit(cache=True)
def _rotate(x: np.uint64, by: int) -> np.uint64:
    return (x << np.uint64(by)) | (x >> np.uint64(64 - by))


@njit(cache=True)
def _word(data: NDArray[np.uint8], at: int, size: int) -> np.uint64:
    value = np.uint64(0)
    for k in range(size):
        value |= np.uint64(data[at + k]) << np.uint64(8 * k)
    return value


@njit(cache=True)
def _round(state: np.uint64, value: np.uint64) -> np.uint64:
    return _rotate(state + value * _X2, 31) * _X1


@njit(cache=True)
def xxh64(data: NDArray[np.uint8], size: int) -> np.uint64:
    """XXH64 with seed 0 (Y. Collet's specification) of the first ``size`` bytes."""
    at = 0
    if size >= 32:
        a, b, c, d = _X1 + _X2, _X2, np.uint64(0), np.uint64(0) - _X1
        while at + 32 <= size:
            a = _round(a, _word(data, at, 8))
            b = _round(b, _word(data, at + 8, 8))
            c = _round(c, _word(data, at + 16, 8))
            d = _round(d, _word(data, at + 24, 8))
            at += 32
        state = _rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)
        for lane in (a, b, c, d):
            state = (state ^ _round(np.uint64(0), lane)) * _X1 + _X4
    else:
        state = _X5
    state += np.uint64(size)
    while at + 8 <= size:
        state = _rotate(state ^ _round(np.uint64(0), _word(data, at, 8)), 27) * _X1 + _X4
        at += 8
    if at + 4 <= size:
        state = _rotate(state ^ (_word(data, at, 4) * _X1), 23) * _X2 + _X3
        at += 4
    while at < size:
        state = _rotate(state ^ (np.uint64(data[at]) * _X5), 11) * _X1
        at += 1
    state = (state ^ (state >> np.uint64(33))) * _X2
    state = (state ^ (state >> _S29)) * _X3
    return state ^ (state >> _S32)


@njit(cache=True)
def shingles(ids: NDArray[np.int32], pool: NDArray[np.uint8], ends: NDArray[np.int64], n: int) -> NDArray[np.uint64]:
    """XXH64 of every n words joined by a space: uint64 (words - n + 1,), empty for shorter texts.

    Args:
        ids: a text's words.
        pool: UTF-8 of all distinct words, end to end.
        ends: (distinct words + 1,) where each word's bytes end, from 0.
        n: words in a shingle.
    """
    count = max(0, len(ids) - n + 1)
    out = np.empty(count, np.uint64)
    longest = 0
    for i in range(len(ids)):
        longest = max(longest, ends[ids[i] + 1] - ends[ids[i]])
    buffer = np.empty(n * (longest + 1), np.uint8)
    for i in range(count):
        size = 0
        for j in range(n):
            if j:
                buffer[size] = 32
                size += 1
            for k in range(ends[ids[i + j]], ends[ids[i + j] + 1]):
                buffer[size] = pool[k]
                size += 1
        out[i] = xxh64(buffer, size)
    return out


@njit(cache=True)
def minhash(
    ids: NDArray[np.int32],
    starts: NDArray[np.int64],
    pool: NDArray[np.uint8],
    ends: NDArray[np.int64],
    n: int,
    a: NDArray[np.uint64],
    b: NDArray[np.uint64],
) -> NDArray[np.uint64]:
    """MinHash signatures: uint64 (texts, hashes); all ones for texts shorter than a shingle.

    The permutations are ``(a * x + b mod 2^64) mod (2^61 - 1)``, the wrap-around being datatrove's.
    """
    texts = len(starts) - 1
    out = np.full((texts, len(a)), np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64)
    for t in range(texts):
        hashed = shingles(ids[starts[t] : starts[t + 1]], pool, ends, n)
        for k in range(len(a)):
            least = out[t, k]
            for i in range(len(hashed)):
                x = hashed[i] * a[k] + b[k]
                x = (x & _MERSENNE) + (x >> np.uint64(61))
                if x >= _MERSENNE:
                    x -= _MERSENNE
                if x < least:
                    least = x
            out[t, k] = least
    return out


@njit(cache=True)
def band_keys(signatures: NDArray[np.uint64], bands: int, rows: int) -> NDArray[np.uint64]:
    """One 64-bit key for each band of ``rows`` hashes of a signature: uint64 (texts, bands)."""
    keys = np.zeros((len(signatures), bands), np.uint64)
    for t in range(len(signatures)):
        for band in range(bands):
            key = np.uint64(band)
            for row in range(rows):
                key = _mix(key ^ signatures[t, band * rows + row]) + _M1
            keys[t, band] = key
    return keys
