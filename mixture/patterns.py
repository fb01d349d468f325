"""Regular expressions as tables: parsed by ``re``, compiled to a small program over classes of characters.

All expressions of a set share their classes: two characters are of one class if no expression tells them apart.
A program backtracks as ``re`` does (alternatives in order, repeats greedy), so it finds the same matches;
``millstream.mixture.matching`` runs it. Understood is what rules for cutting words are made of: characters, sets,
alternatives, repeats of one set, fixed-width looks behind and ahead.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

CODES = 0x110000
SET, STAR, SPLIT, JUMP, BEHIND, NOT_BEHIND, AHEAD, NOT_AHEAD, BEGIN, END, CHOOSE, MATCH = range(12)
"""Instructions: ``SET s``; ``STAR s`` (greedy run); ``SPLIT a b``; ``JUMP a``; looks at the set ``s``, ``k`` characters
away; borders of the string; ``CHOOSE t`` (alternatives that may begin with the next character, by table ``t``)."""

Ranges = tuple[tuple[int, int], ...]
Node = tuple[Any, ...]


class Unsupported(Exception):
    """An expression uses something that the tables cannot say."""


class Program(NamedTuple):
    """A compiled expression.

    ``code`` int32 (instructions, 3); ``tables`` int32 (tables, classes + 1, 2): first place and number of the
    alternatives, in ``choices``, that may begin with a class (the last row: at the string's end); ``width``: longest
    match without its endless repeats, and ``runs``: the set of all characters that those repeat (-1 where there are
    none); ``first`` bool (classes,): what a match may begin with; ``depth``: most places to go back to at once.
    """

    code: NDArray[np.int32]
    tables: NDArray[np.int32]
    choices: NDArray[np.int32]
    width: int
    runs: int
    first: NDArray[np.bool_]
    depth: int


class Tables(NamedTuple):
    """Classes of characters, uint8 (0x110000,), and which sets hold which class, bool (sets, classes)."""

    classes: NDArray[np.uint8]
    member: NDArray[np.bool_]


@dataclass(slots=True)
class _Sets:
    """Numbers distinct sets of characters."""

    known: dict[Ranges, int] = field(default_factory=dict)

    def number(self, ranges: Sequence[tuple[int, int]]) -> int:
        return self.known.setdefault(_merged(ranges), len(self.known))


def compile_patterns(
    patterns: Mapping[str, str], sets: Mapping[str, NDArray[np.bool_]]
) -> tuple[Tables, dict[str, Program], dict[str, int]]:
    """Compile expressions over common classes.

    Args:
        patterns: expressions, by name.
        sets: more sets that the classes must tell apart, by name: bool (0x110000,), true for members.

    Returns:
        The tables, a program for each expression, and the number of each named set.

    Raises:
        Unsupported: an expression cannot be said in tables.
    """
    numbered = _Sets()
    named = {name: numbered.number(_ranges(members)) for name, members in sets.items()}
    trees = {name: _node(re._parser.parse(pattern), numbered) for name, pattern in patterns.items()}  # type: ignore[attr-defined]
    runs = {name: _runs(tree, numbered) for name, tree in trees.items()}
    tables = _classes(list(numbered.known))
    programs = {name: _assemble(tree, tables, runs[name]) for name, tree in trees.items()}
    return tables, programs, named


def _node(parsed: Any, sets: _Sets) -> Node:
    parts: list[Node] = []
    for op, value in parsed:
        name = str(op)
        if name in ("LITERAL", "NOT_LITERAL", "IN", "ANY"):
            parts.append(("set", sets.number(_members(name, value))))
        elif name == "BRANCH":
            parts.append(("alt", [_node(branch, sets) for branch in value[1]]))
        elif name == "SUBPATTERN":
            parts.append(_node(value[3], sets))
        elif name == "MAX_REPEAT":
            least, most, inner = value
            body = _node(inner, sets)
            endless = most is re._constants.MAXREPEAT  # type: ignore[attr-defined]
            if endless and (len(body[1]) != 1 or body[1][0][0] != "set"):
                raise Unsupported("an endless repeat of more than one set")
            parts.append(("repeat", body, int(least), None if endless else int(most)))
        elif name in ("ASSERT", "ASSERT_NOT"):
            parts.append(_look(name == "ASSERT", value[0] < 0, _node(value[1], sets)))
        elif name == "AT" and str(value) in ("AT_BEGINNING", "AT_END"):
            parts.append(("begin",) if str(value) == "AT_BEGINNING" else ("end",))
        else:
            raise Unsupported(f"{name} {value}")
    return ("cat", parts)


def _look(wanted: bool, behind: bool, inner: Node) -> Node:
    if any(part[0] != "set" for part in inner[1]) or (not wanted and len(inner[1]) != 1):
        raise Unsupported("a look at more than a row of sets")
    return ("look", wanted, behind, [part[1] for part in inner[1]])


def _members(name: str, value: Any) -> list[tuple[int, int]]:
    if name == "ANY":
        return _complement([(10, 10)])
    if name in ("LITERAL", "NOT_LITERAL"):
        return [(value, value)] if name == "LITERAL" else _complement([(value, value)])
    found: list[tuple[int, int]] = []
    negated = False
    for op, inner in value:
        if str(op) == "NEGATE":
            negated = True
        elif str(op) == "LITERAL":
            found.append((inner, inner))
        elif str(op) == "RANGE":
            found.append(inner)
        else:
            raise Unsupported(f"{op} {inner} in a set")
    return _complement(found) if negated else found


def _merged(ranges: Sequence[tuple[int, int]]) -> Ranges:
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return tuple(out)


def _complement(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    out, start = [], 0
    for low, high in _merged(ranges):
        if low > start:
            out.append((start, low - 1))
        start = high + 1
    return [*out, (start, CODES - 1)] if start < CODES else out


def _ranges(members: NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], members, [False]]).astype(np.int8)))
    return [(int(a), int(b) - 1) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _classes(sets: Sequence[Ranges]) -> Tables:
    borders = np.unique([0, CODES, *(edge for ranges in sets for low, high in ranges for edge in (low, high + 1))])
    member = np.zeros((len(sets), len(borders) - 1), np.bool_)
    for number, ranges in enumerate(sets):
        for low, high in ranges:
            first, last = np.searchsorted(borders, [low, high + 1])
            member[number, first:last] = True
    distinct, which = np.unique(member, axis=1, return_inverse=True)
    if distinct.shape[1] > 255:
        raise Unsupported(f"{distinct.shape[1]} classes of characters")
    classes = np.repeat(which.reshape(-1).astype(np.uint8), np.diff(borders))
    return Tables(classes, np.ascontiguousarray(distinct))


def _runs(tree: Node, sets: _Sets) -> int:
    """The set of all characters that endless repeats repeat; a branch with one holds nothing else but borders."""
    found: list[int] = []

    def walk(node: Node) -> None:
        if node[0] == "repeat" and node[3] is None:
            found.append(node[1][1][0][1])
        for inner in node[1:]:
            if isinstance(inner, list):
                for part in inner:
                    if isinstance(part, tuple):
                        walk(part)
            elif isinstance(inner, tuple):
                walk(inner)

    walk(tree)
    by_number = {number: ranges for ranges, number in sets.known.items()}
    return sets.number([r for number in found for r in by_number[number]]) if found else -1


def _width(node: Node) -> int:
    if node[0] == "set":
        return 1
    if node[0] == "cat":
        return sum(map(_width, node[1]))
    if node[0] == "alt":
        return max(map(_width, node[1]))
    if node[0] == "repeat":
        times: int = node[3] if node[3] is not None else node[2]
        return _width(node[1]) * times
    return 0


def _first(node: Node, member: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], bool]:
    """Classes that a match may begin with, and whether it may be empty."""
    none = np.zeros(member.shape[1], np.bool_)
    if node[0] == "set":
        return member[node[1]], False
    if node[0] == "alt":
        firsts = [_first(branch, member) for branch in node[1]]
        return np.logical_or.reduce([f for f, _ in firsts]), any(empty for _, empty in firsts)
    if node[0] == "repeat":
        classes, empty = _first(node[1], member)
        return classes, empty or node[2] == 0
    if node[0] != "cat":
        return none, True
    for part in node[1]:
        classes, empty = _first(part, member)
        none = none | classes
        if not empty:
            return none, False
    return none, True


def _assemble(tree: Node, tables: Tables, runs: int) -> Program:
    member = tables.member
    code: list[list[int]] = []
    choices: list[int] = []
    rows: list[NDArray[np.int32]] = []

    def emit(*instruction: int) -> int:
        code.append([*instruction, *([0] * (3 - len(instruction)))])
        return len(code) - 1

    def alternatives(branches: list[Node]) -> None:
        choose = emit(CHOOSE, len(rows))
        row = np.zeros((member.shape[1] + 1, 2), np.int32)
        rows.append(row)
        starts, jumps = [], []
        for branch in branches:
            starts.append(len(code))
            write(branch)
            jumps.append(emit(JUMP))
        for jump in jumps:
            code[jump][1] = len(code)
        firsts = [_first(branch, member) for branch in branches]
        for kind in range(member.shape[1] + 1):
            able = [
                s
                for s, (classes, empty) in zip(starts, firsts, strict=True)
                if empty or (kind < member.shape[1] and classes[kind])
            ]
            row[kind] = len(choices), len(able)
            choices.extend(able)
        assert code[choose][0] == CHOOSE

    def write(node: Node) -> None:
        if node[0] == "set":
            emit(SET, node[1])
        elif node[0] == "cat":
            for part in node[1]:
                write(part)
        elif node[0] == "alt":
            alternatives(node[1])
        elif node[0] == "repeat":
            _, body, least, most = node
            for _ in range(least):
                write(body)
            if most is None:
                emit(STAR, body[1][0][1])
            optional = []
            for _ in range(0 if most is None else most - least):
                optional.append(emit(SPLIT, len(code) + 1))
                write(body)
            for split in optional:
                code[split][2] = len(code)
        elif node[0] == "look":
            _, wanted, behind, sets = node
            for distance, number in enumerate(reversed(sets) if behind else sets):
                kind = (BEHIND if wanted else NOT_BEHIND) if behind else (AHEAD if wanted else NOT_AHEAD)
                emit(kind, number, distance)
        else:
            emit(BEGIN if node[0] == "begin" else END)

    first, empty = _first(tree, member)
    if empty:
        raise Unsupported("an expression that may match nothing")
    write(tree)
    emit(MATCH)
    return Program(
        np.array(code, np.int32),
        np.array(rows, np.int32).reshape(-1, member.shape[1] + 1, 2),
        np.array(choices or [0], np.int32),
        _width(tree),
        runs,
        first,
        _depth(code, rows),
    )


def _depth(code: list[list[int]], rows: list[NDArray[np.int32]]) -> int:
    """No instruction is met twice on one way through a program, so what each leaves behind adds up to a bound."""
    pushed = {STAR: 1, SPLIT: 1}
    return 1 + sum(int(rows[a][:, 1].max()) if op == CHOOSE else pushed.get(op, 0) for op, a, _ in code)
