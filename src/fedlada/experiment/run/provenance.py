"""The machine, the versions and the command that made a run."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path

import torch

import fedlada

__all__ = ["provenance"]


def provenance(*, threads: int) -> dict[str, object]:
    """Return time, command, machine and versions of a run, as values that JSON can represent."""
    return {
        "ended": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "machine": {
            "system": platform.platform(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "torch_threads": threads,
        },
        "versions": {
            "fedlada": fedlada.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def _processor() -> str:
    """Return the model of the processor; ``platform`` knows it on few systems."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor())
