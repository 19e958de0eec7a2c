"""Every command and every program in the documents runs, and does what they say."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedlada import Checkpoints, export
from fedlada.cli import main
from fedlada.flower.loopback import RaySimulation
from places import ROOT


def blocks(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readme_has_fewer_than_600_words():
    assert len((ROOT / "README.md").read_text().split()) < 600


@pytest.mark.cifar(seconds=120)
def test_the_example_on_cifar10_passes_35_percent(capsys):
    (program,) = blocks(CIFAR, "python")
    exec(compile(program, CIFAR, "exec"), {})
    *_, last = capsys.readouterr().out.splitlines()
    accuracy = re.fullmatch(r"round 5: test accuracy (.*)%", last)
    assert accuracy is not None
    assert float(accuracy[1]) > 35


CIFAR = "docs/experiments.md"
DOCUMENTS = [
    "README.md",
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))),
]
INGREDIENT = "docs/ingredient.md"
ELSEWHERE = ("docs/guide/", CIFAR, INGREDIENT)
"""Documents whose programs have tests of their own."""
PROGRAMS = [name for name in DOCUMENTS if blocks(name, "python") and not name.startswith(ELSEWHERE)]


@pytest.mark.documents(seconds=60)
@pytest.mark.parametrize("page", PROGRAMS)
def test_the_programs_of_a_page_run_from_top_to_bottom_as_one(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for program in blocks(page, "python"):
        exec(compile(program, page, "exec"), names)


@pytest.mark.documents(seconds=60)
@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_a_first_program_prints_what_the_page_shows(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (shown,) = blocks(page, "text")
    exec(compile(blocks(page, "python")[0], page, "exec"), {"__name__": "page"})
    assert shown in capsys.readouterr().out


@pytest.mark.documents(seconds=60)
def test_the_worked_ingredient_keeps_the_contract(tmp_path, monkeypatch):
    ingredient, laws, use = blocks(INGREDIENT, "python")
    (tmp_path / "sign_momentum.py").write_text(ingredient)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "tests/algorithms")
    names = {"__name__": "laws"}
    exec(compile(laws, INGREDIENT, "exec"), names)
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert f"{len(tests)} passed" in (ROOT / INGREDIENT).read_text()
    for test in tests:
        test()
    exec(compile(use, INGREDIENT, "exec"), {})


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_tests_that_documents_name_exist(document):
    for reference in re.findall(r"`(tests/[^`]*)`", (ROOT / document).read_text()):
        named = re.fullmatch(r"(tests/[\w/]+\.py)::(test_\w+)", reference)
        assert named is not None, f"{reference} should name a test, as tests/file.py::test_name"
        tests = re.findall(r"^def (test_\w+)\(", (ROOT / named[1]).read_text(), re.MULTILINE)
        assert named[2] in tests, f"{reference} does not exist"


def commands(*, flwr: bool) -> list[str]:
    """The commands in all documents, but for pip's, which .ci/run runs, by whether flwr's."""
    lines = [
        line for name in DOCUMENTS for block in blocks(name, "bash") for line in block.splitlines()
    ]
    return [
        line
        for line in dict.fromkeys(lines)
        if not line.startswith("pip install") and line.startswith("flwr") == flwr
    ]


ALONE = (
    "fedlada run examples/own_problem",
    "python examples/deployment",
    "python examples/trainers",
)
"""Commands that are run as the shell runs them; other commands of fedlada in this process."""
SHORTER = {
    "fedlada sweep experiments/digits": "federation.rounds=5",
    "fedlada tournament experiments/tournament/digits": "common.federation.rounds=2 rules.seeds=[0]"
    " common.evaluate.every=1 --only even",
    "fedlada sweep experiments/cifar10": (
        "federation.rounds=1 federation.cohort=2 train.steps=5 --only '*seed0'"
    ),
}
"""What is added to commands that would take minutes."""
ON_RAY = "fedlada run examples/engines.toml engine.name=ray --out runs/on-ray"
OWN_LOOP = "python examples/own_loop.py 3"
"""These two have tests of their own."""


def marked(command: str) -> pytest.param:
    """A command with the marker of what it needs; those on digits use each other's results."""
    if "cifar10" in command:
        marker = pytest.mark.cifar(seconds=120)
    elif "examples/deployment" in command:
        marker = pytest.mark.flower(seconds=150, group="commands of a deployment")
    elif "digits" in command:
        marker = pytest.mark.documents(seconds=90, group="commands on digits")
    else:
        marker = pytest.mark.documents(seconds=60)
    return pytest.param(command, marks=marker)


@pytest.mark.parametrize(
    "command", [marked(line) for line in commands(flwr=False) if line not in (ON_RAY, OWN_LOOP)]
)
def test_the_commands_of_the_documents_run(command, monkeypatch):
    if command.startswith(ALONE):
        assert run("bash", "-c", command)
    else:
        more = next((more for begin, more in SHORTER.items() if command.startswith(begin)), "")
        fedlada(f"{command} {more}", monkeypatch)


def fedlada(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command of fedlada in this process, where the documents are."""
    program, *words = shlex.split(command)
    assert program == "fedlada"
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert not ended.value.code, ended.value.code


@pytest.mark.flower(seconds=40, group="run on Ray")
def test_a_run_on_ray_is_the_run_in_process(tmp_path, monkeypatch):
    assert ON_RAY in commands(flwr=False)
    fedlada(ON_RAY, monkeypatch)
    fedlada(f"fedlada run examples/engines.toml --out {tmp_path}/run", monkeypatch)
    ray, process = ROOT / "runs/on-ray", tmp_path / "run"
    assert sorted(path.name for path in ray.iterdir()) == sorted(
        path.name for path in process.iterdir()
    )
    assert untimed(ray) == untimed(process)
    for where, name in ((ray, "ray"), (process, "process")):
        export(Checkpoints(where / "checkpoints"), tmp_path / name)
    assert (tmp_path / "ray").read_bytes() == (tmp_path / "process").read_bytes()


def untimed(directory: Path) -> list[dict]:
    """The records without what a clock had to say."""
    records = map(json.loads, (directory / "records.jsonl").read_text().splitlines())
    return [{k: v for k, v in record.items() if "seconds" not in k} for record in records]


@pytest.mark.flower(seconds=130, group="commands of flwr")
def test_the_flwr_commands_of_the_documents_run_on_a_hundred_virtual_clients(tmp_path):
    """In a simulation of our own: as written they would leave a SuperLink running.

    That of the README has a test in `flower/test_apps.py`.
    """
    others = [line for line in commands(flwr=True) if line not in (ROOT / "README.md").read_text()]
    assert others
    with RaySimulation(tmp_path / "simulation", nodes=100, at_once=1) as engine:
        for command in others:
            words = shlex.split(command)
            assert words[:2] == ["flwr", "run"]
            given = re.sub(r" (?=[a-z-]+=)", "\n", words[words.index("-c") + 1])
            shorter = {"rounds": 2, "nodes": 100, "close-after": 8}
            printed = engine.run(ROOT / words[2], config=tomllib.loads(given) | shorter)
            rounds = re.findall(r"round (\d)/2: (\d+) of 10 replies", printed)
            assert rounds == [("1", "8"), ("2", "8")]


@pytest.mark.documents(seconds=60)
def test_the_own_loop_example_is_short_and_learns():
    assert OWN_LOOP in commands(flwr=False)
    _, *words = OWN_LOOP.split()
    assert len((ROOT / words[0]).read_text().splitlines()) < 40
    printed = run(sys.executable, "-W", "error", *words)
    first, *_, last = (float(line.split()[-1][:-1]) for line in printed.splitlines())
    assert last > max(first, 20)


def test_every_benchmark_is_in_the_list_and_has_a_result():
    programs = {path.name for path in (ROOT / "benchmarks").glob("*.py")} - {"measure.py"}
    rows = re.findall(
        r"^\| `python benchmarks/(\w+\.py) --check` \| \S",
        (ROOT / "benchmarks/README.md").read_text(),
        re.MULTILINE,
    )
    assert sorted(rows) == sorted(programs)
    results = [
        json.loads(line) for line in (ROOT / "benchmarks/results.jsonl").read_text().splitlines()
    ]
    assert {Path(result["command"].split()[1]).name for result in results} == programs
    assert all(result["figures"] for result in results)
