"""The attack that a configuration names: an engine whose attackers lie, and how it is judged."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import nn

from ...client.store import DiskStore
from ...data import ClientData
from ...engines.in_process import InProcess
from ...engines.sites import ClientDatasets
from ...errors import ExperimentError
from ...protocol.engine import Engine
from ...protocol.federated import BUFFERS, clients_keep, federated_names
from ...redteam.attacks import ATTACKS, Target
from ...redteam.hostile import Hostile, colluders_of
from ...redteam.poison import TARGET, Poisoned, Stamp
from ...server.plan import Plan
from ...training.evaluation import Evaluation
from ...training.objective import CLASSIFICATION
from ..config.experiment import Experiment
from .problem import Problem, split

__all__ = ["attacked_engine", "with_stamped_inputs"]


def attacked_engine(config: Experiment, problem: Problem, store: Path) -> Engine:
    """Return an engine in this process whose attackers lie or send nothing.

    Clients keep their vectors in the directory ``store``, if the algorithm has any.
    """
    plan, attack = config.plan(), ATTACKS.get(config.federation.attack)
    target = _target(problem, plan)
    if attack is not None and (reason := attack.unfit(target)) is not None:
        raise ExperimentError(
            f"federation.attack is {config.federation.attack!r}, but {reason}; choose another."
        )
    attackers = colluders_of(len(problem.clients), config.federation.attackers)
    clients: ClientDatasets[ClientData] = problem.clients
    if attack is not None and attack.poison is not None:
        clients = Poisoned(clients, attackers, attack.poison, _stamp(problem))
    keeps = clients_keep(plan.algorithm, plan.buffers, plan.personal)
    honest = InProcess(
        plan.algorithm,
        copy.deepcopy(problem.model),
        clients,
        problem.train,
        store=DiskStore(store) if keeps else None,
        buffers=plan.buffers,
        personal=plan.personal,
        at_once=config.engine.at_once,
    )
    return Hostile(
        honest,
        attack,
        attackers,
        algorithm=plan.algorithm,
        names=target.names,
        strength=config.federation.attack_strength,
        seed=plan.seed,
    )


def with_stamped_inputs(
    config: Experiment, problem: Problem
) -> Callable[[nn.Module], Mapping[str, float]]:
    """Return the evaluation with ``stamped_accuracy``, if the task is a classification.

    It is the share of stamped inputs of other classes that the model assigns to the class that the
    stamp stands for: the success of a backdoor.
    """
    held_out = split(config)[1]
    if held_out.labels.is_floating_point() or held_out.labels.dim() != 1:
        return problem.evaluate
    others = held_out.rows(held_out.labels != TARGET)
    stamped = Evaluation(
        data=ClientData(_stamp(problem)(others.inputs), others.labels * 0 + TARGET),
        prepare=getattr(problem.train.prepare, "plain", None),
        objective=CLASSIFICATION,
        split="stamped",
    )

    def evaluate(model: nn.Module) -> dict[str, float]:
        success = stamped(model)["stamped_accuracy"]
        return {**problem.evaluate(model), "stamped_accuracy": success}

    return evaluate


def _target(problem: Problem, plan: Plan) -> Target:
    examples = problem.clients.examples
    names = federated_names(problem.model, plan.buffers, plan.personal)
    averaged = names["buffers"] if plan.buffers == "average" else []
    return Target(
        algorithm=plan.algorithm,
        names={"parameters": names["parameters"], BUFFERS: averaged},
        classes=len(examples.classes) if not examples.labels.is_floating_point() else 0,
        weighted=plan.weighting == "examples",
    )


def _stamp(problem: Problem) -> Stamp:
    examples = problem.clients.examples
    return Stamp(classes=len(examples.classes), bright=float(examples.inputs.max()))
