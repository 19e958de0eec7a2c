"""What a release and its public repository need beside the code; .ci/run builds and installs it."""

import itertools
import os
import re
import subprocess
import tomllib

import pytest
import yaml

import fedlada
from conftest import MARKERS
from places import ROOT

GITHUB = ROOT / ".github"


def test_the_citation_has_the_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == fedlada.__version__


def test_the_changelog_begins_with_this_version_and_its_date():
    newest = re.search(r"^## (\S+)\n\n(\S+)\n", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == fedlada.__version__
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())["date-released"]
    assert newest[2] == f"{cited:%Y-%m-%d}"


RELEASE = (GITHUB / "workflows/release.yml").read_text()
JOBS = yaml.safe_load(RELEASE)["jobs"]


def test_a_release_is_published_without_a_stored_password():
    assert not re.search(r"secrets\.|password|api-token", RELEASE.replace("no password", ""))
    publish = JOBS["publish"]
    assert publish["environment"] == "pypi"
    assert publish["permissions"] == {"id-token": "write"}
    assert any(step["uses"].startswith("pypa/gh-action-pypi-publish@") for step in publish["steps"])
    others = [job for name, job in JOBS.items() if name != "publish"]
    assert not any("id-token" in job.get("permissions", {}) for job in others)


def test_a_release_is_built_and_checked_before_it_is_published():
    steps = [step.get("run") for step in JOBS["build"]["steps"]]
    assert "scripts/build dist" in steps
    assert JOBS["publish"]["needs"] == "build"
    assert JOBS["attach"]["needs"] == "publish"


@pytest.mark.parametrize(("tag", "passes"), [("", True), ("1", False)])
def test_a_tag_that_is_not_the_version_stops_the_release(tag, passes, tmp_path):
    (check,) = (s["run"] for s in JOBS["build"]["steps"] if "the tag" in s.get("name", ""))
    (tmp_path / "dist").mkdir()
    (tmp_path / f"dist/fedlada-{fedlada.__version__}.tar.gz").touch()
    environment = os.environ | {"GITHUB_REF_NAME": f"v{fedlada.__version__}{tag}"}
    done = subprocess.run(["bash", "-c", check], cwd=tmp_path, env=environment, capture_output=True)
    assert (done.returncode == 0) == passes


CI = yaml.safe_load((GITHUB / "workflows/ci.yml").read_text())["jobs"]
PREPARE = yaml.safe_load((GITHUB / "actions/prepare/action.yml").read_text())["runs"]["steps"]


def test_the_workflow_runs_the_gate_on_the_oldest_python():
    assert [step for step in CI["gate"]["steps"] if step.get("run") == ".ci/run"]
    (python,) = (s["with"]["python-version"] for s in PREPARE if "python" in s.get("uses", ""))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={python}"


WORDS = (*MARKERS, "process_faults", "resume")


@pytest.mark.parametrize("chosen", list(itertools.product((False, True), repeat=len(WORDS))))
def test_every_test_is_in_exactly_one_group_of_the_workflow(chosen):
    words = dict(zip(WORDS, chosen, strict=True))
    groups = CI["tests"]["strategy"]["matrix"]["include"]
    rules = [f"({group['tests']}) and ({group.get('only', True)})" for group in groups]
    assert [eval(rule, {}, words) for rule in rules].count(True) == 1


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
