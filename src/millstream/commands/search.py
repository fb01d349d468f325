"""``millstream audit index`` and ``search``: indexes of a corpus, and documents by their words."""

from pathlib import Path
from typing import Annotated, Any

import typer

from millstream import show
from millstream.audit.corpora import open_corpora
from millstream.audit.document import DocumentAudit, audit_kept, hex_keys
from millstream.audit.lookup_index import index_lookups
from millstream.audit.runs import Run, open_run
from millstream.audit.search import Hit, Hits, search_passage, search_words
from millstream.audit.search_index import index_words, search_folder
from millstream.commands.options import AsJson, CorpusGiven, CorpusPlace
from millstream.errors import InputError, UsageError
from millstream.places import existing_corpus, existing_run
from millstream.progress import stages
from millstream.stream.corpora import Corpus, open_corpus
from millstream.stream.tables import lookup_folder

Target = Annotated[
    str, typer.Argument(metavar="RUN|CORPUS", help="Run or corpus: a folder, a name, or a URL.", show_default=False)
]


def index_command(
    corpus: CorpusGiven,
    words: Annotated[bool, typer.Option("--words", help="A full-text index too, for 'audit search'.")] = False,
    share: Annotated[float, typer.Option(help="With --words: only this share of the documents.", min=0, max=1)] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Make the indexes of a corpus: of keys, ids and URLs, where 'build' did not do so, and of words.

    Examples: millstream audit index corpora/demo --words

    millstream audit index s3://bucket/corpora/demo
    """
    opened = open_corpus(existing_corpus(corpus))
    with stages() as progress:
        entries = index_lookups(opened, progress)
        documents = index_words(opened, share, progress) if words else None
    if as_json:
        show.json({"corpus_id": opened.manifest.corpus_id, "new_entries": entries, "documents_by_words": documents})
        return
    show.line(f"keys, ids and URLs: {f'{entries:,} entries' if entries else 'there already'} · {lookup_folder(opened)}")
    if documents is not None:
        show.line(f"words of {documents:,} documents · {search_folder(opened)}")


def search_command(
    target: Target,
    words: Annotated[
        str | None, typer.Argument(help='Words that all must be there; "a phrase"; -word for none.', show_default=False)
    ] = None,
    passage: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Documents that share runs of words with this text.")
    ] = None,
    most: Annotated[int, typer.Option("--most", help="Documents to show.", min=1)] = 20,
    corpus: CorpusPlace = None,
    as_json: AsJson = False,
) -> None:
    """Find documents by words or by a passage, and the steps at which a run saw them.

    Examples: millstream audit search demo "ophelia nunnery"

    millstream audit search demo --passage my-essay.txt

    millstream audit search corpora/demo '"to be or not"' --json
    """
    if (words is None) == (passage is None):
        raise UsageError("audit search: give either words, in quotes, or --passage FILE")
    run, corpora = _run_and_corpora(target, corpus)
    text = _text(passage) if passage is not None else ""
    found = {
        corpus_id: search_words(c, words, most) if words is not None else search_passage(c, text, most)
        for corpus_id, c in corpora.items()
    }
    answers = [
        (hit, _audit(run, corpus_id, hit) if run is not None else None)
        for corpus_id, hits in found.items()
        for hit in hits.hits
    ]
    if as_json:
        show.json(_as_json(run, found, answers))
    else:
        _print(run, found, answers)


def _audit(run: Run, corpus_id: str, hit: Hit) -> DocumentAudit:
    if hit.state == "kept":
        return audit_kept(run, corpus_id, hit.document)
    return DocumentAudit(state=hit.state, domain=hit.domain, document=hit.document, corpus_id=corpus_id)


def _print(run: Run | None, found: dict[str, Hits], answers: list[tuple[Hit, DocumentAudit | None]]) -> None:
    matching = sum(hits.matching for hits in found.values())
    about = f"run {run.name}, at step {run.last_step} · " if run is not None else ""
    show.line(f"{about}{matching:,} document{'s' if matching != 1 else ''} found")
    for hits in found.values():
        if hits.share < 1:
            show.line(f"only {hits.share:.2%} of a corpus is indexed by its words")
    for hit, audit in answers:
        shared = f"{hit.shared:.0%} of the passage" if hit.shared is not None else f"score {hit.score:.2f}"
        show.line(
            f"\n{hit.document['doc_id']} · domain {hit.domain} · {audit.state if audit else hit.state} · {shared}"
        )
        if hit.document["url"]:
            show.line(f"  {hit.document['url']}")
        show.line(f"  {hit.excerpt}")
        if audit is not None and audit.state == "kept":
            show.line(f"  {_seen(audit)}")


def _seen(audit: DocumentAudit) -> str:
    parts = []
    for status in dict.fromkeys(e.status for e in audit.exposures):
        steps = sorted({e.step for e in audit.exposures if e.status == status})
        shown = ", ".join(map(str, steps[:8])) + (f", ... {steps[-1]}" if len(steps) > 8 else "")
        parts.append(f"{status} at step {shown}")
    return "; ".join(parts) or "in the corpus, but not within this plan's steps"


def _as_json(
    run: Run | None, found: dict[str, Hits], answers: list[tuple[Hit, DocumentAudit | None]]
) -> dict[str, Any]:
    documents = [
        {
            "state": audit.state if audit else hit.state,
            "domain": hit.domain,
            "score": hit.score,
            "shared": hit.shared,
            "excerpt": hit.excerpt,
            "document": hex_keys(hit.document),
        }
        | ({"exposures": audit.exposures} if audit else {})
        for hit, audit in answers
    ]
    corpora = [{"corpus_id": i, "matching": h.matching, "share": h.share} for i, h in found.items()]
    return ({"run": run.name} if run else {}) | {"corpora": corpora, "documents": documents}


def _run_and_corpora(target: str, corpus: str | None) -> tuple[Run | None, dict[str, Corpus]]:
    try:
        run = open_run(existing_run(target))
    except UsageError:
        opened = open_corpus(existing_corpus(target))
        return None, {opened.manifest.corpus_id: opened}
    return run, open_corpora(run, corpus)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}") from error


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command("index")(index_command)
    app.command("search")(search_command)
