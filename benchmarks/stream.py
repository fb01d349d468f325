"""Reading tokens: Millstream's stream against a plain memmap gather of the same rows, and against its peers.

One corpus of random tokens in 4 domains, batches of 8 x 4,096 tokens (ours carry one token more, the last target),
page cache warm. Every trial is a fresh process; trials of ours and of the other side take turns. Prints a table, then
one JSON object as its last line.

Peers run under the interpreter given with --peers, since some of them pin an older numpy.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from peers import PEERS, make_peer, peer_batches, peer_resume_at_scale

DOMAINS = {"web": 200_000_000, "code": 120_000_000, "math": 60_000_000, "wiki": 20_000_000}
WEIGHTS = {"web": "0.5", "code": "0.3", "math": "0.15", "wiki": "0.05"}
VOCAB, SEQ_LEN, BATCH = 128_000, 4096, 8
SHARD_TOKENS = 50_000_000
LONG = 10**9
HELD = 16
BARS = {"of_memmap_0w": 1.0, "of_memmap_2w": 1.0, "vs": 3.0, "resume_ms": 100.0, "resume_rss_mb": 100.0}


# --- the corpus ---


def make_corpus(root: Path) -> None:
    """Flat files of random tokens with document lengths, the same as shards, and two plans over them."""
    import polars as pl

    from millstream.canonical import canonical_bytes
    from millstream.mixture.recipe import Mixture
    from millstream.stream.freeze import freeze_plan
    from millstream.stream.plan_json import plan_to_json
    from millstream.tokenize.manifest import (
        DOCUMENT_COLUMNS,
        DomainManifest,
        FileEntry,
        Manifest,
        TokenizerIdentity,
        write_manifest,
    )
    from millstream.tokenize.shards import shard_name, write_shard

    (root / "flat").mkdir(parents=True)
    domains = []
    for number, (name, total) in enumerate(DOMAINS.items()):
        rng = np.random.default_rng([7, number])
        lengths: list[int] = []
        shards = []
        with (root / "flat" / f"{name}.bin").open("wb") as flat:
            for shard in range(-(-total // SHARD_TOKENS)):
                size = min(SHARD_TOKENS, total - shard * SHARD_TOKENS)
                counts = document_lengths(rng, size)
                tokens = rng.integers(0, VOCAB, size, np.uint32)
                tokens.tofile(flat)
                keys = [f"{number}-{shard}-{n}".encode().ljust(16, b" ") for n in range(len(counts))]
                columns: dict[str, Any] = dict.fromkeys(DOCUMENT_COLUMNS)
                table = pl.DataFrame(
                    {**columns, "doc_key": keys, "n_tokens": counts, "score": None}, schema_overrides={"n_tokens": int}
                )
                shards.append(
                    write_shard(root / "corpus", shard_name(name, shard), table, tokens, sum(lengths), 1 << 20)
                )
                lengths += counts.tolist()
        np.save(root / "flat" / f"{name}.len.npy", np.array(lengths))
        domains.append(
            DomainManifest(
                name=name,
                tokens=total,
                documents=len(lengths),
                bytes=4 * total,
                shards=tuple(shards),
                holdout=None,
                read=len(lengths),
                exclusions={},
            )
        )
    entry = FileEntry(path="tokenizer.json", bytes=0, sha256="0" * 64)
    identity = TokenizerIdentity(file=entry, vocab_size=VOCAB, eos_id=0, bos_id=None, dtype="uint32", probe="")
    manifest = Manifest(
        corpus_digest="", corpus={}, tokenizer=identity, domains=tuple(domains), exclusions=(), build={}
    )
    write_manifest(root / "corpus", manifest)
    for file, sequences in (("plan.json", 4_000_000), ("long.json", LONG)):
        mixture = Mixture.model_validate(
            {
                "seq_len": SEQ_LEN,
                "batch": BATCH,
                "steps": sequences // BATCH,
                "max_epochs": "100000",
                "phases": [{"name": "all", "weights": WEIGHTS}],
            }
        )
        (root / file).write_bytes(canonical_bytes(plan_to_json(freeze_plan(mixture, manifest, root / "corpus"))))


def document_lengths(rng: np.random.Generator, total: int) -> Any:
    """Lengths of log-normal documents, about 1,000 tokens each, that sum to ``total``."""
    lengths = np.clip(rng.lognormal(6.2, 1.2, total // 400).astype(np.int64), 16, 200_000)
    ends = np.cumsum(lengths)
    last = int(np.searchsorted(ends, total))
    lengths = lengths[: last + 1]
    lengths[-1] -= ends[last] - total
    return lengths


def open_at(root: Path, plan: str) -> Any:
    import orjson

    from millstream.stream.plan_json import plan_from_json
    from millstream.stream.reader import open_stream

    return open_stream(plan_from_json(orjson.loads((root / plan).read_bytes())), root / "corpus")


# --- what is measured: iterators over batches ---


def ours(root: Path, workers: int) -> Iterator[Any]:
    """The tensors that a trainer gets: int64, (8, 4097)."""
    from millstream.stream.torch_data import StepIterator

    for item in StepIterator(open_at(root, "plan.json"), ahead=HELD * workers):
        yield item["tokens"]


def ours_raw(root: Path, workers: int) -> Iterator[Any]:
    """The same in the corpus's dtype, as arrays."""
    stream = open_at(root, "plan.json")
    for batch in stream.iterate(ahead=HELD * workers):
        yield batch.tokens


def planned_rows(root: Path) -> list[tuple[int, int]]:
    """Domain and first token of the rows of the plan's first 16,384 batches."""
    stream = open_at(root, "plan.json")
    located = stream.plan.locate(np.arange(BATCH << 14, dtype=np.uint64))
    last = np.array(list(DOMAINS.values()))[located.domain] - SEQ_LEN - 1
    return list(zip(located.domain.tolist(), np.minimum(located.start, last).tolist(), strict=True))


def gathered(root: Path, rows: list[tuple[int, int]], kind: str, worker: int, workers: int) -> Iterator[Any]:
    """A gather of rows that are known beforehand from flat files, into a new tensor a batch."""
    import torch

    maps = [np.memmap(root / "flat" / f"{name}.bin", np.uint32, mode="r") for name in DOMAINS]
    if kind.startswith("bare"):
        # Slices of np.memmap are objects of its class, which take as long to make as a row takes to copy.
        maps = [np.asarray(mapped) for mapped in maps]
    dtype = torch.int64 if kind.endswith("int64") else torch.uint32
    step = worker
    while True:
        out = torch.empty((BATCH, SEQ_LEN + 1), dtype=dtype)
        array = out.numpy()
        at = step * BATCH % len(rows)
        for row in range(BATCH):
            domain, start = rows[at + row]
            array[row] = maps[domain][start : start + SEQ_LEN + 1]
        yield out
        step += workers


def memmap(root: Path, workers: int, kind: str = "int64") -> Iterator[Any]:
    """The gather in the caller's thread, or in as many threads."""
    import queue
    import threading

    rows = planned_rows(root)
    if not workers:
        yield from gathered(root, rows, kind, 0, 1)
    queues: list[queue.Queue[Any]] = [queue.Queue(8) for _ in range(workers)]

    def work(worker: int) -> None:
        for batch in gathered(root, rows, kind, worker, workers):
            queues[worker].put(batch)

    for worker in range(workers):
        threading.Thread(target=work, args=(worker,), daemon=True).start()
    while True:
        for waiting in queues:
            yield waiting.get()


def memmap_processes(root: Path, workers: int, kind: str = "int64") -> Iterator[Any]:
    """The gather in a DataLoader's worker processes."""
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    rows = planned_rows(root)

    class Gather(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            info = get_worker_info()
            return gathered(root, rows, kind, info.id if info else 0, workers)

    yield from DataLoader(Gather(), batch_size=None, num_workers=workers, prefetch_factor=8)


READERS: dict[str, Callable[[Path, int], Iterator[Any]]] = {
    "ours": ours_raw,
    "ours_int64": ours,
    "memmap": lambda root, workers: memmap(root, workers, "raw"),
    "memmap_processes": lambda root, workers: memmap_processes(root, workers, "raw"),
    "memmap_int64": lambda root, workers: memmap(root, workers, "int64"),
    "memmap_int64_processes": lambda root, workers: memmap_processes(root, workers, "int64"),
    "bare": lambda root, workers: memmap(root, workers, "bare"),
    "bare_int64": lambda root, workers: memmap(root, workers, "bare int64"),
}


# --- trials ---


def anonymous_mb() -> float:
    """Anonymous memory of this process."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("/proc/self/smaps_rollup has no line 'Anonymous'")


def speed(batches: Iterator[Any], seconds: float) -> float:
    """Tokens a second, at least 8 batches."""
    began, taken = time.perf_counter(), 0
    while True:
        for _ in range(8):
            batch = next(batches)
            _ = batch[:, 0]
            taken += batch.shape[0] * SEQ_LEN
        passed = time.perf_counter() - began
        if passed > seconds:
            return taken / passed


def paired(root: Path, own: str, other: str, workers: int, seconds: float) -> dict[str, Any]:
    """Ours and another reader by turns in one process: the ratio of each turn."""
    readers = [READERS[name](root, workers) for name in (own, other)]
    for reader in readers:
        speed(reader, 2 * seconds)
    turns = []
    for _ in range(15):
        speed(readers[0], 0.02)
        first = speed(readers[0], seconds)
        speed(readers[1], 0.02)
        turns.append((first, speed(readers[1], seconds)))
    return {
        "ratio": statistics.median(a / b for a, b in turns),
        "own": statistics.median(a for a, _ in turns),
        "other": statistics.median(b for _, b in turns),
    }


def trial(root: Path, reader: str, workers: int, seconds: float) -> dict[str, Any]:
    """One reader alone: best of three stretches, and anonymous memory over numpy once it delivers."""
    before = anonymous_mb()
    batches = READERS[reader](root, workers) if reader in READERS else peer_batches(reader, root, workers)
    next(batches)
    memory = anonymous_mb() - before
    speed(batches, seconds / 2)
    return {"own": max(speed(batches, seconds) for _ in range(3)), "memory": memory}


def resume(root: Path) -> dict[str, Any]:
    """Time to the first batch at 90% of a long run, imports excluded, and memory over numpy without torch."""
    before = anonymous_mb()
    import orjson  # noqa: F401

    import millstream.stream.plan_json
    import millstream.stream.reader  # noqa: F401

    began = time.perf_counter()
    stream = open_at(root, "long.json")
    first = LONG * 9 // 10 // BATCH
    batch = next(stream.iterate(first, dtype=np.int64))
    took = time.perf_counter() - began
    assert batch.step == first
    return {"ms": took * 1e3, "memory": anonymous_mb() - before}


def fresh(python: str, *arguments: Any, limit: float = 240) -> dict[str, Any]:
    """Run one measurement in a new process; ``error`` where it failed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        command = [python, __file__, "--child", *map(str, arguments)]
        process = subprocess.Popen(command, stdout=out, stderr=errors, env=environment, start_new_session=True)
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            errors.write(f"no result within {limit} s")
        # Some peers' workers and threads outlive their loader.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        out.seek(0)
        errors.seek(0)
        for line in out.read().splitlines():
            if line.startswith("RESULT "):
                found: dict[str, Any] = json.loads(line[7:])
                return found
        return {"error": (errors.read().strip().splitlines() or ["no result"])[-1][:300]}


def child(arguments: list[str]) -> None:
    """One measurement; its result is one line of JSON."""
    what, root, *rest = arguments
    if what == "make":
        make_peer(rest[0], Path(root))
        result: dict[str, Any] = {}
    elif what == "pair":
        result = paired(Path(root), rest[0], rest[1], int(rest[2]), float(rest[3]))
    elif what == "resume":
        result = resume(Path(root))
    elif what == "peer-resume":
        result = {"ms": peer_resume_at_scale(rest[0], Path(root), LONG)}
    else:
        result = trial(Path(root), rest[0], int(rest[1]), float(rest[2]))
    print("RESULT " + json.dumps(result), flush=True)
    # Threads and workers of the readers have nothing left to say.
    os._exit(0) if what in ("pair", "resume") else None


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def against_memmap(root: Path, rounds: int, seconds: float) -> dict[str, float | None]:
    """Ratios to gathers of the same rows, in the corpus's dtype and as int64; of threads and processes the faster."""
    figures: dict[str, float | None] = {}
    for kind in ("", "_int64"):
        for other in ("memmap", "bare"):
            for workers in (0, 2):
                ways = [f"{other}{kind}"] + ([f"memmap{kind}_processes"] if workers and other == "memmap" else [])
                found = []
                for way in ways:
                    trials = [
                        fresh(sys.executable, "pair", root, f"ours{kind}", way, workers, seconds) for _ in range(rounds)
                    ]
                    for failed in (t for t in trials if "error" in t):
                        raise SystemExit(f"ours{kind} against {way}: {failed['error']}")
                    found.append(statistics.median(t["ratio"] for t in trials))
                    own, theirs = (statistics.median(t[side] for t in trials) / 1e6 for side in ("own", "other"))
                    speeds = f"ours{kind:<7} {own:>6.0f} Mtok/s   {way:<23} {theirs:>6.0f}"
                    note(f"{workers}w  {speeds}   ratio {found[-1]:.2f}")
                figures[f"of_{other}{kind}_{workers}w"] = round(min(found), 2)
    return figures


def against_peer(root: Path, peer: str, python: str, rounds: int, seconds: float) -> dict[str, float | None]:
    """How many times a peer's speed ours is, with its data built before and removed after."""
    figures: dict[str, float | None] = {f"vs_{peer}_{workers}w_x": None for workers in (0, 2)}
    built = fresh(python, "make", root, peer, limit=400)
    try:
        for workers in (0, 2):
            ratios, speeds, memory = [], [], 0.0
            for _ in range(rounds):
                own = fresh(sys.executable, "trial", root, "ours_int64", workers, seconds)
                other = built if "error" in built else fresh(python, "trial", root, peer, workers, seconds)
                if "error" in own or "error" in other:
                    note(f"{workers}w  {peer}: {own.get('error') or other.get('error')}")
                    break
                ratios.append(own["own"] / other["own"])
                speeds.append(other["own"] / 1e6)
                memory = other["memory"]
            else:
                figures[f"vs_{peer}_{workers}w_x"] = round(statistics.median(ratios), 1)
                note(
                    f"{workers}w  {peer:<12} {statistics.median(speeds):>7.1f} Mtok/s  ours is "
                    f"{statistics.median(ratios):.1f} times as fast; its memory over numpy {memory:.0f} MB"
                )
        at_scale = fresh(python, "peer-resume", root, peer)
        note(
            f"    {peer:<12} first batch at 90% of {LONG:,} sequences: {at_scale.get('error') or round(at_scale['ms'])}"
        )
    finally:
        shutil.rmtree(root / peer, ignore_errors=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", default=sys.executable, help="interpreter that has the peers")
    parser.add_argument("--only", nargs="*", default=list(PEERS), help="peers to run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--keep", action="store_true", help="keep the corpus for the next time")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child)
        return
    root = Path(tempfile.gettempdir()) / "millstream-bench-stream"
    figures: dict[str, float | None] = {}
    try:
        if not (root / "long.json").exists():
            shutil.rmtree(root, ignore_errors=True)
            began = time.perf_counter()
            make_corpus(root)
            note(f"corpus of {sum(DOMAINS.values()):,} tokens written in {time.perf_counter() - began:.0f} s")
        figures |= against_memmap(root, given.rounds, given.seconds / 4)
        resumed = [fresh(sys.executable, "resume", root) for _ in range(2 * given.rounds + 1)]
        for failed in (r for r in resumed if "error" in r):
            raise SystemExit(f"resume: {failed['error']}")
        for peer in given.only:
            figures |= against_peer(root, peer, given.peers, given.rounds, given.seconds)
        figures["resume_ms"] = round(statistics.median(r["ms"] for r in resumed), 1)
        figures["resume_rss_mb"] = round(statistics.median(r["memory"] for r in resumed), 1)
    finally:
        if not given.keep:
            shutil.rmtree(root, ignore_errors=True)
    for name, value in figures.items():
        kind = name if name in BARS else "vs" if name.startswith("vs") else ""
        bar = f"{'<' if name.startswith('resume') else '>='} {BARS[kind]:g}" if kind else "for comparison"
        note(f"{name:<22} {'null' if value is None else f'{value:,.2f}':>9}   {bar}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
