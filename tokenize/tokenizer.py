"""Tokenizers: training one on the corpus's own text, loading one, encoding text as nothing but text.

Special tokens are never matched inside a text: a document that contains ``<|eos|>`` must not forge a
document's end. They are kept out of the encoder and put around documents by id. The file that a corpus
ships has them, so that anybody's decoder shows them.
"""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import tiktoken
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from millstream.errors import InputError, RecipeError
from millstream.files import sha256_file
from millstream.mixture.recipe import TokenizerFile, TrainedTokenizer
from millstream.tokenize.fast_bpe import agree, fast_encoding

EOS = "<|eos|>"
BOS = "<|bos|>"
PAD = "<|pad|>"

PROBES = (
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog. 0123456789",
    "  leading, trailing and   inner spaces  ",
    "tabs\tnew\nlines\r\nand\r returns\n\n\n",
    "naïve café — “quotes” … ½ ‰",
    "Größe, Straße, œuvre, señor, İstanbul",
    "Привет, мир. Γειά σου Κόσμε. שלום עולם. مرحبا",
    "你好,世界。こんにちは世界。안녕하세요",
    "e\u0301 versus \u00e9, \u200dzero width\u200b, \ufeffmark",
    "👩‍👩‍👧‍👦 family, 🏳️‍🌈 flag",
    "\x00\x01\x1b[31m control",
    "<|eos|><|bos|><|endoftext|></s><s>[PAD]",
    "def f(x):\n    return {'a': x ** 2}  # comment",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
)
"""Fixed strings whose ids are digested: libraries that begin to encode differently are noticed."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """A tokenizer that encodes text as ordinary text.

    ``plain`` has no special tokens; ids of ``bos`` (where there is one) and ``eos`` go round each document.
    """

    plain: Tokenizer
    vocab_size: int
    eos: int
    bos: int | None
    fast: tiktoken.Encoding | None
    """An engine that gives the same ids sooner, where there is one."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint16 where the vocabulary has at most 65,536 entries, else uint32."""
        return np.dtype("<u2" if self.vocab_size <= 1 << 16 else "<u4")

    def encode(self, texts: list[str]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Tokens of documents, end to end with BOS and EOS, and the number of each: (total,) and (n,)."""
        before = [] if self.bos is None else [self.bos]
        encoded = [[*before, *ids, self.eos] for ids in self._ids(texts)]
        counts = np.fromiter((len(ids) for ids in encoded), np.int64, len(encoded))
        tokens = np.empty(int(counts.sum()), self.dtype)
        at = 0
        for ids in encoded:
            tokens[at : at + len(ids)] = ids
            at += len(ids)
        return tokens, counts

    def checked_on(self, texts: list[str]) -> "Encoder":
        """This encoder, without the fast engine if it disagrees on a text."""
        if self.fast is None or agree(self.fast, self.plain, texts):
            return self
        return replace(self, fast=None)

    def _ids(self, texts: list[str]) -> Iterable[list[int]]:
        if self.fast is not None:
            return map(self.fast.encode_ordinary, texts)
        return (e.ids for e in self.plain.encode_batch_fast(texts, add_special_tokens=False))

    def probe(self) -> str:
        """Digest of the ids of the fixed strings, as hex."""
        tokens, counts = self.encode(list(PROBES))
        return hashlib.sha256(counts.astype("<i8").tobytes() + tokens.astype("<u4").tobytes()).hexdigest()


def train_bpe(settings: TrainedTokenizer, texts: Iterable[str], path: Path) -> None:
    """Train a byte-level BPE and write it as a Hugging Face tokenizers file.

    Single-threaded, so that the same texts in the same order give the same merges.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = "1"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab_size,
        special_tokens=[EOS, BOS, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))


def load_encoder(path: Path, eos: str, bos: str | None) -> Encoder:
    """Load a tokenizers file, check that it is lossless, and make its encoder.

    Raises:
        InputError: the file is no tokenizer, or it does not give every text back.
        RecipeError: it has no such EOS or BOS token.
    """
    try:
        raw = orjson.loads(path.read_bytes())
        full = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise InputError(f"{path}: not a tokenizers file: {error}") from error
    ids: dict[str, int] = {}
    for name, token in (("EOS", eos), ("BOS", bos)):
        if token is not None and (found := full.token_to_id(token)) is None:
            raise RecipeError(f"{path}: has no {name} token '{token}'")
        if token is not None and found is not None:
            ids[name] = found
    plain = Tokenizer.from_str(orjson.dumps({**raw, "added_tokens": [], "post_processor": None}).decode())
    # Ids may have holes: what counts is the largest.
    vocab_size = 1 + max(full.get_vocab(with_added_tokens=True).values())
    encoder = Encoder(plain, vocab_size, ids["EOS"], ids.get("BOS"), fast_encoding(raw)).checked_on(list(PROBES))
    for text in PROBES:
        if (back := full.decode(plain.encode(text).ids, skip_special_tokens=False)) != text:
            raise InputError(f"{path}: not lossless: {text!r} comes back as {back!r}; a corpus keeps no other text")
    return encoder


def encoder_of(settings: TrainedTokenizer | TokenizerFile, path: Path) -> Encoder:
    """The encoder of a recipe's tokenizer, whose file lies at ``path``."""
    if isinstance(settings, TrainedTokenizer):
        return load_encoder(path, EOS, None)
    if settings.sha256 is not None and sha256_file(path) != settings.sha256:
        raise InputError(f"{path}: its SHA-256 is not the recipe's {settings.sha256[:16]}")
    return load_encoder(path, settings.eos, settings.bos)
