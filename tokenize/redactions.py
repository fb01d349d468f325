"""Redactions: documents of a corpus whose tokens were written over, and the files that became others by it.

``CORPUS/redactions.json`` lies beside the manifest, which stays as it was sealed, so the corpus keeps its id. A
redacted document keeps its place, its keys and the digest of its tokens; that is what the corpus's roots are made of.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from millstream.canonical import canonical_bytes
from millstream.errors import InputError

FORMAT = "millstream-redactions/1"
REDACTIONS = "redactions.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class RedactedDocument:
    """A document that was written over with EOS; keys and digest as hex.

    ``tokens_sha256`` is of its tokens as they were, u32 each, little-endian.
    """

    domain: str
    token_start: int
    n_tokens: int
    doc_key: str
    tokens_sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RedactedFile:
    """A file as it is now, and as the manifest has it."""

    path: str
    bytes: int
    sha256: str
    sealed_bytes: int
    sealed_sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Redactions:
    """All redactions of a corpus."""

    corpus_id: str
    documents: tuple[RedactedDocument, ...]
    files: tuple[RedactedFile, ...]

    def encoded(self) -> bytes:
        """The file's bytes; what ledgers have the SHA-256 of."""
        body: dict[str, Any] = {"format": FORMAT} | asdict(self)
        return canonical_bytes(body | {name: list(body[name]) for name in ("documents", "files")}) + b"\n"


def read_redactions(root: Path) -> Redactions | None:
    """The redactions of a corpus in a folder; None where nothing was redacted.

    Raises:
        InputError: the file is damaged or of a newer format.
    """
    path = root / REDACTIONS
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    return parse_redactions(data, str(path))


def parse_redactions(data: bytes, where: str) -> Redactions:
    """The redactions that a file holds; ``where`` names the file in errors.

    Raises:
        InputError: the file is damaged or of a newer format.
    """
    try:
        raw = orjson.loads(data)
        if raw["format"] != FORMAT:
            raise InputError(f"{where}: expected format {FORMAT}, found {raw['format']}")
        found = Redactions(
            corpus_id=raw["corpus_id"],
            documents=tuple(RedactedDocument(**entry) for entry in raw["documents"]),
            files=tuple(RedactedFile(**entry) for entry in raw["files"]),
        )
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise InputError(f"{where}: damaged: {error!r}") from error
    if found.encoded() != data:
        raise InputError(f"{where}: damaged: not in canonical form")
    return found
