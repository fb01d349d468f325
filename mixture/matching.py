"""Runs compiled expressions (``millstream.mixture.patterns``) over arrays of character classes."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from millstream.mixture.patterns import (
    AHEAD,
    BEGIN,
    BEHIND,
    CHOOSE,
    END,
    JUMP,
    MATCH,
    NOT_AHEAD,
    NOT_BEHIND,
    SET,
    SPLIT,
    STAR,
    Program,
)

NO_MATCH = -1


@njit(cache=True, inline="always")
def match_at(
    program: Program,
    member: NDArray[np.bool_],
    text: NDArray[np.uint8],
    low: int,
    high: int,
    at: int,
    stack: NDArray[np.int64],
) -> int:
    """End of the match that begins at ``at`` in ``text[low:high]``; ``NO_MATCH`` where there is none.

    Args:
        program: the expression.
        member: sets by class, as from ``compile_patterns``.
        text: classes of characters.
        low: where the string begins; nothing before is looked at.
        high: where it ends.
        at: where the match is to begin.
        stack: scratch, (at least ``program.depth``, 3).
    """
    code, tables, choices = program.code, program.tables, program.choices
    ends = tables.shape[1] - 1
    pc, depth = 0, 0
    while True:
        op, a, b = code[pc, 0], code[pc, 1], code[pc, 2]
        ok = True
        if op == SET:
            ok = at < high and member[a, text[at]]
            at += 1
            pc += 1
        elif op == CHOOSE:
            row = text[at] if at < high else ends
            first, count = tables[a, row, 0], tables[a, row, 1]
            for k in range(count - 1, 0, -1):
                stack[depth, 0], stack[depth, 1], stack[depth, 2] = choices[first + k], at, at
                depth += 1
            ok = count > 0
            pc = choices[first]
        elif op == JUMP:
            pc = a
        elif op == MATCH:
            return at
        elif op == END:
            ok = at == high
            pc += 1
        elif op == BEHIND:
            ok = at - 1 - b >= low and member[a, text[at - 1 - b]]
            pc += 1
        elif op == AHEAD:
            ok = at + b < high and member[a, text[at + b]]
            pc += 1
        elif op == NOT_BEHIND:
            ok = not (at - 1 >= low and member[a, text[at - 1]])
            pc += 1
        elif op == NOT_AHEAD:
            ok = not (at < high and member[a, text[at]])
            pc += 1
        elif op == BEGIN:
            ok = at == low
            pc += 1
        elif op == STAR:
            begin = at
            while at < high and member[a, text[at]]:
                at += 1
            pc += 1
            if at > begin:
                stack[depth, 0], stack[depth, 1], stack[depth, 2] = pc, at - 1, begin
                depth += 1
        else:
            assert op == SPLIT
            stack[depth, 0], stack[depth, 1], stack[depth, 2] = b, at, at
            depth += 1
            pc = a
        if not ok:
            if depth == 0:
                return NO_MATCH
            # An entry stands for all places from its second down to its third.
            pc, at = stack[depth - 1, 0], stack[depth - 1, 1]
            if at > stack[depth - 1, 2]:
                stack[depth - 1, 1] = at - 1
            else:
                depth -= 1
