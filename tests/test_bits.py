"""Runs end in the bits in which they ended before the package was rearranged for 0.3.0."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.bits.program import EXACT

BITS = Path(__file__).parent / "fixtures" / "bits"
EXPECTED = json.loads((BITS / "bits.json").read_text())


@pytest.fixture(scope="module")
def hashes() -> dict[str, dict[str, str]]:
    """The hashes of today's runs, from a new process, as `EXACT` must be there at its start."""
    command = [sys.executable, str(BITS / "program.py")]
    run = subprocess.run(
        command, env=os.environ | EXACT, check=True, capture_output=True, text=True
    )
    return json.loads(run.stdout[run.stdout.index("{\n") :])


@pytest.mark.parametrize("name", EXPECTED)
def test_a_run_ends_in_the_same_bits(hashes, name):
    assert hashes[name] == EXPECTED[name]
