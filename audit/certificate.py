"""A signed certificate of takedowns, for those who asked: what was seen of their documents, and since when no more.

An in-toto statement (v1) in a DSSE envelope, as of ``millstream.audit.export_intoto``. Each takedown comes with the
signed heads around its record, so that whoever holds an older head can see that nothing else was changed.
"""

from dataclasses import asdict
from typing import Any

import polars as pl

from millstream.audit.export_intoto import STATEMENT
from millstream.audit.exposures import document_slices
from millstream.audit.heads import heads_of, origin_of
from millstream.audit.prove import newest_head, open_note
from millstream.audit.runs import Run
from millstream.audit.takedown import newest_before, takedown_report
from millstream.errors import UsageError
from millstream.stream.amend import Span
from millstream.stream.corpora import Corpora

PREDICATE = "urn:millstream:takedown:v1"


def takedown_statement(run: Run, corpora: Corpora) -> dict[str, Any]:
    """The statement about every takedown of a run, those that were undone too.

    Raises:
        UsageError: nothing was taken down, or no signed head covers the newest takedown.
        InputError: a document table is missing or damaged.
    """
    reports = takedown_report(run)
    if not reports:
        raise UsageError(f"{run.path}: nothing was taken down, so there is nothing to certify")
    note, head = newest_head(run)
    if max(report["record"] for report in reports) >= head.size:
        raise UsageError(f"{run.path}: no signed head covers the takedown; 'millstream sign {run.path}' signs one")
    assert run.signer is not None
    heads = [open_note(path, run.signer) for path in heads_of(run.path)]
    subjects, takedowns = [], []
    for report in reports:
        span = Span(**report["span"])
        documents = _documents(corpora, span)
        before = [text for text, older in heads if older.size <= report["record"]]
        after = [text for text, later in heads if later.size > report["record"]]
        steps = report["steps_before"]
        clean = newest_before(run, steps[0]) if steps else run.last_step
        subjects += [{"name": d["doc_id"], "digest": {"millstream_doc_key": d["doc_key"]}} for d in documents]
        takedowns.append(
            {
                **{n: report[n] for n in ("record", "hash", "why", "by", "from_step", "in_force")},
                "segment": next(s.id for s in run.segments if s.first_step <= report["from_step"] < s.end_step),
                "documents": documents,
                "span": report["span"],
                "roots": dict(
                    zip(("keys_root", "documents_root"), run.corpus_roots[span.corpus_id] or (), strict=False)
                ),
                "exposures_before": report["seen_before"],
                "steps_before": steps,
                "exposures_after": report["fed_or_planned_after"],
                "redaction": _redaction(run, corpora, report["redaction"]),
                "last_checkpoint_without": clean,
                "head_before": before[-1] if before else None,
                "head_after": after[0],
            }
        )
    return {
        "_type": STATEMENT,
        "subject": [dict(s) for s in {s["name"]: s for s in subjects}.values()],
        "predicateType": PREDICATE,
        "predicate": {
            "run": {"name": run.name, "run_id": run.run_id, "log": origin_of(run), "last_step": run.last_step},
            "takedowns": takedowns,
            "head": note,
        },
    }


def _redaction(run: Run, corpora: Corpora, seq: int | None) -> dict[str, Any] | None:
    """By which record a document left the corpus, and the files as they were sealed and as they are."""
    if seq is None:
        return None
    record = run.records[seq]
    listed = corpora[record.body["corpus_id"]].manifest.redactions
    files = [asdict(file) for file in listed.files] if listed else []
    named = {n: record.body[n] for n in ("corpus_id", "redactions", "why", "by")}
    return {"record": seq, "hash": record.hash, **named, "files": files}


def _documents(corpora: Corpora, span: Span) -> list[dict[str, str]]:
    """Id and keys of the documents of a span."""
    corpus = corpora[span.corpus_id]
    shards = [
        shard
        for shard in corpus.manifest.domain(span.domain).shards
        if shard.token_start < span.end and shard.token_start + shard.tokens > span.start
    ]
    columns = ("doc_id", "doc_key", "text_key", "token_start")
    inside = (pl.col("token_start") >= span.start) & (pl.col("token_start") < span.end)
    found = [table.filter(inside) for shard in shards for table in document_slices(corpus, shard, columns)]
    keys = pl.col("doc_key", "text_key").bin.encode("hex")
    return pl.concat(found).select("doc_id", keys).to_dicts()
