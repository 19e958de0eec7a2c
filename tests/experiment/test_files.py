"""The experiment files that come with the project say what they mean, and mean something."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from fedlada.experiment.config.cells import cells
from fedlada.experiment.config.reading import read
from fedlada.experiment.packed import packed_runs
from fedlada.experiment.run.directory import RunDirectory
from fedlada.experiment.tournament.file import read_tournament
from fedlada.experiment.tournament.play import unpacked
from fedlada.experiment.tournament.stages import stages
from places import ROOT

FILES = sorted((ROOT / "experiments").glob("**/*.toml"))
TOURNAMENTS = sorted((ROOT / "experiments" / "tournament").glob("*.toml"))
SINGLE = [ROOT / "experiments" / "time" / "digits_late.toml"]
SWEEPS = [file for file in FILES if file not in TOURNAMENTS + SINGLE]
PACKED = [
    f for name in ("attacks", "desk") for f in ROOT.glob(f"experiments/{name}/results/*.jsonl")
]
PACKED.remove(ROOT / "experiments/desk/results/branches.jsonl")  # rows of its own kind
RUNS = [run for file in PACKED for run in packed_runs(file)]


@pytest.mark.parametrize("file", SWEEPS, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_sweep_is_readable_and_says_how_it_is_run(file):
    text, found = file.read_text(), cells(file)
    assert f"fedlada sweep {file.relative_to(ROOT)}" in text
    name = next(iter(found.values())).name
    assert f"runs/{name}" in text


@pytest.mark.parametrize("file", SINGLE, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_single_experiment_is_readable_and_says_how_it_is_run(file):
    assert f"fedlada run {file.relative_to(ROOT)}" in file.read_text()
    assert read(file).name


@pytest.mark.parametrize("file", TOURNAMENTS, ids=lambda file: file.name)
def test_every_tournament_is_readable_and_says_how_it_is_run(file):
    assert read_tournament(file).contestants
    assert f"fedlada tournament {file.relative_to(ROOT)}" in file.read_text()


@pytest.mark.programs(seconds=20)
def test_the_committed_tournament_takes_another_contestant(tmp_path):
    """Its own runs are those of the file and over; only those of the newcomer are left."""
    file, new = ROOT / "experiments/tournament/tournament.toml", "contestant.new"
    changes = ["problem.shakespeare.data.options.directory=."]  # where those runs had it
    found = read_tournament(file, changes)
    more = [f'{new}.algorithm="contestants:FRESH_SGD"', f"{new}.settings.lr=[0.03, 0.1, 0.3]"]
    wider = read_tournament(file, [*changes, *more])
    unpacked(found, tmp_path)
    for contest, wide in zip(found.contests, wider.contests, strict=True):
        for stage in stages(contest, found.rules, tmp_path):
            assert not stage.left()
            stage.prepare()  # a run of another configuration is an error
        first = next(stages(wide, wider.rules, tmp_path))
        assert [*first.by] == wider.contestants
        assert first.left() == first.by["new"]


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
    """Every run of results/NAME.jsonl is one that NAME.toml lists, perhaps with fewer rounds."""
    assert RUNS
    listed = {file: cells(file) for file in SWEEPS if file.parent.name in ("attacks", "desk")}
    for run in RUNS:
        packed = run.parent
        wanted = listed[packed.parents[1] / f"{packed.stem}.toml"][run.name].resolved()
        assert not list(RunDirectory(run).experiment().differences(wanted)), run


def test_committed_results_do_not_tell_where_on_a_machine_they_were():
    for file in (ROOT / "experiments").glob("*/results/*.jsonl"):
        assert not re.search(r'(= \\"|")/', file.read_text()), file


@pytest.mark.programs(seconds=20)
@pytest.mark.parametrize(
    "directory", ["attacks", "desk", "paper", "successor", "time", "tournament"]
)
def test_tables_in_documents_are_those_of_the_records(directory, monkeypatch):
    """In this process, because most of a program's time is that of its imports."""
    program = str(ROOT / f"experiments/{directory}/publish.py")
    monkeypatch.setattr(sys, "argv", [program, "--check"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(program, run_name="__main__")
    assert ended.value.code == 0


def test_the_table_on_amending_is_that_of_the_records():
    """Each row has a run's lr and its bits per byte after 20, 40 and 60 rounds."""
    directory, recorded = ROOT / "experiments/amending", []
    for run in map(RunDirectory, packed_runs(directory / "gain.jsonl")):
        bits = {r["round"]: r["metrics"].get("validation_bits") for r in run.records()}
        numbers = (f"{bits[n]:.3f}" for n in (20, 40, 60))
        recorded.append((f"{run.config.settings['lr']:g}", *numbers))
    rows = re.findall(r"^\| .+ \| (.+) \| (\d.+) \| (.+) \| (.+) \|$", text_of(directory), re.M)
    assert sorted(rows) == sorted(recorded)


def test_the_table_on_speedup_is_that_of_the_fits():
    desk = ROOT / "experiments/desk"
    found = json.loads((desk / "results/speedup/speedup.json").read_text())["slopes"]
    rows = re.findall(r"^\| Fed(?:LADA|Avg), .* clients, .*seeds? \| (.*) \|$", text_of(desk), re.M)
    for row, name in zip(rows, ("fedlada", "fedavg", "fedlada-unlike-clients"), strict=True):
        whole, *parts = found[name].values()
        told = [f"{whole['slope']:+.2f} ({whole['low']:.2f} to {whole['high']:.2f})"]
        told += [f"{part['slope']:+.2f}" for part in parts]
        assert row.replace("−", "-").split(" | ") == told


def test_one_run_reproduces_nothing_and_another_network_is_named():
    """The paper's claims: figures of one seed agree at most, and LeNet is not ResNet-18."""
    text = (ROOT / "experiments/paper/claims.md").read_text()
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    columns = rows[0].index("on"), rows[0].index("seeds"), rows[0].index("verdict")
    found = {(row[0], *(row[at].strip() for at in columns)) for row in rows[2:]}
    assert {verdict.partition(",")[0] for *_, verdict in found} == {
        *("**reproduced**", "one run agrees", "not reproduced", "not run")
    }
    for claim, on, seeds, verdict in found:
        if "reproduced**" in verdict or "agrees" in verdict:
            assert ("agrees" in verdict) == (seeds == "1"), claim
            papers = on == "LeNet" and "smooth activations" in claim  # in its appendix
            assert verdict.endswith(", LeNet") == (on == "LeNet" and not papers), claim


def text_of(directory: Path) -> str:
    return (directory / "README.md").read_text()


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
