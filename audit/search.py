"""``audit search``: documents that hold words, phrases or parts of a passage, by the full-text index of a corpus."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from millstream.audit.search_index import PLACE, TEXT, SearchIndex, open_search, text_reader, words_of
from millstream.errors import UsageError
from millstream.stream.corpora import Corpus
from millstream.stream.tables import Table, rows_at, tables_of
from millstream.tokenize.manifest import DOCUMENT_COLUMNS

PHRASE = 8
"""Words of the phrases that a passage is looked for by."""
PHRASES = 64
"""Most phrases of a passage, evenly apart."""
RUN = 5
"""Words that must follow one another alike to count as shared."""
AROUND = 80
"""Characters shown on both sides of what was found."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """A document that was found.

    ``score`` is BM25's. ``shared`` is the part of a passage's words that stand in the document in runs of at least
    ``RUN`` words, None for a search by words. ``excerpt`` is text around the first thing found.
    """

    state: str
    domain: str
    document: dict[str, Any]
    score: float
    shared: float | None
    excerpt: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Hits:
    """What was found: the best documents, how many match, and the share of the corpus that is indexed."""

    hits: tuple[Hit, ...]
    matching: int
    share: float


def search_words(corpus: Corpus, text: str, most: int = 20) -> Hits:
    """Documents that hold all words of a question, the best first; ``"a phrase"``, and ``-word`` for none of it.

    Raises:
        UsageError: there is no index, or no word to look for.
        SetupError: Tantivy is not installed.
    """
    opened = open_search(corpus)
    import tantivy

    parts, wanted = [], []
    for sign, phrase, word in re.findall(r'(-?)(?:"([^"]*)"|(\S+))', text):
        words = _words(phrase or word)
        if words:
            occur = tantivy.Occur.MustNot if sign else tantivy.Occur.Must
            parts.append((occur, _phrase(opened, words)))
            wanted += [] if sign else [words]
    if not wanted:
        raise UsageError(f"no word to look for in {text!r}")
    places, count = _search(opened, tantivy.Query.boolean_query(parts), most)
    hits = tuple(
        Hit(
            state=table.kind,
            domain=table.domain,
            document=row,
            score=score,
            shared=None,
            excerpt=_excerpt(whole, wanted),
        )
        for score, table, row, whole in _read(corpus, places)
    )
    return Hits(hits=hits, matching=count, share=opened.share)


def search_passage(corpus: Corpus, passage: str, most: int = 20) -> Hits:
    """Documents that share runs of words with a passage, those that share most of it first.

    Raises:
        UsageError: there is no index, or the passage has no words.
        SetupError: Tantivy is not installed.
    """
    opened = open_search(corpus)
    import tantivy

    words = _words(passage)
    if not words:
        raise UsageError("the passage has no words to look for")
    size = min(PHRASE, len(words))
    starts = range(len(words) - size + 1)
    chosen = starts[:: max(1, -(-len(starts) // PHRASES))]
    phrases = [(tantivy.Occur.Should, _phrase(opened, words[at : at + size])) for at in chosen]
    places, count = _search(opened, tantivy.Query.boolean_query(phrases), 2 * most)
    hits = []
    for score, table, row, whole in _read(corpus, places):
        shared, first = _shared(words, _words(whole))
        hits.append(
            Hit(
                state=table.kind,
                domain=table.domain,
                document=row,
                score=score,
                shared=shared,
                excerpt=_excerpt(whole, [first]),
            )
        )
    hits.sort(key=lambda hit: (-(hit.shared or 0), -hit.score))
    return Hits(hits=tuple(hits[:most]), matching=count, share=opened.share)


def _words(text: str) -> list[str]:
    return str(words_of(pl.Series([text]))[0]).split()


def _phrase(opened: SearchIndex, words: Sequence[str]) -> Any:
    import tantivy

    if len(words) == 1:
        return tantivy.Query.term_query(opened.index.schema, TEXT, words[0])
    return tantivy.Query.phrase_query(opened.index.schema, TEXT, list(words))


def _search(opened: SearchIndex, query: Any, most: int) -> tuple[list[tuple[float, int]], int]:
    """Score and place of the best documents, and how many match."""
    searcher = opened.index.searcher()
    found = searcher.search(query, limit=most)
    return [(score, searcher.doc(address).get_first(PLACE)) for score, address in found.hits], found.count


def _read(corpus: Corpus, places: Iterable[tuple[float, int]]) -> Iterable[tuple[float, Table, dict[str, Any], str]]:
    """Score, table, row and text of each document."""
    tables, read = tables_of(corpus.manifest), text_reader(corpus)
    for score, place in places:
        table = tables[place >> 32]
        rows = rows_at(corpus, table, [place & 0xFFFFFFFF], DOCUMENT_COLUMNS)
        row = rows.with_columns(domain=pl.lit(table.domain)).row(0, named=True)
        yield score, table, row, read(table, [row["token_start"]], [row["n_tokens"]])[0]


def _shared(passage: list[str], document: list[str]) -> tuple[float, list[str]]:
    """The part of a passage's words in runs that stand in a document, and the first such run."""
    size = min(RUN, len(passage))
    there = {tuple(document[at : at + size]) for at in range(len(document) - size + 1)}
    covered = [False] * len(passage)
    first: list[str] = []
    for at in range(len(passage) - size + 1):
        if tuple(passage[at : at + size]) in there:
            covered[at : at + size] = [True] * size
            first = first or passage[at : at + size]
    return sum(covered) / len(passage), first


def _excerpt(text: str, wanted: Sequence[Sequence[str]]) -> str:
    """Text around the first phrase of several that is found in it."""
    for words in wanted:
        between = r"[^\w]*" if words else ""
        found = re.search(between.join(re.escape(word) for word in words), text, re.IGNORECASE) if words else None
        if found:
            start, end = max(0, found.start() - AROUND), min(len(text), found.end() + AROUND)
            return ("…" if start else "") + " ".join(text[start:end].split()) + ("…" if end < len(text) else "")
    return " ".join(text[: 2 * AROUND].split()) + ("…" if len(text) > 2 * AROUND else "")
