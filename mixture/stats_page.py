"""The page of ``millstream stats``: a histogram for each limit, and documents on both sides of it."""

from collections.abc import Iterator, Sequence
from typing import Any

from millstream import html
from millstream.mixture.stats import Distribution, Dropped, Example, Survey


def stats_sections(surveys: Sequence[Survey]) -> Iterator[str]:
    """Sections of the page, one a domain."""
    yield (
        '<p class="note">A sample of each domain. Red is what a limit would drop; the dashed line is the limit. The '
        "outer 1% on either side is gathered in the outermost bars. Examples lie nearest to the limit.</p>"
    )
    for survey in surveys:
        yield f"<h2>{html.text(survey.domain)}</h2>"
        bad = ", ".join(f"{rule} {n:,}" for rule, n in survey.unreadable.items())
        yield f"<p>{survey.documents:,} documents{f'; unreadable records: {html.text(bad)}' if bad else ''}.</p>"
        if survey.chain or survey.chain_kept < survey.documents:
            kept = ("kept", survey.chain_kept, *_share(survey.chain_kept, survey, gone=False), "")
            yield "<h3>The recipe's filters, in order</h3>" + _table(survey.chain, survey, [kept])
        if survey.offered:
            yield "<h3>C4's rules, not in the recipe, would drop</h3>" + _table(survey.offered, survey, [])
        yield '<div class="figures">'
        for found in survey.distributions:
            yield _figure(found, survey.documents)
        yield "</div>"


def _table(dropped: Sequence[Dropped], survey: Survey, more: Sequence[Sequence[Any]]) -> str:
    rows = [
        (each.rule, each.documents, *_share(each.documents, survey), html.Markup(_examples(each.examples)))
        for each in dropped
    ]
    return html.table(("rule", "documents", "share", "", ""), [*rows, *more])


def _share(documents: int, survey: Survey, *, gone: bool = True) -> tuple[float, html.Markup]:
    share = documents / max(1, survey.documents)
    return share, html.bar(share, gone=gone)


def _figure(found: Distribution, documents: int) -> str:
    share = found.dropped / max(1, documents)
    note = (
        f"{found.field} {found.limit:g} would drop {found.dropped:,} ({share:.1%}); "
        f"median {found.quantiles[2]:.4g}, 10% below {found.quantiles[1]:.4g}, 10% above {found.quantiles[3]:.4g}"
        + ("" if found.in_recipe else "; not in the recipe")
    )
    title = f"{found.rule}: {found.check}" if found.check != found.rule else f"{found.rule} ({found.field})"
    figure = html.histogram(title, found.edges, found.counts, found.limit, found.side, note)
    examples = "".join(
        f"<details><summary>{word}</summary>{_examples(given)}</details>"
        for word, given in (("dropped, nearest", found.dropped_examples), ("kept, nearest", found.kept_examples))
        if given
    )
    return f"<div>{figure}{examples}</div>"


def _examples(examples: Sequence[Example]) -> str:
    def shown(example: Example) -> str:
        value = f"{example.value:.4g}" if isinstance(example.value, float) else example.value
        return f"<pre><b>{html.text(example.doc_id)}</b> · {html.text(value)}\n{html.text(example.text)}</pre>"

    return "".join(map(shown, examples))
