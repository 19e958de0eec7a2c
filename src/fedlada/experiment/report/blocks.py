"""What a report is made of, before it is HTML or Markdown."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Block", "Code", "Figure", "Points", "Section", "Table", "Text"]


@dataclass(frozen=True)
class Text:
    """A paragraph; what is between backticks is code."""

    text: str
    warns: bool = False


@dataclass(frozen=True)
class Points:
    """A list of sentences."""

    items: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows that are headed by their first cell."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    """How to read it, in smaller letters."""
    words: tuple[str, ...] = ()
    """Columns that hold prose rather than numbers."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A drawing."""

    name: str
    """Of its file, without the ending."""
    svg: str
    alt: str
    caption: str


@dataclass(frozen=True, kw_only=True)
class Code:
    """Lines to copy."""

    caption: str
    text: str
    language: str = "bash"
    folded: bool = False


Block = Text | Points | Table | Figure | Code


@dataclass(frozen=True)
class Section:
    """Blocks under a title; without blocks it is left out."""

    title: str
    blocks: list[Block] = field(default_factory=list)
