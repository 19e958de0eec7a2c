"""``fedlada cost``: what a run will send and keep, counted before it starts.

Bytes follow from the algorithm, the model and the codecs (:mod:`fedlada.server.sizes`).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from .algorithms import ALGORITHMS, Vector, Vectors
from .algorithms.listing import aligned
from .engines.devices import Devices, Work
from .engines.schedule import schedule
from .engines.timed import Timetable, work_of
from .errors import missing_extra, require, require_known
from .models import MODELS
from .protocol.codecs import PRESETS, Way
from .protocol.federated import (
    BUFFERS,
    federated_buffers,
    federated_parameters,
    personal_tensors,
)
from .server.aggregate.mean import TOGETHER
from .server.plan import Plan, settings_table
from .server.sampling import Bernoulli, FixedSize
from .server.sizes import Sent, messages, sizes

__all__ = ["Cost", "cost", "count"]

SUM = 16
"""Bytes per element of a sum of replies."""
MOST_TASKS = 20_000
"""Number of tasks in a schedule."""
SAMPLE = 1_000_000
"""More ``--parameters`` than this are counted as a multiple of it."""


@dataclass(frozen=True, kw_only=True)
class Time:
    """What a run with devices takes, from a schedule of its first rounds."""

    seconds: float
    """Simulated seconds of all rounds."""
    wasted: float
    """Share of the tasks whose reply nobody waits for."""
    failed: float
    """Share of the tasks that fail."""
    slowest: float
    """Share of the accepted replies that are of the slowest tenth of the clients asked."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one client and the server send and keep, in bytes."""

    parameters: int
    sent: tuple[Sent, ...]
    """What one client receives and sends in a round, vector by vector."""
    training: int
    """What a client holds while it trains: parameters, gradients and the vectors of its rule."""
    stored: int
    """What a client stores between rounds."""
    first_round: int
    """What the server holds in the first round, in which replies wait for the guard's limits."""
    later_round: int
    """What the server holds in any other round: model, state, sums and a few replies."""
    checkpoint: int
    time: Time | None = None
    """When clients have devices."""

    def nbytes(self, way: Way) -> int:
        """Return the bytes that one client receives or sends in a round."""
        return sum(sent.nbytes for sent in self.sent if sent.way == way)

    def times(self, factor: float) -> Cost:
        """Return the cost of a model that is larger by this factor."""
        kept = {"sent": self.sent, "time": self.time}
        numbers = {key: round(factor * n) for key, n in vars(self).items() if key not in kept}
        sent = (replace(sent, nbytes=round(factor * sent.nbytes)) for sent in self.sent)
        return Cost(sent=tuple(sent), time=self.time, **numbers)


def count(plan: Plan, model: nn.Module, *, cohort: float) -> Cost:
    """Return the cost of a run with ``cohort`` clients in each round."""
    algorithm = plan.algorithm
    x = Vector(p.detach() for p in federated_parameters(model, plan.personal).values())
    cohort = per_round(plan, cohort)
    buffers = federated_buffers(model, plan.buffers, plan.personal)
    personal = Vector(t.detach() for t in personal_tensors(model, plan.personal).values())
    server = algorithm.start(x.clone())
    down, up = messages(plan, model)
    if plan.buffers == "average":
        server[BUFFERS] = buffers
    client = _client(plan, server, x)
    stored = client.only(algorithm.client_state).nbytes()
    own = algorithm.local.alone(personal).nbytes() if personal else 0
    whole_model, reply = x.nbytes() + buffers.nbytes() + personal.nbytes(), up.nbytes()
    fixed, holds = whole_model + server.nbytes(), cohort
    fixed += plan.staleness * down.nbytes()  # of earlier rounds, whose replies may still come
    if plan.aggregator().is_mean:  # other rules hold all replies
        fixed += SUM * sum(vector.numel() for vector in up.values())
        holds = min(TOGETHER, cohort)
    waits = 0 if plan.guard is None else min(plan.guard.calibration, cohort)
    return Cost(
        parameters=x.numel(),
        sent=(*sizes(plan, "down", down), *sizes(plan, "up", up)),
        training=client.nbytes() + own + whole_model,  # its gradients are as large as the model
        stored=stored + personal.nbytes() + (buffers.nbytes() if plan.buffers == "local" else 0),
        first_round=fixed + round(max(holds, waits) * reply),
        later_round=fixed + round(holds * reply),
        checkpoint=server.nbytes() + personal.nbytes(),
    )


def per_round(plan: Plan, cohort: float) -> float:
    """Return how many clients of a cohort are asked in a round: with staleness, those missing."""
    return min(cohort, plan.close_after or cohort) if plan.staleness else cohort


def _client(plan: Plan, server: Vectors, x: Vector) -> Vectors:
    """Return the vectors that a client works with."""
    client = Vectors(y=Vector(x, map(str, range(len(x)))))
    client |= server.only(plan.algorithm.down)
    for part in plan.algorithm.part.chain():
        part.join(client)
    plan.algorithm.part.begin(client)
    return client


def time_of(plan: Plan, timetable: Timetable, *, clients: int) -> Time:
    """Return what the rounds of a plan take; of a long run, the first are drawn."""
    size = len(plan.cohort.cohort(plan.seed, 0, clients))
    drawn = min(plan.rounds, max(MOST_TASKS // size, 1))
    seconds, asked, accepted, failed, wasted = 0.0, list[int](), list[int](), 0, 0
    for expected in schedule(replace(plan, rounds=drawn), timetable, clients=clients):
        seconds = expected.time
        asked += expected.cohort
        accepted += expected.accepted
        failed += expected.failures.total()
        wasted += expected.wasted
    takes = {client: timetable.devices.seconds(client, timetable.work) for client in asked}
    slowest = set(sorted(takes, key=takes.__getitem__)[-max(1, len(takes) // 10) :])
    return Time(
        seconds=seconds * plan.rounds / max(drawn, 1),
        wasted=wasted / max(len(asked), 1),
        failed=failed / max(len(asked), 1),
        slowest=sum(client in slowest for client in accepted) / max(len(accepted), 1),
    )


def cost(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Count the bytes and the memory of a run before it starts.

    Give the file of an experiment, or describe the run by options. Defaults are in brackets.
    """
    parser.epilog = (
        "Example: fedlada cost experiments/digits.toml algorithm=scaffold, or"
        " fedlada cost --algorithm fedcm --model resnet18 --codec default --cohort 100"
    )
    add = parser.add_argument
    add("file", nargs="?", type=Path, metavar="FILE", help="the TOML file of an experiment")
    add("changes", nargs="*", metavar="KEY=VALUE", help="a key of FILE and its new value")
    add("--algorithm", help=f"one of {', '.join(ALGORITHMS)} (fedlada)")
    add("--model", help=f"one of {', '.join(MODELS)}, for images of CIFAR-10 (lenet)")
    add("--parameters", type=int, metavar="N", help="size of the model, instead of --model")
    add("--codec", help=f"exact, {', '.join(PRESETS)} or such as 'x=sub8 | delta=sub5' (exact)")
    add("--cohort", type=int, metavar="N", help="clients per round (10)")
    add("--rounds", type=int, metavar="N", help="rounds of the run (100)")
    add("--devices", metavar="SETTINGS", help="devices of the clients, such as 'speeds = 1.0'")
    options = vars(parser.parse_intermixed_args(words))
    given = {key: value for key, value in options.items() if value is not None}
    file, changes = given.pop("file", None), given.pop("changes")
    require(
        file is None or not given,
        "an option cannot change FILE; give a key and its value, such as federation.cohort=100",
    )
    print(table(*(_described(**given) if file is None else _experiment(file, changes))))


def _described(
    *,
    model: str | None = None,
    parameters: int | None = None,
    cohort: int = 10,
    devices: str | None = None,
    **given: Any,
) -> tuple[str, Plan, float, Cost]:
    """Return title, plan, cohort and cost of the run that the options describe."""
    plan, name = Plan(cohort=cohort, **given), given.get("algorithm", "fedlada")
    if parameters is None:
        model = model or "lenet"
        require_known(model, MODELS, f"there is no model {model!r}")
        found = count(plan, MODELS[model](_Images()), cohort=cohort)
        return f"{name}, {model}", plan, cohort, _timed(found, plan, devices)
    require(model is None, "--model and --parameters both give the size of the model; give one")
    require(parameters > 0, f"--parameters is {parameters}; it must be 1 or more")
    sample = min(parameters, SAMPLE)
    found = count(plan, nn.Linear(sample, 1, bias=False), cohort=cohort)
    return name, plan, cohort, _timed(found.times(parameters / sample), plan, devices)


def _timed(found: Cost, plan: Plan, devices: str | None) -> Cost:
    """Add the time of a run of ten times as many clients as a cohort has, of 50 steps each."""
    if devices is None:
        return found
    chosen = Devices.read(settings_table(devices))
    steps = 50.0 if chosen.steps is None else chosen.steps
    work = Work(found.nbytes("down"), found.nbytes("up"), lambda client: steps)
    assert isinstance(plan.cohort, FixedSize)
    timetable = Timetable(chosen, work, plan.deadline)
    return replace(found, time=time_of(plan, timetable, clients=10 * plan.cohort.size))


@dataclass(frozen=True)
class _Images:
    """Color images of 32 x 32 pixels in ten classes, as CIFAR-10 has them."""

    shape: tuple[int, ...] = (3, 32, 32)
    outputs: int = 10


def _experiment(file: Path, changes: Sequence[str]) -> tuple[str, Plan, float, Cost]:
    """Return title, plan, cohort and cost of an experiment, or of the first of a sweep."""
    try:
        from .experiment.config.cells import first
        from .experiment.run.problem import build
    except ModuleNotFoundError as error:
        raise missing_extra(error, "an experiment's file", "fedlada[experiment]") from None
    config = first(file, changes)
    problem, plan = build(config), config.plan()
    clients, sampler = len(problem.clients), plan.cohort
    if isinstance(sampler, Bernoulli):
        cohort = sampler.rate * clients
    else:
        cohort = len(sampler.cohort(plan.seed, 0, clients))
    found = count(plan, problem.model, cohort=cohort)
    if config.devices is not None:
        devices = Devices.read(config.devices.model_dump())
        work = work_of(plan, problem.model, devices, problem.train, problem.clients)
        timetable = Timetable(devices, work, plan.deadline)
        found = replace(found, time=time_of(plan, timetable, clients=clients))
    return f"{config.title}, {config.model.name}, {config.data.dataset}", plan, cohort, found


def table(title: str, plan: Plan, cohort: float, found: Cost) -> str:
    """Return what the command prints."""
    vectors = [("", "vector", "codec", "bytes", "per parameter", "of fedavg exact")]
    for sent in found.sent:
        share = sent.nbytes / found.parameters
        cells = (f"{sent.nbytes:,}", f"{share:.3f}", f"{share / 4:.3f}")
        vectors.append((sent.way, sent.vector, sent.codec, *cells))
    cohort = per_round(plan, cohort)
    totals = [("", "a client, a round", f"{cohort:,.6g} clients", f"{plan.rounds:,} rounds")]
    for name, one in (("bytes down", found.nbytes("down")), ("bytes up", found.nbytes("up"))):
        a_round = cohort * one
        totals.append((name, amount(one), amount(a_round), amount(plan.rounds * a_round)))
    kept = [
        ("a client holds while it trains", amount(found.training)),
        ("a client stores between rounds", amount(found.stored)),
        ("the server holds in the first round", amount(found.first_round)),
        ("the server holds in a later round", amount(found.later_round)),
        ("the server writes to a checkpoint", amount(found.checkpoint)),
    ]
    blocks = [aligned(vectors, left=3), aligned(totals, left=1), aligned(kept, left=1)]
    if found.time is not None:
        blocks.append(aligned(_time(found.time, plan.rounds), left=1))
    head = f"{title}: {found.parameters:,} parameters"
    note = "Activations, data and the libraries need memory in addition."
    return "\n\n".join([head, *("\n".join(block) for block in blocks), note])


def _time(time: Time, rounds: int) -> list[tuple[str, str]]:
    return [
        ("a round, in simulated time", f"{time.seconds / max(rounds, 1):,.1f} s"),
        (f"all {rounds:,} rounds", f"{time.seconds:,.0f} s"),
        ("tasks whose replies come too late", f"{time.wasted:.1%}"),
        ("tasks that fail", f"{time.failed:.1%}"),
        ("replies of the slowest tenth of clients", f"{time.slowest:.1%}"),
    ]


def amount(nbytes: float) -> str:
    """Return bytes as people read them, such as ``12.3 MB``."""
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes:.0f} B"
