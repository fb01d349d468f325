"""Kernels for what no column expression can say, compiled by numba when first called and cached on disk."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

_ONE, _S31 = np.uint64(1), np.uint64(31)
_MODULUS = np.uint64((1 << 31) - 1)
_B1, _B2 = np.uint64(1_000_003), np.uint64(1_234_567_891)
"""Prime and bases of the hashes of joined words."""
_M1, _M2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_S29, _S32 = np.uint64(29), np.uint64(32)
_POWERS = 4096


@njit(cache=True, inline="always")
def _mix(x: np.uint64) -> np.uint64:
    x = (x ^ (x >> _S31)) * _M1
    x = (x ^ (x >> _S29)) * _M2
    return x ^ (x >> _S32)


@njit(cache=True, inline="always")
def _reduced(x: np.uint64) -> np.uint64:
    """A number below 2^62, modulo 2^31 - 1."""
    x = (x & _MODULUS) + (x >> _S31)
    x = (x & _MODULUS) + (x >> _S31)
    return x - _MODULUS if x >= _MODULUS else x


@njit(cache=True)
def _power(base: np.uint64, exponent: int) -> np.uint64:
    result = _ONE
    while exponent > 0:
        if exponent & 1:
            result = _reduced(result * base)
        base = _reduced(base * base)
        exponent >>= 1
    return result


@njit(cache=True)
def count_words(
    codes: NDArray[np.uint32],
    classes: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    bounds: NDArray[np.int64],
    plain: NDArray[np.bool_],
    alpha: NDArray[np.bool_],
    stops: NDArray[np.uint32],
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """What Gopher's rules count in each text.

    Args:
        codes: characters of all texts, and the other fields of ``words.Words``.
        classes: their classes.
        starts: where words begin.
        ends: where they end.
        bounds: (texts + 1,) words of each text.
        plain: classes that are no punctuation.
        alpha: classes of letters.
        stops: (stop words, longest) their characters, filled up with zeros.

    Returns:
        int64 (texts, 4): words, those that are not all punctuation, their characters, those with a letter; and uint64
        (texts,) with a bit for each stop word that occurs.
    """
    counts = np.zeros((len(bounds) - 1, 4), np.int64)
    found = np.zeros(len(bounds) - 1, np.uint64)
    longest = stops.shape[1]
    for text in range(len(bounds) - 1):
        for word in range(bounds[text], bounds[text + 1]):
            low, high = starts[word], ends[word]
            is_plain, is_alpha = False, False
            for at in range(low, high):
                is_plain = is_plain or plain[classes[at]]
                is_alpha = is_alpha or alpha[classes[at]]
                if is_plain and is_alpha:
                    break
            counts[text, 0] += 1
            counts[text, 1] += is_plain
            counts[text, 2] += (high - low) * is_plain
            counts[text, 3] += is_alpha
            if high - low > longest:
                continue
            for number in range(len(stops)):
                same = high - low == longest or stops[number, high - low] == 0
                for k in range(high - low):
                    if stops[number, k] != codes[low + k]:
                        same = False
                        break
                if same:
                    found[text] |= _ONE << np.uint64(number)
    return counts, found


@njit(cache=True)
def _top_ngram_chars(
    words: NDArray[np.uint64], borders: NDArray[np.int64], n: int, keys: NDArray[np.uint64], counts: NDArray[np.int64]
) -> int:
    """Characters of the most frequent n-gram times its count (ties: the first seen), joined by spaces.

    Args:
        words: a hash of each word of a text.
        borders: (words + 1,) characters before each word.
        n: words in an n-gram.
        keys: zeros, (capacity,), a power of two of at least twice the words; zeros again on return.
        counts: (2, capacity) scratch: count and first place of each key.
    """
    size = len(words) - n + 1
    if size <= 0:
        return 0
    mask = np.uint64(len(keys) - 1)
    best, first = 0, 0
    for i in range(size):
        key = np.uint64(n)
        for j in range(n):
            key = _mix(key ^ words[i + j])
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
    return best * (borders[first + n] - borders[first] + n - 1)


@njit(cache=True)
def _repeated_ngram_chars(
    prefixes: NDArray[np.uint64],
    borders: NDArray[np.int64],
    powers: NDArray[np.uint64],
    n: int,
    keys: NDArray[np.uint64],
) -> int:
    """Characters in n-grams that occurred before, jumping over each that is found.

    N-grams are equal where their words joined without a space are: their hashes follow from those of the text up to
    each word, ``prefixes`` (2, words + 1).
    """
    size = len(borders) - n
    if size <= 0:
        return 0
    mask = np.uint64(len(keys) - 1)
    chars, i = 0, 0
    while i < size:
        length = borders[i + n] - borders[i]
        if length < _POWERS:
            one, two = powers[0, length], powers[1, length]
        else:
            one, two = _power(_B1, length), _power(_B2, length)
        one = _reduced(prefixes[0, i + n] + _MODULUS - _reduced(prefixes[0, i] * one))
        two = _reduced(prefixes[1, i + n] + _MODULUS - _reduced(prefixes[1, i] * two))
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
    codes: NDArray[np.uint32],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    bounds: NDArray[np.int64],
    chars: NDArray[np.int64],
    top: NDArray[np.int64],
    top_limits: NDArray[np.float64],
    repeated: NDArray[np.int64],
    repeated_limits: NDArray[np.float64],
) -> NDArray[np.int64]:
    """First n-gram rule that each text breaks.

    Args:
        codes: characters of all texts.
        starts: where words begin.
        ends: where they end.
        bounds: (texts + 1,) words of each text.
        chars: (texts,) characters of each text.
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
        most = max(most, bounds[t + 1] - bounds[t])
    capacity = 16
    while capacity < 2 * most + 2:
        capacity *= 2
    all_keys = np.zeros(capacity, np.uint64)
    all_counts = np.zeros((2, capacity), np.int64)
    all_words, all_borders = np.empty(most, np.uint64), np.zeros(most + 1, np.int64)
    all_prefixes = np.zeros((2, most + 1), np.uint64)
    powers = np.ones((2, _POWERS), np.uint64)
    for k in range(1, _POWERS):
        powers[0, k], powers[1, k] = _reduced(powers[0, k - 1] * _B1), _reduced(powers[1, k - 1] * _B2)
    for t in range(texts):
        if chars[t] == 0:
            continue
        size = bounds[t + 1] - bounds[t]
        words, borders, prefixes = all_words[:size], all_borders[: size + 1], all_prefixes[:, : size + 1]
        one, two = np.uint64(0), np.uint64(0)
        for w in range(size):
            low, high = starts[bounds[t] + w], ends[bounds[t] + w]
            word = np.uint64(high - low)
            for at in range(low, high):
                code = np.uint64(codes[at]) + _ONE
                one, two = _reduced(one * _B1 + code), _reduced(two * _B2 + code)
                word = (word ^ code) * _M1
                word ^= word >> _S32
            words[w], borders[w + 1] = word, borders[w] + high - low
            prefixes[0, w + 1], prefixes[1, w + 1] = one, two
        room = 16
        while room < 2 * size + 2:
            room *= 2
        keys, counts = all_keys[:room], all_counts[:, :room]
        for r in range(len(top)):
            found = _top_ngram_chars(words, borders, top[r], keys, counts)
            if found / chars[t] > top_limits[r]:
                out[t, 0], out[t, 1] = r, found
                break
        if out[t, 0] >= 0:
            continue
        for r in range(len(repeated)):
            found = _repeated_ngram_chars(prefixes, borders, powers, repeated[r], keys)
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


@njit(cache=True, inline="always")
def _encode(code: np.uint32, buffer: NDArray[np.uint8], size: int) -> int:
    """Write a character as UTF-8; the new size."""
    if code < 0x80:
        buffer[size] = code
        return size + 1
    if code < 0x800:
        buffer[size], buffer[size + 1] = 0xC0 | (code >> 6), 0x80 | (code & 63)
        return size + 2
    if code < 0x10000:
        buffer[size], buffer[size + 1] = 0xE0 | (code >> 12), 0x80 | ((code >> 6) & 63)
        buffer[size + 2] = 0x80 | (code & 63)
        return size + 3
    buffer[size], buffer[size + 1] = 0xF0 | (code >> 18), 0x80 | ((code >> 12) & 63)
    buffer[size + 2], buffer[size + 3] = 0x80 | ((code >> 6) & 63), 0x80 | (code & 63)
    return size + 4


@njit(cache=True)
def shingles(
    codes: NDArray[np.uint32], starts: NDArray[np.int64], ends: NDArray[np.int64], n: int
) -> NDArray[np.uint64]:
    """XXH64 of every n words joined by a space, as UTF-8: uint64 (words - n + 1,), empty for shorter texts.

    Args:
        codes: characters.
        starts: where a text's words begin.
        ends: where they end.
        n: words in a shingle.
    """
    count = max(0, len(starts) - n + 1)
    out = np.empty(count, np.uint64)
    longest = 0
    for i in range(len(starts)):
        longest = max(longest, ends[i] - starts[i])
    buffer = np.empty(n * (4 * longest + 1), np.uint8)
    for i in range(count):
        size = 0
        for j in range(n):
            if j:
                buffer[size] = 32
                size += 1
            for at in range(starts[i + j], ends[i + j]):
                size = _encode(codes[at], buffer, size)
        out[i] = xxh64(buffer, size)
    return out


@njit(cache=True)
def minhash(
    codes: NDArray[np.uint32],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    bounds: NDArray[np.int64],
    n: int,
    a: NDArray[np.uint64],
    b: NDArray[np.uint64],
) -> NDArray[np.uint64]:
    """MinHash signatures: uint64 (texts, hashes); all ones for texts shorter than a shingle.

    The permutations are ``(a * x + b mod 2^64) mod (2^61 - 1)``, the wrap-around being datatrove's.
    """
    texts = len(bounds) - 1
    out = np.full((texts, len(a)), np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64)
    for t in range(texts):
        hashed = shingles(codes, starts[bounds[t] : bounds[t + 1]], ends[bounds[t] : bounds[t + 1]], n)
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


@njit(cache=True)
def components(one: NDArray[np.int64], other: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Smallest member of the component of each of ``size`` nodes, joined by edges ``one[i]`` - ``other[i]``."""
    parent = np.arange(size)
    for edge in range(len(one)):
        a, b = one[edge], other[edge]
        while parent[a] != a:
            parent[a] = parent[parent[a]]
            a = parent[a]
        while parent[b] != b:
            parent[b] = parent[parent[b]]
            b = parent[b]
        parent[max(a, b)] = min(a, b)
    for node in range(size):
        # Parents come before their children, so theirs is final.
        parent[node] = parent[parent[node]]
    return parent


@njit(cache=True)
def sentence_starts(
    codes: NDArray[np.uint32],
    classes: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    bounds: NDArray[np.int64],
    closing: NDArray[np.bool_],
    punctuation: NDArray[np.bool_],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First words of sentences, by the rule of spaCy's sentencizer.

    A sentence ends with a word that closes one and the punctuation after it; white space other than one space is
    a word to spaCy, and ends that punctuation.

    Args:
        codes: characters of all texts, and the other fields of ``words.Words``.
        classes: their classes.
        starts: where words begin.
        ends: where they end.
        bounds: (texts + 1,) words of each text.
        closing: classes of characters that close a sentence where they stand alone.
        punctuation: classes of punctuation.

    Returns:
        Numbers of the first words, and (texts + 1,) sentences of each text.
    """
    first, texts = np.empty(len(starts), np.int64), np.zeros(len(bounds), np.int64)
    count = 0
    for text in range(len(bounds) - 1):
        closed = False
        for word in range(bounds[text], bounds[text + 1]):
            low, high = starts[word], ends[word]
            begins = word == bounds[text]
            if not begins:
                gap = low - ends[word - 1]
                spaced = gap > 1 or (gap == 1 and codes[low - 1] != 32)
                if closed and spaced:
                    begins, closed = True, False
            closes = high - low == 1 and closing[classes[low]]
            if closed and not closes:
                marks = True
                for at in range(low, high):
                    marks = marks and punctuation[classes[at]]
                if not marks:
                    begins, closed = True, False
            closed = closed or closes
            if begins:
                first[count] = word
                count += 1
        texts[text + 1] = count
    return first[:count].copy(), texts
