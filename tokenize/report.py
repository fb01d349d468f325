"""The report of a build: what went in, what stayed, what was dropped and why, counted from the tables written.

``report.json`` for machines, ``report.html`` for people (``report_page``). No part of the corpus: it can be made anew.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from millstream.files import write_bytes
from millstream.html import write_page
from millstream.mixture.contamination import EvaluationSet, planted_leaks
from millstream.mixture.recipe import Corpus, Recipe
from millstream.tokenize.curate import Inputs
from millstream.tokenize.deduplicate import Deduplicated
from millstream.tokenize.encode import first_texts
from millstream.tokenize.manifest import DomainManifest, Manifest
from millstream.tokenize.report_page import report_sections

FORMAT = "millstream-report/1"
SAMPLES = 3
SAMPLE_CHARS = 300
HOSTS = 20
"""Documents that evaluation items are planted in, to see whether they are found."""
CLUSTERS = 10
"""Largest clusters of duplicates that are shown."""


def write_report(root: Path, recipe: Recipe, inputs: Inputs, manifest: Manifest, documents: Deduplicated) -> None:
    """Write ``report.json`` and ``report.html`` into a sealed corpus."""
    report = make_report(root, recipe.corpus, inputs, manifest, documents)
    write_bytes(root / "report.json", orjson.dumps(report, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n")
    write_page(root / "report.html", f"Corpus {recipe.name}", report_sections(report))


def make_report(
    root: Path, corpus: Corpus, inputs: Inputs, manifest: Manifest, documents: Deduplicated
) -> dict[str, Any]:
    """The report as JSON values."""
    excluded = pl.concat([pl.scan_parquet(root / entry.path) for entry in manifest.exclusions])
    return {
        "format": FORMAT,
        "corpus_id": manifest.corpus_id,
        "domains": [_domain(root, d, excluded, documents) for d in manifest.domains],
        "sources": _sources(root, corpus, inputs, manifest),
        "duplicates": _duplicates(root, manifest),
        "contamination": _contamination(corpus, inputs.evaluation, excluded, documents),
    }


def _domain(root: Path, domain: DomainManifest, excluded: pl.LazyFrame, documents: Deduplicated) -> dict[str, Any]:
    """A domain's counts; shares are of the records read, and all of these are accounted for."""
    holdout = domain.holdout.document_count if domain.holdout else 0
    rules = excluded.filter(pl.col("domain") == domain.name)
    examples = rules.group_by("stage", "rule").agg(
        pl.col("doc_id", "value", "threshold").sort_by("doc_id").head(SAMPLES)
    )
    shown = {
        f"{stage}/{rule}": [
            {"doc_id": i, "value": v, "threshold": t} for i, v, t in zip(ids, values, limits, strict=True)
        ]
        for stage, rule, ids, values, limits in examples.sort("stage", "rule").collect().iter_rows()
    }
    dropped = sum(domain.exclusions.values())
    edits = _edits(root, domain)
    first = first_texts(documents.reads, domain.name, documents.gone, SAMPLES)
    return {
        "name": domain.name,
        "read": domain.read,
        "kept": domain.documents,
        "held_out": holdout,
        "excluded": dropped,
        "accounted_for": domain.documents + holdout + dropped == domain.read,
        "tokens": domain.tokens,
        "bytes": domain.bytes,
        "shards": len(domain.shards),
        "exclusions": [
            {"rule": name, "documents": n, "share": n / domain.read, "examples": shown.get(name, [])}
            for name, n in sorted(domain.exclusions.items(), key=lambda item: (-item[1], item[0]))
        ],
        "edits": edits,
        "samples": [{"doc_id": doc_id, "text": text[:SAMPLE_CHARS]} for doc_id, text in first.iter_rows()],
    }


def _tables(root: Path, domain: DomainManifest) -> pl.LazyFrame:
    """Documents of a domain, held-out ones too."""
    shards = [*domain.shards, *([domain.holdout] if domain.holdout else [])]
    wanted = ["source", "licence", "edits", "n_bytes", "n_tokens"]
    return pl.concat([pl.scan_parquet(root / shard.documents.path).select(wanted) for shard in shards])


def _edits(root: Path, domain: DomainManifest) -> dict[str, int]:
    """Documents that each rule has edited."""
    edits = _tables(root, domain).select(pl.col("edits").list.unique()).explode("edits").drop_nulls()
    return dict(edits.group_by("edits").len().sort("edits").collect().rows())


def _sources(root: Path, corpus: Corpus, inputs: Inputs, manifest: Manifest) -> list[dict[str, Any]]:
    """Each source with its licences: what was read of it, and what of it is in the corpus."""
    kept = pl.concat([_tables(root, domain) for domain in manifest.domains])
    by_licence = kept.group_by("source", "licence").agg(pl.len(), pl.col("n_tokens", "n_bytes").sum())
    rows = by_licence.sort("source", "licence").collect().rows()
    return [
        {
            "name": source.name,
            "from": source.package or source.root,
            "files": len(inputs.files[source.name]),
            "file_bytes": sum(file.size for file in inputs.files[source.name]),
            "licences": [
                {"licence": licence, "documents": documents, "tokens": tokens, "bytes": size}
                for name, licence, documents, tokens, size in rows
                if name == source.name
            ],
        }
        for source in corpus.sources
    ]


def _duplicates(root: Path, manifest: Manifest) -> dict[str, Any]:
    """Duplicates by rule, and the largest clusters: a kept document and how many went for it."""
    entry = next((e for e in manifest.duplicates if e.path.endswith("documents.parquet")), None)
    if entry is None:
        return {"by_rule": {}, "clusters": 0, "largest": []}
    table = pl.read_parquet(root / entry.path)
    clusters = table.group_by("kept_domain", "kept_id").agg(
        pl.len().alias("dropped"), pl.col("similarity").min(), pl.col("domain").unique().sort()
    )
    largest = clusters.sort("dropped", "kept_domain", "kept_id", descending=[True, False, False]).head(CLUSTERS)
    return {
        "by_rule": dict(table.group_by("rule").len().sort("rule").rows()),
        "clusters": len(clusters),
        "largest": largest.to_dicts(),
    }


def _contamination(
    corpus: Corpus, sets: Sequence[EvaluationSet], excluded: pl.LazyFrame, documents: Deduplicated
) -> list[dict[str, Any]]:
    """For each evaluation set: documents that were dropped for it, and how many of its planted items are found."""
    if corpus.decontaminate is None:
        return []
    leaked = excluded.filter(pl.col("stage") == "decontaminate").select(set=pl.col("value").str.extract(r"^([^:]+):"))
    dropped = dict(leaked.group_by("set").len().collect().rows())
    hosts: list[str] = []
    for domain in corpus.split_domains:
        hosts += first_texts(documents.reads, domain.name, documents.gone, HOSTS)["text"].to_list()
    return [
        {"set": each.name, "dropped": dropped.get(each.name, 0)} | planted_leaks(corpus.decontaminate, each, hosts)
        for each in sets
    ]
