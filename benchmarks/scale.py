"""The plan of Marin's open run: 200 domains, 18T tokens, two phases, a swap at step 108,000, one exact domain.

The mixture is frozen and amended as a run's would be. Every step of the run is compared with the planned shares;
opening, the way back and memory are measured in fresh processes. Prints a table, then one JSON object as its last line.
"""

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DOMAINS, SEQ_LEN, BATCH, STEPS, SWAP = 200, 4096, 11_264, 390_251, 108_000
SMALLEST, LARGEST, TOTAL = 3_385_150, 676_090_234_529, 23_106_000_000_000
EXACT = 800
AHEAD = 64
BARS = {"plan_kb": 100, "open_ms": 50, "forward_per_s": 1e6, "inverse_ms": 5, "max_deviation": 2, "rss_mb": 100}


def domain_sizes() -> dict[str, int]:
    """Tokens of 40 clusters x 5 quality levels: published are the smallest, the largest and the sum."""
    places = np.linspace(0, 1, DOMAINS)
    low, high = 0.01, 4.0
    for _ in range(60):
        power = (low + high) / 2
        sizes = SMALLEST * (LARGEST / SMALLEST) ** (places**power)
        low, high = (power, high) if sizes.sum() > TOTAL else (low, power)
    names = [f"c{c:02}q{q}" for c in range(40) for q in range(5)]
    # An order that follows neither cluster nor quality.
    order = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    order.remove("c22q0")
    order.remove("c26q4")
    return dict(zip(("c22q0", *order, "c26q4"), sizes.astype(np.int64).tolist(), strict=True))


def weights_of(sizes: dict[str, int], lift: float) -> dict[str, str]:
    """Shares that favour quality, with ten significant digits; none for the smallest domain."""
    raw = {name: size * (1 + int(name[4])) ** lift for name, size in sizes.items()}
    total = sum(raw.values())
    return {name: f"{value / total:.16f}"[:16] for name, value in raw.items() if name != "c22q0"}


def marin_recipe() -> tuple[Any, Any]:
    """The mixture's two phases, and the manifest of a corpus that nobody has."""
    from millstream.mixture.recipe import Mixture
    from millstream.tokenize.manifest import DomainManifest, FileEntry, Manifest, TokenizerIdentity

    sizes = domain_sizes()
    entry = FileEntry(path="tokenizer.json", bytes=0, sha256="0" * 64)
    domains = tuple(
        DomainManifest(
            name=n, tokens=t, documents=t // 1000, bytes=4 * t, shards=(), holdout=None, read=t // 1000, exclusions={}
        )
        for n, t in sizes.items()
    )
    identity = TokenizerIdentity(file=entry, vocab_size=128_256, eos_id=0, bos_id=None, dtype="uint32", probe="")
    manifest = Manifest(corpus_digest="", corpus={}, tokenizer=identity, domains=domains, exclusions=(), build={})
    late = weights_of(sizes, 2)
    mixture = Mixture.model_validate(
        {
            "seq_len": SEQ_LEN,
            "batch": BATCH,
            "steps": STEPS,
            "max_epochs": "8",
            "phases": [
                {"name": "pretrain", "weights": weights_of(sizes, 0)},
                {"name": "midtrain", "weights": {**late, "c22q0": {"sequences": EXACT}}},
            ],
        }
    )
    return mixture, manifest


def swap() -> Any:
    """The swap inside the first phase."""
    from millstream.stream.amend import Amendment

    return Amendment(from_step=SWAP, weights=weights_of(domain_sizes(), 0.7))


def marin_plan() -> Any:
    """The two phases, frozen; then the swap."""
    from millstream.stream.amend import amend
    from millstream.stream.freeze import freeze_plan

    mixture, manifest = marin_recipe()
    return amend(freeze_plan(mixture, manifest, Path()), swap())


def read_plan(path: Path) -> Any:
    import orjson

    from millstream.stream.plan_json import plan_from_json

    return plan_from_json(orjson.loads(path.read_bytes()))


@dataclass(frozen=True)
class Deviations:
    """Largest distance in sequences at the end of any step, for each domain: (domains,)."""

    planned: NDArray[np.float64]
    """From what the plan holds for that step: the phase's cursor and its share of the phase so far."""
    run: NDArray[np.float64]
    """From the shares of all phases so far, without the cursors' roundings at the borders."""
    written: NDArray[np.float64]
    """From the weights as written, over all phases so far."""


def deviations(plan: Any) -> Deviations:
    """Compare every step of the run."""
    from millstream.stream.quota import counts
    from millstream.stream.summary import written_share

    names = list(plan.domains)
    worst = {kind: np.zeros(len(names)) for kind in ("planned", "run", "written")}
    before = {kind: np.zeros(len(names)) for kind in ("run", "written")}
    for phase in plan.phases:
        items = np.arange(BATCH, phase.length + 1, BATCH, dtype=np.uint64)
        rows = [names.index(name) for name in phase.tree.domains]
        cursors = np.array([phase.cursors[name] for name in names], np.int64)
        realised = np.repeat(cursors[:, None], items.size, axis=1)
        realised[rows] += counts(phase.tree, items)
        check_sequences(plan, phase, realised)
        free = 1 - sum(phase.exact.values()) / phase.length
        share, written = np.zeros(len(names)), np.zeros(len(names))
        for row, name in zip(rows, phase.tree.domains, strict=True):
            exact = phase.exact.get(name)
            share[row] = phase.quotas[name] / 2**28 * free if exact is None else exact / phase.length
            written[row] = float(written_share(phase, name))
        ends = items.astype(np.float64)
        for kind, start, part in (
            ("planned", cursors, share),
            ("run", before["run"], share),
            ("written", before["written"], written),
        ):
            off = np.abs(realised - start[:, None] - part[:, None] * ends).max(axis=1)
            np.maximum(worst[kind], off, out=worst[kind])
        before["run"] += share * phase.length
        before["written"] += written * phase.length
    return Deviations(**worst)


def check_sequences(plan: Any, phase: Any, realised: NDArray[np.int64]) -> None:
    """Locate every 500th step, some in between, and both ends of a phase: its sequences must be those counted."""
    steps = phase.length // BATCH
    chosen = {0, 1, steps - 1, *range(0, steps, 500), *range(7, steps, 1777)}
    for step in sorted(chosen):
        first = phase.first + step * BATCH
        found = plan.locate(np.arange(first, first + BATCH, dtype=np.uint64)).domain
        before = realised[:, step - 1] if step else np.array([phase.cursors[n] for n in plan.domains])
        if (np.bincount(found, minlength=len(plan.domains)) != realised[:, step] - before).any():
            raise SystemExit(f"phase {phase.number}, step {step}: located sequences differ from the counted ones")


def forward_per_s(plan: Any) -> float:
    """Sequences located in a second of processor time, mapped ahead, in the middle of each phase."""
    rates = []
    for phase in plan.phases:
        at = (phase.first + phase.length // 2) // BATCH * BATCH
        seconds = min(
            cpu_seconds(lambda n, at=at: plan.locate(np.arange(at + n, at + n + AHEAD * BATCH, dtype=np.uint64)))
            for _ in range(3)
        )
        rates.append(AHEAD * BATCH / seconds)
    return min(rates)


def cpu_seconds(call: Callable[[int], object]) -> float:
    """Least processor time of three calls."""
    times = []
    for n in range(3):
        began = time.process_time()
        call(n * BATCH)
        times.append(time.process_time() - began)
    return min(times)


def anonymous_kb() -> int:
    """Anonymous memory of this process."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1])
    raise SystemExit("/proc/self/smaps_rollup has no line 'Anonymous'")


def child(what: str, path: Path, number: int) -> None:
    """What is measured in a fresh process; prints one JSON value."""
    before = anonymous_kb()
    import orjson  # noqa: F401

    import millstream.stream.plan  # noqa: F401

    if what == "memory":
        plan = read_plan(path)
        plan.locate(np.arange(*plan.span(STEPS // 2), dtype=np.uint64))
        found = plan.exposures("c26q4", 10**9, 10**9 + 900)
        assert len(found.index)
        print((anonymous_kb() - before) / 1024)
        return
    began = time.perf_counter()
    plan = read_plan(path)
    if what == "open":
        plan.locate(np.array([plan.total_sequences - 1], np.uint64))
        print((time.perf_counter() - began) * 1e3)
        return
    name = plan.domains[number * 37 % DOMAINS]
    start, length = plan.pieces(name)[0].tokens * (number % 7) // 8, (900, 9000)[number % 2]
    began = time.perf_counter()
    found = plan.exposures(name, start, start + length)
    took = (time.perf_counter() - began) * 1e3
    back = plan.locate(found.index)
    inside = (start - 1 - back.start) % plan.pieces(name)[0].tokens
    ahead = (back.start - start) % plan.pieces(name)[0].tokens
    assert ((inside < SEQ_LEN) | (ahead < length)).all(), "an exposure does not hold the document"
    print(json.dumps([took, len(found.index)]))


def fresh(what: str, path: Path, number: int = 0) -> Any:
    """Run ``child`` in a new process."""
    command = [sys.executable, __file__, "--child", what, str(path), str(number)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def measure(repeats: int) -> dict[str, float]:
    from millstream.canonical import canonical_bytes
    from millstream.stream.plan_json import plan_to_json

    plan = marin_plan()
    small = "c22q0"
    if plan.consumed(small) != EXACT:
        raise SystemExit(f"'{small}' gets {plan.consumed(small)} sequences, not {EXACT}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        path.write_bytes(canonical_bytes(plan_to_json(plan)))
        opened = [fresh("open", path) for _ in range(repeats)]
        inverse = [fresh("inverse", path, n) for n in range(4 * repeats)]
        memory = fresh("memory", path)
        size = path.stat().st_size
        plan = read_plan(path)
    few = [took for took, exposures in inverse if 1 <= exposures <= 4]
    off = deviations(plan)
    print_domains(plan, off)
    print(
        f"{len(few)} documents of 1 to 4 exposures, slowest {max(few):.2f} ms",
        file=sys.stderr,
    )
    return {
        "plan_kb": round(size / 1000, 1),
        "open_ms": round(statistics.median(opened), 2),
        "forward_per_s": int(forward_per_s(plan)),
        "inverse_ms": round(statistics.median(few), 2),
        "max_deviation": round(float(off.planned.max()), 3),
        "rss_mb": round(memory, 1),
    }


def print_domains(plan: Any, off: Deviations) -> None:
    """The domains that stray furthest from the plan, the run's shares and the weights, the smallest and the largest."""
    furthest = [np.argsort(-values)[:3].tolist() for values in (off.planned, off.run, off.written)]
    titles = ("off plan", "off run", "off written")
    print(
        f"{'domain':<8} {'tokens':>15} {'sequences':>12} {'epochs':>7} {titles[0]:>9} {titles[1]:>8} {titles[2]:>12}",
        file=sys.stderr,
    )
    for row in dict.fromkeys([*furthest[0], *furthest[1], *furthest[2], 0, DOMAINS - 1]):
        ring = plan.rings[row]
        taken = plan.consumed(ring.name)
        print(
            f"{ring.name:<8} {ring.tokens:>15,} {taken:>12,} {taken / (ring.tokens // SEQ_LEN):>7.2f} "
            f"{off.planned[row]:>9.3f} {off.run[row]:>8.3f} {off.written[row]:>12.3f}",
            file=sys.stderr,
        )
    borders = ", ".join(f"{p.name} from step {p.first // BATCH + 1:,}" for p in plan.phases)
    print(
        f"{borders}\nfurthest of all: {off.planned.max():.3f} from the plan, {off.run.max():.3f} from the shares of "
        f"the whole run, {off.written.max():.3f} from the weights as written",
        file=sys.stderr,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=7, help="fresh processes for each timing")
    parser.add_argument("--child", nargs=3, metavar=("WHAT", "PLAN", "NUMBER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child[0], Path(given.child[1]), int(given.child[2]))
        return
    figures = measure(given.repeats)
    for name, value in figures.items():
        bar = f"{'>=' if name == 'forward_per_s' else '<'} {BARS[name]:,.0f}"
        print(f"{name:<16} {value:>14,}   {bar}", file=sys.stderr)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
