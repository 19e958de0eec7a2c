"""A report as files: one HTML page, the same as Markdown, and the figures of the latter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import fedlada

from .blocks import Section
from .html import html
from .markdown import FIGURES, markdown
from .style import alone

__all__ = ["HTML", "MARKDOWN", "write_pages"]

HTML, MARKDOWN = "report.html", "report.md"


def write_pages(
    out: Path,
    title: str,
    lead: str,
    sections: Sequence[Section],
    *,
    positions: Mapping[str, int],
    text: str = MARKDOWN,
) -> list[Path]:
    """Write the sections that have blocks to a directory, and return the files.

    ``positions`` give the line samples beside the names in tables; ``text`` is the name of the
    Markdown file.
    """
    told = [section for section in sections if section.blocks]
    end = f"Made by fedlada {fedlada.__version__}."
    figures = [figure for section in told for figure in section.figures()]
    files = {
        HTML: html(title, lead, told, positions=positions, end=end),
        text: markdown(title, lead, told, end=end),
        **{f"{FIGURES}/{figure.name}.svg": alone(figure.svg) for figure in figures},
    }
    (out / FIGURES if figures else out).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (out / name).write_text(content)
    return [out / name for name in files]
