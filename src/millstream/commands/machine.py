"""``millstream doctor`` and ``millstream status``: this machine, and what lies on it."""

import importlib.metadata
import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil
import typer

from millstream import show
from millstream.audit.runs import open_run
from millstream.commands.options import AsJson
from millstream.errors import CheckFailed, InputError, UsageError
from millstream.tokenize.manifest import MANIFEST, read_manifest

EXTRAS = {
    "torch": "train",
    "deepspeed": "train",
    "wandb": "train",
    "matplotlib": "train",
    "spacy": "filters",
    "numba": "filters",
    "tldextract": "urls",
    "fasttext-numpy2-wheel": "language",
    "ray": "ray",
    "s3fs": "s3",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor: what was looked at, what was found, whether it stands in the way."""

    what: str
    found: str
    ok: bool


def doctor(as_json: AsJson = False) -> None:
    """Check this machine: cores, memory, disk, torch, DeepSpeed, gloo or NCCL, a free port.

    Example: millstream doctor
    """
    findings = [*_machine(), *_packages(), *_distributed()]
    if as_json:
        show.json(findings)
    else:
        show.table(None, ("", "found", "ok"), [(f.what, f.found, f.ok) for f in findings])
    wrong = [f for f in findings if not f.ok]
    if wrong:
        raise CheckFailed(f"{wrong[0].what}: {wrong[0].found}" + (f" (and {len(wrong) - 1} more)" if wrong[1:] else ""))


def status(as_json: AsJson = False) -> None:
    """Corpora and runs below this folder, their state and the disk they take.

    Example: millstream status
    """
    corpora = [_corpus_row(path.parent) for path in sorted(Path("corpora").glob(f"*/{MANIFEST}"))]
    runs = [_run_row(path.parent) for path in sorted(Path("runs").glob("*/run.json"))]
    if as_json:
        show.json({"corpora": corpora, "runs": runs})
        return
    for name, rows in (("corpora", corpora), ("runs", runs)):
        if rows:
            show.table(name, list(rows[0]), [list(row.values()) for row in rows])
        else:
            show.line(f"no {name} here")


def _machine() -> list[Finding]:
    memory, disk = psutil.virtual_memory(), shutil.disk_usage(".")
    return [
        Finding("cores", str(len(os.sched_getaffinity(0))), True),
        Finding(
            "memory", f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free", memory.available > 2**30
        ),
        Finding("disk here", f"{disk.free / 2**30:.1f} GiB free", disk.free > 2**30),
    ]


def _packages() -> list[Finding]:
    findings = []
    for package, extra in EXTRAS.items():
        try:
            findings.append(Finding(package, importlib.metadata.version(package), True))
        except importlib.metadata.PackageNotFoundError:
            needed = extra == "train"
            findings.append(Finding(package, f"not installed: pip install 'millstream[{extra}]'", not needed))
    return findings


def _distributed() -> list[Finding]:
    try:
        import torch
    except ImportError:
        return []
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    backend, there = (
        ("nccl", torch.distributed.is_nccl_available()) if gpus else ("gloo", torch.distributed.is_gloo_available())
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [
        Finding("accelerators", f"{gpus} GPUs" if gpus else "none: ranks run on processor cores", True),
        Finding(backend, "available" if there else "not in this build of torch", there),
        Finding("a free port", str(port), True),
    ]


def _corpus_row(root: Path) -> dict[str, object]:
    row: dict[str, object] = {
        "corpus": root.name,
        "id": "",
        "domains": 0,
        "documents": 0,
        "tokens": 0,
        "state": "complete",
    }
    try:
        manifest = read_manifest(root)
    except (InputError, UsageError) as error:
        return row | {"state": str(error), "disk": _disk(root)}
    return row | {
        "id": manifest.corpus_id[:16],
        "domains": len(manifest.domains),
        "documents": sum(d.documents for d in manifest.domains),
        "tokens": sum(d.tokens for d in manifest.domains),
        "disk": _disk(root),
    }


def _run_row(path: Path) -> dict[str, object]:
    row: dict[str, object] = {
        "run": path.name,
        "id": "",
        "step": 0,
        "of": 0,
        "attempts": 0,
        "checkpoints": "",
        "state": "",
    }
    try:
        run = open_run(path)
        return row | {
            "id": run.run_id[:16],
            "step": run.last_step,
            "of": run.plan.total_steps,
            "attempts": len(run.attempts),
            "checkpoints": ", ".join(str(c.step) for c in run.checkpoints if (path / c.path).exists()),
            "state": "finished" if run.finished else "not finished",
            "disk": _disk(path),
        }
    except (InputError, UsageError) as error:
        return row | {"state": str(error), "disk": _disk(path)}


def _disk(root: Path) -> str:
    total = sum((Path(folder) / name).lstat().st_size for folder, _, names in os.walk(root) for name in names)
    return f"{total / 2**20:,.1f} MiB"


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(doctor)
    app.command()(status)
