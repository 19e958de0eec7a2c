"""Every command and every program in the documents runs, and does what they say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def blocks(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_example_of_the_readme_passes_40_percent():
    first, *_ = blocks("README.md", "python")
    *_, last = run(sys.executable, "-W", "error", "-c", first).splitlines()
    accuracy = re.fullmatch(r"round 20: test accuracy (.*)%", last)
    assert accuracy is not None
    assert float(accuracy[1]) > 40


@pytest.mark.parametrize("program", blocks("README.md", "python")[1:])
def test_the_other_examples_of_the_readme_run(program):
    run(sys.executable, "-W", "error", "-c", program)


def commands() -> list[str]:
    lines = "".join(blocks("README.md", "bash")).splitlines()
    return [line for line in lines if not line.startswith("pip install")]  # .ci/run installs


@pytest.mark.parametrize("command", commands())
def test_the_commands_of_the_readme_run(command):
    assert run("bash", "-c", command)


def test_the_own_loop_example_is_short_and_learns():
    assert len((ROOT / "examples/own_loop.py").read_text().splitlines()) < 40
    printed = run(sys.executable, "-W", "error", "examples/own_loop.py", "4")
    first, *_, last = (float(line.split()[-1][:-1]) for line in printed.splitlines())
    assert last > max(first, 20)


@pytest.mark.parametrize("program", sorted(os.listdir(ROOT / "benchmarks")))
def test_every_benchmark_is_in_the_list_with_its_result(program):
    if program.endswith(".py") and program != "measure.py":
        assert f"python benchmarks/{program} --check" in (ROOT / "benchmarks/README.md").read_text()
