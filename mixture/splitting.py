"""spaCy's rules for cutting a chunk (what white space leaves) into words, as kernels over many texts at once.

The algorithm is that of spaCy 3's ``Tokenizer``: special cases, prefixes and suffixes taken off in turns, then
infixes in what is left. Two passes, since the middle parts that may be addresses go through spaCy's own expression
between them.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from millstream.mixture.matching import match_at
from millstream.mixture.patterns import Program

DONE, INFIX, ADDRESS = 0, 1, 2
"""What is left to do with a piece: nothing, look for infixes, ask whether it is an address first."""
_DOT, _COLON, _SLASH, _QUESTION, _HASH, _AT = 46, 58, 47, 63, 35, 64
_SEED, _PRIME, _S32 = np.uint64(14695981039346656037), np.uint64(1099511628211), np.uint64(32)


class Specials(NamedTuple):
    """Chunks with words of their own.

    ``slots`` int32 (a power of two): number of the special case at a hash, or -1; ``codes`` uint32 (cases, longest) and
    ``sizes`` int32: their characters; ``cuts`` int32 (cases, most words + 2): where their words end, from 0,
    padded with -1; ``parts``, likewise: how affixes alone would cut those that have any, which spaCy then puts back
    together; ``changes`` bool: this makes a difference; ``begins`` bool (128,): ASCII characters that those begin with.
    """

    slots: NDArray[np.int32]
    codes: NDArray[np.uint32]
    sizes: NDArray[np.int32]
    cuts: NDArray[np.int32]
    parts: NDArray[np.int32]
    changes: NDArray[np.bool_]
    begins: NDArray[np.bool_]


@njit(cache=True, inline="always")
def special_hash(codes: NDArray[np.uint32], low: int, high: int) -> np.uint64:
    """Hash of the characters ``codes[low:high]``."""
    value = _SEED
    for at in range(low, high):
        value = (value ^ np.uint64(codes[at])) * _PRIME
    return value ^ (value >> _S32)


@njit(cache=True, inline="always")
def find_special(specials: Specials, codes: NDArray[np.uint32], low: int, high: int) -> int:
    """Number of the special case that ``codes[low:high]`` is, or -1."""
    size = high - low
    if size > specials.codes.shape[1]:
        return -1
    mask = np.uint64(len(specials.slots) - 1)
    slot = special_hash(codes, low, high) & mask
    while specials.slots[slot] >= 0:
        number = specials.slots[slot]
        if specials.sizes[number] == size:
            same = True
            for k in range(size):
                if specials.codes[number, k] != codes[low + k]:
                    same = False
                    break
            if same:
                return number
        slot = (slot + np.uint64(1)) & mask
    return -1


@njit(cache=True, inline="always")
def _suffix_start(
    suffix: Program, member: NDArray[np.bool_], text: NDArray[np.uint8], low: int, high: int, stack: NDArray[np.int64]
) -> int:
    """Where the longest suffix begins; ``high`` where there is none."""
    run = high
    if suffix.runs >= 0:
        while run > low and member[suffix.runs, text[run - 1]]:
            run -= 1
    for at in range(max(low, run - suffix.width), high):
        if suffix.first[text[at]] and match_at(suffix, member, text, low, high, at, stack) >= 0:
            return at
    return high


@njit(cache=True, inline="always")
def _may_be_address(codes: NDArray[np.uint32], low: int, high: int) -> bool:
    """False where spaCy's expression for addresses certainly does not match."""
    dotted = False
    for at in range(low, high):
        c = codes[at]
        if c == _AT or (c == _COLON and at + 2 < high and codes[at + 1] == _SLASH and codes[at + 2] == _SLASH):
            return True
        dotted = dotted or c == _DOT
    if not dotted:
        return False
    # Neither user nor protocol: a host, then nothing, a port or a path.
    end = low
    while end < high:
        c = codes[end]
        alnum = (48 <= c <= 57) or (65 <= c <= 90) or (97 <= c <= 122) or (0xA1 <= c <= 0xFFFF)
        if not alnum and (end == low or (c != _DOT and c != 45 and c != 95)):
            break
        end += 1
    if end == low or codes[end - 1] == _DOT or codes[end - 1] == 45 or codes[end - 1] == 95:
        return False
    return end == high or codes[end] in (_COLON, _SLASH, _QUESTION, _HASH)


@njit(cache=True)
def split_affixes(
    codes: NDArray[np.uint32],
    text: NDArray[np.uint8],
    member: NDArray[np.bool_],
    space: int,
    prefix: Program,
    suffix: Program,
    specials: Specials,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """Cut texts at white space, and special cases, prefixes and suffixes off the chunks.

    Args:
        codes: characters of all texts.
        text: their classes.
        member: sets by class.
        space: number of the set of white space.
        prefix: expression of prefixes.
        suffix: expression of suffixes.
        specials: special cases.

    Returns:
        Starts and ends of the pieces, and what is left to do with each.
    """
    size = len(codes)
    starts, ends = np.empty(size, np.int64), np.empty(size, np.int64)
    left = np.empty(size, np.uint8)
    stack = np.empty((max(prefix.depth, suffix.depth), 3), np.int64)
    tails = np.empty(64, np.int64)
    count, at = 0, 0
    while at < size:
        if member[space, text[at]]:
            at += 1
            continue
        begin, letters = at, True
        while at < size and not member[space, text[at]]:
            c = codes[at]
            letters = letters and ((97 <= c <= 122) or (65 <= c <= 90))
            at += 1
        low, high = begin, at
        special = find_special(specials, codes, low, high)
        if letters and special < 0:
            starts[count], ends[count], left[count] = low, high, DONE
            count += 1
            continue
        cut = 0
        while low < high:
            if special >= 0:
                break
            last = high - low
            pre = 0
            if prefix.first[text[low]]:
                pre = max(0, match_at(prefix, member, text, low, high, low, stack) - low)
            if pre > 0 and low + pre < high and find_special(specials, codes, low + pre, high) >= 0:
                starts[count], ends[count], left[count] = low, low + pre, DONE
                count += 1
                low += pre
                break
            suf = high - _suffix_start(suffix, member, text, low + pre, high, stack)
            if suf > 0 and high - suf > low and find_special(specials, codes, low, high - suf) >= 0:
                pre = 0
            if pre > 0:
                starts[count], ends[count], left[count] = low, low + pre, DONE
                count += 1
                low += pre
            if suf > 0:
                if cut == len(tails):
                    tails = np.concatenate((tails, np.empty_like(tails)))
                tails[cut] = high
                cut += 1
                high -= suf
            special = find_special(specials, codes, low, high)
            if high - low == last:
                break
        if low < high:
            special = find_special(specials, codes, low, high)
            if special >= 0:
                word = 1
                while word < specials.cuts.shape[1] and specials.cuts[special, word] >= 0:
                    starts[count] = low + specials.cuts[special, word - 1]
                    ends[count] = low + specials.cuts[special, word]
                    left[count] = DONE
                    count += 1
                    word += 1
            else:
                starts[count], ends[count] = low, high
                left[count] = ADDRESS if _may_be_address(codes, low, high) else INFIX
                count += 1
        while cut > 0:
            cut -= 1
            starts[count], ends[count], left[count] = high, tails[cut], DONE
            high = tails[cut]
            count += 1
    return starts[:count].copy(), ends[:count].copy(), left[:count].copy()


@njit(cache=True)
def split_infixes(
    codes: NDArray[np.uint32],
    text: NDArray[np.uint8],
    member: NDArray[np.bool_],
    infix: Program,
    specials: Specials,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    left: NDArray[np.uint8],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cut pieces at their infixes.

    Args:
        codes: characters of all texts.
        text: their classes.
        member: sets by class.
        infix: expression of infixes.
        specials: special cases.
        starts: pieces as from ``split_affixes``.
        ends: their ends.
        left: what is left to do; ``ADDRESS`` is taken for an address, and left whole.

    Returns:
        Starts and ends of the words.
    """
    room = 0
    for piece in range(len(starts)):
        room += ends[piece] - starts[piece]
    begins, stops = np.empty(room, np.int64), np.empty(room, np.int64)
    stack = np.empty((infix.depth, 3), np.int64)
    count, chunk = 0, 0
    for piece in range(len(starts)):
        low, high = starts[piece], ends[piece]
        if piece and low != ends[piece - 1]:
            chunk = count
        if left[piece] != INFIX:
            begins[count], stops[count] = low, high
            count += 1
        else:
            start, at = low, low
            while at < high:
                if not infix.first[text[at]]:
                    at += 1
                    continue
                end = match_at(infix, member, text, low, high, at, stack)
                if end < 0:
                    at += 1
                    continue
                if at != low:
                    if at != start:
                        begins[count], stops[count] = start, at
                        count += 1
                    begins[count], stops[count] = at, end
                    count += 1
                    start = end
                at = end
            if start < high:
                begins[count], stops[count] = start, high
                count += 1
        whole = piece + 1 == len(starts) or starts[piece + 1] != high
        if whole and _holds_special(specials, codes, begins, stops, chunk, count):
            count = _rejoin(specials, codes, begins, stops, chunk, count)
    return begins[:count].copy(), stops[:count].copy()


@njit(cache=True)
def _holds_special(
    specials: Specials,
    codes: NDArray[np.uint32],
    begins: NDArray[np.int64],
    stops: NDArray[np.int64],
    first: int,
    last: int,
) -> bool:
    for word in range(first, last):
        c = codes[begins[word]]
        if c < 128 and not specials.begins[c]:
            continue
        for other in range(word, last):
            if stops[other] - begins[word] > specials.codes.shape[1]:
                break
            number = find_special(specials, codes, begins[word], stops[other])
            if number >= 0 and specials.changes[number]:
                words = 0
                while words + 1 < specials.cuts.shape[1] and specials.cuts[number, words + 1] >= 0:
                    words += 1
                if other > word or words > 1:
                    return True
    return False


@njit(cache=True)
def _rejoin(
    specials: Specials,
    codes: NDArray[np.uint32],
    begins: NDArray[np.int64],
    stops: NDArray[np.int64],
    first: int,
    last: int,
) -> int:
    """Put the special cases of a chunk back together, the longest and then the first ones; its new last word."""
    words = last - first
    taken, case, span = np.zeros(words, np.bool_), np.full(words, -1, np.int64), np.ones(words, np.int64)
    longest, most = specials.codes.shape[1], specials.parts.shape[1]
    for size in range(min(words, most - 1), 0, -1):
        for word in range(words - size + 1):
            low, high = begins[first + word], stops[first + word + size - 1]
            number = find_special(specials, codes, low, high) if high - low <= longest else -1
            if number < 0 or (size + 1 < most and specials.parts[number, size + 1] >= 0):
                continue
            same = True
            for k in range(size):
                same = same and specials.parts[number, k + 1] == stops[first + word + k] - low
            if not same:
                continue
            if not taken[word] and not taken[word + size - 1]:
                case[word], span[word] = number, size
            taken[word : word + size] = True
    old_begins, old_stops = begins[first:last].copy(), stops[first:last].copy()
    count, word = first, 0
    while word < words:
        if case[word] < 0:
            begins[count], stops[count] = old_begins[word], old_stops[word]
            count += 1
        else:
            k = 1
            while k < specials.cuts.shape[1] and specials.cuts[case[word], k] >= 0:
                begins[count] = old_begins[word] + specials.cuts[case[word], k - 1]
                stops[count] = old_begins[word] + specials.cuts[case[word], k]
                count += 1
                k += 1
        word += span[word]
    return count


@njit(cache=True)
def split_plainly(
    text: NDArray[np.uint8], member: NDArray[np.bool_], space: int, letters: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Runs of letters, digits and underscores, and every other character that is no white space, alone."""
    starts, ends = np.empty(len(text), np.int64), np.empty(len(text), np.int64)
    count, at = 0, 0
    while at < len(text):
        if member[space, text[at]]:
            at += 1
            continue
        begin = at
        at += 1
        if member[letters, text[begin]]:
            while at < len(text) and member[letters, text[at]]:
                at += 1
        starts[count], ends[count] = begin, at
        count += 1
    return starts[:count].copy(), ends[:count].copy()
