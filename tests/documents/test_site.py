"""The site: it builds without a warning, loads nothing from elsewhere and shows every name."""

import importlib
import json
import re
import subprocess
import sys
from typing import get_type_hints

import pytest

from fedlada import ALGORITHMS
from fedlada.server.plan import OtherSettings
from places import ROOT

pytestmark = pytest.mark.documents(seconds=60)

REFERENCE = ("fedlada", "algorithms", "data", "models", "flower")
NEVER_LOADED = r'(?:<a [^>]*href|xmlns(?::\w+)?|content)=["\']?'


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.parametrize("page", REFERENCE)
def test_every_public_name_is_on_its_reference_page(site, page):
    module = importlib.import_module("fedlada" if page == "fedlada" else f"fedlada.{page}")
    text = (site / f"reference/{page}.html").read_text()
    missing = [name for name in module.__all__ if f'id="{module.__name__}.{name}"' not in text]
    assert not missing


@pytest.mark.parametrize("name", ["engines", "training", "server", "privacy"])
def test_every_name_of_the_smaller_modules_is_on_the_first_reference_page(site, name):
    module = importlib.import_module(f"fedlada.{name}")
    text = (site / "reference/fedlada.html").read_text()
    ways = [(f'id="fedlada.{name}.{own}"', f'id="fedlada.{own}"') for own in module.__all__]
    assert not [way for way in ways if not any(one in text for one in way)]


@pytest.mark.parametrize("page", REFERENCE)
def test_docstrings_are_markdown_on_the_reference_pages(site, page):
    text = (site / f"reference/{page}.html").read_text()
    assert not re.findall(r":(?:class|func|meth|data|mod|math):|\.\. math|&gt;&gt;&gt;", text)


def test_the_reference_lists_the_settings_of_a_plan_and_shows_no_implementation(site):
    page = (site / "reference/fedlada.html").read_text()
    part = page[page.index('id="fedlada.simulate"') : page.index('id="fedlada.Simulation"')]
    simulate = re.sub(r"<[^>]*>", "", part)
    for name in get_type_hints(OtherSettings):
        assert re.search(rf"^ +{name}: \S", simulate, re.MULTILINE), f"{name} in the signature"
        assert re.search(rf"^\s*{name}\s*$", simulate, re.MULTILINE), f"{name} in the table"
    whole = re.sub(r"<[^>]*>", "", page)
    assert "Unpack" not in whole
    assert "server.state" not in whole


def test_nothing_is_loaded_from_another_host(site):
    for file in [*site.rglob("*.html"), *site.rglob("*.css")]:
        text = re.sub(rf"{NEVER_LOADED}https?://[^\"'>\s]*", "", file.read_text())
        found = re.findall(r"(?:src|href|srcset)=[\"']?(?:https?:)?//[^\"'>\s]+", text)
        found += re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)\"']+", text)
        assert not found, file


def test_no_link_of_a_page_leads_nowhere(site):
    for file in site.rglob("*.html"):
        for link in re.findall(r'(?:href|src)="?([^"#?>\s]+)', file.read_text()):
            if file.name != "404.html" and not re.match(r"\w+:|//", link):
                assert (file.parent / link).exists(), f"{link} in {file.relative_to(site)}"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_algorithm_has_its_page_with_equations(site, name):
    assert "<math" in (site / f"algorithms/{name}.html").read_text()


def test_what_is_generated_has_replaced_its_marker(site):
    assert not [file for file in site.rglob("*.html") if "<!-- generated" in file.read_text()]
    assert "--parameters" in (site / "cli.html").read_text()
    assert "fedlada-rows.html" in (site / "tuning.html").read_text()


NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs_runs_and_draws(site, path):
    """Building the site runs it, and fails if a cell does or warns."""
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
    page = (site / f"notebooks/{path.stem}.html").read_text()
    assert f"{path.stem}-1.png" in page
    assert page.count("<pre>") > len(code)
