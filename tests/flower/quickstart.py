"""The quickstart's `after/` on an engine that runs apps: evaluation by clients, hook, history."""

import re
from pathlib import Path

import torch

from fedlada.flower.loopback import Deployment
from places import ROOT

QUICKSTART = ROOT / "examples" / "quickstart"


def final_accuracy(printed: str) -> float:
    """What the app says at its end."""
    (accuracy,) = re.findall(r"^accuracy (\d\.\d+)$", printed, re.MULTILINE)
    return float(accuracy)


def run_quickstart(engine: Deployment, saved: Path, *, rounds: int) -> float:
    """Run it and check all that it shows; return the accuracy at its end."""
    config = {"num-server-rounds": rounds, "final-model": str(saved)}
    printed = engine.run(QUICKSTART / "after", config=config)
    hook = re.findall(r"^after round (\d+): {'accuracy': ([\d.]+)}$", printed, re.MULTILINE)
    assert [int(round) for round, _ in hook] == list(range(1, rounds + 1))
    told = re.findall(rf"evaluated by {engine.nodes} \(accuracy ([\d.]+), median", printed)
    assert [f"{float(accuracy):.4g}" for _, accuracy in hook] == told
    last = final_accuracy(printed)  # of the history
    assert f"{float(hook[-1][1]):.3f}" == f"{last:.3f}"
    names = [f"layers.{i}.{name}" for i in (0, 2) for name in ("weight", "bias")]
    assert list(torch.load(saved, weights_only=True)) == names
    return last
