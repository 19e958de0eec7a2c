"""One run in one directory, which may be killed at any moment and run again.

``config.toml``   the configuration in full; whoever has it can repeat the run
``records.jsonl`` one line per finished round
``checkpoints/``  the server's and the clients' state, to go on from
``done.json``     written last: machine, versions, command, seconds
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from ... import Checkpoints, Engine, RoundRecord, Simulation, simulate
from ...atomic import write
from ...data import ClientData
from ...errors import ExperimentError
from ..config.experiment import FREE, Experiment
from ..config.keys import flatten
from ..config.reading import dump, read
from .problem import Problem, build
from .provenance import provenance
from .tracking import RECORDS, trackers

__all__ = ["CONFIG", "DONE", "checkpoints", "finished", "last_line", "prepare", "rounds", "run"]

CONFIG, DONE = "config.toml", "done.json"


def prepare(directory: Path, config: Experiment) -> None:
    """Write the configuration into the directory, which must be new or hold the same run."""
    path, config = directory / CONFIG, config.resolved()
    if path.exists():
        old, new = (flatten(c.model_dump(mode="json")) for c in (read(path), config))
        for key in sorted(old.keys() | new.keys()):
            if key not in FREE and old.get(key) != new.get(key):
                raise ExperimentError(
                    f"{directory} holds a run whose {key} is {old.get(key)!r}, not"
                    f" {new.get(key)!r}; choose another --out, or delete that directory."
                )
    directory.mkdir(parents=True, exist_ok=True)
    write(path, dump(config).encode())


def finished(directory: Path) -> bool:
    """Whether all rounds that the configuration asks for are done."""
    done = directory / DONE
    if not done.exists():
        return False
    rounds: int = json.loads(done.read_text())["rounds"]
    return rounds >= read(directory / CONFIG).federation.rounds


def run(directory: Path) -> Iterator[RoundRecord]:
    """Do the rounds that are left, yielding each record when it is on disk."""
    config = read(directory / CONFIG)
    if finished(directory):
        return
    began = time.time()
    if config.engine.name == "process":
        yield from rounds(config, directory)
    else:
        from .on_flower import watched_rounds

        yield from watched_rounds(config, directory)
    summary = json.dumps(_summary(directory, config, began), indent=2)
    write(directory / DONE, summary.encode())


def rounds(
    config: Experiment,
    directory: Path,
    *,
    engine: Callable[[Problem], Engine] | None = None,
) -> Iterator[RoundRecord]:
    """The rounds that are left, with this process as the server; clients run on the engine."""
    simulation = _simulation(config, directory, engine)  # nobody else can run here from now on
    with trackers(config, directory, simulation.resumed) as tracking:
        for record in simulation:
            for tracker in tracking:
                tracker.record(record)
            yield record
    simulation.close()


def checkpoints(directory: Path, *, wait: float = 0.0) -> Checkpoints:
    """Those of the run in the directory."""
    return Checkpoints(directory / "checkpoints", wait=wait)


def last_line(directory: Path) -> dict[str, object]:
    """The newest record of a run as JSON has it, whoever runs it; empty before the first."""
    path = directory / RECORDS
    if not path.exists():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2**20))
        whole = file.read().rpartition(b"\n")[0]
    line = whole.rpartition(b"\n")[2]
    return dict(json.loads(line)) if line else {}


def _simulation(
    config: Experiment, directory: Path, engine: Callable[[Problem], Engine] | None
) -> Simulation[ClientData]:
    problem = build(config)
    return simulate(
        problem.model,
        problem.clients,
        train=problem.train,
        evaluate=problem.evaluate,
        checkpoints=checkpoints(directory),
        engine=None if engine is None else engine(problem),
        config=config.identity(),
        **config.plan().settings(),
    )


def _summary(directory: Path, config: Experiment, began: float) -> dict[str, object]:
    lines = (directory / RECORDS).read_text().splitlines()
    threads = torch.get_num_threads() if config.engine.name == "process" else 1
    return {
        "rounds": config.federation.rounds,
        "seconds": sum(json.loads(line)["seconds"] for line in lines),
        "seconds_of_last_session": time.time() - began,
        **provenance(threads=threads),
    }
