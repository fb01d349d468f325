"""The corpora of a run: the one that it began with, and those that amendments brought in."""

from millstream.audit.runs import Run
from millstream.errors import InputError, UsageError
from millstream.stream.corpora import Corpus, open_corpus
from millstream.stream.remote import StoreSettings
from millstream.stream.roots import Root


def open_corpora(run: Run, given: Root | str | None = None, settings: StoreSettings | None = None) -> dict[str, Corpus]:
    """Open every corpus that a run's plans name, by its id, in the order in which they came.

    Args:
        run: the run.
        given: where one of them lies now; the others are looked for where they lay when they came in.
        settings: how a store is read.

    Raises:
        UsageError: there is no corpus at a place.
        InputError: a corpus that the run used is at none of the places.
    """
    wanted = dict.fromkeys(corpus_id for plan in run.plans.values() for corpus_id in plan.corpus_ids)
    found: dict[str, Corpus] = {}
    if given is not None:
        corpus = open_corpus(given, settings)
        found[corpus.manifest.corpus_id] = corpus
    for place in run.corpus_places:
        if len(wanted.keys() - found.keys()) == 0:
            break
        try:
            corpus = open_corpus(place, settings)
        except UsageError:
            # Not there any more; whether that matters is seen below.
            if given is None and len(run.corpus_places) == 1:
                raise
            continue
        found.setdefault(corpus.manifest.corpus_id, corpus)
    for corpus_id in wanted:
        if corpus_id not in found:
            there = ", ".join(f"{c.root} holds corpus {i[:16]}" for i, c in found.items()) or "none is there"
            raise InputError(f"{run.path}: the run used corpus {corpus_id[:16]}; {there} (say where with --corpus)")
    return {corpus_id: found[corpus_id] for corpus_id in wanted}
