"""The same run in process and without a fault: a run that was killed must end in the same bits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fedlada import Checkpoints, Plan, RoundRecord, algorithm
from fedlada.algorithms import Vector
from fedlada.engines import DiskStore, InProcess, MemoryStore, ServerState, federate
from fedlada.engines.replay import replay
from fedlada.protocol.seeds import seed_of
from resume.server import name_of
from resume.task import client_data, model, train


@dataclass(frozen=True)
class Undisturbed:
    state: ServerState
    store: MemoryStore
    names: list[str]
    """The model after each round, by its hash."""


def undisturbed(name: str, *, clients: int, cohort: int, rounds: int, seed: int = 0) -> Undisturbed:
    """What the app's ServerApp computes."""
    plan, names = Plan(algorithm=algorithm(name), rounds=rounds, cohort=cohort, seed=seed), []
    state, store, engine = begun(plan, clients=clients)
    for _ in federate(plan, engine, state):
        names.append(name_of(state.vectors.x))
    return Undisturbed(state, store, names)


def replayed(plan: Plan, records: Sequence[RoundRecord], *, clients: int) -> Undisturbed:
    """What the replies that the records of a run name come to in process."""
    state, store, engine = begun(plan, clients=clients)
    return Undisturbed(
        state, store, [name_of(state.vectors.x) for _ in replay(plan, engine, state, records)]
    )


def begun(plan: Plan, *, clients: int) -> tuple[ServerState, MemoryStore, InProcess]:
    """The state before the first round, and the clients of the app in process."""
    store = MemoryStore()
    torch.manual_seed(seed_of(plan.seed, "model"))
    own = model()
    state = ServerState.new(plan.algorithm, Vector(p.detach().clone() for p in own.parameters()))
    data = [client_data(client) for client in range(clients)]
    return state, store, InProcess(plan.algorithm, own, data, train, store=store)


def differences(checkpoints: Path, clients: Path, expected: Undisturbed) -> Iterator[str]:
    """Where a run that ended differs from what it should have come to; nothing if it does not."""
    found = Checkpoints(checkpoints).latest()
    if found is None:
        yield f"there is no checkpoint in {checkpoints}"
        return
    state, other = found.state, expected.state
    for key in ("round", "updates", "last_accepted", "history"):
        if getattr(state, key) != getattr(other, key):
            yield f"{key} is {getattr(state, key)} and should be {getattr(other, key)}"
    for name in sorted(state.vectors.keys() | other.vectors.keys()):
        if not (
            name in state.vectors
            and name in other.vectors
            and state.vectors[name].equal(other.vectors[name])
        ):
            yield f"the server's {name} differs"
    store = DiskStore(clients)
    for client, round in other.last_accepted.items():
        kept = store.load(client, (state.run, round))
        should = expected.store.load(client, (other.run, round))
        if kept.keys() != should.keys() or not all(kept[n].equal(should[n]) for n in should):
            yield f"what client {client} keeps differs"
