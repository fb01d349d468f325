"""The page of a run: writes it whole, and later what changed.

    OUT/index.html, *.js, page.css     the same for every run
    OUT/data/state.js                  what is now; names everything else, and is written last
    OUT/data/...                       loaded when somebody looks
    OUT/downloads/

What was worked out before lies in ``RUN/.page``; it can be removed.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl

from millstream.audit.corpora import open_corpora
from millstream.audit.heads import heads_of, origin_of
from millstream.audit.mixture import audit_mixture
from millstream.audit.notes import papers_of
from millstream.audit.runs import Run, open_run
from millstream.errors import MillstreamError, SetupError, UsageError
from millstream.stream.corpora import Corpora
from millstream.stream.plan_json import plan_to_json
from millstream.train.ladder.folder import open_ladder
from millstream.train.page.about import about_run
from millstream.train.page.documents import LIMIT, Published, mark_of, publish_documents
from millstream.train.page.downloads import write_downloads
from millstream.train.page.forecast import forecast_of
from millstream.train.page.history import History, nats
from millstream.train.page.licences import OPEN
from millstream.train.page.samples import STEPS, Samples
from millstream.train.page.series import Extent, Name, Series
from millstream.train.page.status import status
from millstream.train.page.timeline import events
from millstream.train.page.write import publish, publish_text, rounded, write_changed

FORMAT = "millstream-page/1"
STATIC = Path(__file__).parent / "static"
LINES = 1000
"""Records of a tile of the ledger."""
EVENTS = 500
"""Events of a tile of the timeline."""
MARKS = 1500
"""Events that are marked on the charts, the newest."""
ABANDONED = 50
"""Stretches that were given up and are drawn, the newest."""
POINTS = 120
"""Points of such a stretch."""
HEADS = 200
"""Signed heads that are shown, the newest."""
NOT_APPLIED = 10_000
"""Steps whose update was not applied that are named."""

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How a page is made."""

    corpus: str | None = None
    """Where a corpus lies now, if elsewhere."""
    documents: int = LIMIT
    """Documents above which their tables are not published."""
    steps: int = STEPS
    """Steps that are shown from the inside, about."""
    ladder: Path | None = None
    """Ladder whose rungs are drawn beside the loss."""


class Page:
    """A run's page in a folder. Use from one thread."""

    def __init__(self, run_dir: Path, out: Path, settings: Settings, progress: Progress = lambda _: None) -> None:
        """Prepare a page; ``update`` writes it.

        Raises:
            UsageError: the folder holds something else.
        """
        if out.exists() and any(out.iterdir()) and not (out / "data").is_dir():
            raise UsageError(f"{out}: holds something that is no page of a run; give --out another folder")
        self.run_dir, self.out, self.settings, self._progress = run_dir, out, settings, progress
        self._series = Series(run_dir, out)
        self._samples = Samples(run_dir, out)
        self._corpora: Corpora = {}
        self._missing: str | None = None
        self._asked: tuple[str, ...] | None = None
        self._lines = 0

    def update(self) -> History:
        """Bring the page up to date.

        Raises:
            UsageError: there is no run.
            InputError: something of the run or its corpora is damaged.
            SetupError: the disk is full or the folder cannot be written.
        """
        try:
            return self._update()
        except OSError as error:
            raise SetupError(f"{error.filename or self.out}: cannot be written: {error.strerror or error}") from error

    def corpora(self, run: Run) -> Corpora:
        """The run's corpora; none where one of them is not to be had."""
        wanted = tuple(dict.fromkeys(i for plan in run.plans.values() for i in plan.corpus_ids))
        if wanted != self._asked:
            self._asked = wanted
            try:
                self._corpora, self._missing = open_corpora(run, self.settings.corpus), None
            except MillstreamError as error:
                self._corpora, self._missing = {}, str(error)
        return self._corpora

    def sample(self, history: History, step: int) -> dict[str, Any]:
        """A learned step from the inside, whether it is published or not."""
        return self._samples.sample(history, self.corpora(history.run), step, _allowed(history.run))

    def _update(self) -> History:
        # First of all: by it a folder that was begun is known as a page's.
        (self.out / "data").mkdir(parents=True, exist_ok=True)
        for source in sorted(STATIC.iterdir()):
            if source.suffix in (".html", ".js", ".css"):
                write_changed(self.out / source.name, source.read_bytes())
        run = open_run(self.run_dir)
        history = History(run)
        corpora = self.corpora(run)
        self._progress("numbers")
        extent = Extent(steps=run.plan.total_steps, domains=run.plan.domains)
        lineage = [(s["attempt"], s["first"], s["last"]) for s in history.stretches if not s["superseded"]]
        names = self._series.update(extent, lineage)
        self._progress("documents")
        documents = self._documents(run, corpora)
        self._progress("samples")
        samples = self._samples.update(history, corpora, _allowed(run), self.settings.steps)
        self._progress("record")
        mixture = audit_mixture(run)
        about = about_run(run, corpora)
        publish(self.out, "about", about)
        publish_text(self.out, "run", (self.run_dir / "run.json").read_bytes().decode())
        state = {
            "format": FORMAT,
            "made": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "name": run.name,
            "run_id": run.run_id,
            "title": run.recipe.public.title or run.name,
            "description": run.recipe.public.description,
            "contact": run.recipe.public.contact,
            "seq_len": run.plan.seq_len,
            "status": status(history, self._series.recent("tokens_per_s", 200)),
            "phases": _phases(run),
            "segments": [[s.first_step, s.end_step - 1, s.batch, s.phase] for s in run.segments],
            "series": _series_json(names, self._series, extent),
            "domains": self._domain_rows(mixture, names, extent),
            "plans": self._plans(run),
            "ledger": self._ledger(history),
            "heads": self._heads(run),
            "corpora": [
                {"seq": r.seq, "id": r.body["corpus_id"], "keys": r.body["keys"], "keys_root": r.body["keys_root"]}
                for r in run.records.of("corpus")
            ],
            "documents": documents.to_json() | {"missing": self._missing},
            "samples": samples,
            "texts": self.settings.steps > 0,
            "stretches": history.stretches,
            "not_applied": history.learned["step"][history.learned["applied"] == 0][:NOT_APPLIED],
            "served": False,
            "abandoned": self._abandoned(history),
            **self._timeline(history),
            "papers": self._papers(run),
            "forecast": self._forecast(run),
            "downloads": write_downloads(self.out, history, mixture, about["recipe"]),
        }
        publish(self.out, "state", state)
        return history

    def _documents(self, run: Run, corpora: Corpora) -> Published:
        """Publish the documents where that was not done."""
        cache = self.run_dir / ".page" / "documents.json"
        mark = f"{self.out.resolve()} {mark_of(run, corpora, self.settings.documents)}"
        held = orjson.loads(cache.read_bytes()) if cache.is_file() else {}
        if held.get("mark") == mark and (self.out / "data" / "about.js").is_file():
            return Published(**held["published"])
        published = publish_documents(self.out, run, corpora, self.settings.documents)
        write_changed(cache, orjson.dumps({"mark": mark, "published": published.to_json()}))
        return published

    def _domain_rows(self, mixture: pl.DataFrame, names: list[Name], extent: Extent) -> list[dict[str, Any]]:
        """A line a domain: sequences planned in all, expected by now and realised, epochs, newest losses."""
        base = extent.base
        held = {name.slug for name in names}
        count = len(extent.domains)
        bins = max(1, round(extent.steps * 0.02) // 4**base) if extent.steps > 1000 else 20
        losses = {
            field: self._series.newest_by_domain(slug, newest, base, count) if slug in held else np.full(count, np.nan)
            for field, slug, newest in (
                ("loss", "loss-by-domain", bins),
                ("held_out", "loss_held_out-by-domain", 1),
            )
        }
        rows = []
        for number, name in enumerate(extent.domains):
            own = mixture.filter(pl.col("domain") == name)
            row: dict[str, Any] = {"name": name}
            for field in ("planned", "expected", "realised", "tokens"):
                row[field] = round(float(own[field].sum()), 2)
            # Of the phases that have begun the last one says how far the domain was read.
            begun = own.filter(pl.col("realised") > 0)
            row["epochs"] = round(float(begun["epochs"][-1]), 4) if len(begun) else 0
            row["weights"] = dict(own.select("phase", "weight").rows())
            for field, values in losses.items():
                row[field] = round(float(values[number]), 4) if np.isfinite(values[number]) else None
            rows.append(row)
        return rows

    def _plans(self, run: Run) -> dict[str, Any]:
        """Publish every plan that steps were or will be fed by; which one a segment has."""
        numbers: dict[str, int] = {}
        for plan in run.plans.values():
            if plan.plan_id not in numbers:
                raw = plan_to_json(plan)
                # Seeds may be larger than JavaScript's numbers.
                publish(self.out, f"plans/{len(numbers)}", raw | {"seed": str(plan.seed)})
                numbers[plan.plan_id] = len(numbers)
        of_segment = {str(segment): numbers[plan.plan_id] for segment, plan in run.plans.items()}
        return {"in_force": numbers[run.plan.plan_id], "of_segment": of_segment, "ids": list(numbers)}

    def _ledger(self, history: History) -> dict[str, Any]:
        """Publish the ledger's lines, so that a browser can follow the chain."""
        records = history.run.records
        count = len(records)
        tiles = -(-count // LINES)
        for tile in range(self._lines // LINES, tiles):
            text = history.text(tile * LINES, min(count, (tile + 1) * LINES))
            publish_text(self.out, f"ledger/{tile}", text.rstrip("\n"))
        self._lines = count
        return {"records": count, "steps": len(history.steps), "tiles": tiles, "head": records[-1].hash}

    def _heads(self, run: Run) -> dict[str, Any] | None:
        """Publish the newest signed heads; None where nobody signs."""
        if run.signer is None:
            return None
        paths = heads_of(self.run_dir)
        publish(self.out, "heads", [path.read_text() for path in paths[-HEADS:]])
        return {"signer": run.signer, "origin": origin_of(run), "count": len(paths)}

    def _timeline(self, history: History) -> dict[str, Any]:
        """Publish the events, newest in the last tile; marks for the charts."""
        found = list(events(history))
        tiles = -(-len(found) // EVENTS)
        for tile in range(tiles):
            publish(self.out, f"timeline/{tile}", found[tile * EVENTS : (tile + 1) * EVENTS])
        shown = [e for e in found if e["kind"] not in ("checkpoint", "segment", "run")]
        saved = [e for e in found if e["kind"] == "checkpoint"]
        thinned = saved[:: max(1, len(saved) // 200)]
        marks = sorted(([e["step"], e["kind"], e["seq"]] for e in shown[-MARKS:] + thinned), key=lambda m: m[2])
        return {
            "timeline": {"events": len(found), "tiles": tiles, "revision": len(history.run.records)},
            "marks": marks,
        }

    def _forecast(self, run: Run) -> str | None:
        """Publish the registered forecast; returns the hash of what is published."""
        ladder = open_ladder(self.settings.ladder) if self.settings.ladder is not None else None
        found = forecast_of(run, ladder)
        if found is None:
            return None
        publish(self.out, "forecast", found)
        return hashlib.sha256((self.out / "data" / "forecast.js").read_bytes()).hexdigest()[:16]

    def _papers(self, run: Run) -> list[dict[str, Any]]:
        """Publish every version of the papers."""
        told = []
        for name, versions in papers_of(run).items():
            entries = []
            for paper in versions:
                publish_text(self.out, f"papers/{name}/{paper.version}", paper.text)
                body = paper.record.body
                entry = {"number": paper.version, "seq": paper.record.seq, "sha256": paper.sha256}
                entries.append(entry | {"who": body["by"], "time": body["time"], "why": body.get("why")})
            told.append({"name": name, "title": versions[-1].title, "versions": entries})
        return told

    def _abandoned(self, history: History) -> int:
        """Publish the losses of stretches that were given up; returns how many there are."""
        gone = [stretch for stretch in history.stretches if stretch["superseded"]]
        lines = []
        for stretch in gone[-ABANDONED:]:
            begin = int(history.numbers.searchsorted(stretch["seq"]))
            own = history.steps[begin : begin + stretch["last"] - stretch["first"] + 1]
            own = own[:: max(1, len(own) // POINTS)]
            lines.append({**stretch, "steps": np.ascontiguousarray(own["step"]), "loss": rounded(nats(own))})
        publish(self.out, "abandoned", lines)
        return len(gone)


def _allowed(run: Run) -> tuple[str, ...]:
    return (*OPEN, *run.recipe.public.licences)


def _phases(run: Run) -> list[dict[str, Any]]:
    """The plan's phases in steps."""
    plan = run.plan
    ends = [plan.batches.steps_within(phase.end) for phase in plan.phases]
    firsts = [1, *(end + 1 for end in ends[:-1])]
    return [
        {"name": phase.name, "first": first, "last": last, "batch": phase.batch}
        for phase, first, last in zip(plan.phases, firsts, ends, strict=True)
    ]


def _series_json(names: list[Name], series: Series, extent: Extent) -> dict[str, Any]:
    return {
        "steps": extent.steps,
        "revisions": series.revisions,
        "list": [{"slug": n.slug, "name": n.name, "domains": n.domains, "base": n.base, "top": n.top} for n in names],
    }
