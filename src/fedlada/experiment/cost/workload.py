"""The workload of an experiment: elements and bytes from their definitions, steps and FLOPs."""

from __future__ import annotations

import copy
import dataclasses
import math

import torch
from torch.utils.flop_counter import FlopCounterMode

from ...algorithms import Vectors
from ...protocol.federated import BUFFERS, federated_buffers
from ...protocol.messages import Reply, reply_parcel
from ...server.loop import next_task
from ...server.mean import Mean
from ...server.model import Server
from ...server.plan import Plan
from ...server.sampling import Bernoulli, FixedSize
from ..config.experiment import Experiment
from ..run.problem import Problem
from .formula import Workload

__all__ = ["cohort_of", "workload"]


def workload(config: Experiment, problem: Problem) -> Workload:
    """Return what a client of the experiment and its server compute, send and keep."""
    plan = config.plan()
    state = Server(plan, copy.deepcopy(problem.model), watch=lambda: ()).state
    one = dataclasses.replace(plan, sampling=FixedSize(1), aggregator=Mean, target=None, minimum=1)
    task, _ = next_task(one, state, 1)
    up = Vectors((name, state.vectors.x) for name in plan.algorithm.up)
    if plan.buffers == "average":
        up[BUFFERS] = state.vectors[BUFFERS]
    reply = Reply(client=0, round=0, vectors=up, examples=1, steps=1, lr_sum=1.0)
    kept = len(plan.algorithm.client_state) * state.vectors.x.nbytes()
    if plan.buffers == "local":
        kept += federated_buffers(problem.model, "local").nbytes()
    return Workload(
        parameters=state.vectors.x.numel(),
        down=_elements(task.vectors),
        up=_elements(up),
        state=_elements(state.vectors),
        bytes_down=task.nbytes,
        bytes_up=reply_parcel(reply, task).nbytes,
        bytes_state=state.vectors.nbytes(),
        bytes_kept=kept,
        flops=flops(problem),
        steps=steps(config, problem),
        holds=_held(plan),
    )


def _held(plan: Plan) -> float:
    if not plan.aggregator().is_mean:
        return math.inf
    return 1 if plan.guard is None else plan.guard.calibration


def cohort_of(plan: Plan, clients: int) -> float:
    """Return how many of these clients a round has on average."""
    sampling = plan.sampling
    if isinstance(sampling, Bernoulli):
        return sampling.rate * clients
    return len(sampling.cohort(plan.seed, 0, clients))


def steps(config: Experiment, problem: Problem) -> float:
    """Return the mean number of steps of a client in a round."""
    if config.train.steps is not None:
        return float(config.train.steps)
    sizes = [len(rows) for rows in problem.clients.partition.indices]
    batches = sum(math.ceil(size / config.train.batch_size) for size in sizes)
    return (config.train.epochs or 0) * batches / len(sizes)


def flops(problem: Problem) -> float:
    """Return the floating-point operations of a step of the first client."""
    model = copy.deepcopy(problem.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    train = dataclasses.replace(problem.train, steps=1, epochs=None)
    with torch.random.fork_rng(devices=[]), FlopCounterMode(display=False) as counter:
        train(model, problem.clients[0], optimizer)
    return float(counter.get_total_flops())


def _elements(vectors: Vectors) -> int:
    return sum(vector.numel() for vector in vectors.values())
