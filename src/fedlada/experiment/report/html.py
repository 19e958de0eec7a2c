"""A report as one self-contained HTML file, without scripts, external fonts or images."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from .blocks import Block, Code, Figure, Points, Section, Table, Text, Views
from .style import DARK_RULES, sample

__all__ = ["html"]

FITTING = 4  # columns that a narrow screen has room for
BLANK = "\u00a0"  # at which no line ends


def html(
    title: str, lead: str, sections: Sequence[Section], *, positions: Mapping[str, int], end: str
) -> str:
    """Return the page; ``positions`` give the line samples beside the names in tables."""
    css = Path(__file__).with_name("report.css").read_text()
    links = "".join(f'<a href="#{_anchor(s)}">{escape(s.title)}</a>' for s in sections)
    body = "\n".join(
        f'<section aria-labelledby="{_anchor(section)}">\n'
        f'<h2 id="{_anchor(section)}">{escape(section.title)}</h2>\n'
        + "\n".join(_block(block, positions) for block in section.blocks)
        + "\n</section>"
        for section in sections
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
{css}{DARK_RULES}
</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
<p class="lead">{_inline(lead)}</p>
<nav aria-label="Sections">{links}</nav>
</header>
<main>
{body}
</main>
<footer>{_inline(end)}</footer>
</body>
</html>
"""


def _block(block: Block, positions: Mapping[str, int]) -> str:
    match block:
        case Text(text, warns):
            opening = '<p class="warns">' if warns else "<p>"
            return f"{opening}{_inline(text)}</p>"
        case Points(items):
            return "<ul>" + "".join(f"<li>{_inline(item)}</li>" for item in items) + "</ul>"
        case Figure():
            return _figure(block, positions)
        case Views():
            return _views(block, positions)
        case Code():
            caption = _inline(block.caption)
            pre = f"<pre><code>{escape(block.text, quote=False)}</code></pre>"
            if block.folded:
                return f"<details><summary>{caption}</summary>{pre}</details>"
            return f"<p>{caption}</p>{pre}"
        case Table():
            return _table(block, positions)


def _figure(figure: Figure, positions: Mapping[str, int]) -> str:
    """Return both drawings; the style sheet shows the one that fits the screen."""
    drawn = f"<div>{figure.svg}</div>"
    if figure.narrow:
        names = "".join(f"<li>{sample(positions[n])}{escape(n)}</li>" for n in figure.legend)
        legend = f'<ul class="legend" aria-label="Lines">{names}</ul>' if names else ""
        drawn = (
            f'<div class="wide">{figure.svg}</div><div class="narrow">{legend}{figure.narrow}</div>'
        )
    caption = f"<figcaption>{_inline(figure.caption)}</figcaption>" if figure.caption else ""
    return f"<figure>{drawn}{caption}</figure>"


def _views(views: Views, positions: Mapping[str, int]) -> str:
    """Return the figures behind radio buttons, which work without a script."""
    buttons = "".join(
        f'<input type="radio" name="{views.name}" id="{figure.name}"{" checked" * (place == 0)}>'
        f'<label for="{figure.name}">{escape(word)}</label>'
        for place, (word, figure) in enumerate(views.figures.items())
    )
    figures = "".join(_figure(figure, positions) for figure in views.figures.values())
    words = ", ".join(escape(word) for word in views.figures)
    return (
        '<div class="views" role="group" aria-label="Figure"><span>Against</span>'
        f"{buttons}{figures}"
        f'<p class="printed">On the page to choose: against {words}.</p></div>'
    )


def _table(table: Table, positions: Mapping[str, int]) -> str:
    kinds = [' class="words"' if name in table.words else "" for name in table.columns]
    head = "".join(
        f'<th scope="col"{kind}>{_inline(name)}</th>'
        for name, kind in zip(table.columns, kinds, strict=True)
    )
    rows = []
    for first, *cells in table.rows:
        line = sample(positions[first]) if first in positions else ""
        rest = "".join(
            f'<td{kind} data-column="{escape(name)}">{_inline(cell)}</td>'
            for cell, kind, name in zip(cells, kinds[1:], table.columns[1:], strict=True)
        )
        rows.append(f'<tr><th scope="row">{line}{_inline(first)}</th>{rest}</tr>')
    note = f'<p class="note">{_inline(table.note)}</p>' if table.note else ""
    body = "\n".join(rows)
    many = " many" * (len(table.columns) > FITTING)
    return (
        f'<div class="table{many}"><div class="scroll" tabindex="0" role="group"'
        f' aria-label="{escape(table.caption)}"><table><caption>{_inline(table.caption)}</caption>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>{note}</div>"
    )


def _inline(text: str) -> str:
    """Return the text with code, and without line breaks inside numbers and intervals."""
    text = re.sub(r"\[[−+\d.]+, [−+\d.]+\]|± [\d.]|\d %", lambda m: m[0].replace(" ", BLANK), text)
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


def _anchor(section: Section) -> str:
    return re.sub(r"\W+", "-", section.title.lower())
