"""``audit verify``: everything a run claims, checked against what lies on the disk.

chain        every ledger record's number, hash, link and canonical form; the hash of run.json
plans        each amended plan is the one before it, amended as recorded, and nothing in it lies before that step
heads        every signed head's signature, and that the records it covers are the ledger's; the log's tiles
steps        each attempt continues where its checkpoint ended; index ranges are the plan's
corpus       every file's size and SHA-256, the manifest's own identity
redactions   where something was redacted: the list is the ledger's, the documents are gone, and only leaves of rows
             that they were in are taken from the ledger
commitments  the roots of keys and documents that the ledger has of each corpus, computed again
checkpoints  every file that a checkpoint record names, where the checkpoint was not removed
losses       the losses of every step's sequences, where the file was not removed
roots        the root of every step, derived again from plan and corpus
"""

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from millstream.audit.commitments import write_commitments
from millstream.audit.corpora import open_corpora
from millstream.audit.heads import check_heads
from millstream.audit.ledger import FILE, check_chain, stated_hashes
from millstream.audit.ledger_index import FILE as INDEX
from millstream.audit.losses import check_losses
from millstream.audit.records import fed_step, index_fits, scan_records
from millstream.audit.redaction import check_redactions
from millstream.audit.replay import replay
from millstream.audit.runs import Run
from millstream.errors import CheckFailed, InputError, UsageError
from millstream.files import sha256_file
from millstream.stream.amend import amend, amendment_from_json
from millstream.stream.corpora import Corpora, Corpus
from millstream.stream.plan import Plan
from millstream.stream.plan_json import plan_from_json
from millstream.stream.roots import Root, check_file


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One check's outcome: how many things were looked at, and what was found wrong."""

    name: str
    looked_at: int
    findings: tuple[str, ...]


def verify_run(run: Run, place: Root | str | None = None) -> Iterator[Check]:
    """Run all checks, one after another; findings are collected, not raised.

    Args:
        run: the run.
        place: where its corpus lies now, as of ``open_corpora``.
    """
    yield _check("chain", lambda: _chain(run))
    try:
        # Not by the index, which nothing vouches for.
        run = replace(run, records=scan_records(run.path))
    except InputError:
        return
    yield _check("heads", lambda: check_heads(run, stated_hashes(run.path / FILE)))
    yield _check("plans", lambda: _plans(run))
    yield _check("steps", lambda: _steps(run))
    corpora: dict[str, Corpus] = {}

    def open_and_check() -> tuple[int, list[str]]:
        corpora.update(open_corpora(run, place))
        return _files(corpora)

    yield _check("corpus", open_and_check)
    if any(c.manifest.redactions for c in corpora.values()) or next(run.records.of("redaction"), None):
        yield _check("redactions", lambda: check_redactions(run, corpora))
    yield _check("commitments", lambda: _commitments(run, corpora))
    yield _check("checkpoints", lambda: _checkpoints(run))
    yield _check("losses", lambda: check_losses(run))
    yield _check("roots", lambda: _roots(run, corpora))


def _check(name: str, look: Callable[[], tuple[int, list[str]]]) -> Check:
    try:
        looked_at, findings = look()
    except (CheckFailed, InputError, UsageError) as error:
        looked_at, findings = 0, [str(error)]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        # Records that somebody wrote by hand; the checks before this one say which.
        looked_at, findings = 0, [f"the ledger's records are not of their kinds: {error!r}"]
    return Check(name=name, looked_at=looked_at, findings=tuple(findings))


def _chain(run: Run) -> tuple[int, list[str]]:
    count = check_chain(run.path)
    found = sha256_file(run.path / "run.json")
    wanted = run.records[0].body["run_json"]
    findings = [f"{run.path / 'run.json'}: altered: {found[:16]}, recorded {wanted[:16]}"] if found != wanted else []
    if not index_fits(scan_records(run.path)):
        findings.append(f"{run.path / INDEX}: is not what the ledger gives; remove it, it is made anew")
    return count, findings


def _steps(run: Run) -> tuple[int, list[str]]:
    findings = []
    expected: dict[int, int] = {attempt.number: attempt.checkpoint_step + 1 for attempt in run.attempts}
    fed_by: dict[int, set[int]] = defaultdict(set)
    count = 0
    for record in run.records:
        if record.kind != "step":
            continue
        count += 1
        fed_by[record.body["attempt"]].add(record.body["step"])
        body, where = record.body, f"{run.path}: record {record.seq}"
        if body["attempt"] not in expected:
            findings.append(f"{where}: step {body['step']} belongs to attempt {body['attempt']}, which never began")
            continue
        if body["step"] != expected[body["attempt"]]:
            findings.append(f"{where}: step {body['step']}, expected step {expected[body['attempt']]}")
        expected[body["attempt"]] = body["step"] + 1
        plan = run.plans.get(body["segment"])
        if plan is None or not 1 <= body["step"] <= plan.total_steps:
            findings.append(f"{where}: step {body['step']} is outside the plan")
            continue
        first, end = plan.span(body["step"])
        planned = (first, end - first, (end - first) * plan.seq_len)
        if (body["first_index"], body["sequences"], body["tokens"]) != planned:
            findings.append(f"{where}: step {body['step']} was fed other sequences than planned")
    fed_before: set[int] = set()
    for attempt in run.attempts:
        if attempt.checkpoint_step and attempt.checkpoint_step not in fed_before:
            findings.append(
                f"attempt {attempt.number} continues after step {attempt.checkpoint_step}, which was never fed"
            )
        fed_before |= fed_by[attempt.number]
    return count, findings


def _plans(run: Run) -> tuple[int, list[str]]:
    findings = []
    versions = [run.first_plan]
    last_step = 0
    for record in run.records:
        if record.kind == "step":
            last_step = int(record.body["step"])
        elif record.kind == "attempt":
            last_step = int(record.body["checkpoint_step"])
        elif record.kind == "rollback":
            last_step = int(record.body["to_step"])
        elif record.kind == "branch" and "of" in record.body:
            last_step = int(record.body["at"])
        elif record.kind == "segment" and "plan" in record.body:
            plan = plan_from_json(record.body["plan"])
            findings += [f"{run.path}: record {record.seq}: {why}" for why in _wrong(plan, versions, last_step)]
            if record.body["plan"]["plan_id"] != plan.plan_id:
                findings.append(f"{run.path}: record {record.seq}: the plan is not the one that its id names")
            versions.append(plan)
    return len(versions), findings


def _wrong(plan: Plan, versions: list[Plan], last_step: int) -> Iterator[str]:
    """What is wrong with a plan that follows others once ``last_step`` was fed."""
    known = next((v for v in versions if v.amendments == plan.amendments), None)
    before = next((v for v in versions if v.amendments == plan.amendments[:-1]), None)
    if known is None:
        known = amend(before, amendment_from_json(plan.amendments[-1])) if before else None
    if plan != known:
        yield "the plan is no earlier one, amended as it says"
    old, new = versions[-1].amendments, plan.amendments
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
    for raw in (*old[same:], *new[same:]):
        if int(raw["from_step"]) <= last_step:
            yield f"it changes step {raw['from_step']}, which was fed already"


def _files(corpora: Corpora) -> tuple[int, list[str]]:
    """Every file of every corpus; that each is the corpus of its id was seen when it was opened."""
    looked_at, findings = 0, []
    for corpus in corpora.values():
        for entry in corpus.manifest.files():
            looked_at += 1
            try:
                check_file(corpus.root, entry)
            except InputError as error:
                findings.append(str(error))
    return looked_at, findings


def _commitments(run: Run, corpora: Corpora) -> tuple[int, list[str]]:
    findings, looked_at = [], 0
    for corpus_id, recorded in run.corpus_roots.items():
        corpus = corpora.get(corpus_id)
        if recorded is None or corpus is None:
            continue
        looked_at += 1
        with tempfile.TemporaryDirectory() as temporary:
            derived = write_commitments(corpus.root, corpus.manifest, Path(temporary) / "again")
        if (derived.keys_root, derived.documents_root) != recorded:
            findings.append(
                f"{corpus.root}: the ledger has other roots of corpus {corpus_id[:16]} than are derived from it"
            )
    return looked_at, findings


def _checkpoints(run: Run) -> tuple[int, list[str]]:
    looked_at, findings = 0, []
    # A step that was trained again was saved again, over its older checkpoint.
    newest = {saved.path: saved for saved in run.checkpoints}
    for saved in newest.values():
        folder = run.path / saved.path
        if not folder.resolve().is_relative_to(run.path.resolve()):
            findings.append(f"{run.path}: the checkpoint of step {saved.step} names a folder outside the run")
            continue
        if not folder.exists():
            continue
        for name, wanted in saved.files.items():
            looked_at += 1
            path = folder / name
            if not path.is_file():
                findings.append(f"{path}: missing")
            elif sha256_file(path) != wanted:
                findings.append(f"{path}: altered: its SHA-256 is not the one recorded")
    return looked_at, findings


def _roots(run: Run, corpora: Corpora) -> tuple[int, list[str]]:
    if not corpora:
        raise InputError(f"{run.path}: without its corpora no root can be derived")
    steps = sorted(map(fed_step, run.records.of("step")), key=lambda fed: (fed.step, fed.seq))
    findings = [
        f"step {r.fed.step} (attempt {r.fed.attempt}): root {r.fed.root[:16]} in the ledger, {r.root[:16]} derived"
        for r in replay(run, corpora, steps)
        if not r.equal
    ]
    return len(steps), findings
