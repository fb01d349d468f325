"""Runs on disk: creating one, and reading back what its ledger says.

RUN/run.json      frozen recipe, first plan, corpus id, code version, environment; never changed
RUN/ledger.jsonl  everything that happened since
"""

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

import millstream
from millstream.audit.ledger import FILE as LEDGER
from millstream.audit.ledger import Record, move_ledger, open_ledger
from millstream.audit.records import Fed, FedStep, Records, Returns, StepRows, open_records, returns_of, step_rows
from millstream.canonical import canonical_bytes, digest
from millstream.errors import InputError, UsageError
from millstream.files import sha256_file, write_bytes
from millstream.stream.corpora import Corpus
from millstream.stream.plan import Plan
from millstream.stream.plan_json import plan_from_json, plan_to_json
from millstream.stream.segments import Segment, segments_of

if TYPE_CHECKING:
    from millstream.mixture.recipe import Recipe

FORMAT = "millstream-run/1"
LIBRARIES = ("deepspeed", "numpy", "polars", "tokenizers", "torch")


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One start of the run's processes; it continues after ``checkpoint_step``."""

    number: int
    checkpoint_step: int
    world: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedCheckpoint:
    """A checkpoint record; ``path`` is relative to the run, ``seq`` the record's place in the ledger."""

    seq: int
    step: int
    attempt: int
    path: str
    digest: str
    files: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pin:
    """A checkpoint that stays under a name until the name is taken back; ``path`` is relative to the run."""

    step: int
    path: str


@dataclass(frozen=True)
class Run:
    """A run as its folder tells it."""

    path: Path
    info: dict[str, Any]
    records: Records

    @cached_property
    def recipe(self) -> "Recipe":
        """The frozen recipe."""
        # Most questions need none of it, and its schema takes longer to make than they take to answer.
        from millstream.mixture.recipe import Recipe

        return Recipe.model_validate(self.info["recipe"])

    @cached_property
    def first_plan(self) -> Plan:
        """The plan that the run was started with."""
        return plan_from_json(self.info["plan"])

    @property
    def plan(self) -> Plan:
        """The plan in force: the first one with all amendments that hold."""
        return self.plans[self.segments[-1].id]

    @cached_property
    def plans(self) -> dict[int, Plan]:
        """The plan under which each segment's steps are fed, by the segment's id."""
        plans: dict[int, Plan] = {}
        plan = self.first_plan
        for record in self.records.of("segment"):
            if "plan" in record.body:
                plan = plan_from_json(record.body["plan"])
            plans |= {int(body["id"]): plan for body in _segment_bodies(record)}
        return plans

    @property
    def corpus_places(self) -> tuple[Path | str, ...]:
        """Folders or URLs where the corpora lay: the first, and those that amendments brought in."""
        entries = [self.info["corpus"]]
        for record in self.records.of("segment", "branch"):
            entries += record.body.get("corpora", [])
        places = [str(entry["path"]) for entry in entries]
        return tuple(dict.fromkeys(place if "://" in place else (self.path / place).resolve() for place in places))

    @cached_property
    def corpus_roots(self) -> dict[str, tuple[str, str] | None]:
        """Roots of keys and of documents, as hex, of every corpus that the plans name; None where none are recorded."""
        known = {r.body["corpus_id"]: r.body for r in self.records.of("corpus")}
        named = dict.fromkeys(corpus_id for plan in self.plans.values() for corpus_id in plan.corpus_ids)
        return {i: (str(known[i]["keys_root"]), str(known[i]["documents_root"])) if i in known else None for i in named}

    @property
    def signer(self) -> str | None:
        """The verifier key of who signs the run's heads, as its first record names it."""
        return self.records[0].body.get("signer")

    @cached_property
    def branch(self) -> dict[str, Any] | None:
        """The record by which this run left another, None where it began by itself."""
        own = [r.body for r in self.records.of("branch") if "of" in r.body]
        return own[-1] if own else None

    @property
    def is_control(self) -> bool:
        """True for a run that only repeats steps of another."""
        return self.branch is not None and bool(self.branch.get("control"))

    @property
    def name(self) -> str:
        """The recipe's name, and for a branch its own."""
        return str(self.info["name"]) + (f"/{self.branch['name']}" if self.branch else "")

    @property
    def run_id(self) -> str:
        """Digest of the ``run`` record's body, as hex."""
        return digest(self.records[0].body)

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The run's segments, in order."""
        bodies = [b for r in self.records.of("segment") for b in _segment_bodies(r)]
        return tuple(Segment(**{**b, "skip": tuple(b["skip"]) if b["skip"] else None}) for b in bodies)

    @cached_property
    def attempts(self) -> tuple[Attempt, ...]:
        """Starts of the processes, in order."""
        bodies = [r.body for r in self.records.of("attempt")]
        return tuple(
            Attempt(number=b["attempt"], checkpoint_step=b["checkpoint_step"], world=b["world"]) for b in bodies
        )

    @cached_property
    def fed(self) -> Mapping[int, Sequence[FedStep]]:
        """Step records by step, in the order in which they were fed."""
        return Fed(self.records)

    @cached_property
    def steps(self) -> StepRows:
        """All step records as arrays."""
        return step_rows(self.records, self._returns)

    @cached_property
    def checkpoints(self) -> tuple[SavedCheckpoint, ...]:
        """Checkpoint records, in order; the folders may have been removed since."""
        return tuple(saved_checkpoint(r) for r in self.records.of("checkpoint"))

    @cached_property
    def pins(self) -> dict[str, Pin]:
        """Pinned checkpoints, by name."""
        pins: dict[str, Pin] = {}
        for body in (r.body for r in self.records.of("pin")):
            if body["held"]:
                pins[body["name"]] = Pin(step=body["step"], path=body["path"])
            else:
                pins.pop(body["name"], None)
        return pins

    @property
    def last_step(self) -> int:
        """The last step of the lineage: fed, and not superseded by a later attempt."""
        return self.steps.last_learned

    @property
    def finished(self) -> bool:
        """True once every step of the plan in force is in the lineage."""
        return self.last_step == self.plan.total_steps

    def learned(self, step: int) -> FedStep | None:
        """The step record that the lineage keeps: the newest one not superseded."""
        for fed in reversed(self.fed.get(step, [])):
            if not self.superseded(fed):
                return fed
        return None

    def superseded(self, fed: FedStep) -> bool:
        """True where a later attempt or a rollback went back to a step before it."""
        return self._returns.after(fed.seq, fed.step)

    def given_up(self, saved: SavedCheckpoint) -> bool:
        """True where the lineage went back to before a checkpoint, so that nothing may continue from it."""
        return self._returns.after(saved.seq, saved.step)

    @cached_property
    def _returns(self) -> Returns:
        return returns_of(self.records)

    def segment_of(self, step: int) -> Segment:
        """The segment that a step lies in."""
        for segment in reversed(self.segments):
            if segment.first_step <= step < segment.end_step:
                return segment
        raise UsageError(f"{self.path}: step {step} lies in no segment of the run")


def saved_checkpoint(record: Record) -> SavedCheckpoint:
    """The checkpoint that a ``checkpoint`` record names."""
    names = [name for name in SavedCheckpoint.__slots__ if name != "seq"]
    return SavedCheckpoint(seq=record.seq, **{name: record.body[name] for name in names})


def _segment_bodies(record: Record) -> list[dict[str, Any]]:
    return [record.body["segment"], *record.body.get("later", [])]


def create_run(
    path: Path,
    recipe: "Recipe",
    plan: Plan,
    corpus: Corpus,
    *,
    signer: str | None = None,
    resolved: dict[str, Any] | None = None,
) -> None:
    """Freeze a new run: write ``run.json`` and begin the ledger with the run and its segments.

    The ledger gets its name when it is whole, so a start that was cut short is no run.

    Args:
        path: the run's folder.
        recipe: what it is made by.
        plan: frozen over the corpus.
        corpus: where it begins.
        signer: verifier key of who is going to sign the run's heads.
        resolved: what the recipe's values came to, for readers; JSON values.

    Raises:
        UsageError: there is a run here already, or what is left of one.
    """
    if is_run(path):
        raise UsageError(f"{path}: holds a run already")
    if (path / "checkpoints").exists():
        raise UsageError(f"{path}: holds checkpoints but no {LEDGER}; restore it, or give the new run another folder")
    path.mkdir(parents=True, exist_ok=True)
    info = {
        "format": FORMAT,
        "name": recipe.name,
        "recipe": recipe.canonical(),
        "sections": recipe.section_digests(),
        "plan": plan_to_json(plan),
        "resolved": resolved or {},
        "corpus": place_of(path, corpus),
        "code": {"version": millstream.__version__, "digest": code_digest()},
        "environment": environment(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_bytes(path / "run.json", canonical_bytes(info) + b"\n")
    beginning = path / ".start"
    shutil.rmtree(beginning, ignore_errors=True)
    beginning.mkdir()
    with open_ledger(beginning) as ledger:
        body = {
            "format": FORMAT,
            "name": recipe.name,
            "plan_id": plan.plan_id,
            "run_json": sha256_file(path / "run.json"),
            **({"signer": signer} if signer else {}),
        }
        ledger.append("run", body)
        for segment in segments_of(plan):
            ledger.append("segment", {"segment": asdict(segment), "why": "plan", "by": "recipe"})
    move_ledger(beginning, path)
    beginning.rmdir()


def place_of(run_dir: Path, corpus: Corpus) -> dict[str, str]:
    """A corpus as a run names it: its id, and its URL, or its path from the run's folder."""
    root = corpus.root
    place = os.path.relpath(root.resolve(), run_dir.resolve()) if isinstance(root, Path) else root.url
    return {"id": corpus.manifest.corpus_id, "path": place}


def is_run(path: Path) -> bool:
    """Whether a run was begun in this folder."""
    return (path / "run.json").exists() and (path / LEDGER).exists()


def open_run(path: Path) -> Run:
    """Read a run.

    Raises:
        UsageError: there is no run here.
        InputError: ``run.json`` or the ledger is damaged.
    """
    try:
        info = orjson.loads((path / "run.json").read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: no run here (no run.json); start one with 'millstream train RECIPE'") from error
    except orjson.JSONDecodeError as error:
        raise InputError(f"{path / 'run.json'}: damaged: {error}") from error
    if not isinstance(info, dict) or info.get("format") != FORMAT:
        raise InputError(f"{path / 'run.json'}: expected format {FORMAT}")
    records = open_records(path)
    if not records or records[0].kind != "run":
        raise InputError(f"{path / LEDGER}: does not begin with a run record; the run was never started whole, or cut")
    return Run(path, info, records)


def require_same(run: Run, recipe: "Recipe", plan: Plan) -> None:
    """Refuse to continue a run under another recipe or over another corpus.

    How a run is laid out on its machines, and what of it is kept, may change.

    Raises:
        UsageError: names the first section that differs.
    """
    from millstream.mixture.training import learned

    now = recipe.section_digests()
    differs = {name: now.get(name) != run.info["sections"].get(name) for name in ("corpus", "mixture", "model")}
    differs["train"] = learned(recipe.train) != learned(run.recipe.train)
    for section, other in differs.items():
        if other:
            raise UsageError(
                f"{run.path}: the run was started with another '{section}' section; "
                "restore the recipe, or give the new one another name or --run"
            )
    before = run.first_plan.plan_id
    if plan.plan_id != before:
        raise UsageError(
            f"{run.path}: the order of the data would differ (plan {before[:16]}, now {plan.plan_id[:16]}): "
            "the corpus or the plan's algorithm changed"
        )


def code_digest() -> str:
    """Digest of the package's own Python files, as hex, wherever they lie."""
    # os.walk, since pathlib's rglob does not enter linked folders on Python 3.11.
    root = Path(millstream.__file__).parent
    files = {
        os.path.relpath(Path(folder) / name, root): sha256_file(Path(folder) / name)
        for folder, _, names in os.walk(root, followlinks=True)
        for name in names
        if name.endswith(".py")
    }
    return digest(files)


def environment() -> dict[str, Any]:
    """Python, platform and the versions of the libraries that decide a run's numbers."""
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"python": sys.version.split()[0], "platform": platform.platform(), "libraries": versions}
