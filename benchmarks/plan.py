"""The plan at the size of Marin's open run: 200 domains, 18T tokens, a swap, both directions.

Prints a table of figures, then one JSON object as its last line.
"""

import json
import resource
import sys
import time
from decimal import Decimal

import numpy as np

from millstream.canonical import canonical_bytes
from millstream.stream.plan import Phase, Plan, plan_from_json, plan_to_json
from millstream.stream.quota import quotas
from millstream.stream.ring import Ring
from millstream.stream.segments import amend
from millstream.stream.steps import BatchSchedule

DOMAINS, SEQ_LEN, BATCH, STEPS, SWAP = 200, 4096, 11_264, 390_251, 108_000


def marin_plan() -> Plan:
    """Two phases 80/20 over 200 domains with log-normal sizes that sum to about 18.75T tokens."""
    rng = np.random.default_rng(0)
    sizes = rng.lognormal(0, 1.6, DOMAINS)
    tokens = {f"domain-{i:03}": int(s) for i, s in enumerate(sizes / sizes.sum() * 18.75e12)}
    weights = {name: str(Decimal(size) / Decimal(10**9)) for name, size in tokens.items()}
    cut, end = 312_201 * BATCH, STEPS * BATCH
    phases, cursors = [], dict.fromkeys(tokens, 0)
    for number, (first, last) in enumerate(((0, cut), (cut, end))):
        phase = Phase(
            number=number,
            name=f"phase{number}",
            first=first,
            end=last,
            window=BATCH,
            batch=BATCH,
            weights=weights,
            quotas=quotas({n: Decimal(w) for n, w in weights.items()}),
            exact={},
            cursors=cursors,
        )
        cursors = {n: cursors[n] + phase.taken(n) for n in tokens}
        phases.append(phase)
    rings = tuple(
        Ring(name=n, tokens=t, documents=t // 1000, corpus_id="0" * 64, limited=False) for n, t in tokens.items()
    )
    return Plan(
        mixture_digest="0" * 64,
        seed=0,
        seq_len=SEQ_LEN,
        rings=rings,
        phases=tuple(phases),
        batches=BatchSchedule(((1, BATCH),)),
    )


def best(call: object, repeats: int) -> float:
    """Least seconds of several calls."""
    times = []
    for n in range(repeats):
        began = time.perf_counter()
        call(n)  # type: ignore[operator]
        times.append(time.perf_counter() - began)
    return min(times)


def worst_deviation(plan: Plan) -> float:
    """Largest distance of any domain from its exact share, at the end of 400 steps spread over the run."""
    worst = 0.0
    for step in np.linspace(1, STEPS, 400).astype(int).tolist():
        end = plan.span(step)[1]
        phase = plan.phase_of_step(step)
        for name, q in phase.quotas.items():
            from millstream.stream.quota import count

            found = count(phase.tree, name, end - phase.first)
            worst = max(worst, abs(found - (end - phase.first) * q / 2**28))
    return worst


def main() -> None:
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    swapped = amend(marin_plan(), SWAP, weights={f"domain-{i:03}": str(1 + i) for i in range(DOMAINS)})
    raw = canonical_bytes(plan_to_json(swapped))
    parsed = json.loads(raw)

    def open_plan(_: int) -> None:
        plan_from_json(parsed).locate(np.array([STEPS * BATCH - 1], np.uint64))

    open_ms = best(open_plan, 5) * 1e3
    plan = plan_from_json(parsed)
    step_ms = best(lambda n: plan.locate(np.arange(*plan.span(200_000 + n), dtype=np.uint64)), 10) * 1e3
    ahead = 64
    many_s = best(lambda n: plan.locate(np.arange(n * BATCH, (n + ahead) * BATCH, dtype=np.uint64)), 3)
    rng = np.random.default_rng(1)
    documents = [(f"domain-{d:03}", float(at)) for d, at in zip(rng.integers(0, 200, 60), rng.random(60), strict=True)]
    exposures, doc_times = 0, []
    for name, at in documents:
        start = int(at * (plan.ring(name).tokens - 5000))
        began = time.perf_counter()
        found = plan.exposures(name, start, start + 900)
        doc_times.append((time.perf_counter() - began) / max(1, -(-len(found.index) // 4)))
        exposures += len(found.index)
    figures = {
        "plan_bytes": len(raw),
        "open_ms": round(open_ms, 2),
        "step_ms": round(step_ms, 2),
        "sequences_per_s": int(ahead * BATCH / many_s),
        "doc_ms": round(float(np.median(doc_times)) * 1e3, 2),
        "exposures": exposures,
        "worst_deviation": round(worst_deviation(plan), 3),
        "rss_over_start_mb": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident) / 1024, 1),
    }
    for name, value in figures.items():
        print(f"{name:<20} {value:>14,}", file=sys.stderr)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
