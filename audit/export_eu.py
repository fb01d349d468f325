"""``export eu``: the public summary of training content that Article 53(1)(d) of the EU AI Act asks for.

Sections are numbered as in the Commission's template. Quantities are counted from what the run learned; what only the
provider can state comes from its disclosures or stays ``to be provided``. Nothing is inferred: a source that nobody
put into a category is listed as such, and the synthetic share says how much that leaves open.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import polars as pl

from millstream.audit.content import totals
from millstream.audit.disclosures import Category, Disclosures, SourceFacts
from millstream.audit.runs import Run
from millstream.stream.corpora import Corpora

FORMAT = "millstream-export-eu/1"
LARGE = 0.03
"""Share of a category from which a public dataset is named rather than described (2.1)."""
SIZES = ((10**9, "less than 1 billion tokens"), (10**13, "1 billion to 10 trillion tokens"))
LARGEST = "more than 10 trillion tokens"

TITLES = {
    "public": "2.1 Publicly available datasets",
    "licensed": "2.2.1 Private datasets licensed by rights holders",
    "private": "2.2.2 Private datasets obtained from other third parties",
    "crawled": "2.3 Data crawled and scraped from online sources",
    "user": "2.4 User data",
    "synthetic": "2.5 Synthetic data",
    "other": "2.6 Other sources",
    "unassigned": "Sources that no category was given for",
}


def eu_summary(run: Run, corpora: Corpora, content: pl.DataFrame, told: Disclosures) -> dict[str, Any]:
    """The summary as JSON values.

    Args:
        run: the run.
        corpora: its corpora.
        content: what it learned from, as of ``learned_content``.
        told: what the provider states.
    """
    whole = totals(content).to_dicts()[0]
    sources = _sources(corpora, content, told)
    return {
        "format": FORMAT,
        "template": "Public summary of training content, Regulation (EU) 2024/1689, Article 53(1)(d)",
        "run": {
            "name": run.name,
            "run_id": run.run_id,
            "last_step": run.last_step,
            "ledger": {"records": len(run.records), "head": run.records[-1].hash},
            "plan_id": run.plan.plan_id,
            "corpora": {i: dict(zip(("keys_root", "documents_root"), r or (), strict=False)) for i, r in _roots(run)},
        },
        "1.1": told.provider.model_dump(),
        "1.2": {
            "name": told.model.name or run.recipe.public.title or run.name,
            "version": f"step {run.last_step} of run {run.run_id[:16]}",
            "dependencies": told.model.dependencies,
            "placed_on_the_market": told.model.placed_on_the_market,
        },
        "1.3": {
            "modalities": ["text"],
            "size": _size(whole["distinct_tokens"]),
            "documents": whole["documents"],
            "bytes": whole["bytes"],
            "distinct_tokens": whole["distinct_tokens"],
            "learned_tokens": whole["learned_tokens"],
            "languages": totals(content, "language").to_dicts(),
            "domains": totals(content, "domain").to_dicts(),
            "licences": totals(content, "licence").to_dicts(),
            **told.content.model_dump(),
        },
        "2": {category: sources.get(category, []) for category in (*get_args(Category), "unassigned")},
        "2.1": {"large_from_share": LARGE},
        "2.3": {**told.crawling.model_dump(), "internet_domains": _hosts(content, told)},
        "2.4": {"user_data": told.user_data},
        "2.5": _synthetic(sources, told, whole["learned_tokens"]),
        "3": told.processing.model_dump(),
    }


def _roots(run: Run) -> list[tuple[str, tuple[str, str] | None]]:
    used = set(run.plan.corpus_ids)
    return [(corpus_id, roots) for corpus_id, roots in run.corpus_roots.items() if corpus_id in used]


def _size(tokens: int) -> str:
    return next((name for limit, name in SIZES if tokens < limit), LARGEST)


def _sources(corpora: Corpora, content: pl.DataFrame, told: Disclosures) -> dict[str, list[dict[str, Any]]]:
    """Sources that were learned from, by category, largest first, each with its share of the category."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in totals(content, "corpus_id", "source").to_dicts():
        facts = told.sources.get(row["source"], SourceFacts())
        own = content.filter(pl.col("corpus_id") == row["corpus_id"], pl.col("source") == row["source"])
        found.setdefault(facts.category or "unassigned", []).append(
            {
                "source": row["source"],
                "title": facts.title,
                "link": facts.link,
                "description": facts.description,
                "generated_by": facts.generated_by,
                **_place(corpora, row["corpus_id"], row["source"]),
                "licences": sorted(set(own["licence"].drop_nulls())),
                **{name: value for name, value in row.items() if name not in ("corpus_id", "source")},
            }
        )
    for category, rows in found.items():
        tokens = sum(row["learned_tokens"] for row in rows)
        for row in rows:
            row["share_of_category"] = row["learned_tokens"] / max(1, tokens)
            if category == "public":
                row["large"] = row["share_of_category"] >= LARGE
    return found


def _place(corpora: Corpora, corpus_id: str, name: str) -> dict[str, Any]:
    """The package that a source is read from; a folder says nothing to outsiders."""
    manifest = corpora[corpus_id].manifest
    source = next(s for s in manifest.corpus["sources"] if s["name"] == name)
    package = source.get("package")
    version = source.get("version") or manifest.build.get("packages", {}).get(package)
    return {"package": f"{package} {version}" if version else package} if package else {}


def _hosts(content: pl.DataFrame, told: Disclosures) -> dict[str, Any]:
    """The largest internet domains of crawled documents: a tenth of them, or of small enterprises at most 1,000."""
    crawled = [name for name, facts in told.sources.items() if facts.category == "crawled"]
    hosts = totals(content.filter(pl.col("source").is_in(crawled), pl.col("host").is_not_null()), "host")
    listed = math.ceil(len(hosts) / 10)
    if told.small_enterprise:
        listed = min(math.ceil(len(hosts) / 20), 1000)
    return {"number": len(hosts), "listed": hosts.head(listed).to_dicts()}


def _synthetic(sources: dict[str, list[dict[str, Any]]], told: Disclosures, tokens: int) -> dict[str, Any]:
    rows = [row for own in sources.values() for row in own]
    written = {name for name, s in told.sources.items() if s.category == "synthetic" or s.generated_by}
    synthetic = sum(row["learned_tokens"] for row in rows if row["source"] in written)
    open_tokens = sum(row["learned_tokens"] for row in sources.get("unassigned", []) if row["source"] not in written)
    return {
        "learned_tokens": synthetic,
        "share": synthetic / max(1, tokens),
        "generated_by": sorted({row["generated_by"] for row in rows if row["generated_by"]}),
        "not_stated_tokens": open_tokens,
        "not_stated_share": open_tokens / max(1, tokens),
    }


def eu_markdown(summary: dict[str, Any]) -> str:
    """The summary for people."""
    return "\n".join(_lines(summary)) + "\n"


def _lines(summary: dict[str, Any]) -> Iterator[str]:
    run = summary["run"]
    yield from (f"# Public summary of training content: {summary['1.2']['name']}", "", summary["template"] + ".", "")
    yield f"Counted from what run `{run['run_id'][:16]}` learned in steps 1 to {run['last_step']:,}; its ledger had"
    yield f"{run['ledger']['records']:,} records then, the last `{run['ledger']['head'][:16]}`."
    yield from ("", "## 1. General information", "", "### 1.1 Provider", "", *_facts(summary["1.1"]))
    yield from ("", "### 1.2 Model", "", *_facts(summary["1.2"]), "", "### 1.3 Modalities and size", "")
    counted = ("languages", "domains", "licences", "modalities", "size", "documents", "bytes")
    numbers = ("distinct_tokens", "learned_tokens")
    whole = summary["1.3"]
    yield f"Text: {whole['size']}. {whole['distinct_tokens']:,} distinct tokens of {whole['documents']:,} documents"
    yield f"({whole['bytes']:,} bytes of text); {whole['learned_tokens']:,} tokens with repetitions."
    yield from ("", *_facts({k: v for k, v in whole.items() if k not in (*counted, *numbers)}), "")
    for name, title in (("language", "Language"), ("domain", "Domain of the mixture"), ("licence", "Licence")):
        yield from (*_table([title], whole[f"{name}s"], [name]), "")
    yield "## 2. List of data sources"
    for category, title in TITLES.items():
        rows = summary["2"][category]
        if category == "unassigned" and not rows:
            continue
        yield from ("", f"### {title}", "")
        if category == "crawled":
            crawled = dict(summary["2.3"])
            hosts = crawled.pop("internet_domains")
            yield from (*_facts(crawled), "", f"{hosts['number']:,} internet domains; the largest:", "")
            yield from (*_table(["Internet domain"], hosts["listed"], ["host"]), "")
        elif category == "user":
            yield from (*_facts(summary["2.4"]), "")
        elif category == "synthetic":
            made = summary["2.5"]
            yield f"Share of the learned tokens: {made['share']:.2%}; not stated for {made['not_stated_share']:.2%}."
            yield from ("", f"Generated by: {_cell(made['generated_by'] or None)}", "")
        columns = ("source", "title", "link", "description", "licences")
        named = [row | {"title": row["title"] or row.get("package")} for row in rows]
        yield from _table([name.capitalize() for name in columns], named, columns)
    yield from ("", "## 3. Data processing", "", *_facts(summary["3"]))


def _facts(facts: dict[str, Any]) -> Iterator[str]:
    for name, value in facts.items():
        yield f"- {name.replace('_', ' ').capitalize()}: {_cell(value)}"


def _table(titles: Sequence[str], rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> Iterator[str]:
    if not rows:
        yield "None."
        return
    yield "| " + " | ".join([*titles, "Documents", "Bytes", "Distinct tokens", "Tokens learned", "Share"]) + " |"
    yield "|" + "---|" * len(titles) + "---:|" * 5
    for row in rows:
        numbers = [f"{row[n]:,}" for n in ("documents", "bytes", "distinct_tokens", "learned_tokens")]
        yield "| " + " | ".join([*(_cell(row[c]) for c in columns), *numbers, f"{row['share']:.2%}"]) + " |"


def _cell(value: Any) -> str:
    """A value as text that cannot become markup of its own."""
    if isinstance(value, list):
        value = ", ".join(value)
    text = "not known" if value is None or value == "" else str(value)
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").split())
