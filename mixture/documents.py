"""What a document is: its identity, its place in the order, and the columns that carry it.

``doc_id`` says where it came from, ``doc_key`` what it says. Neither depends on how many workers read
it, on the machine, or on an id that the data gives.
"""

import hashlib
import os
import unicodedata
from decimal import Decimal

import polars as pl

LIST_OF_TEXT: type[pl.DataType] | pl.DataType = pl.List(pl.String)

DOCUMENT_SCHEMA = pl.Schema(
    {
        "doc_key": pl.Binary,
        "text_key": pl.Binary,
        "doc_id": pl.String,
        "source": pl.String,
        "locator": pl.String,
        "url": pl.String,
        "licence": pl.String,
        "edits": LIST_OF_TEXT,
        "n_bytes": pl.Int64,
        "score": pl.Float64,
        "metadata": pl.String,
        "order": pl.UInt64,
        "text": pl.String,
    }
)
"""Documents on their way through the stages; ``order`` is the keyed hash they are sorted by."""

EXCLUSION_SCHEMA = pl.Schema(
    {
        "doc_key": pl.Binary,
        "doc_id": pl.String,
        "source": pl.String,
        "locator": pl.String,
        "raw_sha256": pl.Binary,
        "domain": pl.String,
        "stage": pl.String,
        "rule": pl.String,
        "value": pl.String,
        "threshold": pl.String,
        "kept_key": pl.Binary,
    }
)


def document_key(text: str) -> bytes:
    """SHA-256 over ``doc/v1``, a zero byte and the text in Unicode NFC with CRLF as LF; 32 bytes."""
    # Nearly all text is NFC already, and asking is cheaper than normalising.
    normal = text if text.isascii() or unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)
    return hashlib.sha256(b"doc/v1\0" + normal.replace("\r\n", "\n").encode()).digest()


def document_id(source: str, path: str, record: int) -> str:
    """``source:path:record``; the record is counted from 1."""
    return f"{source}:{path}:{record}"


def printable_path(path: str) -> str:
    """A path as UTF-8 text: bytes that are none are written as escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def order_hash(seed: int, doc_id: str) -> int:
    """Place of a document in its domain: the first 8 bytes (big-endian) of a keyed SHA-256."""
    return int.from_bytes(hashlib.sha256(f"order/v1\0{seed}\0{doc_id}".encode()).digest()[:8], "big")


def held_out(seed: int, doc_key: bytes, share: Decimal) -> bool:
    """Whether a document is kept out of every plan, by a keyed hash of its text alone."""
    if not share:
        return False
    word = int.from_bytes(hashlib.sha256(f"holdout/v1\0{seed}\0".encode() + doc_key).digest()[:8], "big")
    return word < share * (1 << 64)
