"""Small pages that need nothing but themselves: tables, bars and histograms as HTML and SVG, no script."""

import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from millstream.files import write_bytes
from millstream.show import harmless

STYLE = """
:root { --ink: #1d2733; --dim: #64707d; --line: #dfe4e8; --kept: #3b7ea1; --gone: #c8553d; --back: #fff;
  --soft: #f5f7f8 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --dim: #9aa5b0; --line: #39424c; --kept: #6fb3d2;
  --gone: #e58a75; --back: #161b21; --soft: #1e252d } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); margin: 2rem auto;
  max-width: 76rem; padding: 0 1rem }
h1 { font-size: 1.6rem; margin: 0 0 .3rem }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem }
h3 { font-size: 1rem; margin: 1rem 0 .3rem }
p.note, figcaption { color: var(--dim) }
code { font-size: .9em }
table { border-collapse: collapse; margin: .5rem 0 }
th, td { padding: .2rem .7rem .2rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top }
th { color: var(--dim); font-weight: 600 }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums }
.scroll { overflow-x: auto }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(21rem, 1fr)); gap: 1.2rem }
figure { margin: 0 }
svg { width: 100%; height: auto }
svg text { fill: var(--dim); font-size: 11px }
.kept { fill: var(--kept) }
.gone { fill: var(--gone) }
.limit { stroke: var(--ink) }
details { margin: .3rem 0 }
summary { cursor: pointer; color: var(--dim) }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--soft); padding: .5rem .7rem; margin: .3rem 0;
  font-size: .85em }
.bar { display: inline-block; height: .7em; background: var(--kept) }
.bar.gone { background: var(--gone) }
"""


def page(title: str, sections: Iterable[str]) -> str:
    """A whole page; sections are HTML."""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{text(title)}</title>'
    body = "\n".join([f"<h1>{text(title)}</h1>", *sections])
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n'
    )


def write_page(path: Path, title: str, sections: Iterable[str]) -> None:
    """Write a page, whole or not at all."""
    write_bytes(path, page(title, sections).encode())


def text(value: Any) -> str:
    """A value as text that cannot be markup, nor steer anything."""
    return html.escape(harmless(str(value)))


def number(value: Any) -> str:
    """A number as people read it."""
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}"


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table; numbers are set right. Cells that are ``Markup`` stay as they are."""
    rows = [list(row) for row in rows]
    numeric = [any(isinstance(row[n], int | float) for row in rows) for n in range(len(columns))]

    def cell(n: int, value: Any) -> str:
        kind = ' class="number"' if numeric[n] else ""
        shown = number(value) if isinstance(value, int | float) else value if isinstance(value, Markup) else text(value)
        return f"<td{kind}>{'' if value is None else shown}</td>"

    heads = [f"<th{' class=number' if numeric[n] else ''}>{text(name)}</th>" for n, name in enumerate(columns)]
    body = ["<tr>" + "".join(cell(n, value) for n, value in enumerate(row)) + "</tr>" for row in rows]
    return f'<div class="scroll"><table><tr>{"".join(heads)}</tr>{"".join(body)}</table></div>'


class Markup(str):
    """HTML that a table takes as it is."""


def bar(share: float, *, gone: bool = False) -> Markup:
    """A bar as long as a share of 8 em."""
    return Markup(
        f'<span class="bar{" gone" if gone else ""}" style="width:{8 * max(0.0, min(1.0, share)):.2f}em"></span>'
    )


def histogram(
    title: str, edges: Sequence[float], counts: Sequence[int], limit: float | None, side: str | None, note: str
) -> str:
    """A histogram with a limit in it; what lies on the dropped side is in another colour.

    Args:
        title: what is counted.
        edges: borders of the bins, rising, one more than there are counts.
        counts: values in each bin.
        limit: where the limit is, or None.
        side: ``below`` or ``above`` the limit is dropped.
        note: text below it.
    """
    width, height, base = 340.0, 120.0, 100.0
    low, high = edges[0], edges[-1]
    span = (high - low) or 1.0
    most = max(1, *counts)

    def across(value: float) -> float:
        return 10 + (value - low) / span * (width - 20)

    shapes = []
    for n, count in enumerate(counts):
        middle = (edges[n] + edges[n + 1]) / 2
        dropped = limit is not None and (middle < limit if side == "below" else middle > limit)
        tall = 80 * count / most
        wide = max(1.0, across(edges[n + 1]) - across(edges[n]) - 1)
        shapes.append(
            f'<rect class="{"gone" if dropped else "kept"}" x="{across(edges[n]):.1f}" y="{base - tall:.1f}" '
            f'width="{wide:.1f}" height="{tall:.1f}"><title>{number(edges[n])} to {number(edges[n + 1])}: '
            f"{number(count)}</title></rect>"
        )
    if limit is not None and low <= limit <= high:
        at = across(limit)
        shapes.append(f'<line class="limit" x1="{at:.1f}" x2="{at:.1f}" y1="8" y2="{base}" stroke-dasharray="3 2"/>')
    for value, anchor in ((low, "start"), (high, "end")):
        shapes.append(f'<text x="{across(value):.1f}" y="114" text-anchor="{anchor}">{number(float(value))}</text>')
    picture = (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{text(title)}">{"".join(shapes)}</svg>'
    )
    return f"<figure><b>{text(title)}</b>{picture}<figcaption>{text(note)}</figcaption></figure>"
