"""Where a corpus lies: a local folder or an object store; its files, whole and checked, from either."""

from io import BytesIO
from pathlib import Path
from urllib.parse import unquote, urlsplit

from millstream.errors import InputError
from millstream.files import sha256_file
from millstream.stream.remote import StoreSettings
from millstream.stream.store import Store
from millstream.tokenize.manifest import FileEntry, Manifest, check_size, read_manifest

Root = Path | Store
"""Where a corpus lies: a local folder, which is mapped into memory, or a store."""


def open_root(place: Root | str, settings: StoreSettings | None = None) -> Root:
    """The corpus root that a path or URL names; ``file://`` is a local folder.

    Raises:
        UsageError: fsspec knows no such protocol.
        SetupError: a package for it is missing.
    """
    if not isinstance(place, str):
        return place
    if "://" not in place:
        return Path(place)
    if place.startswith("file://"):
        return Path(unquote(urlsplit(place).path))
    store = Store(place.rstrip("/"), settings or StoreSettings())
    store.connect()
    return store


def read_corpus(root: Root) -> Manifest:
    """The manifest of the corpus at a root; errors as of ``read_manifest``."""
    return read_manifest(root) if isinstance(root, Path) else root.manifest()


def check_file(root: Root, entry: FileEntry) -> None:
    """Check a file's presence, size and SHA-256 where it lies, past any cache.

    Raises:
        InputError: it is missing or altered.
        SetupError: the store did not deliver it.
    """
    if not isinstance(root, Path):
        root.verify(entry)
    elif sha256_file(path := check_size(root, entry)) != entry.sha256:
        raise InputError(f"{path}: altered: its SHA-256 is not the manifest's")


def whole_file(root: Root, entry: FileEntry) -> Path | BytesIO:
    """A file of the corpus, to hand to a reader of tables: checked for its size locally, by its SHA-256 from a store.

    Raises:
        InputError: it is missing or altered.
        SetupError: the store did not deliver it.
    """
    return check_size(root, entry) if isinstance(root, Path) else BytesIO(root.read(entry))
