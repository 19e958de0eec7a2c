"""Every command and every program in the documents runs, and does what they say."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedlada.flower.loopback import RaySimulation

ROOT = Path(__file__).parent.parent


def blocks(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run(*command: str, where: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=where, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_example_of_the_readme_passes_40_percent():
    first, *_ = blocks("README.md", "python")
    *_, last = run(sys.executable, "-W", "error", "-c", first).splitlines()
    accuracy = re.fullmatch(r"round 20: test accuracy (.*)%", last)
    assert accuracy is not None
    assert float(accuracy[1]) > 40


@pytest.mark.parametrize("program", blocks("README.md", "python")[1:])
def test_the_other_examples_of_the_readme_run(program, tmp_path):
    run(sys.executable, "-W", "error", "-c", program, where=tmp_path)


DOCUMENTS = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]


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


@pytest.mark.parametrize("command", commands(flwr=False))
def test_the_commands_of_the_documents_run(command):
    short = (
        " federation.rounds=1" if command.startswith("fedlada sweep experiments/cifar10") else ""
    )
    assert run("bash", "-c", command + short)


def test_the_flwr_commands_of_the_documents_run(tmp_path):
    """In a simulation of our own: as written they would leave a SuperLink running."""
    with RaySimulation(tmp_path / "simulation", nodes=12) as engine:
        for command in commands(flwr=True):
            words = shlex.split(command)
            assert words[:2] == ["flwr", "run"]
            given = re.sub(r" (?=[a-z-]+=)", "\n", words[words.index("-c") + 1])
            config = tomllib.loads(given) | {"num-server-rounds": 2, "nodes": 12}
            assert "round 2/2" in engine.run(ROOT / words[2], config=config)


def test_the_own_loop_example_is_short_and_learns():
    assert len((ROOT / "examples/own_loop.py").read_text().splitlines()) < 40
    printed = run(sys.executable, "-W", "error", "examples/own_loop.py", "4")
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
