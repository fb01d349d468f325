"""A run's engineering log, in its ledger: notes, and papers that go with it (plan, risks, procedures, failed designs).

A note is a text with author and time. A paper is Markdown; each of its versions is a record that holds the whole text,
so that it is chained, signed and branched as everything else is. While a run trains its processes hold the ledger; what
is written then waits beside it, and training takes it in with its next step:

    RUN/notes/NAME.json   one note or version that waits
"""

import hashlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from millstream.audit.heads import head_signer
from millstream.audit.ledger import Ledger, Record, open_ledger
from millstream.audit.runs import Run, open_run
from millstream.canonical import canonical_bytes, digest
from millstream.errors import UsageError
from millstream.files import write_bytes

FOLDER = "notes"
LONGEST = 20_000
"""Characters of a note; what is longer is a paper."""
LARGEST = 1 << 18
"""Bytes of a version of a paper, of UTF-8."""
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Paper:
    """One version of a paper; ``record`` is its record, ``version`` counts from 1."""

    record: Record
    name: str
    title: str
    version: int
    sha256: str
    text: str


def write_log(run_dir: Path, text: str | None, papers: Mapping[str, str], by: str) -> bool:
    """Write a note, new versions of papers, or both, which the note then explains.

    Args:
        run_dir: the run.
        text: the note; None for papers alone.
        papers: Markdown by name.
        by: who writes.

    Returns:
        False where another process holds the ledger and will take in what was written.

    Raises:
        UsageError: there is nothing to write, it is too long, or a name cannot be one.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    signed = {"by": by, "time": now}
    entries = [("paper", paper_body(name, held) | signed) for name, held in papers.items()]
    if text is not None:
        entries.insert(0, ("note", {"text": _fit(text)} | signed))
    if not entries:
        raise UsageError("nothing to note: give a text")
    for number, (kind, body) in enumerate(entries):
        if kind == "paper" and text is not None:
            body["why"] = text.strip()[:200]
        write_bytes(
            run_dir / FOLDER / f"{time.time_ns():020}-{number:03}.json", canonical_bytes({"kind": kind, "body": body})
        )
    try:
        ledger = open_ledger(run_dir)
    except UsageError:
        return False
    with ledger:
        take_notes(run_dir, ledger)
        _sign(open_run(run_dir), ledger)
    return True


def take_notes(run_dir: Path, ledger: Ledger) -> int:
    """Move what waits into the ledger, the oldest first; returns how many records that made."""
    folder = run_dir / FOLDER
    waiting = sorted(folder.glob("*.json")) if folder.is_dir() else []
    if not waiting:
        return 0
    run = open_run(run_dir)
    newest = {name: versions[-1] for name, versions in papers_of(run).items()}
    # A crash may have come between a record and the removal of its file.
    known = {digest(record.body) for record in run.records.of("note")}
    written = 0
    for path in waiting:
        kind, body = _entry(path) or ("", {})
        if kind == "paper":
            written += _append_paper(ledger, newest, body)
        elif kind == "note" and digest(body) not in known:
            ledger.append(kind, body)
            written += 1
        path.unlink(missing_ok=True)
    return written


def record_papers(run: Run, ledger: Ledger, papers: Mapping[str, str]) -> int:
    """Write a version of every paper of a recipe whose text is not the newest one's; returns how many."""
    newest = {name: versions[-1] for name, versions in papers_of(run).items()}
    signed = {"by": "recipe", "time": datetime.now(UTC).isoformat(timespec="seconds")}
    return sum(_append_paper(ledger, newest, paper_body(name, text) | signed) for name, text in papers.items())


def papers_of(run: Run) -> dict[str, list[Paper]]:
    """Versions of a run's papers, the oldest first, by name."""
    papers: dict[str, list[Paper]] = {}
    for record in run.records.of("paper"):
        fields = {name: record.body[name] for name in ("name", "title", "version", "sha256", "text")}
        paper = Paper(record=record, **fields)
        papers.setdefault(paper.name, []).append(paper)
    return papers


def paper_body(name: str, text: str) -> dict[str, Any]:
    """What a record holds of a version, but for its number.

    Raises:
        UsageError: the name cannot be one, or the text is too large.
    """
    if not NAME.fullmatch(name):
        raise UsageError(f"paper '{name}': a name is small letters, digits, - and _, such as failed-designs")
    raw = text.encode()
    if len(raw) > LARGEST:
        raise UsageError(f"paper '{name}': {len(raw)} bytes is too large for the ledger (at most {LARGEST})")
    return {"name": name, "title": _title(name, text), "sha256": hashlib.sha256(raw).hexdigest(), "text": text}


def _title(name: str, text: str) -> str:
    """The first heading; else the name."""
    found = re.search(r"^#\s+(.+?)\s*#*$", text, re.MULTILINE)
    return found[1][:200] if found else re.sub("[-_]+", " ", name).capitalize()


def _append_paper(ledger: Ledger, newest: dict[str, Paper], body: dict[str, Any]) -> int:
    last = newest.get(body["name"])
    if last is not None and last.sha256 == body["sha256"]:
        return 0
    version = last.version + 1 if last else 1
    record = ledger.append("paper", body | {"version": version})
    fields = {name: body[name] for name in ("name", "title", "sha256", "text")}
    newest[body["name"]] = Paper(record=record, version=version, **fields)
    return 1


def _fit(text: str) -> str:
    text = text.strip()
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError("the note is not UTF-8") from error
    if not text:
        raise UsageError("nothing to note: the text is empty")
    if len(text) > LONGEST:
        raise UsageError(
            f"a note has at most {LONGEST:,} characters, this one {len(text):,}; --paper NAME=FILE keeps longer texts"
        )
    return text


def _entry(path: Path) -> tuple[str, dict[str, Any]] | None:
    """What a waiting file holds; None where it is none of ours."""
    try:
        held = orjson.loads(path.read_bytes())
        kind, body = held["kind"], held["body"]
        wanted = ("text", "by", "time") if kind == "note" else ("name", "text", "by", "time")
        if kind not in ("note", "paper") or not all(isinstance(body[name], str) for name in wanted):
            return None
        why = {"why": str(body["why"])} if "why" in body else {}
        own = {"text": _fit(body["text"])} if kind == "note" else paper_body(body["name"], body["text"])
    except (OSError, ValueError, KeyError, TypeError, UsageError):
        return None
    return kind, own | {"by": body["by"], "time": body["time"]} | why


def _sign(run: Run, ledger: Ledger) -> None:
    """Sign a head; whoever has another key than the run's may write, and the next head covers it."""
    try:
        sign = head_signer(run, ledger)
    except UsageError:
        return
    sign()
