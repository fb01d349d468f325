"""The page of Marin's open run: 390,251 steps, 200 domains, every number of every step; in a real Chromium.

The plan is the run's; ledger, numbers, rollbacks, notes and heads are written as training writes them, only losses are
made up. The page is written, the run goes on for a part of numbers, the page is written again; then it is looked at: as
fast as it goes, and at 20 Mbit/s and 40 ms. Prints a table, then one JSON object as its last line.
"""

import argparse
import functools
import http.server
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import scale

sys.path.append(str(Path(__file__).parent.parent / "tests"))

ATTEMPT_STEPS = 40_000
SAVE_STEPS = 1_000
LINK = {"latency": 40, "downloadThroughput": 20e6 / 8, "uploadThroughput": 5e6 / 8}
"""Milliseconds and bytes a second."""
BARS = {"first_view_s": 2, "whole_s": 2, "slow_first_view_s": 2, "whole_mb": 2, "zoom_s": 1, "step_s": 1}


def begin(run_dir: Path) -> Any:
    """Begin the run over a corpus that does not lie here; returns its first plan."""
    from millstream.audit.runs import create_run
    from millstream.audit.signing import own_key
    from millstream.mixture.recipe import Recipe
    from millstream.stream.corpora import Corpus
    from millstream.stream.freeze import freeze_plan

    mixture, manifest = scale.marin_recipe()
    names = [domain.name for domain in manifest.domains]
    recipe = Recipe.model_validate(
        {
            "name": "full-scale",
            "corpus": {
                "sources": [{"name": n, "root": n} for n in names],
                "domains": [{"name": n, "sources": [n]} for n in names],
                "tokenizer": {"kind": "bpe", "vocab_size": 128_256},
            },
            "mixture": mixture.model_dump(mode="json", exclude_none=True),
            "public": {"title": "A run at full scale", "description": "200 domains, 18T tokens; losses are made up."},
        }
    )
    plan = freeze_plan(mixture, manifest, Path())
    corpus = Corpus(run_dir.parent / "corpus", manifest)
    create_run(run_dir, recipe, plan, corpus, signer=own_key().verifier_key)
    return plan


class Feeder:
    """Feeds steps to a run that nobody trains."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.noise = np.random.default_rng(1)
        names = list(scale.domain_sizes())
        self.names = names
        self.levels = np.linspace(1.6, 3.4, len(names))
        # The rows of one step: the run's numbers, then each domain's.
        own = ["loss", "grad_norm", "lr", "tokens_per_s", "expert_load_max", "bias_max", "drop_rate", "router_entropy"]
        self.columns = (
            [*own, *["loss"] * len(names), *["sequences"] * len(names)],
            [*[None] * len(own), *names, *names],
        )

    def attempt(self, after: int, last: int) -> None:
        """An attempt that continues after a checkpoint: steps, checkpoints, numbers."""
        from millstream.audit.ledger import open_ledger
        from millstream.audit.runs import open_run

        with open_ledger(self.run_dir) as ledger:
            run = open_run(self.run_dir)
            plan, segments = run.plan, run.segments
            number = len(run.attempts) + 1
            hosts = [f"node-{n}" for n in range(88)]
            begun = {"attempt": number, "segment": run.segment_of(after + 1).id, "checkpoint_step": after}
            ledger.append("attempt", begun | {"world": 704, "hosts": hosts, "versions": {"torch": "2.13.0"}})
            losses = self.loss(np.arange(after + 1, last + 1))
            for step, loss in zip(range(after + 1, last + 1), (losses * 1e6).astype(np.int64).tolist(), strict=True):
                first, end = plan.span(step)
                segment = next(s.id for s in reversed(segments) if s.first_step <= step)
                ledger.append(
                    "step",
                    {
                        "step": step,
                        "attempt": number,
                        "segment": segment,
                        "first_index": first,
                        "sequences": end - first,
                        "tokens": (end - first) * plan.seq_len,
                        "root": f"{step:064x}",
                        "update_applied": step % 97_001 != 0,
                        "loss": loss,
                        "losses": f"{step:064x}",
                    },
                )
                if step % SAVE_STEPS == 0:
                    about = {"path": f"checkpoints/step-{step:08}", "digest": f"{step:064x}", "files": {}}
                    ledger.append("checkpoint", {"step": step, "attempt": number, **about})
        self.numbers(number, after + 1, losses)

    def loss(self, steps: Any) -> Any:
        """Losses of the whole run: (steps,)."""
        return 1.75 + 9 * (steps + 20.0) ** -0.38 + self.noise.normal(0, 0.012, len(steps))

    def numbers(self, attempt: int, first: int, losses: Any) -> None:
        """Parquet files as training closes them."""
        from millstream.train.metrics import PART_STEPS, SCHEMA

        folder = self.run_dir / "metrics"
        folder.mkdir(exist_ok=True)
        names, domains = (pl.Series(column, dtype=pl.String) for column in self.columns)
        count = len(self.names)
        for number, start in enumerate(range(0, len(losses), PART_STEPS)):
            loss = losses[start : start + PART_STEPS]
            n = len(loss)
            steps = first + start + np.arange(n)
            own = np.stack(
                [
                    loss,
                    0.2 + self.noise.gamma(4, 0.02, n),
                    4e-4 * np.minimum(1, steps / 2000),
                    self.noise.normal(3.1e6, 4e4, n),
                    self.noise.normal(1.4, 0.05, n),
                    self.noise.normal(0.3, 0.01, n),
                    self.noise.gamma(2, 1e-4, n),
                    self.noise.normal(4.1, 0.02, n),
                ]
            )
            by_domain = loss + self.levels[:, None] - 2.2 + self.noise.normal(0, 0.05, (count, n))
            fed = self.noise.poisson(scale.BATCH / count, (count, n))
            values = np.concatenate([own, by_domain, fed]).T.ravel()
            rows = len(names)
            frame = pl.DataFrame(
                {
                    "segment": np.zeros(n * rows, np.int32),
                    "attempt": np.full(n * rows, attempt, np.int32),
                    "step": np.repeat(steps, rows),
                    "name": pl.concat([names] * n),
                    "domain": pl.concat([domains] * n),
                    "value": values,
                },
                schema=SCHEMA,
            )
            frame.write_parquet(folder / f"0-{attempt}-{number:04}.parquet")


def train(run_dir: Path, last: int) -> Feeder:
    """The run up to a step: the swap, starts every 40,000 steps, three rollbacks, a note every 4,000 steps, a head."""
    from millstream.audit.change import Reason, amend_run, roll_back
    from millstream.audit.heads import head_signer
    from millstream.audit.ledger import open_ledger
    from millstream.audit.notes import write_log
    from millstream.audit.runs import open_run

    feeder = Feeder(run_dir)
    backs = {int(last * share) // SAVE_STEPS * SAVE_STEPS for share in (0.21, 0.55, 0.83)} - {0}
    swap = min(scale.SWAP, last // 2)
    stops = sorted({*range(ATTEMPT_STEPS, last, ATTEMPT_STEPS), *backs, swap - 1, last})
    at = 0
    for stop in stops:
        feeder.attempt(at, stop)
        at = stop
        if stop == swap - 1:
            change = scale.swap()
            own = type(change)(from_step=swap, weights=change.weights)
            amend_run(run_dir, own, Reason(why="another mixture", by="ann"))
        if stop in backs and stop >= 2 * SAVE_STEPS:
            at = stop - SAVE_STEPS
            (run_dir / "checkpoints" / f"step-{at:08}").mkdir(parents=True, exist_ok=True)
            roll_back(run_dir, at, Reason(why="the loss went up", by="bob"), undo=False)
        for number in range(max(1, (stop - at) // 4000)):
            write_log(run_dir, f"Step {stop:,}: looked at the norms of layer {number}, nothing to do.", {}, "ann")
    with open_ledger(run_dir) as ledger:
        head_signer(open_run(run_dir), ledger)()
    return feeder


def child(run_dir: Path, out: Path) -> None:
    """Write the page in this process; prints its processor time, imports included, and most memory."""
    from millstream.train.page.site import Page, Settings

    Page(run_dir, out, Settings()).update()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([time.process_time(), most]))


def write_page(run_dir: Path, out: Path) -> tuple[float, float]:
    """Seconds of processor time and MB of a fresh process that writes the page."""
    command = [sys.executable, __file__, "--child", str(run_dir), str(out)]
    seconds, most = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return seconds, most


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A plain static host; yields the address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/index.html"
        server.shutdown()


def look(page: Path, last: int) -> dict[str, float]:
    """Look at the page: the first view, all of it, closer, at a step."""
    from browser import chromium

    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as profile, served(page) as url, chromium(Path(profile)) as tab:
        # A first visit pays for the browser's own start.
        tab.open("about:blank")
        for name, link in (("", None), ("slow_", LINK)):
            tab.send("Network.clearBrowserCache")
            tab.send("Network.setCacheDisabled", cacheDisabled=True)
            none = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
            tab.send("Network.emulateNetworkConditions", offline=False, **(link or none))
            tab.open(f"{url}?link={name}")
            # Of the page that is left everything is there.
            tab.wait(f"location.search === '?link={name}'")
            tab.wait("page.drawn")
            found[f"{name}first_view_s"] = tab.run("page.drawn / 1000")
            found[f"{name}first_view_mb"] = tab.received / 1e6
            tab.wait("document.body.dataset.ready && !!document.querySelector('#step-result h3')")
            found[f"{name}whole_s"] = tab.run("performance.now() / 1000")
            found[f"{name}whole_mb"] = tab.received / 1e6
        tab.send("Network.emulateNetworkConditions", offline=False, **none)
        assert tab.complaints == [], tab.complaints
        before = tab.received
        tiles = "performance.getEntriesByType('resource').filter((e) => /series.loss.0-/.test(e.name)).length"
        assert tab.run(tiles) == 0
        began = time.perf_counter()
        tab.run(f"page.range.set({last // 2}, {last // 2 + 900})")
        tab.wait(f"{tiles} > 0 && document.querySelector('#loss-plot').textContent.includes('{last // 2000},')")
        found["zoom_s"] = time.perf_counter() - began
        found["zoom_kb"] = (tab.received - before) / 1e3
        began = time.perf_counter()
        tab.run(f"page.openStep({last // 3})")
        tab.wait(f"document.querySelector('#step-result h3').textContent.replace(/\\D/g, '') === '{last // 3}'")
        found["step_s"] = time.perf_counter() - began
        began = time.perf_counter()
        tab.click("#record-check")
        tab.wait("page.at('record-check').textContent === 'Check again'", 600)
        found["check_s"] = time.perf_counter() - began
        outcomes = tab.run("[...document.querySelectorAll('#record-result li')].map((li) => li.className)")
        assert "wrong" not in outcomes, tab.text("#record-result")
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=389_000, help="steps that the run has got to")
    parser.add_argument("--keep", type=Path, help="keep run and page in this folder")
    parser.add_argument("--child", nargs=2, metavar=("RUN", "PAGE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(Path(given.child[0]), Path(given.child[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        home = given.keep or Path(folder)
        home.mkdir(parents=True, exist_ok=True)
        os.environ["MILLSTREAM_KEY"] = str(home / "key")
        run_dir, out = home / "run", home / "page"
        began = time.perf_counter()
        begin(run_dir)
        feeder = train(run_dir, given.steps)
        print(f"{given.steps:,} steps written in {time.perf_counter() - began:.0f} s", file=sys.stderr)
        figures: dict[str, float] = {}
        figures["write_cpu_s"], figures["write_mb"] = write_page(run_dir, out)
        feeder.attempt(given.steps, given.steps + 50)
        figures["update_cpu_s"], figures["update_mb"] = write_page(run_dir, out)
        files = [path.stat().st_size for path in out.rglob("*") if path.is_file()]
        figures |= {"page_files": len(files), "page_mb": sum(files) / 1e6}
        figures |= look(out, given.steps)
    for name, value in figures.items():
        bar = f"< {BARS[name]}" if name in BARS else ""
        print(f"{name:<20} {value:>10,.2f}   {bar}", file=sys.stderr)
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
