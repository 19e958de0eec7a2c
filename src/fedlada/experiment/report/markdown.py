"""A report as Markdown, with its figures in separate files."""

from __future__ import annotations

from collections.abc import Sequence

from .blocks import Block, Code, Figure, Points, Section, Table, Text, Views

__all__ = ["FIGURES", "markdown"]

FIGURES = "figures"


def markdown(title: str, lead: str, sections: Sequence[Section], *, end: str) -> str:
    """Return the text, which refers to its figures as ``figures/NAME.svg``."""
    parts = [f"# {_plain(title)}", _plain(lead)]
    for section in sections:
        parts += [f"## {_plain(section.title)}", *map(_block, section.blocks)]
    return "\n\n".join([*parts, "---", _plain(end)]) + "\n"


def _block(block: Block) -> str:
    match block:
        case Text(text, warns):
            return f"> **Note.** {_plain(text)}" if warns else _plain(text)
        case Points(items):
            return "\n".join(f"- {_plain(item)}" for item in items)
        case Figure():
            return _figure(block)
        case Views():
            (_, first), *others = block.figures.items()
            links = [f"[{_plain(word)}]({FIGURES}/{f.name}.svg)" for word, f in others]
            return f"{_figure(first)}\n\nThe same against {' and '.join(links)}."
        case Code():
            fenced = f"```{block.language}\n{block.text.rstrip()}\n```"
            caption = _plain(block.caption)
            if block.folded:
                return f"<details><summary>{caption}</summary>\n\n{fenced}\n\n</details>"
            return f"{caption}\n\n{fenced}"
        case Table():
            return _table(block)


def _figure(figure: Figure) -> str:
    alt = figure.alt.replace("[", "(").replace("]", ")")
    caption = f"\n\n*{_plain(figure.caption)}*" if figure.caption else ""
    return f"![{alt}]({FIGURES}/{figure.name}.svg){caption}"


def _table(table: Table) -> str:
    kinds = [":--" if i == 0 or c in table.words else "--:" for i, c in enumerate(table.columns)]
    rows = [table.columns, tuple(kinds), *table.rows]
    lines = [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows]
    note = f"\n\n*{_plain(table.note)}*" if table.note else ""
    return f"**{_plain(table.caption)}**\n\n" + "\n".join(lines) + note


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")


def _plain(text: str) -> str:
    """Escape ``*``, ``_`` and ``<`` outside of code between backticks."""
    pieces = text.split("`")
    for i in range(0, len(pieces), 2):
        for letter in "*_<":
            pieces[i] = pieces[i].replace(letter, "\\" + letter)
    return "`".join(pieces)
