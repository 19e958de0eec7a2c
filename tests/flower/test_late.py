"""Late replies on Flower: tasks of several rounds are under way, and records replay the run."""

import random
import threading
import time
from collections import Counter

import pytest
import torch
from flwr.app import Message

from federations import KINDS, same_bits
from fedlada import Plan
from fedlada.algorithms import Vector
from fedlada.engines import InProcess, MemoryStore, ServerState
from fedlada.engines.replay import replay
from fedlada.errors import FedladaError
from fedlada.flower import ServerConfig, client_app, run_server
from fedlada.flower.late import Late, grounded
from fedlada.flower.memory_grid import MemoryGrid
from fedlada.protocol.seeds import seed_of
from fedlada.server.loop import federate
from flower.test_grid import data, engine, model, node_data, train

CLIENTS = 6
PLAN = {"cohort": 4, "close_after": 2, "staleness": 3, "rounds": 6}

pytestmark = pytest.mark.filterwarnings("ignore:.* with staleness", "ignore:the guard stepped in")


class Slow(MemoryGrid):
    """A grid whose nodes take up to ``longest`` seconds; those in ``gone`` never answer."""

    def __init__(self, *, longest: float = 0.1, seed: int = 0, **settings) -> None:
        super().__init__(client_app(model, node_data, train), nodes=CLIENTS, **settings)
        self._longest, self._random = longest, random.Random(seed)
        self._ready: dict[str, float] = {}
        self.over, self._turn = False, threading.Lock()
        self.gone: set[int] = set()
        self.fails: set[int] = set()
        self.asked = Counter[int]()

    def push_messages(self, messages) -> list[str]:
        messages = list(messages)
        ids = list(super().push_messages(messages))
        for message_id, message in zip(ids, messages, strict=True):
            client = message.metadata.dst_node_id - 1000
            if message.metadata.message_type == "train":
                delay = self._longest * self._random.random() * (1 + client)
                self._ready[message_id] = time.monotonic() + delay
                self.asked[client] += 1
        return ids

    def stop(self) -> None:
        """Wait for the node that still computes: it shares torch's random numbers with others."""
        with self._turn:
            self.over = True

    def reply(self, message: Message) -> Message | None:
        client = message.metadata.dst_node_id - 1000
        if time.monotonic() < self._ready.get(message.metadata.message_id, 0):
            return None
        if message.metadata.message_type == "train" and client in self.gone:
            return None
        if message.metadata.message_type == "train" and client in self.fails:
            raise RuntimeError("Flower itself cannot read this")
        with self._turn:
            return None if self.over else super().reply(message)


def run_on(grid: Slow, *arguments, **more):
    try:
        return run_server(grid, *arguments, **more)
    finally:
        grid.stop()


def config(name: str = "fedavg", **settings) -> ServerConfig:
    usual = {"algorithm": name, "nodes": CLIENTS, "deadline": 60.0, **PLAN}
    return ServerConfig.read({k.replace("_", "-"): v for k, v in {**usual, **settings}.items()})


def replayed(plan: Plan, records) -> ServerState:
    torch.manual_seed(seed_of(plan.seed, "model"))
    own = model()
    state = ServerState.new(plan.algorithm, Vector(p.detach().clone() for p in own.parameters()))
    clients = [data(i) for i in range(CLIENTS)]
    here = InProcess(plan.algorithm, own, clients, train, store=MemoryStore())
    list(replay(plan, here, state, records))
    return state


@pytest.mark.parametrize("name", KINDS)
def test_a_run_on_slow_nodes_is_replayed_in_process_to_the_same_bits(name):
    asked = config(name)
    run = run_on(Slow(seed=KINDS.index(name)), asked, model)
    assert same_bits(replayed(asked.plan, run.history).vectors, run.state.vectors)
    counted = Counter(member for record in run.history for member in record.members)
    assert max(counted.values()) == 1


@pytest.mark.parametrize("codec", ["small", "safe"])
def test_so_it_is_with_codecs_and_vectors_that_clients_keep_on_disk(tmp_path, codec):
    asked = config("scaffold" if codec == "safe" else "fedlada", codec=codec, rounds=10)
    grid = Slow(node_config={"state-directory": str(tmp_path)})
    run = run_on(grid, asked, model)
    assert same_bits(replayed(asked.plan, run.history).vectors, run.state.vectors)
    assert max(record.oldest for record in run.history) > 0


def test_a_node_that_is_gone_ends_at_its_deadline_and_rounds_go_on():
    grid = Slow()
    grid.gone = {5}
    run = run_on(grid, config(deadline=0.6, rounds=20, staleness=100), model)
    failures = sum((Counter(record.failures) for record in run.history), Counter())
    assert failures["deadline"] >= 1
    assert all(record.accepted == 2 for record in run.history)
    assert all(client != 5 for record in run.history for client, _ in record.members)


def test_what_comes_too_late_is_forgotten_and_its_client_asked_again():
    grid = Slow()
    grid.gone = {5}
    run = run_on(grid, config(staleness=1, rounds=20), model)
    failures = sum((Counter(record.failures) for record in run.history), Counter())
    assert failures["too late"] >= 2
    assert grid.asked[5] >= 2
    assert set(run.state.flights) <= set(range(CLIENTS))


def test_an_answer_that_cannot_be_read_ends_its_task():
    grid = Slow()
    grid.fails = {0, 1}
    run = run_on(grid, config(rounds=10), model)
    rejected = sum((Counter(record.rejected) for record in run.history), Counter())
    assert rejected["cannot be read"] >= 2
    assert max(grid.asked[0], grid.asked[1]) >= 2  # so they were asked again


def test_nodes_that_are_not_connected_are_told_apart_and_never_wait():
    grid = Slow()
    found, state = engine(grid, deadline=60.0)
    grid.contexts.pop(1003)
    found._nodes._place.pop(3)
    plan = Plan(algorithm="fedavg", **PLAN)
    records = list(federate(plan, Late(found, state), state))
    grid.stop()
    failures = sum((Counter(record.failures) for record in records), Counter())
    assert set(failures) <= {"not connected"}
    assert all(record.accepted == 2 for record in records)


def test_a_run_that_is_stopped_goes_on_and_is_replayed_across_the_restart(tmp_path, caplog):
    """The tasks under way are lost, clients are asked again, and no reply counts twice."""
    settings = {"checkpoints": str(tmp_path / "saved"), "rounds": 12}
    node = {"state-directory": str(tmp_path / "nodes")}
    asked = config("scaffold", **settings)

    class Stopped(Exception):
        pass

    def stop(record, model) -> None:
        if record.round == 5:
            raise Stopped

    with pytest.raises(Stopped):
        run_on(Slow(node_config=node), asked, model, on_round=stop)
    run = run_on(Slow(node_config=node, seed=1), asked, model)
    assert "are lost with the run that was stopped" in caplog.text
    assert [record.round for record in run.history] == list(range(1, 13))
    counted = Counter(member for record in run.history for member in record.members)
    assert max(counted.values()) == 1
    assert same_bits(replayed(asked.plan, run.history).vectors, run.state.vectors)


def test_the_server_keeps_no_x_of_earlier_rounds_and_at_most_staleness_versions():
    most = []
    asked = config("fedlada", rounds=15)
    grid = Slow()
    grid.gone = {5}
    torch.manual_seed(0)
    found, state = engine(grid, "fedlada", deadline=60.0)
    for _ in federate(asked.plan, Late(found, state), state):
        assert all(set(kept.vectors) == {"g_a", "v"} for kept in state.versions.values())
        most.append(len(state.versions))
    grid.stop()
    assert 1 < max(most) <= asked.plan.staleness


def test_a_restart_ends_all_tasks():
    state = run_on(Slow(), config(), model).state
    assert state.flights
    grounded(state)
    assert not state.flights
    assert not state.versions


@pytest.mark.parametrize(
    ("settings", "help"),
    [
        ({"deadline": 0}, "there is no deadline, so a node that is switched off"),
        ({"clients": 60}, "leaves send one tally for all of their clients"),
        ({"evaluate-cohort": 2}, "would wait for nodes that still train"),
    ],
)
def test_what_cannot_be_late_on_flower_is_refused(settings, help):
    with pytest.raises(FedladaError, match=help):
        config(**settings)
