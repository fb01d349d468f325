"""Words as datatrove splits English (spaCy's rules), or by a plain regex; learnt once a distinct chunk.

spaCy's rule tokenizer cuts at white space first and treats every chunk on its own, so a memo from chunk to
words gives its words exactly, and a text of known chunks costs no spaCy at all. What filters ask of a
chunk (words, letters, stop words) is counted when it is learnt.

The memo grows with the number of distinct chunks; a task keeps one for the documents it reads.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

NOT_SPACE = r"[^\s\x1c-\x1f]+"
"""Chunks: runs of what ``str.isspace`` is false for; Rust's ``\\s`` lacks the four separators."""

UNICODE_WORD = re.compile(r"\w+|[^\w\s]")
"""Words of the splitter ``unicode``, within a chunk: a run of word characters, or any other character by itself."""

CHUNK_SCHEMA = pl.Schema(
    {
        "chunk": pl.String,
        "id": pl.UInt32,
        "words": pl.UInt32,
        "plain": pl.UInt32,
        "plain_chars": pl.UInt32,
        "alpha": pl.UInt32,
        "stop": pl.UInt64,
    }
)
"""What is known of a chunk: its words, those that are not all punctuation and their characters, those with a
letter, and a bit for each stop word among them."""


@dataclass(frozen=True, slots=True)
class Words:
    """Words of several texts, end to end.

    ``ids`` (words,) number distinct words; text ``i`` has the words ``starts[i]`` to ``starts[i + 1]``.
    """

    ids: NDArray[np.int32]
    starts: NDArray[np.int64]


class Vocabulary:
    """The memo. ``stop_words`` (at most 64) get a bit each in the order given."""

    def __init__(self, stop_words: Sequence[str], splitter: Literal["spacy", "unicode"] = "spacy") -> None:
        from datatrove.utils.text import PUNCTUATION_SET

        self._split: Callable[[str], list[str]] = _spacy() if splitter == "spacy" else UNICODE_WORD.findall
        self._punctuation = PUNCTUATION_SET
        self._stop = {word: 1 << bit for bit, word in enumerate(stop_words)}
        self._word_ids: dict[str, int] = {}
        self._known = pl.DataFrame(schema=CHUNK_SCHEMA)
        self._members = np.empty(0, np.int32)
        self._ends = np.zeros(1, np.int64)
        self.lengths = np.empty(0, np.int32)
        """Characters of each distinct word."""
        self.pool = np.empty(0, np.uint8)
        """UTF-8 of all distinct words, end to end; ``pool_ends`` (words + 1,) cuts it."""
        self.pool_ends = np.zeros(1, np.int64)
        self._plain = np.empty(0, np.int64)
        self._alpha = np.empty(0, np.int64)
        self._stop_bits = np.empty(0, np.uint64)

    def chunks(self, documents: pl.DataFrame) -> pl.DataFrame:
        """Chunks of the column ``text``, in order, with ``doc`` (row number) and what is known of them."""
        found = (
            documents.select(
                doc=pl.int_range(pl.len(), dtype=pl.UInt32), chunk=pl.col("text").str.extract_all(NOT_SPACE)
            )
            .explode("chunk")
            .drop_nulls("chunk")
        )
        new = found.select(pl.col("chunk").unique()).join(self._known.select("chunk"), on="chunk", how="anti")
        self._learn(new["chunk"].to_list())
        return found.join(self._known, on="chunk", how="left", maintain_order="left")

    def words(self, chunks: pl.DataFrame, documents: int) -> Words:
        """The words of all documents, given their chunks."""
        ids, counts = chunks["id"].to_numpy().astype(np.int64), chunks["words"].to_numpy().astype(np.int64)
        ends = np.cumsum(counts)
        index = np.repeat(self._ends[ids] - (ends - counts), counts) + np.arange(int(ends[-1]) if len(ends) else 0)
        per_document = np.bincount(chunks["doc"].to_numpy(), weights=counts, minlength=documents).astype(np.int64)
        return Words(self._members[index], np.concatenate([[0], np.cumsum(per_document)]).astype(np.int64))

    def _learn(self, chunks: list[str]) -> None:
        if not chunks:
            return
        before = len(self._word_ids)
        members: list[int] = []
        counts: list[int] = []
        ids = self._word_ids
        for chunk in chunks:
            words = self._split(chunk)
            members += [ids.setdefault(word, len(ids)) for word in words]
            counts.append(len(words))
        self._describe(list(islice(ids, before, None)))
        member, count = np.array(members, np.int32), np.array(counts, np.int64)
        ends = np.cumsum(count)
        plain, alpha = self._plain[member], self._alpha[member]
        stop = np.zeros(len(chunks), np.uint64)
        np.bitwise_or.at(stop, np.repeat(np.arange(len(chunks)), count), self._stop_bits[member])
        first = len(self._known)
        learnt = {
            "chunk": chunks,
            "id": np.arange(first, first + len(chunks)),
            "words": count,
            "plain": _sums(plain, ends),
            "plain_chars": _sums(plain * self.lengths[member], ends),
            "alpha": _sums(alpha, ends),
            "stop": stop,
        }
        self._known = pl.concat([self._known, pl.DataFrame(learnt, schema_overrides=CHUNK_SCHEMA)], rechunk=True)
        self._members = np.concatenate([self._members, member])
        self._ends = np.concatenate([self._ends, self._ends[-1] + ends])

    def _describe(self, words: list[str]) -> None:
        """Add what is asked of single words, for words that are new."""
        punctuation = self._punctuation
        plain = [w.isalnum() or any(c not in punctuation for c in w) for w in words]
        alpha = [w.isalpha() or any(c.isalpha() for c in w) for w in words]
        self._plain = np.concatenate([self._plain, np.array(plain, np.int64)])
        self._alpha = np.concatenate([self._alpha, np.array(alpha, np.int64)])
        self._stop_bits = np.concatenate([self._stop_bits, np.array([self._stop.get(w, 0) for w in words], np.uint64)])
        self.lengths = np.concatenate([self.lengths, np.array([len(w) for w in words], np.int32)])
        encoded = [word.encode() for word in words]
        sizes = np.fromiter(map(len, encoded), np.int64, len(encoded))
        self.pool_ends = np.concatenate([self.pool_ends, self.pool_ends[-1] + np.cumsum(sizes)])
        self.pool = np.concatenate([self.pool, np.frombuffer(b"".join(encoded), np.uint8)])


def _sums(values: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sums of consecutive stretches that end at ``ends``."""
    total = np.concatenate([[0], np.cumsum(values)])
    sums: NDArray[np.int64] = np.diff(total[np.concatenate([[0], ends])])
    return sums


@lru_cache(1)
def _spacy() -> Any:
    """A function from a chunk to its words."""
    import spacy

    language = spacy.blank("en")
    # Attributes of words (shape, lower case, ...) that no splitting rule asks for, and half the time.
    language.vocab.lex_attr_getters = {}
    tokenizer = language.tokenizer
    exceptions = set(tokenizer.rules)

    def split(chunk: str) -> list[str]:
        if chunk.isascii() and chunk.isalpha() and chunk not in exceptions:
            return [chunk]
        return [token.text for token in tokenizer(chunk)]

    return split
