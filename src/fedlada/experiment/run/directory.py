"""The directory of one run and its files.

``config.toml``   the complete configuration, which is enough to repeat the run
``records.jsonl`` one line per finished round
``checkpoints/``  the state of the server and the clients, from which a run resumes
``objective.json`` what it is judged by, if a module of its own says it
``done.json``     written last: machine, versions, command, seconds
``log.txt``       the output of the run, if a sweep ran it

Runs that are packed into one file (:mod:`fedlada.experiment.packed`) are read in the same way.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Container, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor

from ...algorithms.registry import FORMER
from ...atomic import write
from ...devices import chosen
from ...errors import ExperimentError
from ...server.saving.checkpoint import Checkpoints, versions
from ...training.objective import CLASSIFICATION, Metric, Objective, Scale
from ..config.experiment import Experiment
from ..config.keys import flatten
from ..config.reading import dump, experiment, table
from ..packed import file_text, is_packed, packed_runs

__all__ = ["RunDirectory", "provenance", "runs_in"]

CONFIG, OBJECTIVE = "config.toml", "objective.json"
TAIL = 2**20
"""The number of bytes at the end of the records that are read to find the last line."""


@lru_cache(maxsize=1024)  # a report looks at the same runs again and again
def _looked_at(run: RunDirectory, text: str | None) -> Experiment:
    """Return the configuration of a run while its file has this text."""
    return run._experiment(looking=True)


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
        try:
            text = file_text(self.config_file)
        except UnicodeDecodeError:
            text = None  # the error about it is raised below
        return _looked_at(self, text)

    def experiment(self) -> Experiment:
        """Return the configuration to run; the modules that it names are found and checked."""
        return self._experiment(looking=False)

    def table(self) -> dict[str, Any]:
        """Return the content of the configuration's file, with the names of today."""
        config = table(self.config_file)
        former = config.get("algorithm")
        if isinstance(former, str) and former in FORMER:
            config["algorithm"] = new = FORMER[former]
            if config.get("label", former) in ("", former):
                config["label"] = new if isinstance(new, str) else former
        return config

    def _experiment(self, *, looking: bool) -> Experiment:
        file = self.config_file
        flat = flatten(self.table())
        return experiment(flat, source=str(file), beside=file.parent, looking=looking)

    def note(self, objective: Objective) -> None:
        """Write down how the run is judged, for readers that do not import its modules."""
        titles = {name: objective.title_of(name) for name in objective.metrics}
        told = {"name": objective.name, "score": objective.score, "metrics": titles}
        told["scale"] = asdict(objective.scale)
        write(self.path / OBJECTIVE, json.dumps(told).encode())

    def objective(self, config: Experiment, recorded: Container[str]) -> Objective:
        """Return how the run of this configuration is judged; the metrics are only names here."""
        if config.data.task is None or ":" not in config.data.task:
            return config.objective(recorded)
        text = file_text(self.path / OBJECTIVE)
        if text is None:
            return CLASSIFICATION  # nothing is recorded yet
        told = json.loads(text)
        scale = Scale(**told["scale"])
        metrics = {
            name: Metric(_unknown, title=title, scale=scale)
            for name, title in told["metrics"].items()
        }
        return Objective(name=told["name"], loss=_unknown, metrics=metrics, score=told["score"])

    def checkpoints(self, *, wait: float = 0.0) -> Checkpoints:
        """Return the checkpoints; opening waits up to ``wait`` seconds for another process."""
        place = self.path / "checkpoints"
        return Checkpoints(place, wait=wait, records=self.records_file)

    def prepare(self, config: Experiment) -> None:
        """Write the configuration; the directory must be new or hold the same run."""
        config = config.resolved()
        if self.config_file.exists():
            for key, old, new in self.config.differences(config):
                raise ExperimentError(
                    f"{self.path} holds a run whose {key} is {old!r}, not {new!r};"
                    " choose another --out, or delete that directory."
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
        text = file_text(self.path / "done.json")
        return None if text is None else dict(json.loads(text))

    def finish(self, about: Mapping[str, object]) -> None:
        """Write ``done.json``, which marks the run as ended."""
        write(self.path / "done.json", json.dumps(about, indent=2).encode())

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the records as parsed JSON, without an incomplete last line."""
        text = file_text(self.records_file) or ""
        for line in text.rpartition("\n")[0].splitlines():
            yield json.loads(line)

    def last_record(self) -> dict[str, Any]:
        """Return the newest record, even of a run in another process; empty if there is none."""
        if not self.records_file.exists():
            return [{}, *self.records()][-1]  # a packed run has records without that file
        with self.records_file.open("rb") as file:
            file.seek(max(0, self.records_file.stat().st_size - TAIL))
            whole = file.read().rpartition(b"\n")[0]
        line = whole.rpartition(b"\n")[2]
        return dict(json.loads(line)) if line else {}

    @property
    def round(self) -> int:
        """The newest round that is recorded, 0 before the first."""
        return int(self.last_record().get("round", 0))


def _unknown(*_: Tensor) -> NoReturn:
    raise ExperimentError("the metrics of a run that is only looked at cannot be computed.")


def runs_in(directory: Path) -> list[Path]:
    """Return the path itself if it is a run, otherwise the runs of a directory or a packed file."""
    if is_packed(directory):
        return packed_runs(directory)
    if file_text(directory / CONFIG) is not None:
        return [directory]
    runs = sorted(path.parent for path in directory.glob(f"*/{CONFIG}"))
    if not runs:
        raise ExperimentError(
            f"{directory} holds no run, a directory with {CONFIG}; give the --out of a run or"
            " a sweep, or a file that fedlada pack wrote."
        )
    return runs


def provenance(*, threads: int, device: str) -> dict[str, object]:
    """Return time, command, machine and versions of a run, as values that JSON can represent."""
    return {
        "ended": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "machine": {
            "system": platform.platform(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "torch_threads": threads,
            "device": str(chosen(device)),
        },
        "versions": versions(),
    }


def _processor() -> str:
    """Return the model of the processor; ``platform`` knows it on few systems."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor())
