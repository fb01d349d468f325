"""``audit verify``: everything a run claims, checked against what lies on the disk.

chain        every ledger record's number, hash, link and canonical form; the hash of run.json
steps        each attempt continues where its checkpoint ended; index ranges are the plan's
corpus       every file's size and SHA-256, the manifest's own identity
checkpoints  every file that a checkpoint record names, where the checkpoint was not removed
roots        the root of every step, derived again from plan and corpus
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from millstream.audit.ledger import check_chain
from millstream.audit.replay import replay
from millstream.audit.runs import Run
from millstream.errors import CheckFailed, InputError
from millstream.files import sha256_file
from millstream.stream.reader import open_stream
from millstream.stream.roots import Root, check_file, read_corpus


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One check's outcome: how many things were looked at, and what was found wrong."""

    name: str
    looked_at: int
    findings: tuple[str, ...]


def verify_run(run: Run, corpus_root: Root) -> Iterator[Check]:
    """Run all checks, one after another; findings are collected, not raised."""
    yield _check("chain", lambda: _chain(run))
    yield _check("steps", lambda: _steps(run))
    yield _check("corpus", lambda: _corpus(run, corpus_root))
    yield _check("checkpoints", lambda: _checkpoints(run))
    yield _check("roots", lambda: _roots(run, corpus_root))


def _check(name: str, look: Callable[[], tuple[int, list[str]]]) -> Check:
    try:
        looked_at, findings = look()
    except (CheckFailed, InputError) as error:
        looked_at, findings = 0, [str(error)]
    return Check(name=name, looked_at=looked_at, findings=tuple(findings))


def _chain(run: Run) -> tuple[int, list[str]]:
    count = check_chain(run.path)
    found = sha256_file(run.path / "run.json")
    wanted = run.records[0].body["run_json"]
    return count, [] if found == wanted else [f"{run.path / 'run.json'}: altered: {found[:16]}, recorded {wanted[:16]}"]


def _steps(run: Run) -> tuple[int, list[str]]:
    findings = []
    expected: dict[int, int] = {attempt.number: attempt.checkpoint_step + 1 for attempt in run.attempts}
    count = 0
    for record in run.records:
        if record.kind != "step":
            continue
        count += 1
        body, where = record.body, f"{run.path}: record {record.seq}"
        if body["attempt"] not in expected:
            findings.append(f"{where}: step {body['step']} belongs to attempt {body['attempt']}, which never began")
            continue
        if body["step"] != expected[body["attempt"]]:
            findings.append(f"{where}: step {body['step']}, expected step {expected[body['attempt']]}")
        expected[body["attempt"]] = body["step"] + 1
        if not 1 <= body["step"] <= run.plan.total_steps:
            findings.append(f"{where}: step {body['step']} is outside the plan")
            continue
        first, end = run.plan.span(body["step"])
        planned = (first, end - first, (end - first) * run.plan.seq_len)
        if (body["first_index"], body["sequences"], body["tokens"]) != planned:
            findings.append(f"{where}: step {body['step']} was fed other sequences than planned")
    fed_before: set[int] = set()
    for attempt in run.attempts:
        if attempt.checkpoint_step and attempt.checkpoint_step not in fed_before:
            findings.append(
                f"attempt {attempt.number} continues after step {attempt.checkpoint_step}, which was never fed"
            )
        fed_before |= {s for s, fed in run.fed.items() if any(f.attempt == attempt.number for f in fed)}
    return count, findings


def _corpus(run: Run, root: Root) -> tuple[int, list[str]]:
    manifest = read_corpus(root)
    findings = []
    if manifest.corpus_id != run.info["corpus"]["id"]:
        findings.append(f"{root}: corpus {manifest.corpus_id[:16]}, the run used {run.info['corpus']['id'][:16]}")
    files = manifest.files()
    for entry in files:
        try:
            check_file(root, entry)
        except InputError as error:
            findings.append(str(error))
    return len(files), findings


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


def _roots(run: Run, root: Root) -> tuple[int, list[str]]:
    stream = open_stream(run.plan, root)
    steps = [fed for step in sorted(run.fed) for fed in run.fed[step]]
    findings = [
        f"step {r.fed.step} (attempt {r.fed.attempt}): root {r.fed.root[:16]} in the ledger, {r.root[:16]} derived"
        for r in replay(stream, steps)
        if not r.equal
    ]
    return len(steps), findings
