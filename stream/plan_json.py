"""A plan as JSON: what a run freezes, and what every amendment records whole."""

from dataclasses import asdict
from typing import Any

from millstream.errors import InputError
from millstream.stream.plan import ALGORITHMS, Phase, Plan, Tombstone
from millstream.stream.ring import Ring

FORMAT = "millstream-plan/1"


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON values, with its format, id and the versions of its algorithms."""
    domains = []
    for name in plan.domains:
        pieces = [asdict(ring) for ring in plan.pieces(name)]
        for piece in pieces:
            del piece["name"]
        domains.append({"name": name, "pieces": pieces})
    return {
        "format": FORMAT,
        "plan_id": plan.plan_id,
        "algorithms": ALGORITHMS,
        "mixture_digest": plan.mixture_digest,
        "seed": plan.seed,
        "seq_len": plan.seq_len,
        "domains": domains,
        "phases": [asdict(phase) for phase in plan.phases],
        # For readers; they follow from the phases and skips.
        "batches": [list(entry) for entry in plan.batches.entries],
        "skips": [list(skip) for skip in plan.skips],
        "tombstones": [asdict(stone) for stone in plan.tombstones],
        "amendments": list(plan.amendments),
    }


def plan_from_json(raw: Any) -> Plan:
    """Read a frozen plan back.

    Raises:
        InputError: another format or another version of the algorithms.
    """
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise InputError(
            f"expected a plan of format {FORMAT}, found {raw.get('format') if isinstance(raw, dict) else raw!r}"
        )
    if raw["algorithms"] != ALGORITHMS:
        raise InputError(f"the plan was made with {raw['algorithms']}, this version has {ALGORITHMS}")
    return Plan(
        mixture_digest=raw["mixture_digest"],
        seed=raw["seed"],
        seq_len=raw["seq_len"],
        rings=tuple(Ring(name=d["name"], **piece) for d in raw["domains"] for piece in d["pieces"]),
        phases=tuple(Phase(**phase) for phase in raw["phases"]),
        # Plans from before plans could be amended have none of these.
        skips=tuple((first, end) for first, end in raw.get("skips", [])),
        tombstones=tuple(Tombstone(**stone) for stone in raw.get("tombstones", [])),
        amendments=tuple(raw.get("amendments", [])),
    )
