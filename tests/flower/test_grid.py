"""The exchange over a grid: the same bits as in process, whatever some nodes do."""

import json
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from flwr.app import Message
from torch import nn

import fedlada
from federations import KINDS, kept
from fedlada import LocalTraining, Plan
from fedlada.algorithms import Vector, Vectors
from fedlada.algorithms.corrections import Amend, Prox
from fedlada.algorithms.local import AMSGrad
from fedlada.algorithms.server_rules import ServerAdam
from fedlada.data import ClientData
from fedlada.engines import InProcess, MemoryStore, ServerState, federate
from fedlada.flower import ServerConfig, client_app, pull, run_server
from fedlada.flower.client import agreed
from fedlada.flower.grid import GridEngine
from fedlada.flower.memory_grid import MemoryGrid
from fedlada.flower.wire.records import Assignment, Manifest
from fedlada.protocol.federated import federated_parameters
from fedlada.protocol.messages import Task
from fedlada.protocol.seeds import seed_of
from fedlada.server.loop import NothingApplied

CLIENTS, COHORT, ROUNDS = 6, 3, 4
train = LocalTraining(steps=3, batch_size=8)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.Dropout(0.2), nn.Tanh(), nn.Linear(7, 3))


def data(client: int) -> ClientData:
    generator = torch.Generator().manual_seed(client)
    inputs = torch.randn(20 + client, 5, generator=generator) + client
    return ClientData(inputs, inputs[:, :3].argmax(1))


def node_data(context) -> ClientData:
    return data(int(context.node_config["partition-id"]))


class Unreliable(MemoryGrid):
    """A grid some of whose nodes are offline, or answer tasks as they please."""

    def __init__(self, *arguments, **settings) -> None:
        super().__init__(*arguments, **settings)
        self.offline: set[int] = set()
        self.misbehave: dict[int, Callable[[Message], Message | None]] = {}

    def get_node_ids(self) -> list[int]:
        return [node for node in self.contexts if node - 1000 not in self.offline]

    def reply(self, message: Message) -> Message | None:
        client = message.metadata.dst_node_id - 1000
        if message.metadata.message_type == "train" and client in self.misbehave:
            return self.misbehave[client](message)
        return super().reply(message)


def memory_grid(**settings) -> Unreliable:
    return Unreliable(client_app(model, node_data, train), nodes=CLIENTS, **settings)


def in_process(name: str, rounds: int = ROUNDS) -> tuple[ServerState, MemoryStore]:
    chosen = fedlada.algorithm(name)
    torch.manual_seed(seed_of(0, "model"))
    own, store = model(), MemoryStore()
    x = Vector(p.detach().clone() for p in own.parameters())
    state = ServerState.new(chosen, x)
    engine = InProcess(chosen, own, [data(i) for i in range(CLIENTS)], train, store=store)
    list(federate(Plan(algorithm=chosen, rounds=rounds, cohort=COHORT), engine, state))
    return state, store


def config(name: str, **settings) -> ServerConfig:
    usual = {"algorithm": name, "rounds": ROUNDS, "cohort": COHORT, "nodes": CLIENTS}
    return ServerConfig.read(usual | {key.replace("_", "-"): v for key, v in settings.items()})


def same(a: ServerState, b: ServerState) -> bool:
    return all(a.vectors[name].equal(b.vectors[name]) for name in a.vectors | b.vectors)


@pytest.mark.parametrize("name", KINDS)
def test_a_grid_gives_the_bits_of_the_in_process_engine(name):
    state = run_server(memory_grid(), config(name), model).state
    assert same(state, in_process(name)[0])


def test_client_vectors_on_disk_are_those_of_the_in_process_engine(tmp_path):
    grid = memory_grid(node_config={"state-directory": str(tmp_path)})
    state = run_server(grid, config("scaffold"), model).state
    assert same(state, in_process("scaffold")[0])
    assert {path.name for path in tmp_path.iterdir()} <= {str(i) for i in range(CLIENTS)}


def engine(grid: Unreliable, name: str = "fedavg", **settings) -> tuple[GridEngine, ServerState]:
    torch.manual_seed(0)
    own = model()
    state = ServerState.new(
        fedlada.algorithm(name), Vector(p.detach() for p in federated_parameters(own).values())
    )
    settings = {"nodes": CLIENTS} | settings
    found = GridEngine(
        grid,
        Manifest.of(own, "refuse"),
        algorithm=json.dumps(fedlada.algorithm(name).spec()),
        keeps=bool(fedlada.algorithm(name).client_state),
        **settings,
    )
    return found, state


def one_round(engine: GridEngine, state: ServerState, name: str = "fedavg", **settings):
    return next(
        federate(
            Plan(algorithm=name, **{"rounds": 99, "cohort": CLIENTS, "lr_decay": 1.0} | settings),
            engine,
            state,
        )
    )


def test_the_deadline_holds_even_if_pulls_hang():
    grid = memory_grid()
    hanging = threading.Event()
    grid.misbehave[0] = grid.misbehave[1] = lambda message: hanging.wait(30)
    found, state = engine(grid, deadline=6.0)
    began = time.monotonic()
    record = one_round(found, state)
    assert time.monotonic() - began < 6.6
    hanging.set()
    assert (record.accepted, record.failures) == (CLIENTS - 2, {"deadline": 2})


def test_a_round_closes_at_its_target():
    grid = memory_grid()
    grid.misbehave[5] = lambda message: None
    found, state = engine(grid, deadline=30.0)
    began = time.monotonic()
    record = one_round(found, state, close_after=4)
    assert time.monotonic() - began < 5
    assert record.accepted == 4


def test_a_round_below_its_minimum_changes_nothing():
    grid = memory_grid()
    for client in range(4):
        grid.misbehave[client] = lambda message: None
    found, state = engine(grid, "scaffold", deadline=1.5)
    before = {name: vector.clone() for name, vector in state.vectors.items()}
    record = one_round(found, state, "scaffold", minimum=3)
    assert (record.applied, record.accepted, record.failures) == (False, 2, {"deadline": 4})
    assert all(state.vectors[name].equal(vector) for name, vector in before.items())
    grid.misbehave.clear()
    record = one_round(found, state, "scaffold", minimum=3)
    assert record.applied
    assert (state.round, state.updates) == (2, 1)


def test_failures_are_counted_by_reason():
    grid = memory_grid()

    def rename(message: Message) -> Message:
        reply = grid.app(message, grid.contexts[message.metadata.dst_node_id])
        vectors = reply.content["fedlada.vectors"]
        vectors["other"] = vectors.pop("delta")
        return reply

    def shorten(message: Message) -> Message:
        reply = grid.app(message, grid.contexts[message.metadata.dst_node_id])
        vectors = reply.content["fedlada.vectors"]
        vectors["delta"] = type(vectors["delta"])(vectors["delta"].numpy()[:-4])
        return reply

    def empty(message: Message) -> Message:
        return Message(type(message.content)(), reply_to=message)

    def other_round(message: Message) -> Message:
        reply = grid.app(message, grid.contexts[message.metadata.dst_node_id])
        reply.content["fedlada"]["round"] = 77
        return reply

    grid.misbehave.update({0: shorten, 1: empty, 2: other_round, 4: rename})
    grid.contexts[1003].node_config["partition-id"] = 3
    found, state = engine(grid)
    grid.contexts[1003].node_config.clear()  # its ClientApp raises from now on
    record = one_round(found, state)
    assert record.accepted == 1
    assert record.failures == {"error in app": 1}
    assert record.rejected == {
        "wrong length of a vector": 1,
        "wrong records": 1,
        "wrong vectors": 1,
        "reply to another task": 1,
    }


def test_a_reply_that_flower_itself_cannot_read_costs_that_reply_alone():
    grid = memory_grid()
    found, state = engine(grid)
    whole, broken = grid.pull_messages, []

    def pull(ids):
        messages = list(whole(ids))
        for message in messages:
            if message.metadata.src_node_id == 1003:
                broken.append(message)
                raise KeyError("an object of this message is not what its name says")
        return messages

    grid.pull_messages = pull
    record = one_round(found, state)
    assert broken
    assert record.accepted == CLIENTS - 1
    assert record.rejected == {"cannot be read": 1}


def test_a_grid_that_is_gone_ends_the_run():
    grid = memory_grid()
    found, state = engine(grid)

    def gone(*_):
        raise ConnectionError("nobody listens")

    grid.pull_messages = grid.get_node_ids = gone
    with pytest.raises(ConnectionError, match="nobody listens"):
        one_round(found, state)


def test_what_a_reply_says_it_answers_is_not_trusted():
    grid = memory_grid()

    found, state = engine(grid)
    whole = grid.pull_messages
    grid.pull_messages = lambda ids: [spoil(message) for message in whole(ids)]

    def spoil(message: Message) -> Message:
        if message.metadata.src_node_id == 1003:
            message.metadata.__dict__["_reply_to_message_id"] = "another"
            assert message.metadata.reply_to_message_id == "another"
        return message

    assert one_round(found, state).accepted == CLIENTS


def test_no_node_takes_the_place_of_one_that_is_there():
    grid = memory_grid()
    grid.offline = {4}
    found, state = engine(grid, nodes=5, wait=5)
    grid.contexts[1004].node_config["partition-id"] = 2  # 1002 is that client
    grid.offline = set()
    record = one_round(found, state)
    assert found._nodes.node(2) == 1002
    assert record.failures == {"not connected": 1}


def test_a_node_that_comes_later_joins_and_one_that_never_came_is_counted():
    grid = memory_grid()
    grid.offline = {4, 5}
    found, state = engine(grid, nodes=4, wait=5)
    assert one_round(found, state).failures == {"not connected": 2}
    grid.offline = set()
    assert one_round(found, state).accepted == CLIENTS


def test_too_few_nodes_end_the_wait_with_a_sentence():
    grid = memory_grid()
    grid.offline = {0, 1}
    with pytest.raises(ValueError, match=r"4 nodes answered within 1 s, but 6 are needed"):
        engine(grid, wait=1)


def test_scaffold_c_stays_the_mean_of_c_i_when_replies_are_lost(tmp_path):
    grid = memory_grid(node_config={"state-directory": str(tmp_path)})
    found, state = engine(grid, "scaffold", deadline=2.0)

    def lost(message: Message) -> None:
        grid.app(message, grid.contexts[message.metadata.dst_node_id])  # trains, never replies

    one_round(found, state, "scaffold")
    grid.misbehave[2] = lost
    one_round(found, state, "scaffold")
    grid.misbehave.clear()
    one_round(found, state, "scaffold")
    one_round(found, state, "scaffold")
    store = fedlada.engines.DiskStore(tmp_path)
    c_i = [torch.cat([t.flatten() for t in kept(store, state, i).c_i]) for i in range(CLIENTS)]
    c = torch.cat([t.flatten() for t in state.vectors.c])
    torch.testing.assert_close(c, torch.stack(c_i).mean(0), rtol=1e-5, atol=1e-6)


def test_lost_client_state_is_detected():
    grid = memory_grid()
    found, state = engine(grid, "scaffold")
    one_round(found, state, "scaffold")
    grid.contexts[1002].state.clear()  # the SuperNode restarted without a state-directory
    record = one_round(found, state, "scaffold")
    assert (record.accepted, record.failures) == (CLIENTS - 1, {"error in app": 1})


@pytest.mark.parametrize("stuck", [2.0, 0.1])
def test_replies_are_not_piled_up(monkeypatch, stuck):
    """At most two wait while another is folded, however many are ready and slow the fold is."""
    monkeypatch.setattr(pull, "STUCK", stuck)
    grid = memory_grid()
    alive = []

    def watched(message: Message) -> Message:
        reply = grid.app(message, grid.contexts[message.metadata.dst_node_id])
        alive.append(reply)
        return reply

    for client in range(CLIENTS):
        grid.misbehave[client] = watched
    found, state = engine(grid)
    seen = []
    task = fedlada.engines.Task(round=0, seed=0, lr=0.1, vectors=state.vectors.only(["x"]))
    for count, _ in enumerate(found.exchange(task, range(CLIENTS)), start=1):
        time.sleep(0.3)
        seen.append(len(alive) - count)
    assert max(seen) <= 2


WRONG = [1000, 10_000_000]


@pytest.mark.parametrize("said", [*WRONG, 5])
def test_what_one_node_says_of_the_number_of_nodes_costs_no_reply(said, caplog):
    grid = memory_grid()
    grid.contexts[1004].node_config["num-partitions"] = said
    found, state = engine(grid)
    record = one_round(found, state)
    assert (found.clients, record.accepted) == (CLIENTS, CLIENTS)
    assert found.disagreeing == {4: said}
    (warning,) = caplog.messages
    assert f"node 1004 (partition-id 4) has num-partitions={said}" in warning
    assert f"5 of 6 connected nodes have {CLIENTS}" in warning


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_a_run_with_a_mistaken_node_has_the_bits_of_one_without(name):
    grid = memory_grid()
    grid.contexts[1005].node_config["num-partitions"] = WRONG[1]
    state = run_server(grid, config(name), model).state
    assert same(state, in_process(name)[0])


def test_the_number_of_nodes_falls_again_when_others_come():
    grid = memory_grid()
    grid.contexts[1000].node_config["num-partitions"] = 80
    grid.offline = set(range(1, CLIENTS))
    found, state = engine(grid, nodes=1)
    assert found.clients == 80
    grid.offline = set()
    one_round(found, state, cohort=found.clients)
    assert found.clients == CLIENTS
    assert one_round(found, state).accepted == CLIENTS


def test_and_rises_again():
    grid = memory_grid()
    for node in (1000, 1001):
        grid.contexts[node].node_config["num-partitions"] = 2
    grid.offline = {3, 4, 5}
    found, state = engine(grid, nodes=2)
    assert found.clients == 2
    grid.offline = set()
    one_round(found, state, cohort=2)
    assert found.clients == CLIENTS


def test_a_run_whose_first_node_is_mistaken_goes_on_with_all():
    class Late(Unreliable):
        """A grid on which the mistaken node is alone at first."""

        asked = 0

        def get_node_ids(self) -> list[int]:
            self.asked += 1
            return super().get_node_ids()[: 1 if self.asked == 1 else None]

    grid = Late(client_app(model, node_data, train), nodes=CLIENTS)
    grid.contexts[1000].node_config["num-partitions"] = 80
    state = run_server(grid, config("fedavg", nodes=1, cohort=40), model).state
    assert state.updates >= ROUNDS - 1


@pytest.mark.parametrize("said", [2, WRONG[0]])
def test_the_servers_word_counts_for_more_than_that_of_all_nodes(said, caplog):
    grid = memory_grid()
    for node in range(1000 + said % CLIENTS, 1006):
        grid.contexts[node].node_config["num-partitions"] = said + node - 1000
    found, state = engine(grid, partitions=CLIENTS, nodes=CLIENTS)
    assert found.clients == CLIENTS
    assert one_round(found, state).accepted == CLIENTS
    assert "the server's config has 6, which is used" in caplog.text


@pytest.mark.parametrize("given", [{}, {"partitions": CLIENTS}])
def test_a_mistaken_node_keeps_its_first_client_where_nodes_have_several(given):
    """With 18 clients on six nodes the others are not moved to other nodes."""
    grid = memory_grid()
    grid.contexts[1002].node_config["num-partitions"] = 1000
    found, _ = engine(grid, clients=18, **given)
    assert found.clients == 18
    assert [found.node(client) for client in range(18)] == [1000 + i % 6 for i in range(18)]


def test_a_node_without_a_place_in_the_federation_is_not_waited_for():
    grid = memory_grid()
    grid.contexts[1005].node_config |= {"partition-id": 70, "num-partitions": 80}
    with pytest.raises(ValueError, match="5 nodes answered within 1 s, but 6 are needed"):
        engine(grid, wait=1)


def test_an_algorithm_built_in_code_travels_to_flower():
    built = fedlada.Algorithm(Prox(Amend(AMSGrad(lr=0.01), alpha=0.3), mu=0.2), server=ServerAdam())
    plan = Plan(algorithm=built, rounds=2, cohort=COHORT)
    state = run_server(memory_grid(), ServerConfig(plan=plan, nodes=CLIENTS), model).state
    assert state.updates == 2
    assert "m_g" in state.vectors


def test_outside_code_is_imported_by_a_client_only_if_its_own_config_names_it():
    spec = {"local": "sgd", "corrections": ["outside.module:Correction"], "server": "averaging"}
    task = Task(round=0, seed=0, lr=0.1, vectors=Vectors())
    assignment = Assignment(task=task, algorithm=json.dumps(spec), buffers="refuse")
    with pytest.raises(ValueError, match="the server names code of another package"):
        agreed(assignment, SimpleNamespace(run_config={"algorithm": "fedlada"}))
    with pytest.raises(ValueError, match="leads to no correction"):  # trusted, and not there
        agreed(assignment, SimpleNamespace(run_config={"algorithm": json.dumps(spec)}))


def test_a_run_of_which_no_round_was_applied_ends_with_an_error(tmp_path):
    def broken(model, data, optimizer):
        raise RuntimeError("no memory")

    app = client_app(model, node_data, broken)
    config = ServerConfig.read({"rounds": 2, "cohort": 2, "checkpoints": str(tmp_path)})
    for _ in range(2):  # it does not become a success when it is started again
        with pytest.raises(NothingApplied, match="none of 2 rounds changed the model"):
            run_server(MemoryGrid(app, nodes=2), config, model)


def test_a_server_that_resumes_with_another_number_of_threads_warns(tmp_path, monkeypatch):
    more = {"cohort": 2, "checkpoints": str(tmp_path)}
    run_server(memory_grid(), ServerConfig.read(more | {"rounds": 1}), model)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with pytest.warns(UserWarning, match=r"threads 1 then, 2 now"):
        run_server(memory_grid(), ServerConfig.read(more | {"rounds": 2}), model)
