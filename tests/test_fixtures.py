"""Runs that 0.2.0 began end, in today's version, in the bits in which 0.2.0 ends them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from fedlada.algorithms import Vector
from fedlada.server.upgrade import upgraded_record
from fixtures.v0_2_0.program import EXACT

V020 = Path(__file__).parent / "fixtures" / "v0_2_0"
DIGITS = Path(__file__).parents[1] / "experiments" / "digits.toml"
CLOCKS = {"seconds", "local_seconds", "server_seconds"}


def run(*command: str, where: Path) -> None:
    subprocess.run(command, cwd=where, env=os.environ | EXACT, check=True)


@pytest.mark.parametrize("name", ["fedlada", "scaffold", "flower"])
def test_a_checkpoint_of_0_2_0_resumes_and_ends_in_its_bits(tmp_path, name):
    shutil.copytree(V020 / name, tmp_path / name)
    run(sys.executable, str(V020 / "program.py"), name, name, "6", where=tmp_path)
    final = tmp_path / name / "round-00000006.safetensors"
    assert final.read_bytes() == (V020 / f"{name}.safetensors").read_bytes()


@pytest.mark.parametrize("name", ["fedlada", "scaffold"])
def test_an_experiment_of_0_2_0_goes_on_and_ends_in_its_bits(tmp_path, name):
    mine = tmp_path / name
    shutil.copytree(V020 / f"run-{name}", mine)
    text = (mine / "config.toml").read_text()
    (mine / "config.toml").write_text(text.replace("rounds = 3\n", "rounds = 6\n"))
    run(sys.executable, "-m", "fedlada.cli", "resume", str(mine), where=tmp_path)
    final = load_file(mine / "checkpoints" / "round-00000006.safetensors")
    expected = load_file(V020 / f"run-{name}.safetensors")
    assert final.keys() == expected.keys()
    for key in expected.keys() - {"random"}:  # that of a process which seeded nothing
        assert Vector([final[key]]).equal(Vector([expected[key]])), key
    assert untimed(mine / "records.jsonl") == untimed(V020 / f"run-{name}.jsonl")


def test_the_digits_sweep_has_the_records_of_0_2_0(tmp_path):
    """All but the clocks; its byte counts were right, since nothing fails there."""
    command = [sys.executable, "-m", "fedlada.cli", "sweep", str(DIGITS), "--only", "*seed0"]
    run(*command, "--out", str(tmp_path / "digits"), where=tmp_path)
    for path in (V020 / "digits").glob("*.jsonl"):
        assert untimed(tmp_path / "digits" / path.stem / "records.jsonl") == untimed(path)


def untimed(path: Path) -> list[dict]:
    """The records but for their clocks; 0.2.0 wrote all metrics into one table."""
    records = map(upgraded_record, map(json.loads, path.read_text().splitlines()))
    return [{k: v for k, v in record.items() if k not in CLOCKS} for record in records]
