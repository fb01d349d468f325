"""Tokens back to text: corpora store no text, and the tokenizer is lossless."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from millstream.errors import InputError
from millstream.files import sha256_file
from millstream.tokenize.manifest import Manifest, check_size

Decode = Callable[[Sequence[int]], str]


def decoder(root: Path, manifest: Manifest) -> Decode:
    """A function from token ids to text, special tokens written out.

    A span that begins or ends inside a character shows U+FFFD there.

    Raises:
        InputError: the corpus's tokenizer file was altered.
    """
    path = check_size(root, manifest.tokenizer.file)
    if sha256_file(path) != manifest.tokenizer.file.sha256:
        raise InputError(f"{path}: altered: its SHA-256 is not the manifest's")
    return decoder_of(path.read_bytes())


def decoder_of(tokenizer_file: bytes) -> Decode:
    """A function from token ids to text, by the bytes of a tokenizer file."""
    tokenizer = Tokenizer.from_str(tokenizer_file.decode())
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))
