"""Figures that several pages state: each is the value of its record, wherever it stands."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from fedlada.data import load
from places import ROOT

FIGURES = tomllib.loads((Path(__file__).parent / "figures.toml").read_text())["figure"]
FOLDERS = ("docs", "experiments", "benchmarks")
NUMBER = r"[-+−]?\d[\d,]*\.?\d*"


def text_of(page: Path) -> str:
    """A page in one line, so that a sentence may go on in the next."""
    return " ".join(page.read_text().split())


PAGES = {
    str(page.relative_to(ROOT)): text_of(page)
    for page in (ROOT / "README.md", *(p for name in FOLDERS for p in (ROOT / name).rglob("*.md")))
}
RESULTS = [json.loads(s) for s in (ROOT / "benchmarks/results.jsonl").read_text().splitlines()]


def number(text: str) -> float:
    return float(text.replace("−", "-").replace(",", ""))


def cell(page: str, table: str, row: str, column: str) -> str:
    """A cell of a table that a program fills in; a row is known by how it begins."""
    begin = f"<!-- table {table} -->\n"
    _, _, rest = (ROOT / page).read_text().partition(begin)
    lines = rest.partition("<!-- end -->")[0].replace("\\|", "¦").splitlines()
    cells = [[c.strip() for c in line[1:-1].split("|")] for line in lines if line.startswith("|")]
    head, _, *rows = cells
    wanted = row if "`x" in row else f"{row} |"  # a codec is long
    (found,) = (each for each in rows if " | ".join(each).startswith(wanted))
    return found[head.index(column)]


def value(place: dict[str, str]) -> float:
    """The value at a place, see figures.toml."""
    if "program" in place:
        newest = [
            one["figures"][place["figure"]]
            for one in RESULTS
            if place["program"] in one["command"] and place["figure"] in one["figures"]
        ]
        return newest[-1]
    if "text" in place:
        (found,) = re.findall(place["text"], PAGES[place["page"]])
        return number(found)
    text = cell(*(place[key] for key in ("page", "table", "row", "column")))
    return number(re.findall(NUMBER, text)[place.get("number", 1) - 1])


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure["what"])
def test_every_page_that_says_a_figure_says_that_of_its_record(figure):
    values = [value(place) for place in figure["from"]]
    if figure.get("range"):
        values = [min(values), max(values)]
    for pattern in figure["said"]:
        said = [(page, m) for page, text in PAGES.items() for m in re.finditer(pattern, text)]
        assert said, f"no page says {pattern!r}: correct or remove it"
        for page, match in said:
            for told, known in zip(match.groups(), values, strict=True):
                digits = len(told.partition(".")[2])
                assert abs(number(told) - known) <= 0.5000001 * 10**-digits, (page, match[0], known)


TOURNAMENT, CHOOSING = PAGES["experiments/tournament/README.md"], PAGES["docs/choosing.md"]


def generated(name: str) -> str:
    """What a program filled in between two comments of the tournament's page."""
    return TOURNAMENT.partition(f"<!-- table {name} -->")[2].partition("<!-- end -->")[0]


def test_pages_that_rank_on_digits_say_how_few_images_decide():
    images = len(load("digits", split="test").labels)
    for page in (TOURNAMENT, CHOOSING):
        assert f"{images} test images" in page
        assert f"one is {100 / images:.2f} points" in page


def test_chosen_lr_at_edges_and_those_that_hang_on_one_image_are_counted():
    found = re.findall(r"\((?:low|high)est\)", generated("tournament edges"))
    assert f"{len(found)} of the 56 chosen learning rates" in TOURNAMENT
    assert f"Of the 56 lr chosen in the tournament, {len(found)} are" in CHOOSING
    digits = generated("fair edges") + generated("heterogeneity edges")
    near, searches = (
        sum(map(int, each))
        for each in zip(*re.findall(r"(\d+) of (\d+) lead", digits), strict=True)
    )
    assert f"In {near} of the {searches} searches" in TOURNAMENT
    on_edge = re.findall(r"\((?:low|high)est\)", digits)
    assert f"On digits {len(on_edge)} of {searches} are at an edge" in CHOOSING


def test_choosing_shows_in_bold_what_the_tournament_calls_ahead_or_behind():
    rows = re.findall(
        r"\| (?:equal|mildly|strongly|of unequal)[^|]* \|[^|]+\|[^|]+\|[^|]+\|", CHOOSING
    )
    verdicts = {"equal": "equal", "mildly": "mild", "strongly": "strong", "of": "unequal"}
    assert len(rows) == len(verdicts)
    for row in rows:
        name, *cells = (part.strip() for part in row.strip("|").split("|"))
        for algorithm, text in zip(("sharedmuon", "scaffold", "fedcm"), cells, strict=True):
            place = "experiments/tournament/README.md", "heterogeneity against fedavg", algorithm
            verdict = cell(*place, verdicts[name.split()[0]])
            assert text.startswith("**") == verdict.endswith(("ahead", "behind")), (name, algorithm)
