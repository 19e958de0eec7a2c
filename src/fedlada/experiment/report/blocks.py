"""The parts of a report, independent of HTML and Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

__all__ = ["Block", "Code", "Figure", "Points", "Section", "Table", "Text", "Views"]


@dataclass(frozen=True)
class Text:
    """A paragraph; text between backticks is code."""

    text: str
    warns: bool = False


@dataclass(frozen=True)
class Points:
    """A list of sentences."""

    items: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; the first cell of each row is its heading."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    """How to read the table, in smaller letters."""
    words: tuple[str, ...] = ()
    """The columns that contain prose rather than numbers."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A drawing."""

    name: str
    """The name of its file, without the extension."""
    svg: str
    alt: str
    caption: str
    narrow: str = ""
    """The same, drawn for a narrow screen; empty if there is no need."""
    legend: tuple[str, ...] = ()
    """The names of the lines, if the narrow drawing does not have them."""


@dataclass(frozen=True, kw_only=True)
class Views:
    """Figures of the same things, of which one is seen at a time, by a word for each."""

    name: str
    figures: Mapping[str, Figure]


@dataclass(frozen=True, kw_only=True)
class Code:
    """A block of code to copy."""

    caption: str
    text: str
    language: str = "bash"
    folded: bool = False


Block = Text | Points | Table | Figure | Views | Code


@dataclass(frozen=True)
class Section:
    """Blocks under a title; a section without blocks is left out."""

    title: str
    blocks: list[Block] = field(default_factory=list)

    def figures(self) -> Iterator[Figure]:
        """Yield all figures, those of views too."""
        for block in self.blocks:
            if isinstance(block, Views):
                yield from block.figures.values()
            elif isinstance(block, Figure):
                yield block
