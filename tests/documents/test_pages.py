"""The pages of the site as a whole: a way to each of them, and no table on two of them."""

import itertools
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import yaml

from places import ROOT

ADOPTED = runpy.run_path(str(ROOT / "docs/hooks.py"))["ADOPTED"]
PAGES = {path.relative_to(ROOT / "docs").as_posix(): path for path in ROOT.glob("docs/**/*.md")}
PAGES |= {name: ROOT / source for source, name in ADOPTED.items()}
README = ROOT / "README.md"


def links(page: Path) -> set[Path]:
    """The Markdown files that a page links to."""
    found = re.findall(r"\]\(([^)#\s]+\.md)(?:#[^)]*)?\)", page.read_text())
    return {(page.parent / link).resolve() for link in found if "://" not in link}


def listed(nav: object) -> Iterator[str]:
    """The pages that the site's navigation lists."""
    if isinstance(nav, str):
        yield nav
    else:
        assert isinstance(nav, list | dict)
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from listed(entry)


def tables(page: Path) -> list[set[str]]:
    """The rows of each table of a page, without its head."""
    groups = itertools.groupby(page.read_text().splitlines(), lambda line: line.startswith("|"))
    return [set(list(lines)[2:]) for is_table, lines in groups if is_table]


def test_the_navigation_lists_every_page():
    nav = re.search(r"^nav:\n(?:[ #].*\n|\n)*", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert nav is not None
    missing = set(PAGES) - set(listed(yaml.safe_load(nav[0])["nav"]))
    assert not missing


def test_links_lead_from_the_readme_to_every_page():
    seen, waiting = set[Path](), {README}
    while waiting:
        page = waiting.pop()
        seen.add(page)
        waiting |= {link for link in links(page) if link.exists()} - seen
    missing = {name for name, path in PAGES.items() if path not in seen}
    assert not missing


def test_no_table_stands_on_two_pages():
    every = [(page, table) for page in [README, *PAGES.values()] for table in tables(page) if table]
    for (page, table), (other, second) in itertools.combinations(every, 2):
        if page != other:
            common = table & second
            assert len(common) <= min(len(table), len(second)) / 2, (page, other, common)
