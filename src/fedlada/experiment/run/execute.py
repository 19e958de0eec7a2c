"""Runs the remaining rounds of a run on the engine that its configuration names."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from ...data import ClientData
from ...devices import chosen
from ...engines.client_evaluation import ClientEvaluation
from ...processes import keep_memory
from ...protocol.engine import Engine
from ...redteam.defences import HONEST
from ...results.tracking import MLflow, TensorBoard, WeightsAndBiases
from ...server.record import RoundRecord
from ...server.watch import Watcher
from ...simulation import Simulation, simulate
from ..config.experiment import Experiment
from ..config.keys import flatten
from ..config.named import rounds_on
from .attack import attacked_engine, with_stamped_inputs
from .directory import RunDirectory, provenance
from .problem import Problem, build

__all__ = ["rounds", "run"]


def run(path: Path) -> Iterator[RoundRecord]:
    """Run the remaining rounds and yield each record after it is written to disk."""
    directory = RunDirectory(path)
    if directory.finished():
        return
    config = directory.experiment()
    began = time.time()
    keep_memory()
    at_once = yield from rounds_on(config.engine.name)(config, directory)
    alone = config.engine.name == "process" and config.engine.workers == 1
    threads = torch.get_num_threads() if alone else 1
    directory.finish(
        {
            "rounds": config.federation.rounds,
            "seconds": sum(record["seconds"] for record in directory.records()),
            "seconds_of_last_session": time.time() - began,
            "at_once": at_once or 1,
            **provenance(threads=threads, device=config.device),
        }
    )


def rounds(
    config: Experiment,
    directory: RunDirectory,
    *,
    engine: Callable[[Problem], Engine] | None = None,
) -> Generator[RoundRecord, None, int | str]:
    """Run the remaining rounds with this process as the server; clients run on the engine.

    Returns how many clients were trained at once.
    """
    with _simulation(config, directory, engine) as simulation:  # locks the directory
        yield from simulation
    return simulation.at_once


def _simulation(
    config: Experiment, directory: RunDirectory, engine: Callable[[Problem], Engine] | None
) -> Simulation[ClientData]:
    device = chosen(config.device)  # before the data are loaded: the machine may not have it
    problem = build(config)
    problem.model.to(device)
    if config.data.task is not None and ":" in config.data.task:
        directory.note(problem.objective)
    checkpoints, evaluate = directory.checkpoints(), problem.evaluate
    clients = None if engine is None else engine(problem)
    if config.federation.attack != HONEST:
        clients = attacked_engine(config, problem, checkpoints.clients)
        evaluate = with_stamped_inputs(config, problem)
    return simulate(
        problem.model,
        problem.clients,
        train=problem.train,
        evaluate=evaluate,
        evaluate_clients=_client_evaluation(config, problem),
        checkpoints=checkpoints,
        engine=clients,
        devices=None if config.devices is None else config.devices.model_dump(),
        workers=config.engine.workers if clients is None else 1,
        at_once=config.engine.at_once if clients is None else 1,
        config=config.identity(),
        callbacks=_trackers(config, directory.path),
        quiet=True,
        **config.plan().settings(),
    )


def _client_evaluation(config: Experiment, problem: Problem) -> ClientEvaluation[ClientData] | None:
    """Return how clients evaluate the model, if they do."""
    evaluate = config.evaluate
    if problem.held_out is None:
        return None
    tune = replace(problem.train, steps=evaluate.tune, epochs=None) if evaluate.tune else None
    return ClientEvaluation(
        data=problem.held_out,
        evaluate=problem.evaluate_client,
        tune=tune,
        cohort=evaluate.cohort,
    )


def _trackers(config: Experiment, directory: Path) -> list[Watcher]:
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
