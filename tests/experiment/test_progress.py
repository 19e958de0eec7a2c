"""What a sweep shows: its bar, or the last line of its log, ends where the sweep ends."""

import json
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from fedlada.experiment.config.experiment import Experiment
from fedlada.experiment.run.directory import RunDirectory
from fedlada.experiment.run.progress import Display
from fedlada.experiment.run.sweep import Standing

ROUNDS = 4


def prepared(where: Path) -> Path:
    RunDirectory(where).prepare(Experiment(federation={"rounds": ROUNDS}))
    return where


def at(run: Path, round: int) -> None:
    line = {"round": round, "metrics": {"test_accuracy": 0.5}, "client_metrics": {}}
    RunDirectory(run).records_file.write_text(json.dumps(line) + "\n")


@pytest.mark.parametrize("terminal", [True, False])
def test_a_sweep_that_is_done_shows_all_of_its_rounds(tmp_path, terminal):
    runs = [prepared(tmp_path / name) for name in ("a", "b")]
    written = StringIO()
    console = Console(file=written, force_terminal=terminal, width=100)
    with Display(console, runs) as display:
        for run in runs:
            at(run, 1)
        display.watch(Standing(running=runs))
        for run in runs:
            at(run, ROUNDS)
        display.watch(Standing(done=runs))
    *_, last = re.findall(r"\d+/\d+", written.getvalue())
    assert last == f"{2 * ROUNDS}/{2 * ROUNDS}"
