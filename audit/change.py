"""Changing the course of a run: amendments and rollbacks, written as records of its ledger.

Nothing that was recorded is altered. The ledger is locked while it is judged what may change, so a run that
trains is not changed under its feet: stop it, change it, start it again.
"""

import getpass
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from millstream.audit.commitments import record_commitments
from millstream.audit.corpora import open_corpora
from millstream.audit.heads import head_signer
from millstream.audit.ledger import Ledger, open_ledger
from millstream.audit.runs import Run, SavedCheckpoint, open_run, place_of
from millstream.errors import UsageError
from millstream.stream.amend import Amendment, NewData, amend, amendment_from_json, amendment_to_json
from millstream.stream.corpora import Corpus, corpora_of, open_corpus
from millstream.stream.freeze import check_epochs
from millstream.stream.plan import Plan
from millstream.stream.plan_json import plan_to_json
from millstream.stream.segments import Segment, segments_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """Why something was changed, and by whom."""

    why: str
    by: str


def reason(why: str, by: str | None) -> Reason:
    """A reason, by default of the user that is logged in."""
    return Reason(why=why, by=by or getpass.getuser())


def new_data(run: Run, places: Mapping[str, str]) -> tuple[tuple[NewData, ...], tuple[Corpus, ...]]:
    """Domains as they lie in other corpora, for an amendment.

    Args:
        run: the run.
        places: of each domain the folder or URL of the corpus that holds it.

    Raises:
        UsageError: there is no corpus, or it has no such domain; names those it has.
    """
    corpora = {place: open_corpus(place) for place in dict.fromkeys(places.values())}
    data = []
    for domain, place in places.items():
        manifest = corpora[place].manifest
        held = next((d for d in manifest.domains if d.name == domain), None)
        if held is None:
            raise UsageError(f"{place}: has no domain '{domain}'; it has {', '.join(d.name for d in manifest.domains)}")
        data.append(NewData(domain=domain, corpus_id=manifest.corpus_id, tokens=held.tokens, documents=held.documents))
    return tuple(data), tuple(corpora.values())


def amended_plan(run: Run, amendment: Amendment, corpora: Sequence[Corpus] = ()) -> Plan:
    """The plan that a run would follow after an amendment.

    Raises:
        UsageError: its first step was trained on already, or the plan cannot be changed so.
        RecipeError: it would repeat a domain more often than the recipe allows.
        InputError: a corpus that it brings in was made with another tokenizer, or one of the run's is missing.
    """
    if amendment.from_step <= run.last_step:
        raise UsageError(
            f"{run.path}: step {amendment.from_step} was trained on already; amend from step {run.last_step + 1} on, "
            "or roll back first"
        )
    plan = amend(run.plan, amendment)
    assert run.recipe.mixture is not None
    check_epochs(plan, run.recipe.mixture.max_epochs)
    if corpora:
        corpora_of(plan, [*open_corpora(run).values(), *corpora])
    return plan


def amend_run(path: Path, amendment: Amendment, given: Reason, corpora: Sequence[Corpus] = ()) -> Plan:
    """Change a run's plan from a step on, and record it; returns the plan in force.

    Raises:
        UsageError, RecipeError, InputError: as from ``amended_plan``; or another process is writing to the run.
    """
    with open_ledger(path) as ledger:
        run = open_run(path)
        plan = amended_plan(run, amendment, corpora)
        body: dict[str, Any] = _segments(run, plan, amendment.from_step)
        body |= {"amendment": amendment_to_json(amendment), "plan": plan_to_json(plan), **asdict(given)}
        if corpora:
            body["corpora"] = [place_of(path, corpus) for corpus in corpora]
        ledger.append("segment", body)
        record_commitments(ledger, open_run(path), {c.manifest.corpus_id: c for c in corpora})
        head_signer(run, ledger)()
    return plan


def roll_back(path: Path, to_step: int, given: Reason, *, undo: bool) -> None:
    """Let a run go on from an earlier checkpoint; what was trained on since stays in the ledger as superseded.

    Args:
        path: the run.
        to_step: the checkpoint's step; 0 begins again.
        given: why, and by whom.
        undo: also go back to the plan as it was before the amendments that begin after ``to_step``.

    Raises:
        UsageError: there is nothing to go back on, or no checkpoint of that step; names those that are there.
    """
    with open_ledger(path) as ledger:
        run = open_run(path)
        if not 0 <= to_step < run.last_step:
            raise UsageError(f"{path}: is at step {run.last_step}; it can be rolled back to an earlier step, from 0 on")
        saved = checkpoint_at(run, to_step)
        body: dict[str, Any] = {"to_step": to_step, "from_step": run.last_step, **asdict(given)}
        ledger.append("rollback", body if saved is None else body | {"checkpoint": saved.digest})
        if undo:
            _undo(run, ledger, to_step + 1, given)
        head_signer(run, ledger)()


def amend_before(path: Path, amendment: Amendment, given: Reason) -> None:
    """Change a run's plan from a step on that comes before those of amendments that hold: they are made again after it.

    Raises:
        UsageError, RecipeError, InputError: as from ``amended_plan``.
    """
    with open_ledger(path) as ledger:
        later = _undo(open_run(path), ledger, amendment.from_step + 1, given)
    amend_run(path, amendment, given)
    for again in later:
        amend_run(path, amendment_from_json(again), given)


def _undo(run: Run, ledger: Ledger, first: int, given: Reason) -> list[dict[str, Any]]:
    """Go back to the plan as it was before the amendments from a step on, on the record; returns those."""
    undone = [a for a in run.plan.amendments if int(a["from_step"]) >= first]
    if undone:
        kept = run.plan.amendments[: len(run.plan.amendments) - len(undone)]
        plan = next(p for p in (run.first_plan, *run.plans.values()) if p.amendments == kept)
        segments = _segments(run, plan, min(first, run.last_step + 1))
        ledger.append("segment", segments | {"plan": plan_to_json(plan), "undone": undone, **asdict(given)})
    return undone


def checkpoint_at(run: Run, step: int) -> SavedCheckpoint | None:
    """The checkpoint that the lineage has of a step; None for step 0.

    Raises:
        UsageError: it has none, or its files were removed; names the steps of those that are there.
    """
    if step == 0:
        return None
    there = {c.step: c for c in run.checkpoints if not run.given_up(c) and (run.path / c.path).is_dir()}
    if step not in there:
        steps = ", ".join(map(str, sorted(there))) or "none"
        raise UsageError(f"{run.path}: there is no checkpoint of step {step}; there are: {steps}")
    return there[step]


def _segments(run: Run, plan: Plan, first_step: int) -> dict[str, Any]:
    """The segments of a plan from a step on, numbered after the run's."""
    ahead = [s for s in segments_of(plan) if s.end_step > first_step]
    number = max(s.id for s in run.segments) + 1
    parent = run.segment_of(first_step - 1).id if first_step > 1 else None
    renumbered: list[Segment] = []
    for segment in ahead:
        cut = segment.first_step < first_step
        renumbered.append(
            replace(
                segment,
                id=number + len(renumbered),
                parent=renumbered[-1].id if renumbered else parent,
                first_step=max(segment.first_step, first_step),
                skip=None if cut else segment.skip,
            )
        )
    first, *later = [asdict(s) for s in renumbered]
    return {"segment": first, "later": later} if later else {"segment": first}
