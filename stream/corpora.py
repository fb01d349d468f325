"""The corpora that a plan was made for: each where it lies, with its manifest, by its id."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from millstream.errors import InputError
from millstream.stream.plan import Plan
from millstream.stream.remote import StoreSettings
from millstream.stream.roots import Root, open_root, read_corpus
from millstream.tokenize.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Corpus:
    """A built corpus in a local folder or a store."""

    root: Root
    manifest: Manifest


Corpora = Mapping[str, Corpus]
"""Corpora by ``corpus_id``."""


def open_corpus(place: Root | str, settings: StoreSettings | None = None) -> Corpus:
    """Open one corpus.

    Raises:
        UsageError: there is no corpus at this place.
        InputError: its manifest is damaged.
        SetupError: the store is not reached, or a package for it is missing.
    """
    root = open_root(place, settings)
    return Corpus(root, read_corpus(root))


def corpora_of(plan: Plan, given: Iterable[Corpus]) -> dict[str, Corpus]:
    """The corpora of a plan among those given, in the plan's order.

    Raises:
        InputError: one is missing, or two have different tokenizers; names the corpus.
    """
    by_id = {corpus.manifest.corpus_id: corpus for corpus in given}
    for wanted in plan.corpus_ids:
        if wanted not in by_id:
            found = ", ".join(f"{c.root} holds corpus {i[:16]}" for i, c in by_id.items())
            raise InputError(f"{found}; the plan was made for {', '.join(i[:16] for i in plan.corpus_ids)}")
    chosen = {corpus_id: by_id[corpus_id] for corpus_id in plan.corpus_ids}
    first = next(iter(chosen.values()))
    for corpus in chosen.values():
        require_same_tokenizer(first, corpus)
    return chosen


def require_same_tokenizer(one: Corpus, other: Corpus) -> None:
    """Refuse two corpora in one run whose tokenizers differ.

    Raises:
        InputError: names both.
    """
    mine, yours = (c.manifest.tokenizer for c in (one, other))
    if (mine.file.sha256, mine.eos_id, mine.bos_id, mine.dtype) != (
        yours.file.sha256,
        yours.eos_id,
        yours.bos_id,
        yours.dtype,
    ):
        raise InputError(
            f"{other.root}: was built with another tokenizer ({yours.file.sha256[:16]}) than {one.root} "
            f"({mine.file.sha256[:16]}); a run has one tokenizer"
        )
