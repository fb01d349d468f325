"""Whole files of a corpus on the local disk, by content: downloaded, verified, and removed by longest disuse.

A file's name is its SHA-256. It is written under a temporary name and renamed when it is verified, so a reader never
meets half a file and needs no lock; of two processes that fetch the same file one renames last. Every process verifies
a file before its own first use of it, so damage on the disk between runs is found. A use sets the file's modification
time, by which the longest unused go first when the cache is too large. A file that is removed while it is mapped stays
readable.
"""

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from time import time
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from millstream.errors import SetupError
from millstream.files import replacing, sha256_file
from millstream.tokenize.manifest import FileEntry

ABANDONED_SECONDS = 3600
"""A temporary file that was not written to for so long belongs to a process that is gone."""


TRIES = 16

Download = Callable[[FileEntry, Path], None]
Taken = TypeVar("Taken")


@dataclass(frozen=True, slots=True)
class ShardCache:
    """Files by SHA-256 below ``folder``, at most ``most_bytes`` of them, as one process sees them."""

    folder: Path
    most_bytes: int
    _verified: set[tuple[Path, int]] = field(default_factory=set)
    """Path and inode of the files that this process has verified."""
    _busy: dict[Path, Lock] = field(default_factory=dict)
    _maps: dict[Path, NDArray[np.uint8]] = field(default_factory=dict)

    def use(self, entry: FileEntry, download: Download, take: Callable[[Path], Taken]) -> Taken:
        """``take`` of the verified file; ``download`` writes what is missing and verifies it.

        Raises:
            SetupError: the cache cannot hold the file, or the disk is full.
        """
        for _ in range(TRIES):
            path = self._path(entry, download)
            try:
                return take(path)
            except FileNotFoundError:
                continue  # removed by another process since
        raise SetupError(f"{self.folder}: too small a cache for the processes that share it; enlarge cache_bytes")

    def _path(self, entry: FileEntry, download: Download) -> Path:
        path = self._place(entry)
        if self.ready(entry):
            return path
        if entry.bytes > self.most_bytes:
            raise SetupError(
                f"{self.folder}: a cache of {self.most_bytes} bytes cannot hold {entry.path}, {entry.bytes}"
            )
        with self._busy.setdefault(path, Lock()):
            if self.ready(entry) or self._sound(path, entry):
                return path
            self._make_room(entry.bytes, keep=path)
            with replacing(path) as temporary:
                download(entry, temporary)
            self._verified.add(_identity(path))
        return path

    def map(self, entry: FileEntry, download: Download) -> NDArray[np.uint8]:
        """The verified file's bytes, mapped into memory; errors as of ``use``.

        Maps of files that were removed since are let go: they would go on to take up space.
        """
        place = self._place(entry)
        if (known := self._maps.get(place)) is not None and self.ready(entry):
            return known
        # As a plain array: slicing a memmap object costs more than the copy of a short sequence.
        data = self.use(entry, download, lambda path: np.asarray(np.memmap(path, np.uint8, mode="r")))
        for path in list(self._maps):
            if not path.exists():
                self._maps.pop(path, None)
        self._maps[place] = data
        return data

    def ready(self, entry: FileEntry) -> bool:
        """Whether the file is here and this process has verified it; counts as a use."""
        path = self._place(entry)
        try:
            if _identity(path) not in self._verified:
                return False
            os.utime(path)
        except FileNotFoundError:
            return False
        return True

    def _place(self, entry: FileEntry) -> Path:
        return self.folder / entry.sha256[:2] / entry.sha256

    def _sound(self, path: Path, entry: FileEntry) -> bool:
        """Whether a file that another process left is the one that is wanted."""
        try:
            identity = _identity(path)
            if sha256_file(path) == entry.sha256:
                self._verified.add(identity)
                return True
        except FileNotFoundError:
            return False
        warnings.warn(f"{path}: damaged in the cache (for {entry.path}); it is fetched again", stacklevel=2)
        path.unlink(missing_ok=True)
        return False

    def _make_room(self, wanted: int, keep: Path) -> None:
        """Remove the files that were unused for longest until ``wanted`` bytes fit."""
        files = sorted(self._files())
        used = sum(size for _, size, _ in files)
        for changed, size, path in files:
            abandoned = path.suffix == ".tmp" and time() - changed > ABANDONED_SECONDS
            if abandoned or (used + wanted > self.most_bytes and path.suffix != ".tmp" and path != keep):
                path.unlink(missing_ok=True)
                used -= size

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        for path in self.folder.glob("*/*"):
            try:
                stat = path.stat()
            except FileNotFoundError:
                continue
            yield stat.st_mtime, stat.st_size, path


def _identity(path: Path) -> tuple[Path, int]:
    return path, path.stat().st_ino
