"""Runs on devices that are not the CPU, in a process of their own: `tests/devices` says which."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ON_MPS = "codec or strict or guard or measured or form or flower or experiment"
"""The tests for which it matters that a device has no float64."""

pytestmark = pytest.mark.programs(seconds=60)


def test_all_follows_the_model_to_another_device():
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "devices.plugin"]
    command += ["--device", "second", "--device", "second-without-float64"]
    command += ["-k", f"not without-float64 or {ON_MPS}"]
    names = ("on_device.py", "on_flower.py", "on_experiment.py")
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*command, *(str(TESTS / "devices" / name) for name in names)],
        cwd=TESTS.parent,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-9000:]
