"""Trackers, which pass the records of a run to other programs.

TensorBoard, MLflow and W&B are imported only when a run uses them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Protocol

from ...errors import missing_extra
from ...server.record import RoundRecord
from ..config.experiment import Experiment
from ..config.keys import flatten
from .directory import CLIENTS, RunDirectory

__all__ = ["ADAPTERS", "Tracker", "trackers"]


class Tracker(Protocol):
    """Receives the record of every round."""

    def record(self, record: RoundRecord) -> None:
        """Store the record of one round."""
        ...

    def close(self) -> None:
        """End tracking; no record follows."""
        ...


@contextmanager
def trackers(
    config: Experiment, directory: RunDirectory, resumed: RoundRecord | None
) -> Iterator[list[Tracker]]:
    """Open all trackers of a run that is new or resumes after the record ``resumed``."""
    with ExitStack() as stack:
        made = list[Tracker]()
        for name in config.track:
            try:
                adapter = ADAPTERS[name](config, directory.path, resumed.round if resumed else 1)
            except ModuleNotFoundError as error:
                raise missing_extra(error, f'track = ["{name}"]', name) from None
            made.append(stack.enter_context(closing(adapter)))
            if resumed is not None:
                adapter.record(resumed)  # the run may have been killed before this call
        yield made


class TensorBoard:
    """Writes event files into the run's directory."""

    def __init__(self, config: Experiment, directory: Path, first: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(directory), purge_step=first)

    def record(self, record: RoundRecord) -> None:
        for name, value in _scalars(record).items():
            self._writer.add_scalar(name, value, record.round)

    def close(self) -> None:
        self._writer.close()


class MLflow:
    """Logs to a run of the MLflow experiment ``name``, at MLFLOW_TRACKING_URI."""

    def __init__(self, config: Experiment, directory: Path, first: int) -> None:
        import mlflow  # type: ignore[import-not-found,unused-ignore]

        mlflow.set_experiment(config.name)
        known = directory / "mlflow.txt"
        run = known.read_text() if known.exists() else None
        active = mlflow.start_run(run_id=run, run_name=None if run else directory.name)
        if run is None:
            mlflow.log_params(flatten(config.model_dump(mode="json")))
            known.write_text(active.info.run_id)
        self._mlflow = mlflow

    def record(self, record: RoundRecord) -> None:
        self._mlflow.log_metrics(_scalars(record), step=record.round)

    def close(self) -> None:
        self._mlflow.end_run()


class WeightsAndBiases:
    """Logs to a run of the W&B project ``name``; a resumed run keeps its id."""

    def __init__(self, config: Experiment, directory: Path, first: int) -> None:
        import wandb  # type: ignore[import-not-found,unused-ignore]

        self._run = wandb.init(
            project=config.name,
            name=directory.name,
            id=f"{config.name}-{directory.name}",
            config=config.model_dump(mode="json"),
            dir=str(directory),
            resume="allow",
        )

    def record(self, record: RoundRecord) -> None:
        self._run.log(_scalars(record), step=record.round)

    def close(self) -> None:
        self._run.finish()


def _scalars(record: RoundRecord) -> dict[str, float]:
    flat = flatten(dataclasses.asdict(record))
    # Trackers allow few characters in names, and the name of a site may have any.
    keys = (key for key in flat if not key.startswith("evaluation_clients."))
    names = {key: _name(key) for key in keys if key != "round"}
    return {
        name: float(value)
        for key, name in names.items()
        if isinstance(value := flat[key], (bool, int, float))
    }


def _name(key: str) -> str:
    """Return the tracked name: ``test_loss`` of the server, ``client_loss`` of its clients."""
    table, _, name = key.partition(".")
    return {"metrics": name, "client_metrics": f"{CLIENTS}{name}"}.get(table, key)


ADAPTERS: dict[str, Callable[[Experiment, Path, int], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}
