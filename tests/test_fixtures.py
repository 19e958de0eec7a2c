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
LATER = "evaluat"
"""How names of fields begin that 0.2.0 did not have; nobody is asked here, so they are empty."""


RUNS = ["fedlada", "scaffold"]
ROUNDS = 20
"""So many of the 60 rounds of the digits' sweep are run."""

PROGRAM = """
import sys
from pathlib import Path

import torch

from fedlada.cli import main as fedlada
from fedlada.experiment.config.cells import cells
from fedlada.experiment.run.directory import RunDirectory
from fedlada.experiment.run.rounds import run
from fixtures.v0_2_0.program import main

torch.set_num_threads(1)
digits, rounds, *runs = sys.argv[1:]
for name in ("fedlada", "scaffold", "flower"):
    main(name, name, "6")
for directory in runs:
    try:
        fedlada(["resume", directory])
    except SystemExit as ended:
        if ended.code:
            raise
for name, config in cells(Path(digits), [f"federation.rounds={rounds}"]).items():
    if name.endswith("seed0"):
        RunDirectory(Path("digits", name)).prepare(config)
        assert len(list(run(Path("digits", name)))) == int(rounds)
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Path:
    """Where all has been run, in one process: a new one, as `EXACT` must be there at its start."""
    where = tmp_path_factory.mktemp("fixtures")
    for name in ("fedlada", "scaffold", "flower", *(f"run-{name}" for name in RUNS)):
        shutil.copytree(V020 / name, where / name)
    for name in RUNS:
        config = where / f"run-{name}" / "config.toml"
        config.write_text(config.read_text().replace("rounds = 3\n", "rounds = 6\n"))
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | EXACT | {"PYTHONPATH": path}
    command = [sys.executable, "-c", PROGRAM, str(DIGITS), str(ROUNDS)]
    command += [f"run-{name}" for name in RUNS]
    subprocess.run(command, cwd=where, env=environment, check=True)
    return where


@pytest.mark.parametrize("name", ["fedlada", "scaffold", "flower"])
def test_a_checkpoint_of_0_2_0_resumes_and_ends_in_its_bits(done, name):
    final = done / name / "round-00000006.safetensors"
    assert final.read_bytes() == (V020 / f"{name}.safetensors").read_bytes()


@pytest.mark.parametrize("name", RUNS)
def test_an_experiment_of_0_2_0_goes_on_and_ends_in_its_bits(done, name):
    mine = done / f"run-{name}"
    final = load_file(mine / "checkpoints" / "round-00000006.safetensors")
    expected = load_file(V020 / f"run-{name}.safetensors")
    assert final.keys() == expected.keys()
    for key in expected.keys() - {"random"}:  # that of a process which seeded nothing
        assert Vector([final[key]]).equal(Vector([expected[key]])), key
    assert untimed(mine / "records.jsonl") == untimed(V020 / f"run-{name}.jsonl")


@pytest.mark.parametrize("path", sorted((V020 / "digits").glob("*.jsonl")), ids=lambda p: p.stem)
def test_the_digits_sweep_has_the_records_of_0_2_0(done, path):
    """All but the clocks; its byte counts were right, since nothing fails there."""
    records = untimed(done / "digits" / path.stem / "records.jsonl")
    assert records == untimed(path)[:ROUNDS]


def untimed(path: Path) -> list[dict]:
    """The records but for their clocks; 0.2.0 wrote all metrics into one table."""
    records = map(upgraded_record, map(json.loads, path.read_text().splitlines()))
    return [
        {k: v for k, v in record.items() if k not in CLOCKS and (v or not k.startswith(LATER))}
        for record in records
    ]
