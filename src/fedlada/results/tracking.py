"""Trackers pass the records of a run to other programs while it runs.

``simulate(..., callbacks=[TensorBoard("runs/mine")])`` uses one, and so does the key ``track`` of
an experiment's file.  Names are those of :func:`fedlada.frame`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import missing_extra
from ..server.record import RoundRecord
from .columns import column

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["MLflow", "TensorBoard", "WeightsAndBiases", "scalars"]


def scalars(record: RoundRecord) -> dict[str, float]:
    """Return the numbers of a record by the names of their columns."""
    fields = dataclasses.asdict(record)
    del fields["round"]
    named = {
        column(table, name): value
        for table, values in fields.items()
        for name, value in (values if isinstance(values, Mapping) else {"": values}).items()
    }
    return {name: float(v) for name, v in named.items() if isinstance(v, bool | int | float)}


class TensorBoard:
    """Writes event files into a directory; ``tensorboard --logdir DIR`` shows them."""

    def __init__(self, directory: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError as error:
            raise missing_extra(error, "the tracker TensorBoard", "tensorboard") from None
        self._directory, self._open = str(directory), SummaryWriter
        self._writer: SummaryWriter | None = None

    def begin(
        self, run: str, *, round: int, rounds: int, resumed: RoundRecord | None = None
    ) -> None:
        first = round + 1 if resumed is None else resumed.round
        self._writer = self._open(self._directory, purge_step=first)
        if resumed is not None:
            self.record(resumed, saved=True)

    def record(self, record: RoundRecord, *, saved: bool) -> None:
        assert self._writer is not None
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, record.round)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class MLflow:
    """Logs to a run of an MLflow experiment, at MLFLOW_TRACKING_URI.

    A resumed run logs to the same run of MLflow, which has the tag ``fedlada.run``.
    """

    TAG = "fedlada.run"

    def __init__(
        self,
        experiment: str,
        *,
        name: str | None = None,
        params: Mapping[str, object] | None = None,
    ) -> None:
        """Log to the experiment, as a run of this name with these parameters."""
        try:
            import mlflow  # type: ignore[import-not-found,unused-ignore]
        except ModuleNotFoundError as error:
            raise missing_extra(error, "the tracker MLflow", "mlflow") from None
        self._mlflow: Any = mlflow
        self._experiment, self._name, self._params = experiment, name, dict(params or {})

    def begin(
        self, run: str, *, round: int, rounds: int, resumed: RoundRecord | None = None
    ) -> None:
        self._mlflow.set_experiment(self._experiment)
        known = self._mlflow.search_runs(
            experiment_names=[self._experiment],
            filter_string=f"tags.`{self.TAG}` = '{run}'",
            output_format="list",
        )
        if known:
            self._mlflow.start_run(run_id=known[0].info.run_id)
        else:
            self._mlflow.start_run(run_name=self._name, tags={self.TAG: run})
            self._mlflow.log_params(self._params)
        if resumed is not None:
            self.record(resumed, saved=True)

    def record(self, record: RoundRecord, *, saved: bool) -> None:
        self._mlflow.log_metrics(scalars(record), step=record.round)

    def close(self) -> None:
        self._mlflow.end_run()


class WeightsAndBiases:
    """Logs to a run of a W&B project; a resumed run logs to the same run of W&B.

    With ``WANDB_MODE=offline`` nothing leaves the machine until ``wandb sync``.
    """

    def __init__(
        self,
        project: str,
        *,
        name: str | None = None,
        config: Mapping[str, object] | None = None,
        directory: str | Path | None = None,
    ) -> None:
        """Log to the project, as a run of this name; W&B keeps its files in ``directory``."""
        try:
            import wandb  # type: ignore[import-not-found,unused-ignore]
        except ModuleNotFoundError as error:
            raise missing_extra(error, "the tracker WeightsAndBiases", "wandb") from None
        self._wandb: Any = wandb
        self._settings = {"project": project, "name": name, "config": dict(config or {})}
        self._settings["dir"] = None if directory is None else str(directory)
        self._run: Any = None

    def begin(
        self, run: str, *, round: int, rounds: int, resumed: RoundRecord | None = None
    ) -> None:
        self._run = self._wandb.init(**self._settings, id=run, resume="allow")
        if resumed is not None:
            self.record(resumed, saved=True)

    def record(self, record: RoundRecord, *, saved: bool) -> None:
        self._run.log(scalars(record), step=record.round)

    def close(self) -> None:
        self._run.finish()
