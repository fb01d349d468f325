"""What a run learned from, counted from its realised exposures: documents, tokens and bytes by where they come from."""

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

import polars as pl

from millstream.audit.disclosures import Disclosures
from millstream.audit.exposures import exposure_slices, open_course
from millstream.audit.runs import Run
from millstream.stream.corpora import Corpora

GROUPS = ("corpus_id", "domain", "source", "licence", "language", "host")
COUNTS = ("documents", "bytes", "distinct_tokens", "learned_tokens")
CONTENT = pl.Schema(dict.fromkeys(GROUPS, pl.String) | dict.fromkeys(COUNTS, pl.Int64))


def learned_content(run: Run, corpora: Corpora, told: Disclosures) -> pl.DataFrame:
    """What the lineage of a run learned from so far; branches, controls and what was given up are left out.

    Returns:
        Rows of ``CONTENT``, largest first. ``documents`` and ``bytes`` (of UTF-8) are of documents of which any token
        was learned, ``distinct_tokens`` are those of them that were targets at least once, ``learned_tokens`` count
        each as often as it was. ``language`` and ``host`` (of the document's address) are null where not known.

    Raises:
        InputError: a document table is missing or damaged.
    """
    columns = ("source", "licence", "url", "n_tokens", "n_bytes", "metadata")
    found = [pl.DataFrame(schema=CONTENT)]
    for exposed in exposure_slices(open_course(run, corpora, alone=True), columns):
        learned = exposed.filter(pl.col("learned"))
        if len(learned):
            found = [_summed(pl.concat([*found, _counted(learned, told)]))]
    return found[0].sort("learned_tokens", *GROUPS, descending=[True, *[False] * len(GROUPS)], nulls_last=True)


def totals(content: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Counts by some of ``GROUPS``, largest first, with ``share`` of the learned tokens."""
    summed = content.group_by(by).agg(pl.col(COUNTS).sum()) if by else content.select(pl.col(COUNTS).sum())
    whole = max(1, int(content["learned_tokens"].sum()))
    return summed.with_columns((pl.col("learned_tokens") / whole).alias("share")).sort(
        "learned_tokens", *by, descending=[True, *[False] * len(by)], nulls_last=True
    )


def _counted(learned: pl.DataFrame, told: Disclosures) -> pl.DataFrame:
    """A slice's documents, each once, summed by group."""
    ordered = learned.sort("doc_id", "document_start", "document_end")
    reached = pl.col("document_end").cum_max().shift(1).over("doc_id").fill_null(0)
    new = pl.col("document_end") - pl.max_horizontal("document_start", reached)
    documents = (
        ordered.with_columns(new.clip(lower_bound=0).alias("new"))
        .group_by("corpus_id", "domain", "doc_id", maintain_order=True)
        .agg(
            pl.col("source", "licence", "url", "metadata", "n_bytes").first(),
            pl.col("new").sum().cast(pl.Int64).alias("distinct_tokens"),
            pl.col("tokens").cast(pl.Int64).sum().alias("learned_tokens"),
        )
    )
    return _summed(
        documents.with_columns(
            _language(told).alias("language"),
            _host(documents["url"]),
            pl.lit(1, pl.Int64).alias("documents"),
            pl.col("n_bytes").cast(pl.Int64).alias("bytes"),
        ).select(CONTENT.names())
    )


def _summed(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.group_by(GROUPS).agg(pl.col(COUNTS).sum())


def _language(told: Disclosures) -> pl.Expr:
    own = pl.col("metadata").str.json_path_match(f"$['{told.language_field}']")
    named = [
        pl.when(pl.col("doc_id").str.contains(_pattern(glob))).then(pl.lit(language))
        for glob, language in told.languages.items()
    ]
    given: Mapping[str, str] = {name: s.language for name, s in told.sources.items() if s.language}
    of_source = pl.col("source").replace_strict(given, default=None, return_dtype=pl.String)
    return pl.coalesce(own, *named, of_source)


def _pattern(glob: str) -> str:
    parts = [{"*": ".*", "?": "."}.get(part, re.escape(part)) for part in re.split(r"([*?])", glob)]
    return f"^(?s:{''.join(parts)})$"


def _host(urls: pl.Series) -> pl.Series:
    """The host of each address, without a port; null where there is none."""

    def host(url: str) -> str | None:
        try:
            return urlsplit(url).hostname
        except ValueError:
            return None

    known = {url: host(url) for url in urls.drop_nulls().unique().to_list()}
    return urls.replace_strict(known, default=None, return_dtype=pl.String).alias("host")
