"""Measuring the constants of this machine by real rounds of the very experiment, in miniature.

Three small federations take turns: few clients of one step, as many of several steps, and more of
one step.  Two of them give the cost of a step and of a client, two that of a reply and of a round.
The same three on a tiny model give the parts that do not grow with the model.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence

import torch
from torch import nn

from ...client.training import LocalTraining
from ...data import ClientData
from ...errors import ExperimentError
from ...server.plan import Plan
from ..config.experiment import Experiment
from ..run.problem import Problem
from .constants import Constants
from .formula import Workload
from .trials import Clock, Sample, Trial, turns

__all__ = ["MORE", "fit"]

MORE = 2
"""The third federation has so many clients more than the first."""
CROWD = 4
"""Clients of the first, where they are quick: one alone would find every cache cold."""


def fit(
    config: Experiment,
    problem: Problem,
    work: Workload,
    others: Sequence[Trial] = (),
    *,
    seconds: float = 4.0,
    clock: Clock = time.perf_counter,
) -> tuple[Constants, list[list[Sample]]]:
    """Measure the constants; ``others`` take part in the turns and do not enter them."""
    plan = config.plan()
    few = getattr(plan.aggregator(), "least", 1)
    if len(problem.clients) < few + MORE:
        raise ExperimentError(
            f"there are {len(problem.clients)} clients; measuring needs {few + MORE}: give"
            f" data.clients={few + MORE} or more, or leave --measure out."
        )
    own = Trial.of(config, problem, cohort=few, steps=1)
    (probe,) = turns([own], seconds=0.0, clock=clock)
    at_once = 0.2 * few / max(_middle(probe, "client"), 1e-6)  # clients in a fifth of a second
    many = 1 + min(max(round(at_once), 2), 20)
    if at_once > CROWD and len(problem.clients) >= CROWD + MORE:
        few = max(few, CROWD)
    trials = _three(own, few, many)
    found = turns([*trials, *others], seconds=seconds, clock=clock)
    tiny = turns(_three(_tiny(plan, config, few + MORE), few, 21), seconds=seconds / 4, clock=clock)
    step, client, reply, update, save = _solved(found, few, many)
    least = _solved(tiny, few, 21)
    fixed = [min(a, b) for a, b in zip(least, (step, client, reply, update, save), strict=True)]
    fixed[1] = min(fixed[1] + _data(problem, clock), client)
    constants = Constants(
        source=f"measured on this machine, {len(found[0])} rounds each",
        step=fixed[0],
        flop=(step - fixed[0]) / max(work.flops, 1),
        client=fixed[1],
        client_element=(client - fixed[1]) / (work.down + work.up),
        reply=fixed[2],
        reply_element=(reply - fixed[2]) / work.up,
        round=fixed[3],
        round_element=(update - fixed[3]) / work.state,
        save=fixed[4],
        save_byte=(save - fixed[4]) / work.bytes_state,
    )
    return constants, found[len(trials) :]


def _data(problem: Problem, clock: Clock) -> float:
    """Return the seconds in which a client's data are gathered."""
    found = []
    for client in range(min(len(problem.clients), 9)):
        began = clock()
        problem.clients[client]
        found.append(clock() - began)
    return statistics.median(found)


def _three(trial: Trial, few: int, many: int) -> list[Trial]:
    return [
        dataclasses.replace(trial, cohort=few, steps=1),
        dataclasses.replace(trial, cohort=few, steps=many),
        dataclasses.replace(trial, cohort=few + MORE, steps=1),
    ]


def _solved(
    found: Sequence[Sequence[Sample]], few: int, many: int
) -> tuple[float, float, float, float, float]:
    """Return the seconds of a step, a client, a reply, a round and a checkpoint."""
    one, long, more = found[:3]
    step = max(_longer(one, long, "client") / (few * (many - 1)), 0.0)
    client = max(_middle(one, "client") / few - step, 0.0)
    reply = max(_longer(one, more, "server") / MORE, 0.0)
    update = max(_middle(one, "server") - few * reply, 0.0)
    return step, client, reply, update, _middle(one, "save")


def _middle(samples: Sequence[Sample], name: str) -> float:
    return float(statistics.median(getattr(sample, name) for sample in samples))


def _longer(one: Sequence[Sample], other: Sequence[Sample], name: str) -> float:
    """Return how much longer the other takes, as the median over pairs of the same turn."""
    pairs = zip(one, other, strict=True)
    return float(statistics.median(getattr(b, name) - getattr(a, name) for a, b in pairs))


def _tiny(plan: Plan, config: Experiment, count: int) -> Trial:
    """Return the same algorithm on a model of a few numbers, for what does not grow."""
    generator = torch.Generator().manual_seed(0)
    clients = [
        ClientData(torch.randn(20, 4, generator=generator), torch.arange(20) % 2)
        for _ in range(count)
    ]
    with torch.random.fork_rng(devices=[]):
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    train = LocalTraining(steps=1, batch_size=min(config.train.batch_size, 20))
    return Trial(model=model, clients=clients, train=train, plan=plan, cohort=1, steps=1)
