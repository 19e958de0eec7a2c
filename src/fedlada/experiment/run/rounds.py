"""Runs the remaining rounds of a run, in this process or in Flower's processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from ... import Engine, RoundRecord, Simulation, simulate
from ...data import ClientData
from ..config.experiment import Experiment
from .directory import RunDirectory
from .memory import keep_memory
from .problem import Problem, build
from .provenance import provenance
from .tracking import trackers

__all__ = ["rounds", "run"]


def run(path: Path) -> Iterator[RoundRecord]:
    """Run the remaining rounds and yield each record after it is written to disk."""
    directory = RunDirectory(path)
    if directory.finished():
        return
    config = directory.experiment()
    began = time.time()
    keep_memory()
    if config.engine.name == "process":
        yield from rounds(config, directory)
    else:
        from .on_flower import watched_rounds

        yield from watched_rounds(config, directory)
    alone = config.engine.name == "process" and config.engine.workers == 1
    threads = torch.get_num_threads() if alone else 1
    directory.finish(
        {
            "rounds": config.federation.rounds,
            "seconds": sum(record["seconds"] for record in directory.records()),
            "seconds_of_last_session": time.time() - began,
            **provenance(threads=threads),
        }
    )


def rounds(
    config: Experiment,
    directory: RunDirectory,
    *,
    engine: Callable[[Problem], Engine] | None = None,
) -> Iterator[RoundRecord]:
    """Run the remaining rounds with this process as the server; clients run on the engine."""
    with (
        _simulation(config, directory, engine) as simulation,  # locks the directory
        trackers(config, directory, simulation.resumed) as tracking,
    ):
        for record in simulation:
            for tracker in tracking:
                tracker.record(record)
            yield record


def _simulation(
    config: Experiment, directory: RunDirectory, engine: Callable[[Problem], Engine] | None
) -> Simulation[ClientData]:
    problem = build(config)
    if config.data.task is not None and ":" in config.data.task:
        directory.note(problem.objective)
    return simulate(
        problem.model,
        problem.clients,
        train=problem.train,
        evaluate=problem.evaluate,
        checkpoints=directory.checkpoints(),
        engine=None if engine is None else engine(problem),
        workers=config.engine.workers if engine is None else 1,
        config=config.identity(),
        **config.plan().settings(),
    )
