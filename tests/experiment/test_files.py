"""The experiment files that come with the project say what they mean, and mean something."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from fedlada.experiment.config.cells import cells
from fedlada.experiment.config.experiment import FREE
from fedlada.experiment.config.keys import flatten
from fedlada.experiment.config.reading import read
from fedlada.experiment.tournament.file import read_tournament

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "experiments").glob("**/*.toml"))
SWEEPS = [file for file in FILES if not {"results", "attacks", "tournament"} & {*file.parts}]
TOURNAMENTS = sorted((ROOT / "experiments" / "tournament").glob("*.toml"))
RUNS = [file for file in FILES if "results" in file.parts]


@pytest.mark.parametrize("file", SWEEPS, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_sweep_is_readable_and_says_how_it_is_run(file):
    text, found = file.read_text(), cells(file)
    assert f"fedlada sweep {file.relative_to(ROOT)}" in text
    name = next(iter(found.values())).name
    assert f"runs/{name}" in text


@pytest.mark.parametrize("file", TOURNAMENTS, ids=lambda file: file.name)
def test_every_tournament_is_readable_and_says_how_it_is_run(file):
    assert read_tournament(file).contestants
    assert f"fedlada tournament {file.relative_to(ROOT)}" in file.read_text()


@pytest.mark.parametrize("name", ["desk", "paper"])
def test_every_file_is_in_the_readme_of_its_directory(name):
    text = (ROOT / "experiments" / name / "README.md").read_text()
    for file in sorted((ROOT / "experiments" / name).glob("*.toml")):
        assert file.name in text


def test_the_paper_is_run_at_its_own_size():
    for file in sorted((ROOT / "experiments/paper").glob("*.toml")):
        for config in cells(file).values():
            assert config.data.clients == 100
            assert config.train.epochs is not None
            assert config.federation.rounds == (4000 if config.model.name == "lenet" else 1500)


def test_committed_results_are_of_the_committed_files():
    """Every run of results/NAME is one that desk/NAME.toml lists, perhaps with fewer rounds."""
    assert RUNS
    listed = {file.stem: cells(file) for file in SWEEPS if file.parent.name == "desk"}
    for file in RUNS:
        sweep, run = file.parent.parent.name, file.parent.name
        found, wanted = (
            flatten(c.model_dump()) for c in (read(file), listed[sweep][run].resolved())
        )
        for key in found.keys() | wanted.keys():
            if key not in FREE:
                assert found[key] == wanted[key], f"{key} of {file}"


def test_committed_results_do_not_tell_where_on_a_machine_they_were():
    for file in (ROOT / "experiments/desk/results").glob("*/*/done.json"):
        assert not [word for word in json.loads(file.read_text())["command"] if word[0] == "/"]
    for file in (ROOT / "experiments").glob("*/results/*.jsonl"):
        assert '= \\"/' not in file.read_text(), file


@pytest.mark.parametrize("directory", ["desk", "successor", "tournament"])
def test_tables_in_documents_are_those_of_the_records(directory):
    program = ROOT / f"experiments/{directory}/publish.py"
    done = subprocess.run([sys.executable, program, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_links_and_questions_of_the_desk_resolve():
    desk = ROOT / "experiments/desk"
    text = (desk / "README.md").read_text()
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (desk / link).exists(), link
    for question in runpy.run_path(str(desk / "publish.py"))["QUESTIONS"]:
        assert f"<!-- table {question.name} -->" in text


@pytest.mark.parametrize(
    ("document", "runs"), [("experiments", 3 * (2 + 1)), ("choosing", 2 * 3 + 3)]
)
def test_the_file_in_the_documentation_is_one(document, runs, tmp_path):
    text = (ROOT / f"docs/{document}.md").read_text()
    (block,) = re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    file = tmp_path / "file.toml"
    file.write_text(block)
    assert len(cells(file)) == runs
