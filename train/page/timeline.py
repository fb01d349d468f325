"""What happened in a run, a line a record: when, where in the steps, by whom, why, and the record that says so."""

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from millstream.audit.ledger import Record
from millstream.train.page.history import History

MOST_WEIGHTS = 12
"""Weights of an amendment that are named in its sentence."""
MOST_TEXT = 20_000
"""Characters of a note that the page shows."""


def events(history: History) -> Iterator[dict[str, Any]]:
    """Every record but the steps, in the ledger's order.

    Each has ``seq``, ``hash``, ``kind``, ``step`` (where it belongs on the axis), ``said``; and where the record names
    them ``why``, ``who`` and ``time``.
    """
    for record in history.others():
        kind, step, said = _told(record, history)
        body = record.body
        event = {"seq": record.seq, "hash": record.hash, "kind": kind, "step": step, "said": said}
        weights = body.get("amendment", {}).get("weights") or {}
        if len(weights) > MOST_WEIGHTS:
            event["more"] = ["weights", ", ".join(f"{name} {share}" for name, share in weights.items())]
        for name, field in (("why", "why"), ("who", "by"), ("time", "time")):
            if body.get(field):
                event[name] = str(body[field])[:MOST_TEXT]
        yield event


def _told(record: Record, history: History) -> tuple[str, int, str]:
    """Kind, step and a sentence."""
    body, now = record.body, history.step_at(record.seq)
    match record.kind:
        case "run":
            return "run", 0, f"Run {body['name']} begins, plan {body['plan_id'][:16]}"
        case "segment":
            return _segment(body, history)
        case "attempt":
            after = int(body["checkpoint_step"])
            ranks = f"{body['world']} rank{'s' if body['world'] != 1 else ''}"
            hosts = ", ".join(map(str, body.get("hosts", [])[:4]))
            began = f"continues after step {after}" if after else "begins"
            return (
                "attempt",
                after,
                f"Attempt {body['attempt']} {began}, on {ranks}" + (f" of {hosts}" if hosts else ""),
            )
        case "checkpoint":
            there = (history.run.path / str(body["path"])).is_dir()
            kept = "" if there else "; its files were removed since"
            return (
                "checkpoint",
                int(body["step"]),
                f"Checkpoint of step {body['step']}, digest {body['digest'][:16]}{kept}",
            )
        case "pin":
            held = "is kept as" if body["held"] else "is no longer kept as"
            return "pin", int(body["step"]), f"The checkpoint of step {body['step']} {held} {body['name']}"
        case "corpus":
            about = f"{body['documents']:,} documents, {body['keys']:,} keys, root {body['documents_root'][:16]}"
            return "corpus", now, f"Corpus {body['corpus_id'][:16]} committed to: {about}"
        case "rollback":
            back = f"From step {body['from_step']} back to step {body['to_step']}; what came between is superseded"
            return "rollback", int(body["to_step"]), back
        case "branch" if "of" in body:
            return "branch", int(body["at"]), f"{body['name']} leaves run {body['of'][:16]} after step {body['at']}"
        case "branch":
            return "branch", int(body["at"]), f"Branch {body['name']} leaves after step {body['at']}"
        case "control":
            alike = f"roots differ at {body['roots']}, losses at {body['losses']} of {body['steps']} steps"
            return "control", int(body["at"]), f"A control repeats the steps after {body['at']}: {alike}"
        case "end":
            return "end", int(body["step"]), f"The planned end, step {body['step']}"
        case "forecast" if "scored" in body:
            return "forecast", now, f"Forecast scored: {body['inside']} of {body['points']} points inside its band"
        case "forecast":
            rungs = ", ".join(f"{rung['name']}" for rung in body["rungs"])
            return "forecast", now, f"Forecast of {len(body['series'])} losses registered, from {rungs}"
        case "alert":
            where = f" ({body['domain']})" if body.get("domain") else ""
            return "alert", int(body["step"]), f"{body['detector']}{where}: {body['text']}"
        case "note":
            return "note", now, str(body.get("text", ""))[:MOST_TEXT]
        case "paper":
            return "paper", now, f"{body['title']}, version {body['version']}"
        case other:
            return other, int(body.get("step", now)), _plainly(body)


def _segment(body: dict[str, Any], history: History) -> tuple[str, int, str]:
    segment = body["segment"]
    first = int(segment["first_step"])
    if "amendment" in body:
        return (
            "amendment",
            int(body["amendment"]["from_step"]),
            f"From step {first} on: {amendment_text(body['amendment'])}",
        )
    if "undone" in body:
        undone = ", ".join(f"step {a['from_step']}" for a in body["undone"])
        return "amendment", first, f"From step {first} on as before; undone: the amendments of {undone}"
    phase = history.run.first_plan.phases[int(segment["phase"])].name
    last = int(segment["end_step"]) - 1
    return "segment", first, f"{phase}: steps {first} to {last}, {segment['batch']} sequences a step"


def amendment_text(amendment: dict[str, Any]) -> str:
    """What an amendment changes, in words."""
    parts = []
    if amendment.get("weights"):
        weights = amendment["weights"]
        shown = list(weights.items())
        if len(weights) > MOST_WEIGHTS:
            largest = sorted(shown, key=lambda item: -_share(item[1]))[:5]
            shown = [(name, share if share.startswith("=") else f"{float(share):.4g}") for name, share in largest]
        said = ", ".join(f"{name} {share}" for name, share in shown)
        parts.append(
            f"weights of {len(weights)} domains, most {said}" if len(shown) < len(weights) else f"weights {said}"
        )
    if amendment.get("batch"):
        parts.append(f"{amendment['batch']} sequences a step")
    if amendment.get("skip"):
        parts.append(f"{amendment['skip']} steps' worth of sequences passed over")
    for new in amendment.get("data", ()):
        parts.append(f"{new['domain']} from corpus {new['corpus_id'][:16]}, {new['tokens']:,} tokens")
    if amendment.get("takedowns"):
        tokens = sum(span["end"] - span["start"] for span in amendment["takedowns"])
        parts.append(f"{len(amendment['takedowns'])} documents taken down, {tokens:,} tokens")
    return "; ".join(parts)


def _share(weight: str) -> Fraction:
    """A weight as a number; an exact count of sequences goes by its count."""
    return Fraction(weight.lstrip("="))


def _plainly(body: dict[str, Any]) -> str:
    """A record of a kind that has no sentence of its own: its message, or its fields."""
    for name in ("text", "message", "said"):
        if isinstance(body.get(name), str):
            return str(body[name])[:MOST_TEXT]
    shown = {name: value for name, value in body.items() if name not in ("why", "by", "time", "step")}
    return ", ".join(f"{name} {value}" for name, value in shown.items())[:MOST_TEXT]
