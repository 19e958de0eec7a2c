"""The directory of one run and its files.

``config.toml``   the complete configuration, which is enough to repeat the run
``records.jsonl`` one line per finished round
``checkpoints/``  the state of the server and the clients, from which a run resumes
``objective.json`` what it is judged by, if a module of its own says it
``done.json``     written last: machine, versions, command, seconds
``log.txt``       the output of the run, if a sweep ran it
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor

from ... import Checkpoints
from ...atomic import write
from ...client.objective import CLASSIFICATION, Metric, Objective
from ...client.scale import Scale
from ...errors import ExperimentError
from ...server.upgrade import upgraded_record
from ..config.experiment import FREE, Experiment
from ..config.keys import flatten
from ..config.reading import dump, read

__all__ = ["CLIENTS", "RunDirectory", "runs_in"]

CONFIG, OBJECTIVE = "config.toml", "objective.json"
CLIENTS = "client_"
"""What precedes the name of a metric that clients reported, in columns and trackers."""
TAIL = 2**20
"""The number of bytes at the end of the records that are read to find the last line."""


@dataclass(frozen=True)
class RunDirectory:
    """A run on disk, which may be running, stopped or finished."""

    path: Path

    @property
    def config_file(self) -> Path:
        """The file of the configuration, in TOML."""
        return self.path / CONFIG

    @property
    def records_file(self) -> Path:
        """The file of the records, one JSON object per line."""
        return self.path / "records.jsonl"

    @property
    def log_file(self) -> Path:
        """The file of the run's output in a sweep."""
        return self.path / "log.txt"

    @property
    def config(self) -> Experiment:
        """The configuration of the run, to look at: no module that it names is imported."""
        return read(self.config_file, looking=True)

    def experiment(self) -> Experiment:
        """Return the configuration to run; the modules that it names are found and checked."""
        return read(self.config_file)

    def note(self, objective: Objective) -> None:
        """Write down how the run is judged, for readers that do not import its modules."""
        titles = {name: objective.title_of(name) for name in objective.metrics}
        told = {"name": objective.name, "score": objective.score, "metrics": titles}
        told["scale"] = asdict(objective.scale)
        write(self.path / OBJECTIVE, json.dumps(told).encode())

    def objective(self, config: Experiment, recorded: Container[str]) -> Objective:
        """Return how the run of this configuration is judged; the metrics are only names here."""
        file = self.path / OBJECTIVE
        if config.data.task is None or ":" not in config.data.task:
            return config.objective(recorded)
        if not file.exists():
            return CLASSIFICATION  # nothing is recorded yet
        told = json.loads(file.read_text())
        scale = Scale(**told.get("scale", {}))  # 0.2.0 knew percent alone
        metrics = {
            name: Metric(_unknown, title=title, scale=scale)
            for name, title in told["metrics"].items()
        }
        return Objective(name=told["name"], loss=_unknown, metrics=metrics, score=told["score"])

    def checkpoints(self, *, wait: float = 0.0) -> Checkpoints:
        """Return the checkpoints; opening waits up to ``wait`` seconds for another process."""
        return Checkpoints(self.path / "checkpoints", wait=wait)

    def prepare(self, config: Experiment) -> None:
        """Write the configuration; the directory must be new or hold the same run."""
        config = config.resolved()
        if self.config_file.exists():
            old, new = (flatten(c.model_dump(mode="json")) for c in (self.config, config))
            for key in sorted(old.keys() | new.keys()):
                if key not in FREE and old.get(key) != new.get(key):
                    raise ExperimentError(
                        f"{self.path} holds a run whose {key} is {old.get(key)!r}, not"
                        f" {new.get(key)!r}; choose another --out, or delete that directory."
                    )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write(self.config_file, dump(config).encode())
        except OSError as error:
            raise ExperimentError(
                f"{self.path} cannot be written ({error.strerror}); give a directory of your own"
                " with --out."
            ) from error

    def finished(self) -> bool:
        """Tell whether all rounds of the configuration are done."""
        done = self.done()
        return done is not None and int(done["rounds"]) >= self.config.federation.rounds

    def done(self) -> dict[str, Any] | None:
        """Return the content of ``done.json``; None if the run has not ended."""
        file = self.path / "done.json"
        return dict(json.loads(file.read_text())) if file.exists() else None

    def finish(self, about: Mapping[str, object]) -> None:
        """Write ``done.json``, which marks the run as ended."""
        write(self.path / "done.json", json.dumps(about, indent=2).encode())

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the records as parsed JSON in today's format, without an incomplete last line."""
        text = self.records_file.read_text() if self.records_file.exists() else ""
        for line in text.rpartition("\n")[0].splitlines():
            yield upgraded_record(json.loads(line))

    def last_record(self) -> dict[str, Any]:
        """Return the newest record, even of a run in another process; empty if there is none."""
        if not self.records_file.exists():
            return {}
        with self.records_file.open("rb") as file:
            file.seek(max(0, self.records_file.stat().st_size - TAIL))
            whole = file.read().rpartition(b"\n")[0]
        line = whole.rpartition(b"\n")[2]
        return upgraded_record(json.loads(line)) if line else {}


def _unknown(*_: Tensor) -> NoReturn:
    raise ExperimentError("the metrics of a run that is only looked at cannot be computed.")


def runs_in(directory: Path) -> list[Path]:
    """Return the directory itself if it is a run, otherwise the runs in it, sorted by name."""
    if (directory / CONFIG).exists():
        return [directory]
    runs = sorted(path.parent for path in directory.glob(f"*/{CONFIG}"))
    if not runs:
        raise ExperimentError(
            f"{directory} holds no run, a directory with {CONFIG}; give the --out of a run or"
            " a sweep."
        )
    return runs
