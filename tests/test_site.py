"""The site: it builds without a warning, loads nothing from elsewhere and shows every name."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
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


@pytest.mark.parametrize("page", REFERENCE)
def test_docstrings_are_markdown_on_the_reference_pages(site, page):
    text = (site / f"reference/{page}.html").read_text()
    assert not re.findall(r":(?:class|func|meth|data|mod|math):|\.\. math|&gt;&gt;&gt;", text)


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
