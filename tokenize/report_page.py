"""The report as a page."""

from collections.abc import Iterator
from typing import Any

from millstream import html


def report_sections(report: dict[str, Any]) -> Iterator[str]:
    """Sections of the page."""
    domains = report["domains"]
    whole = all(domain["accounted_for"] for domain in domains)
    told = "Every record that was read is kept, held out or excluded." if whole else "RECORDS ARE MISSING."
    yield f'<p class="note">Corpus <code>{html.text(report["corpus_id"])}</code>. {told}</p>'
    yield "<h2>Domains</h2>"
    yield html.table(
        ("domain", "read", "kept", "held out", "excluded", "", "tokens", "bytes", "shards"),
        [
            (
                d["name"],
                d["read"],
                d["kept"],
                d["held_out"],
                d["excluded"],
                _share(d),
                d["tokens"],
                d["bytes"],
                d["shards"],
            )
            for d in domains
        ],
    )
    yield "<h2>Sources and licences</h2>"
    yield html.table(
        ("source", "from", "files", "bytes of files", "licence", "documents", "tokens", "bytes of text"),
        [
            (
                s["name"],
                s["from"],
                s["files"],
                s["file_bytes"],
                x["licence"] or "none stated",
                x["documents"],
                x["tokens"],
                x["bytes"],
            )
            for s in report["sources"]
            for x in s["licences"] or [{"licence": "nothing kept", "documents": 0, "tokens": 0, "bytes": 0}]
        ],
    )
    for domain in domains:
        yield from _domain(domain)
    yield from _duplicates(report["duplicates"])
    if report["contamination"]:
        yield "<h2>Evaluation sets</h2>"
        yield '<p class="note">Items are planted into kept documents, in other letters and spaces, and looked for.</p>'
        columns = (
            "set",
            "documents dropped",
            "items planted",
            "found",
            "too short to be found",
            "clean documents",
            "of these flagged",
        )
        rows = [
            (c["set"], c["dropped"], c["planted"], c["found"], c["too_short"], c["clean"], c["flagged"])
            for c in report["contamination"]
        ]
        yield html.table(columns, rows)


def _share(domain: dict[str, Any]) -> html.Markup:
    return html.bar(domain["excluded"] / max(1, domain["read"]), gone=True)


def _domain(domain: dict[str, Any]) -> Iterator[str]:
    yield f"<h2>{html.text(domain['name'])}</h2>"
    if domain["exclusions"]:
        rows = [
            (
                e["rule"],
                e["documents"],
                e["share"],
                html.bar(e["share"], gone=True),
                html.Markup(_examples(e["examples"])),
            )
            for e in domain["exclusions"]
        ]
        yield html.table(("dropped by", "documents", "share", "", ""), rows)
    if domain["edits"]:
        yield "<p>Edited by " + html.text(", ".join(f"{name}: {n:,}" for name, n in domain["edits"].items())) + ".</p>"
    shown = "".join(
        f"<pre><b>{html.text(sample['doc_id'])}</b>\n{html.text(sample['text'])}</pre>" for sample in domain["samples"]
    )
    yield f"<details><summary>kept documents, the first in the stream's order</summary>{shown}</details>"


def _examples(examples: list[dict[str, Any]]) -> str:
    lines = [
        " · ".join(str(e[name]) for name in ("doc_id", "value", "threshold") if e[name] is not None) for e in examples
    ]
    return f"<details><summary>examples</summary><pre>{html.text(chr(10).join(lines))}</pre></details>"


def _duplicates(duplicates: dict[str, Any]) -> Iterator[str]:
    if not duplicates["by_rule"]:
        return
    yield "<h2>Duplicates</h2>"
    by_rule = ", ".join(f"{rule}: {n:,}" for rule, n in duplicates["by_rule"].items())
    yield f"<p>{html.text(by_rule)}, for {duplicates['clusters']:,} documents that stay. The largest clusters:</p>"
    yield html.table(
        ("stays", "in", "dropped for it", "least similar", "from"),
        [
            (c["kept_id"], c["kept_domain"], c["dropped"], c["similarity"], ", ".join(c["domain"]))
            for c in duplicates["largest"]
        ],
    )
