"""Markdown from docstrings and rows, for the pages that the site generates."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from latex2mathml.converter import convert

__all__ = ["markdown_of", "table"]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [" | ".join(row) for row in (head, ["---"] * len(head), *rows)]
    return "".join(f"| {line} |\n" for line in lines)


def markdown_of(docstring: str) -> str:
    """Return a docstring with its equations as MathML, its examples fenced, its roles as code.

    >>> markdown_of("See :class:`~fedlada.Plan`.")
    """
    text = re.sub(
        r"^\.\. math::(.*(?:\n(?:[ \t]+\S.*)?)*)", lambda m: _display(m[1]), docstring, flags=re.M
    )
    # In a span, or Markdown takes an equation that begins a line for a block.
    text = re.sub(r":math:`([^`]+)`", lambda m: f"<span>{convert(m[1])}</span>", text)
    text = re.sub(r":[a-z]+:`[~.]?([^`]+)`", r"`\1`", text)
    return re.sub(r"^(?:(?:>>>|\.\.\.)(?: .*)?\n?)+", lambda m: _fenced(m[0]), text, flags=re.M)


def _display(equations: str) -> str:
    latex = " ".join(equations.split())
    if "&" in latex:
        latex = rf"\begin{{align*}} {latex} \end{{align*}}"
    return f"\n\n{convert(latex, display='block')}\n\n"


def _fenced(example: str) -> str:
    lines = [line[4:] for line in example.splitlines()]
    return "```py\n" + "\n".join(lines) + "\n```\n"
