"""A SIGTERM of the Python that holds a deployment stops the deployment, too."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedlada.flower.loopback import RaySimulation
from fedlada.flower.loopback.processes import marked

PROGRAM = """
import sys
import time

from fedlada.flower.loopback import RaySimulation

with RaySimulation(sys.argv[1], nodes=1) as engine:
    print("up", flush=True)
    time.sleep(600)
"""


def processes_in(directory: Path) -> list[int]:
    """Those whose Flower home is in the directory."""
    return list(marked(f"FLWR_HOME={directory}/"))


@pytest.mark.flower(seconds=20)
def test_a_sigterm_leaves_nothing_running(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "flower")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout.readline() == "up\n"
        assert processes_in(tmp_path / "flower")
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == 128 + signal.SIGTERM
    assert processes_in(tmp_path / "flower") == []


def test_a_handler_that_is_there_is_left_alone(tmp_path, monkeypatch):
    def mine(*_):
        pass

    monkeypatch.setattr(RaySimulation, "_start", lambda self: None)
    before = signal.signal(signal.SIGTERM, mine)
    try:
        with RaySimulation(tmp_path, nodes=1):
            assert signal.getsignal(signal.SIGTERM) is mine
        assert signal.getsignal(signal.SIGTERM) is mine
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with RaySimulation(tmp_path, nodes=1):
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
