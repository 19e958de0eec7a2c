"""Trackers, which store the records of a run: always JSON lines, others on request.

TensorBoard, MLflow and W&B are imported only when a run uses them.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Protocol

from ...atomic import write
from ...errors import ExperimentError, missing_extra
from ...server.record import RoundRecord, plain_record
from ..config.experiment import Experiment
from ..config.keys import flatten
from .directory import CLIENTS, RunDirectory

__all__ = ["ADAPTERS", "JsonLines", "Tracker", "parsed", "trackers"]


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
        lines = JsonLines(directory.records_file, resumed)
        made: list[Tracker] = [stack.enter_context(closing(lines))]
        for name in config.track:
            try:
                adapter = ADAPTERS[name](config, directory.path, resumed.round if resumed else 1)
            except ModuleNotFoundError as error:
                raise missing_extra(error, f'track = ["{name}"]', name) from None
            made.append(stack.enter_context(closing(adapter)))
            if resumed is not None:
                adapter.record(resumed)  # the run may have been killed before this call
        yield made


class JsonLines:
    """Writes one line per round to disk before the next round begins.

    A killed run may have left an incomplete line, or lines of rounds after its last checkpoint;
    these are removed.  If the line of the checkpoint's round is missing, it is added.
    """

    def __init__(self, path: Path, resumed: RoundRecord | None) -> None:
        last = 0 if resumed is None else resumed.round
        text = path.read_text() if path.exists() else ""
        lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")][:last]
        if resumed is not None and len(lines) == last - 1:
            lines.append(_line(resumed))
        rounds = [json.loads(line)["round"] for line in lines]
        if rounds != list(range(1, last + 1)):
            raise ExperimentError(
                f"{path} does not hold rounds 1 to {last} in order, though the checkpoint beside it"
                " is of that round; restore the file, or delete the run's directory to start again."
            )
        write(path, "".join(lines).encode())
        self._file = path.open("a")

    def record(self, record: RoundRecord) -> None:
        self._file.write(_line(record))
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def parsed(line: bytes | str) -> RoundRecord:
    """Return the record of a line."""
    found = json.loads(line)
    for key in ("metrics", "client_metrics", "spread"):
        found[key] = {n: math.nan if v is None else v for n, v in found[key].items()}
    return RoundRecord(**{**found, "cohort": tuple(found["cohort"])})


def _line(record: RoundRecord) -> str:
    return json.dumps(plain_record(record), allow_nan=False) + "\n"


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
