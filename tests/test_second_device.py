"""Runs on a device that is not the CPU, in processes of their own: `tests/devices` says which."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
MPS_LIKE = "second-without-float64"

pytestmark = pytest.mark.programs(seconds=60)


@pytest.mark.parametrize(
    ("device", "chosen"),
    [
        ("second", ""),
        (MPS_LIKE, "codec or strict or guard or measured or form or flower or experiment"),
    ],
)
def test_all_follows_the_model_to_another_device(device, chosen):
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "devices.plugin"]
    files = [
        str(TESTS / "devices" / name)
        for name in ("on_device.py", "on_flower.py", "on_experiment.py")
    ]
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*command, "--device", device, "-k", chosen, *files],
        cwd=TESTS.parent,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-9000:]
