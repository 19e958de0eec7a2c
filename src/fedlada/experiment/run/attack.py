"""One cell of ``fedlada attack``: a run of a federation under one attack and one defence."""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from ... import Engine, Evaluation, InProcess, RoundRecord, ServerState, Simulation, simulate
from ...client.objective import CLASSIFICATION
from ...data import ClientData, Clients
from ...engines.attacks import ATTACKS, Target
from ...engines.hostile import Hostile, colluders_of
from ...engines.poison import TARGET, Poison, Stamp
from ...protocol.federated import BUFFERS, federated_names
from ...server.plan import Plan
from ..config.experiment import Experiment
from ..config.reading import read
from .defences import defended
from .memory import keep_memory
from .problem import Problem, build, split
from .provenance import provenance

__all__ = ["ABSENT", "BASELINES", "HONEST", "Cell", "attacked", "run_cell", "target_of"]

HONEST, ABSENT = "none", "absent"
BASELINES = {
    HONEST: "nobody attacks",
    ABSENT: "the colluders send nothing at all",
}
"""The runs that attacks are compared with."""


@dataclass(frozen=True, order=True)
class Cell:
    """What makes one run unlike the others of an attack."""

    attack: str
    strength: float | None
    defence: str
    share: float
    """The share of the clients that collude; 0 if nobody attacks."""
    seed: int

    def __str__(self) -> str:
        strength = "" if self.strength is None else f" x {self.strength:g}"
        share = f"{100 * self.share:g} %, " if self.share else ""
        return f"{self.attack}{strength}, {self.defence}, {share}seed {self.seed}"


@dataclass(frozen=True, eq=False)
class Poisoned:
    """The data of all clients, of which those of the colluders are poisoned."""

    clients: Clients
    colluders: frozenset[int]
    poison: Poison
    stamp: Stamp

    def __len__(self) -> int:
        return len(self.clients)

    def __getitem__(self, client: int, /) -> ClientData:
        own = self.clients[client]
        if client not in self.colluders:
            return own
        inputs, labels = self.poison(own.inputs, own.labels, self.stamp)
        return ClientData(inputs=inputs, labels=labels)


def target_of(config: Experiment) -> Target:
    """Return what decides which attacks apply to a federation."""
    problem, plan = build(config), config.plan()
    return _target(problem, plan)


def run_cell(file: Path, cell: Cell) -> dict[str, object]:
    """Run the federation of a file under the cell's attack and return the cell's line."""
    torch.set_num_threads(1)
    keep_memory()
    config, problem, held_out = _problem(file, cell.seed)
    plan = defended(config.plan(), cell.defence)
    began, cpu = time.time(), time.process_time()
    records: list[RoundRecord] = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the guard stepped in")
        with attacked(problem, plan, cell) as simulation:
            records.extend(simulation)
            stamped = _success(simulation, problem, held_out)
    name = f"{config.evaluate.split}_{config.objective(records[-1].metrics).score}"
    return {
        **asdict(cell),
        "metric": name,
        "curve": [(r.round, _finite(r.metrics[name])) for r in records if name in r.metrics],
        "backdoor": stamped,
        **_state(simulation.state, plan),
        "limited": _counts(record.limited for record in records),
        "rejected": _counts(record.rejected for record in records),
        "abandoned": sum(not record.applied for record in records),
        "seconds": round(time.time() - began, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
        **provenance(threads=1),
    }


@lru_cache(maxsize=1)
def _problem(file: Path, seed: int) -> tuple[Experiment, Problem, ClientData]:
    """Return the problem and the examples to evaluate on; cells of one seed share them."""
    config = read(file, [f"federation.seed={seed}"])
    held_out = split(config)[1]
    return config, build(config), ClientData(inputs=held_out.inputs, labels=held_out.labels)


def _target(problem: Problem, plan: Plan) -> Target:
    examples = problem.clients.examples
    names = federated_names(problem.model, plan.buffers)
    averaged = names["buffers"] if plan.buffers == "average" else []
    return Target(
        algorithm=plan.algorithm,
        names={"parameters": names["parameters"], BUFFERS: averaged},
        classes=len(examples.classes) if not examples.labels.is_floating_point() else 0,
        weighted=plan.weighting == "examples",
    )


def attacked(problem: Problem, plan: Plan, cell: Cell) -> Simulation[ClientData]:
    """Return the federation of a problem under the attack of a cell."""
    return simulate(
        problem.model,
        problem.clients,
        train=problem.train,
        evaluate=problem.evaluate,
        engine=_engine(problem, plan, cell),
        **plan.settings(),
    )


def _engine(problem: Problem, plan: Plan, cell: Cell) -> Engine:
    """Return the engine in process, with colluders unless nobody attacks."""
    attack = ATTACKS.get(cell.attack)
    clients: Clients | Poisoned = problem.clients
    honest = cell.attack == HONEST
    colluders = frozenset[int]() if honest else colluders_of(len(clients), cell.share)
    if attack is not None and attack.poison is not None:
        clients = Poisoned(problem.clients, colluders, attack.poison, _stamp(problem))
    model = copy.deepcopy(problem.model)
    engine = InProcess(plan.algorithm, model, clients, problem.train, buffers=plan.buffers)
    if honest:
        return engine
    return Hostile(
        engine,
        attack,
        colluders,
        algorithm=plan.algorithm,
        names=_target(problem, plan).names,
        strength=cell.strength,
        seed=plan.seed,
    )


def _stamp(problem: Problem) -> Stamp:
    examples = problem.clients.examples
    return Stamp(classes=len(examples.classes), bright=float(examples.inputs.max()))


def _success(
    simulation: Simulation[ClientData], problem: Problem, held_out: ClientData
) -> float | None:
    """Return the share of stamped inputs of other classes that the model takes for the target."""
    labels = held_out.labels
    if labels.is_floating_point() or labels.dim() != 1:
        return None
    others: Tensor = labels != TARGET
    inputs = _stamp(problem)(held_out.inputs[others])
    stamped = ClientData(inputs=inputs, labels=labels[others] * 0 + TARGET)
    plain = getattr(problem.train.prepare, "plain", None)
    evaluation = Evaluation(data=stamped, prepare=plain, objective=CLASSIFICATION, split="stamped")
    return _finite(evaluation(simulation.model)["stamped_accuracy"])


def _state(state: ServerState, plan: Plan) -> dict[str, object]:
    """Return the median root of each second moment and the norms of the server's other vectors."""
    moments = {moment.of for moment in plan.algorithm.moments}
    roots = {
        name: _finite(float(torch.cat([t.flatten() for t in state.vectors[name]]).median().sqrt()))
        for name in sorted(moments)
    }
    norms = {
        name: _finite(vector.norm())
        for name, vector in state.vectors.items()
        if name not in (*moments, "x", BUFFERS)
    }
    return {"median_root": roots, "norms": norms}


def _counts(tables: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for table in tables:
        total.update(table)
    return dict(sorted(total.items()))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
