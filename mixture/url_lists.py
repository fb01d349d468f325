"""Documents by their address, with datatrove's lists and decisions: domains, addresses and words in them.

A list may hold millions of entries: it is kept as sorted hashes, and what they find is compared as text.
"""

import importlib.util
import tarfile
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from millstream.errors import SetupError
from millstream.mixture.rule_files import FIELDS, Stamp, entries, stamps
from millstream.mixture.rules import UrlLists

ARCHIVE = "url_filterblacklistsv0_3_0.tar.gz"
NOT_WORD = "[^a-zA-Z0-9]+"


class Members:
    """A set of texts that a column is looked up in."""

    def __init__(self, values: pl.Series) -> None:
        for seed in count():
            hashes = values.hash(seed)
            order = hashes.arg_sort()
            hashes, sorted_values = hashes.gather(order), values.gather(order)
            # One hash may stand for one text alone; a text may be there twice.
            if not ((hashes == hashes.shift()) & (sorted_values != sorted_values.shift())).any():
                break
        self._seed = seed
        self._hashes = hashes.to_numpy()
        self._values = sorted_values

    def __len__(self) -> int:
        return len(self._values)

    def found(self, column: pl.Series) -> pl.Series:
        """Whether each text is in the set; false for null."""
        if not len(self):
            return pl.repeat(False, len(column), eager=True)
        places = np.searchsorted(self._hashes, column.hash(self._seed).to_numpy()).clip(max=len(self) - 1)
        return (self._values.gather(places) == column).fill_null(False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lists:
    """The lists of a rule, read. Words are normalised: ASCII letters and digits, lower case."""

    domains: Members
    urls: Members
    banned_words: tuple[str, ...]
    banned_subwords: tuple[str, ...]
    soft_banned_words: tuple[str, ...]


def url_lists(documents: pl.DataFrame, rule: UrlLists) -> pl.DataFrame:
    """What the lists say of each document's ``url``: ``rule``, ``value``, ``threshold``; null where nothing."""
    lists = _lists(rule, stamps(rule))
    given = documents.select(pl.col("url").replace("", None))
    urls = given.drop_nulls().unique()
    words = urls.with_columns(word=pl.col("url").str.extract_all("[a-zA-Z0-9]+")).explode("word").unique()
    hard = words.filter(pl.col("word").is_in(lists.banned_words)).group_by("url").agg(hard=pl.col("word").min())
    soft = (
        words.filter(pl.col("word").is_in(lists.soft_banned_words))
        .group_by("url")
        .agg(soft=pl.len(), soft_words=pl.col("word").sort().str.join(", "))
    )
    judged = urls.with_columns(_hosts(urls["url"]) if len(lists.domains) else [])
    for column in ("domain", "host"):
        judged = judged.with_columns(pl.lit(None, pl.String).alias(column)) if column not in judged.columns else judged
    judged = judged.join(hard, on="url", how="left").join(soft, on="url", how="left")
    judged = judged.with_columns(
        in_domains=lists.domains.found(judged["domain"]),
        in_hosts=lists.domains.found(judged["host"]),
        in_urls=lists.urls.found(judged["url"]),
        subword=_subwords(judged["url"], lists.banned_subwords),
    )
    checks = (
        ("domain", pl.col("in_domains"), pl.col("domain"), "domains"),
        ("subdomain", pl.col("in_hosts"), pl.col("host"), "domains"),
        ("url", pl.col("in_urls"), pl.col("url"), "urls"),
        ("hard_blacklisted", pl.col("hard").is_not_null(), pl.col("hard"), "banned_words"),
        (
            "soft_blacklisted",
            pl.col("soft") >= rule.soft_word_threshold,
            pl.format("{}: {}", "soft", "soft_words"),
            f"soft_word_threshold {rule.soft_word_threshold}",
        ),
        ("blacklisted_subword", pl.col("subword").is_not_null(), pl.col("subword"), "banned_subwords"),
    )
    verdicts = judged.select(
        "url",
        rule=pl.coalesce(pl.when(objects).then(pl.lit(name)) for name, objects, _, _ in checks),
        value=pl.coalesce(pl.when(objects).then(value) for _, objects, value, _ in checks),
        threshold=pl.coalesce(pl.when(objects).then(pl.lit(limit)) for _, objects, _, limit in checks),
    )
    return given.join(verdicts, on="url", how="left", maintain_order="left").select("rule", "value", "threshold")


def check_lists(rule: UrlLists) -> None:
    """Read the recipe's own lists once, before work starts.

    Raises:
        InputError: a file is not UTF-8.
        SetupError: tldextract is not installed.
    """
    if importlib.util.find_spec("tldextract") is None:
        raise SetupError("the rule 'url-lists' needs tldextract: pip install 'millstream[urls]'")
    for name in FIELDS[UrlLists]:
        entries(getattr(rule, name))


def _hosts(urls: pl.Series) -> list[pl.Series]:
    """Registered domain and whole host of each address, empty where there is none."""
    extract = _extractor()
    found = [extract(url) for url in urls]
    return [
        pl.Series("domain", [each.top_domain_under_public_suffix for each in found], dtype=pl.String),
        pl.Series("host", [each.fqdn for each in found], dtype=pl.String),
    ]


@lru_cache(1)
def _extractor() -> Any:
    from tldextract import TLDExtract

    # The list of suffixes that the package ships: nothing is fetched and nothing written.
    return TLDExtract(cache_dir=None, suffix_list_urls=())


def _subwords(urls: pl.Series, subwords: tuple[str, ...]) -> pl.Series:
    """The first banned subword, by the alphabet, in each address."""
    plain = urls.str.replace_all(NOT_WORD, "").str.to_lowercase()
    hits = plain.str.contains_any(list(subwords)) if subwords else pl.repeat(False, len(urls), eager=True)
    found = [
        next(word for word in subwords if word in each) if hit else None for each, hit in zip(plain, hits, strict=True)
    ]
    return pl.Series(found, dtype=pl.String)


@lru_cache(2)
def _lists(rule: UrlLists, _: tuple[Stamp, ...]) -> Lists:
    from datatrove.pipeline.filters.url_filter import normalize
    from datatrove.utils._import_utils import ASSETS_PATH

    assets = Path(ASSETS_PATH) if rule.use_integrated_lists else None

    def words(given: str | tuple[str, ...], file: str) -> tuple[str, ...]:
        known = entries(given) + (entries(str(assets / file)) if assets else [])
        return tuple(sorted({word for each in known if (word := normalize(each))}))

    def members(given: str | tuple[str, ...], file: str) -> Members:
        own = pl.Series(entries(given), dtype=pl.String)
        return Members(pl.concat([own, _integrated(assets / ARCHIVE, file)]) if assets else own)

    return Lists(
        domains=members(rule.domains, "domains"),
        urls=members(rule.urls, "urls"),
        banned_words=words(rule.banned_words, "banned_words.txt"),
        banned_subwords=words(rule.banned_subwords, "banned_subwords.txt"),
        soft_banned_words=words(rule.soft_banned_words, "soft_banned_words.txt"),
    )


def _integrated(archive: Path, name: str) -> pl.Series:
    """Entries of a list in datatrove's archive, which is read where it lies."""
    with tarfile.open(archive) as tar:
        for member in tar:
            if Path(member.name).name == name and (file := tar.extractfile(member)) is not None:
                lines = pl.Series([file.read().decode()]).str.split("\n").explode()
                lines = lines.filter(~lines.str.starts_with("#")).str.strip_chars()
                return lines.filter(lines != "")
    raise SetupError(f"{archive}: holds no list '{name}'; is datatrove whole?")
