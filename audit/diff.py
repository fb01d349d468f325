"""``audit diff``: what two runs have in common, and from where on they differ: what was asked for, fed and lost."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.audit.corpora import open_corpora
from millstream.audit.ledger_index import INF, NAN
from millstream.audit.runs import Run
from millstream.errors import MillstreamError
from millstream.stream.plan_json import plan_to_json

ABSENT = "absent"
"""Stands for what only one side has."""
LABELS = {"name", "public"}
"""Sections of a recipe that decide nothing about a run."""
DERIVED = {"plan_id", "batches", "mixture_digest", "format"}
"""Parts of a plan's JSON that follow from the others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One value that differs: where it stands (``model.hidden_size``), and what each run has."""

    where: str
    a: Any
    b: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Fed:
    """Steps that both lineages have, compared record by record; steps are None where none differs.

    Losses in millionths of a nat; those that are no numbers on both sides are equal, and have no distance.
    """

    common: int
    last: tuple[int, int]
    """Last step of each lineage."""
    roots: int
    first_root: int | None
    """First step that was fed other data."""
    updates: int
    first_update: int | None
    """First step whose update was applied in one run only."""
    losses: int
    first_loss: int | None
    largest: int
    """Largest distance of two losses."""
    largest_at: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunDiff:
    """Two runs compared.

    ``shared_records``: of the beginning that both ledgers have word for word, as a branch and its run do. ``segments``
    are the differing ones by number, as JSON values; ``corpora`` names corpora that only one run reads and, where both
    can be opened, the domains whose counts differ.
    """

    a: str
    b: str
    shared_records: int
    recipe: tuple[Difference, ...]
    plan: tuple[Difference, ...]
    segments: tuple[Difference, ...]
    corpora: tuple[Difference, ...]
    code: tuple[Difference, ...]
    fed: Fed


def audit_diff(a: Run, b: Run) -> RunDiff:
    """Compare two runs."""
    return RunDiff(
        a=a.name,
        b=b.name,
        shared_records=_shared(a, b),
        recipe=tuple(differences(_decisive(a), _decisive(b))),
        plan=tuple(differences(_plan(a), _plan(b))),
        segments=tuple(_segments(a, b)),
        corpora=tuple(_corpora(a, b)),
        code=tuple(differences(_code(a), _code(b))),
        fed=_fed(a, b),
    )


def differences(a: Any, b: Any, where: str = "") -> Iterator[Difference]:
    """Where two JSON values differ, as deep as possible; what one of them has not is ``ABSENT`` there."""
    if isinstance(a, dict) and isinstance(b, dict):
        for name in dict.fromkeys((*a, *b)):
            yield from differences(a.get(name, ABSENT), b.get(name, ABSENT), f"{where}.{name}" if where else str(name))
    elif isinstance(a, list) and isinstance(b, list):
        named = _by_name(a), _by_name(b)
        if named[0] is not None and named[1] is not None:
            yield from differences(*named, where)
            return
        for number in range(max(len(a), len(b))):
            one, other = (v[number] if number < len(v) else ABSENT for v in (a, b))
            yield from differences(one, other, f"{where}[{number}]")
    elif a != b or isinstance(a, bool) != isinstance(b, bool):
        yield Difference(where=where, a=a, b=b)


def _by_name(values: list[Any]) -> dict[str, Any] | None:
    """A list of things with different names, by name: so that one more of them is one difference."""
    if not values or not all(isinstance(v, dict) and isinstance(v.get("name"), str) for v in values):
        return None
    named = {v["name"]: v for v in values}
    return named if len(named) == len(values) else None


def _shared(a: Run, b: Run) -> int:
    size = min(len(a.records), len(b.records))
    one, other = (run.records.rows[["end", "check"]][:size] for run in (a, b))
    differs = one != other
    count = int(differs.argmax()) if differs.any() else size
    # A record's hash covers all those before it.
    return count if count and a.records[count - 1] == b.records[count - 1] else 0


def _decisive(run: Run) -> dict[str, Any]:
    return {name: section for name, section in run.info["recipe"].items() if name not in LABELS}


def _plan(run: Run) -> dict[str, Any]:
    return {name: value for name, value in plan_to_json(run.plan).items() if name not in DERIVED}


def _segments(a: Run, b: Run) -> Iterator[Difference]:
    for number in range(max(len(a.segments), len(b.segments))):
        one, other = (asdict(r.segments[number]) if number < len(r.segments) else ABSENT for r in (a, b))
        if one != other:
            yield Difference(where=f"[{number}]", a=one, b=other)


def _corpora(a: Run, b: Run) -> Iterator[Difference]:
    ours, theirs = ({i for plan in run.plans.values() for i in plan.corpus_ids} for run in (a, b))
    if ours == theirs:
        return
    yield Difference(where="ids", a=sorted(ours - theirs), b=sorted(theirs - ours))
    yield from differences(_counts(a), _counts(b))


def _counts(run: Run) -> dict[str, Any]:
    """Documents, tokens and exclusions of every domain that a run may read; nothing where the corpora are not there."""
    try:
        corpora = open_corpora(run)
    except MillstreamError:
        return {}
    counts: dict[str, Any] = {}
    for corpus in corpora.values():
        manifest = corpus.manifest
        counts["tokenizer"] = manifest.tokenizer.file.sha256
        for domain in manifest.domains:
            held = {"documents": domain.documents, "tokens": domain.tokens, "exclusions": dict(domain.exclusions)}
            counts.setdefault(domain.name, held)
    return counts


def _code(run: Run) -> dict[str, Any]:
    """Version and digest of the code, the environment, and the layout of the newest attempt."""
    layout: dict[str, Any] = {}
    for record in run.records.of("attempt"):
        layout = {n: record.body.get(n) for n in ("world", "expert_parallel", "zero_stage", "threads", "versions")}
    return {"code": run.info["code"], "environment": run.info["environment"], "attempt": layout}


def _learned(run: Run) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Steps of the lineage, rising, and the numbers of their records."""
    kept = ~run.steps.superseded
    steps, numbers = run.steps.rows["step"][kept].astype(np.int64), run.steps.numbers[kept]
    order = np.argsort(steps, kind="stable")
    return steps[order], numbers[order]


def _fed(a: Run, b: Run) -> Fed:
    (ours, our_numbers), (theirs, their_numbers) = _learned(a), _learned(b)
    common, at, there = np.intersect1d(ours, theirs, assume_unique=True, return_indices=True)
    left, right = our_numbers[at], their_numbers[there]
    pairs = zip(a.records.read(left.tolist()), b.records.read(right.tolist()), strict=True)
    roots = np.fromiter((x.body["root"] != y.body["root"] for x, y in pairs), np.bool_, len(common))
    one, other = a.records.rows[left], b.records.rows[right]
    updates = one["applied"] != other["applied"]
    losses = one["loss"] != other["loss"]
    finite = ~np.isin(one["loss"], (NAN, INF)) & ~np.isin(other["loss"], (NAN, INF))
    distance = np.where(finite, np.abs(np.where(finite, one["loss"] - other["loss"], 0)), 0)
    largest = int(distance.argmax()) if len(distance) else 0

    def first(differs: NDArray[np.bool_]) -> int | None:
        return int(common[differs.argmax()]) if differs.any() else None

    return Fed(
        common=len(common),
        last=(a.last_step, b.last_step),
        roots=int(roots.sum()),
        first_root=first(roots),
        updates=int(updates.sum()),
        first_update=first(updates),
        losses=int(losses.sum()),
        first_loss=first(losses),
        largest=int(distance.max(initial=0)),
        largest_at=int(common[largest]) if distance.any() else None,
    )
