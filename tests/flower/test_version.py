"""fedlada.flower is tested with one version of Flower."""

import importlib.metadata
import re
from pathlib import Path


def test_flower_is_the_tested_version():
    extras = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    pinned = re.search(r"flwr\[simulation\]==([\d.]+)", extras)
    assert pinned is not None
    installed = importlib.metadata.version("flwr")
    assert installed == pinned[1], (
        f"flwr {installed} is installed and {pinned[1]} is what fedlada was tested with. To move to"
        " another version, change the pin in pyproject.toml, look at the private import in"
        " fedlada/flower/memory_grid.py, run all of tests/flower and say so in the changelog."
    )
