"""``build --explain``: what a build would do and why, without doing it.

The stages are gone through as in a build, up to the first that has something to do: what comes after depends on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from millstream.mixture.recipe import Recipe
from millstream.tokenize.build import check_before, run_stages
from millstream.tokenize.curate import MADE_FROM, ReadUnit, find_inputs, read_units
from millstream.tokenize.manifest import MANIFEST
from millstream.tokenize.work import Unit

NAMES = {
    "versions": "how Millstream reads and filters",
    "libraries": "a library",
    "unicode": "Python's Unicode tables",
    "seed": "the corpus seed",
    "score": "the scorer",
    "split": "the borders of the split",
    "source": "how the source is read",
    "evaluation": "an evaluation set",
    "decontaminate": "decontamination",
    "rules": "the filters, or a file that they name",
    "files": "the files",
}
"""What a build says of each thing that decides a unit of reading."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """One line of the explanation: units of a stage that are done or to do, and why."""

    stage: str
    what: str
    state: str
    why: str


class _Stop(Exception):
    """A stage has something to do."""


def explain_build(
    recipe: Recipe, base: Path, root: Path, *, retrain_tokenizer: bool = False, allow_code: bool = False
) -> list[Planned]:
    """What a build would do now.

    Raises:
        MillstreamError: what stops a build before its work would stop it now.
    """
    inputs = find_inputs(recipe.corpus, base)
    check_before(recipe.corpus, inputs, base, root, allow_code=allow_code)
    work = root / ".work"
    reads = read_units(recipe.corpus, inputs, base, work)
    earlier = _earlier(work)
    found = [_read(read, earlier) for read in reads if not read.part]
    stages: list[Planned] = []

    def look(stage: str, units: Sequence[Unit]) -> int:
        todo = [unit for unit in units if not unit.done]
        if stage != "read":
            what = todo[0].label if len(todo) == 1 else f"{len(units)} units"
            state = f"{len(todo)} of {len(units)} to do" if todo else "done"
            why = "what it is made of is new or different" if todo else "nothing that it depends on has changed"
            stages.append(Planned(stage=stage, what=what, state=state, why=why))
        if todo:
            raise _Stop
        return 0

    try:
        run_stages(recipe.corpus, inputs, base, root, retrain_tokenizer=retrain_tokenizer, run=look)
    except _Stop:
        later = Planned(
            stage="later", what="the stages after", state="as needed", why="they depend on what comes before"
        )
        return [*found, *stages, later]
    sealed = (root / MANIFEST).exists()
    why = "every stage is done" if sealed else "the manifest is missing"
    return [*found, *stages, Planned(stage="seal", what=MANIFEST, state="done" if sealed else "to do", why=why)]


def _read(read: ReadUnit, earlier: dict[tuple[str, str], list[dict[str, Any]]]) -> Planned:
    if read.unit.done:
        return Planned(stage="read", what=read.unit.label, state="done", why="nothing that decides it has changed")
    now: dict[str, Any] = read.unit.work.keywords["made_from"]  # type: ignore[attr-defined]
    known = earlier.get(_place(now), [])
    if not known:
        return Planned(stage="read", what=read.unit.label, state="to do", why="never read before")
    nearest = min(known, key=lambda old: len(_differing(old, now)))
    return Planned(stage="read", what=read.unit.label, state="to do", why="; ".join(_reasons(nearest, now)))


def _earlier(work: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """What decided the units of reading that are there, by domain and source."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for path in sorted((work / "read").glob(f"*/{MADE_FROM}")):
        made_from = orjson.loads(path.read_bytes())
        found.setdefault(_place(made_from), []).append(made_from)
    return found


def _place(made_from: dict[str, Any]) -> tuple[str, str]:
    return made_from["domain"], made_from["source"]["name"]


def _differing(old: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [name for name in NAMES if old.get(name) != now.get(name)]


def _reasons(old: dict[str, Any], now: dict[str, Any]) -> list[str]:
    reasons = []
    for name in _differing(old, now):
        if name == "files":
            reasons += _file_reasons(dict(old["files"]), dict(now["files"]))
        elif name == "libraries":
            pairs = {n: (old["libraries"].get(n), v) for n, v in now["libraries"].items()}
            reasons += [f"{n} {was or 'absent'} is now {v or 'absent'}" for n, (was, v) in pairs.items() if was != v]
        else:
            reasons.append(f"{NAMES[name]} changed")
    return reasons


def _file_reasons(old: dict[str, str], now: dict[str, str]) -> list[str]:
    """What happened to files, by their digests: the first of each kind is named."""
    kinds = {
        "new": [path for path in now if path not in old],
        "gone": [path for path in old if path not in now],
        "changed": [path for path in now if path in old and old[path] != now[path]],
    }
    return [
        f"{paths[0]}{f' and {len(paths) - 1} more' if paths[1:] else ''} {kind}"
        for kind, paths in kinds.items()
        if paths
    ]
