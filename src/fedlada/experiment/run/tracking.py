"""The trackers that the key ``track`` of an experiment's file names."""

from __future__ import annotations

from pathlib import Path

from ...results.tracking import MLflow, TensorBoard, WeightsAndBiases
from ...server.watch import Watcher
from ..config.experiment import Experiment
from ..config.keys import flatten

__all__ = ["trackers"]


def trackers(config: Experiment, directory: Path) -> list[Watcher]:
    """Return the trackers of a run; they have its name, and its configuration."""
    whole = config.model_dump(mode="json")
    made: dict[str, Watcher] = {}
    for tracker in config.track:
        if tracker == "tensorboard":
            made[tracker] = TensorBoard(directory)
        elif tracker == "mlflow":
            made[tracker] = MLflow(config.name, name=directory.name, params=flatten(whole))
        else:
            made[tracker] = WeightsAndBiases(
                config.name, name=directory.name, config=whole, directory=directory
            )
    return list(made.values())
