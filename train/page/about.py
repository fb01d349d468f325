"""What a run is made of, as its page tells it: recipe, code, environment, corpora and what was left out of them."""

from pathlib import Path
from typing import Any

import orjson
import yaml

from millstream.audit.runs import Run
from millstream.stream.corpora import Corpora, Corpus
from millstream.tokenize.manifest import DomainManifest

MOST_REPORT = 8 << 20
"""Bytes of a build's report that are read; its domains' examples are left out anyway."""


def about_run(run: Run, corpora: Corpora) -> dict[str, Any]:
    """Recipe, code, environment and corpora as JSON values."""
    recipe = {name: value for name, value in run.info["recipe"].items() if name != "build"}
    return {
        "name": run.name,
        "run_id": run.run_id,
        "created": run.info["created"],
        "recipe": yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, width=88),
        "sections": run.info["sections"],
        "code": run.info["code"],
        "environment": run.info["environment"],
        "plan_id": run.plan.plan_id,
        "corpora": [_corpus(corpus_id, corpora.get(corpus_id)) for corpus_id in _named(run)],
    }


def _named(run: Run) -> list[str]:
    return list(dict.fromkeys(corpus_id for plan in run.plans.values() for corpus_id in plan.corpus_ids))


def _corpus(corpus_id: str, corpus: Corpus | None) -> dict[str, Any]:
    """A corpus in numbers; only its id where it does not lie here."""
    if corpus is None:
        return {"id": corpus_id, "domains": None}
    manifest = corpus.manifest
    tokenizer = manifest.tokenizer
    return {
        "id": corpus_id,
        "domains": [_domain(domain) for domain in manifest.domains],
        "tokenizer": {"vocab_size": tokenizer.vocab_size, "sha256": tokenizer.file.sha256, "dtype": tokenizer.dtype},
        "files": len(manifest.files()),
        "bytes": sum(entry.bytes for entry in manifest.files()),
        "report": _report(corpus),
    }


def _domain(domain: DomainManifest) -> dict[str, Any]:
    held_out = domain.holdout.document_count if domain.holdout else 0
    return {
        "name": domain.name,
        "read": domain.read,
        "kept": domain.documents,
        "held_out": held_out,
        "exclusions": dict(sorted(domain.exclusions.items(), key=lambda item: (-item[1], item[0]))),
        "tokens": domain.tokens,
        "bytes": domain.bytes,
    }


def _report(corpus: Corpus) -> dict[str, Any] | None:
    """Sources with their licences, duplicates and leaks, where the build's report lies beside a local corpus."""
    path = corpus.root / "report.json" if isinstance(corpus.root, Path) else None
    if path is None or not path.is_file() or path.stat().st_size > MOST_REPORT:
        return None
    report = orjson.loads(path.read_bytes())
    # No part of the corpus's identity: only one that was made for this very corpus is believed.
    if report.get("corpus_id") != corpus.manifest.corpus_id:
        return None
    sources = [{"name": s["name"], "licences": s["licences"]} for s in report["sources"]]
    return {"sources": sources, "duplicates": report["duplicates"], "contamination": report["contamination"]}
