"""What a checkpoint is on the disk, read without torch.

    checkpoints/step-00000100/
      rank-00000.safetensors   that rank's flat fragments of every parameter's state
      checkpoint.json          format, step, place in the ledger, layout, where each fragment lies, digests

The folder gets its name when all of it is on the disk, so a folder of that name with an index is complete. Files are
safetensors and JSON: nothing that is loaded can run code.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from millstream.errors import InputError
from millstream.files import sha256_file

FORMAT = "millstream-checkpoint/2"
INDEX = "checkpoint.json"
FOLDER = "checkpoints"


def free_folder(run_dir: Path, step: int, attempt: int) -> Path:
    """Where an attempt saves a step; a checkpoint of the step that the lineage gave up is not written over."""
    folder = run_dir / FOLDER / f"step-{step:08}"
    return folder.with_name(f"{folder.name}-attempt-{attempt}") if folder.exists() else folder


def read_index(folder: Path) -> dict[str, Any]:
    """A checkpoint's index; ``check_files`` compares the files with it.

    Raises:
        InputError: it is missing, damaged or of another format.
    """
    try:
        index: dict[str, Any] = orjson.loads((folder / INDEX).read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise InputError(f"{folder}: no complete checkpoint: {error}") from error
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        found = index.get("format") if isinstance(index, dict) else type(index).__name__
        raise InputError(f"{folder / INDEX}: expected format {FORMAT}, found {found}")
    return index


def check_files(folder: Path, index: dict[str, Any], names: Iterable[str] | None = None) -> None:
    """Read files of a checkpoint and compare them with its index.

    Args:
        folder: the checkpoint.
        index: its index.
        names: which of its files; all by default.

    Raises:
        InputError: names the first file that is missing or altered.
    """
    for name in index["files"] if names is None else names:
        path = folder / name
        if Path(name).name != name or not path.is_file():
            raise InputError(f"{path}: missing")
        wanted = index["files"][name]
        if (found := sha256_file(path)) != wanted:
            raise InputError(f"{path}: altered: SHA-256 {found[:16]}, the index says {wanted[:16]}")


def digest_of(folder: Path) -> str:
    """SHA-256 of a checkpoint's index, as hex; it names the digests of all other files."""
    return hashlib.sha256((folder / INDEX).read_bytes()).hexdigest()


def record_of(run_dir: Path, folder: Path) -> dict[str, Any]:
    """The body of the ledger's ``checkpoint`` record for a complete checkpoint."""
    index, sealed = read_index(folder), digest_of(folder)
    return {
        "step": index["step"],
        "attempt": index["attempt"],
        "path": str(folder.relative_to(run_dir)),
        "digest": sealed,
        "files": index["files"] | {INDEX: sealed},
    }
