"""Where the documents of a corpus come from: how many of each source and licence, counted from its document tables."""

import polars as pl
from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from millstream.audit.exposures import document_slices
from millstream.stream.corpora import Corpus

ORIGINS = pl.Schema(
    {
        "domain": pl.String,
        "part": pl.String,
        "source": pl.String,
        "licence": pl.String,
        "documents": pl.Int64,
        "tokens": pl.Int64,
        "bytes": pl.Int64,
    }
)


def origins_of(corpus: Corpus) -> pl.DataFrame:
    """Kept documents by domain, part, source and licence.

    Returns:
        Rows of ``ORIGINS``, in the manifest's order of domains, then by name: ``part`` is ``train`` or ``holdout``,
        ``licence`` is null where a document has none, ``bytes`` are of UTF-8 text.

    Raises:
        InputError: a document table is missing or damaged.
    """
    found = [pl.DataFrame(schema=ORIGINS)]
    groups = ["domain", "part", "source", "licence"]
    for domain in corpus.manifest.domains:
        held_out = [("holdout", domain.holdout)] if domain.holdout else []
        for part, shard in [*(("train", shard) for shard in domain.shards), *held_out]:
            for table in document_slices(corpus, shard, ("source", "licence", "n_tokens", "n_bytes")):
                counted = table.group_by("source", "licence").agg(
                    pl.len().cast(pl.Int64).alias("documents"),
                    pl.col("n_tokens").sum().cast(pl.Int64).alias("tokens"),
                    pl.col("n_bytes").sum().cast(pl.Int64).alias("bytes"),
                )
                named = counted.with_columns(pl.lit(domain.name).alias("domain"), pl.lit(part).alias("part"))
                found.append(named.select(ORIGINS.names()))
        # One row a group at any time, whatever the number of shards.
        found = [pl.concat(found).group_by(groups, maintain_order=True).agg(pl.exclude(groups).sum())]
    order = {domain.name: number for number, domain in enumerate(corpus.manifest.domains)}
    place = pl.col("domain").replace_strict(order, return_dtype=pl.Int64)
    return found[0].sort(place, pl.col("part") == "holdout", "source", "licence", nulls_last=True)


def licence_url(licence: str) -> str | None:
    """The page of a licence on the SPDX list; None for an expression of several, or one that is not on the list."""
    try:
        known = canonicalize_license_expression(licence)
    except InvalidLicenseExpression:
        return None
    return f"https://spdx.org/licenses/{known}" if " " not in known and not known.startswith("LicenseRef-") else None
