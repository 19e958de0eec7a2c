"""Colours, dashes and SVG for light and dark backgrounds and for print.

A figure is drawn once, in the colours for a light background.  Every file contains CSS rules,
:data:`DARK_RULES`, that replace each colour on a dark background; programs that ignore these rules
show the light version.  The hues are those of Okabe and Ito, which most colour-blind readers can
tell apart, with the pale ones darkened.  Lines never differ in colour alone.
"""

from __future__ import annotations

import re
from html import escape

from ...palette import GRID, INK, LINES, MUTED, PAPER, colour, dashes, marker

__all__ = [
    "DARK_RULES",
    "GRID",
    "HALO",
    "INK",
    "MUTED",
    "PAPER",
    "alone",
    "colour",
    "dashes",
    "marker",
    "sample",
    "tidied",
]

_DARK = dict([*LINES, (PAPER, "#15181c"), (INK, "#e8eaed"), (MUTED, "#9aa4af"), (GRID, "#2d333b")])

DARK_RULES = "@media screen and (prefers-color-scheme: dark) {{{}}}".format(
    "".join(
        f'[style*="{what}: {light}"]{{{what}:{dark}!important}}'
        for light, dark in _DARK.items()
        for what in ("fill", "stroke")
    )
)
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_ALONE = (
    f"svg{{background:{PAPER}}}"
    f"@media screen and (prefers-color-scheme: dark){{svg{{background:{_DARK[PAPER]}}}}}"
)


HALO = "halo-"
"""The prefix of the ids of elements that must be readable on top of lines."""
_HALO = (
    f'<g style="paint-order: stroke; stroke: {PAPER}; stroke-width: 2.5; stroke-linejoin: round">'
)


def tidied(svg: str, alt: str) -> str:
    """Reduce matplotlib's SVG to what a page needs and return it as an element for HTML."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), svg)
    svg = re.sub(r' d="[^"]*"', lambda path: _dense(path[0]), svg)
    svg = re.sub(rf'<g id="{HALO}\d+">', _HALO, svg)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
    svg = re.sub(r' id="([^"]+)"', lambda m: m[0] if m[1] in used else "", svg)
    # An attribute may use either kind of quotes, and font names inside it use the other kind.
    svg = re.sub(r"(font: (?:bold )?[\d.]+px)[^;\"]+", r"\1 inherit", svg)
    svg = re.sub(r"font-family: [^;\"]+; ?", "", svg)
    svg = svg.replace("xlink:href", "href")
    svg = _bare(svg)
    size = re.search(r'viewBox="[^"]+"', svg)
    assert size is not None
    label = escape(alt, quote=True)
    opening = f'<svg role="img" aria-label="{label}" {size[0]} font-family="{_FONT}">'
    return re.sub(r"<svg[^>]*>", lambda _: opening, svg, count=1)


def _bare(svg: str) -> str:
    """Return the SVG without what nobody sees: groups without attributes, blanks, empty shapes."""
    svg = re.sub(r' transform="rotate\(-0 [^"]*"', "", svg)
    svg = re.sub(r'<path [^>]*style="fill: none"/>', "", svg)
    svg = re.sub(r">\s+<", "><", svg)
    kept: list[bool] = []

    def group(tag: re.Match[str]) -> str:
        if tag[0] == "</g>":
            return tag[0] if kept.pop() else ""
        kept.append(tag[0] != "<g>")
        return tag[0] if kept[-1] else ""

    return re.sub(r"<g(?: [^>]*[^/])?>|</g>", group, svg.replace("<g/>", ""))


def _dense(path: str) -> str:
    """Return a path in fewer characters: straight lines from point to point, in tenths."""
    path = path[4:-1].strip()
    if re.search("[^MLz]", re.sub(r"[-+.\de\s]", "", path)):  # it has curves
        return ' d="' + re.sub(r"\s*([A-Za-z])\s*", r"\1", path) + '"'
    text, x, y, after = "", 0, 0, ""
    for letter, numbers in re.findall(r"([MLz])([^MLz]*)", path):
        if letter == "z":
            text += letter
        else:
            # Rounded places, not rounded steps: errors do not add up along the line.
            to = [round(10 * float(number)) for number in numbers.split()]
            step = to if letter == "M" else [to[0] - x, to[1] - y]
            text += "" if letter == after == "L" else letter.replace("L", "l")
            text += f"{_tenths(step[0])}{_tenths(step[1])}"
            x, y = to
        after = letter
    return ' d="' + re.sub("([A-Za-z]) ", r"\1", text) + '"'


def _tenths(number: int) -> str:
    """Return so many tenths as text, after a blank if there is no sign."""
    text = f"{number / 10:g}".replace("0.", ".", 1) if abs(number) < 10 else f"{number / 10:g}"
    return text if number < 0 else f" {text}"


def alone(svg: str) -> str:
    """Return the SVG as the text of a separate file, with background and CSS rules."""
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert size is not None
    wide, high = (round(4 / 3 * float(side)) for side in size.groups())
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}"'
    head, rest = svg.replace("<svg", opening, 1).split(">", 1)
    return f"{head}><style>{_ALONE}{DARK_RULES}</style>{rest}"


def sample(position: int) -> str:
    """Return a short sample of the line to show beside its name in a table."""
    dash = " ".join(f"{2 * length:g}" for length in dashes(position))
    return (
        '<svg class="sample" aria-hidden="true" viewBox="0 0 30 10"><path d="M1 5H29" style="fill:'
        f' none; stroke: {colour(position)}; stroke-width: 2; stroke-dasharray: {dash or "none"}"'
        "/></svg>"
    )
