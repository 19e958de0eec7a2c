"""The guide's programs run, page by page from top to bottom, and so does the example of a table."""

import re
import subprocess
import sys

import pytest

from places import ROOT

PAGES = sorted((ROOT / "docs" / "guide").glob("*.md"))


@pytest.mark.documents(seconds=60)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_programs_of_a_page_run_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    programs = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert programs
    for program in programs:
        exec(compile(program, page.name, "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_links_of_a_page_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert (page.parent / link).exists(), link


@pytest.mark.documents(seconds=60)
def test_a_table_becomes_a_curve_in_under_forty_lines(tmp_path):
    program = ROOT / "examples" / "own_table.py"
    assert len(program.read_text().splitlines()) < 40
    done = subprocess.run(
        [sys.executable, "-W", "error", program, "curve.png"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    scores = [float(score) for score in re.findall(r"test accuracy ([\d.]+)%", done.stdout)]
    assert len(scores) == 2
    assert min(scores) > 90
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
