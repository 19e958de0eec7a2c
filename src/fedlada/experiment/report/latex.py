"""Tables as LaTeX, for papers."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .page import Table

__all__ = ["latex"]

ESCAPED = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": "$-$",
    "²": "$^2$",
    "–": "--",
    "\u00a0": "~",
}
SPECIAL = re.compile("|".join(map(re.escape, ESCAPED)))


def latex(tables: Iterable[Table]) -> str:
    """Return tables as LaTeX, which needs the package booktabs."""
    return "\n\n".join([r"% \usepackage{booktabs}", *map(_table, tables)])


def _table(table: Table) -> str:
    words = [n == 0 or name in table.words for n, name in enumerate(table.columns)]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escaped(table.caption)}}}",
            rf"\begin{{tabular}}{{{''.join('l' if left else 'r' for left in words)}}}",
            r"\toprule",
            _row(table.columns),
            r"\midrule",
            *map(_row, table.rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def _row(cells: Iterable[str]) -> str:
    return " & ".join(map(_escaped, cells)) + r" \\"


def _escaped(text: str) -> str:
    return SPECIAL.sub(lambda found: ESCAPED[found[0]], text.replace("`", ""))
