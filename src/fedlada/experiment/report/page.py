"""A report as files: one HTML page, the same page as Markdown, and its figures as SVG.

The blocks below are the content.  The layout is in ``page.html.j2`` and ``page.md.j2``.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import fedlada

from ...errors import missing_extra

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = [
    *("HTML", "MARKDOWN", "Block", "Code", "Figure", "Points", "Section", "Table", "Text"),
    "write_pages",
]

HTML, MARKDOWN, FIGURES = "report.html", "report.md", "figures"


@dataclass(frozen=True)
class Text:
    """A paragraph; text between backticks is code."""

    kind: ClassVar = "text"
    text: str
    warns: bool = False


@dataclass(frozen=True)
class Points:
    """A list of sentences."""

    kind: ClassVar = "points"
    items: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; the first cell of each row is its heading."""

    kind: ClassVar = "table"
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    """How to read the table."""
    words: tuple[str, ...] = ()
    """The columns that contain prose rather than numbers."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A drawing."""

    kind: ClassVar = "figure"
    name: str
    """The name of its file, without the extension."""
    svg: str
    alt: str
    caption: str = ""
    folded: str = ""
    """If given, readers see this line and click on it to see the figure."""


@dataclass(frozen=True, kw_only=True)
class Code:
    """A block of code to copy."""

    kind: ClassVar = "code"
    caption: str
    text: str
    language: str = "bash"
    folded: bool = False


Block = Text | Points | Table | Figure | Code


@dataclass(frozen=True)
class Section:
    """Blocks under a title; pages leave out a section without blocks."""

    title: str
    blocks: Sequence[Block] = ()
    part: str = ""
    """The title of the part of the report to which it belongs, if there are parts."""

    @property
    def anchor(self) -> str:
        """The id of the section in HTML."""
        return anchor(f"{self.part} {self.title}" if self.part else self.title)


def anchor(title: str) -> str:
    """Return the id of a title in HTML."""
    return re.sub(r"\W+", "-", title.lower())


def write_pages(
    out: Path, title: str, lead: str, sections: Sequence[Section], *, text: str = MARKDOWN
) -> list[Path]:
    """Write a report to a directory and return its files; ``text`` names the Markdown file."""
    filled = [section for section in sections if section.blocks]
    content = {
        "title": title,
        "lead": lead,
        "parts": [(part, list(found)) for part, found in groupby(filled, lambda one: one.part)],
        "version": fedlada.__version__,
    }
    templates = _templates()
    figures = [b for section in sections for b in section.blocks if isinstance(b, Figure)]
    files = {
        HTML: templates.get_template("page.html.j2").render(content),
        text: templates.get_template("page.md.j2").render(content),
        **{f"{FIGURES}/{figure.name}.svg": figure.svg for figure in figures},
    }
    (out / FIGURES if figures else out).mkdir(parents=True, exist_ok=True)
    for name, written in files.items():
        (out / name).write_text(written)
    return [out / name for name in files]


def _templates() -> Environment:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
    except ModuleNotFoundError as error:
        raise missing_extra(error, "fedlada report", "fedlada[report]") from None
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters.update(prose=_prose, plain=_plain, data_uri=_data_uri, anchor=anchor)
    return templates


def _prose(text: str) -> str:
    """Return the text as HTML, with code where it has backticks."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _plain(text: str) -> str:
    """Return the text as Markdown: escape ``*``, ``_``, ``<`` and ``|`` outside of backticks."""
    pieces = text.split("`")
    pieces[::2] = [re.sub(r"([*_<|])", r"\\\1", piece) for piece in pieces[::2]]
    return "`".join(pieces)


def _data_uri(svg: str) -> str:
    """Return a drawing as the source of an image, so that the page needs no other file."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
