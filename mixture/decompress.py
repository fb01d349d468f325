"""Bytes of a stored file, decompressed by its suffix; a file that ends too early is an error."""

import gzip
import zlib
from collections.abc import Iterator
from typing import Any

import zstandard

BLOCK = 1 << 20


class TruncatedError(Exception):
    """The stored bytes end or break before the content does; says what was found."""


def blocks(stored: Any, path: str) -> Iterator[bytes]:
    """Decompressed blocks of about 1 MiB.

    Args:
        stored: open binary file.
        path: its name; ``.gz`` and ``.zst`` are decompressed (several members or frames too).

    Raises:
        TruncatedError: the compressed data is cut off or damaged.
    """
    try:
        if path.endswith(".gz"):
            with gzip.GzipFile(fileobj=stored) as unpacked:
                while block := unpacked.read1(BLOCK):
                    yield block
        elif path.endswith(".zst"):
            yield from _zstd(stored)
        else:
            while block := stored.read(BLOCK):
                yield block
    except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
        raise TruncatedError(str(error) or type(error).__name__) from error


def stem(path: str) -> str:
    """The path without a compression suffix."""
    for suffix in (".gz", ".zst"):
        path = path.removesuffix(suffix)
    return path


def _zstd(stored: Any) -> Iterator[bytes]:
    # The library's stream reader takes a cut-off frame for a finished one; its object form can be asked.
    frame = None
    rest = b""
    while data := rest or stored.read(BLOCK):
        frame = frame or zstandard.ZstdDecompressor().decompressobj()
        unpacked = frame.decompress(data)
        if unpacked:
            yield unpacked
        rest = frame.unused_data if frame.eof else b""
        if frame.eof:
            frame = None
    if frame is not None:
        raise TruncatedError("the last zstd frame is cut off")
