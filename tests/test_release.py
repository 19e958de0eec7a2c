"""What a release and its public repository need beside the code; .ci/run builds and installs it."""

import re
import tomllib
from pathlib import Path

import yaml

import fedlada

ROOT = Path(__file__).parent.parent
GITHUB = ROOT / ".github"


def test_the_citation_has_the_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == fedlada.__version__


def test_the_workflow_runs_the_gate_on_the_oldest_python():
    job = yaml.safe_load((GITHUB / "workflows/ci.yml").read_text())["jobs"]["gate"]
    assert [step for step in job["steps"] if step.get("run") == ".ci/run"]
    (python,) = (s["with"]["python-version"] for s in job["steps"] if "python" in s.get("uses", ""))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={python}"


def test_issue_forms_ask_for_something_and_name_every_field():
    forms = [file for file in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if file.stem != "config"]
    assert len(forms) >= 2
    for file in forms:
        form = yaml.safe_load(file.read_text())
        assert form["name"]
        assert form["description"]
        fields = [part for part in form["body"] if part["type"] != "markdown"]
        assert all(part["attributes"]["label"] for part in fields)
        assert any(part.get("validations", {}).get("required") for part in fields)


def test_links_of_the_files_at_the_top_resolve():
    for file in [*ROOT.glob("*.md"), GITHUB / "pull_request_template.md"]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", file.read_text()):
            assert (file.parent / link).exists(), f"{link} in {file.name}"
