"""Private runs on Flower and through trees: the bits of the run in process, and no more is told.

Here nodes live on a grid in memory; Ray is in ``test_engines_agree.py`` and TLS in
``test_loopback.py``.
"""

import json

import pytest
import torch
from flwr.app import ConfigRecord, Message
from torch import nn

import fedlada
from federations import same_bits
from fedlada import FedladaError, LocalTraining
from fedlada.flower import Finished, ServerConfig, client_app, leaf_app, run_server
from fedlada.flower.memory_grid import MemoryGrid
from fedlada.flower.wire.header import HEADER
from fedlada.protocol.seeds import seed_of

LEAVES, EACH, ROUNDS = 3, 4, 4
CLIENTS = LEAVES * EACH
train = LocalTraining(steps=2, batch_size=4)
PRIVACY = "noise = 0.5, delta = 1e-3, quantile = 0, clip = 0.3, steps = 2, seeded = true"
NAMES = ["fedavg", "fedcm", "scaffold", "feddyn", "fedlada-rows", "fedlion", "fednova", "fedadam"]


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def data(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(client)
    inputs = torch.randn(8 + client % 5, 4, generator=generator) + client % 3
    return inputs, inputs[:, :3].argmax(1)


def leaf_data(context) -> list:
    leaf = int(context.node_config["partition-id"])
    return [data(client) for client in range(leaf, CLIENTS, LEAVES)]


class Seen(MemoryGrid):
    """Keeps the headers of all tasks."""

    def push_messages(self, messages):
        messages = list(messages)
        self.headers = [
            *getattr(self, "headers", []),
            *(dict(m.content[HEADER]) for m in messages if HEADER in m.content),
        ]
        return super().push_messages(messages)


def through(grid: MemoryGrid, name: str, **more) -> Finished:
    usual = {"algorithm": name, "rounds": ROUNDS, "cohort": 0.5, "privacy": PRIVACY}
    return run_server(grid, ServerConfig.read(usual | more), model)


def leaves() -> Seen:
    return Seen(leaf_app(model, leaf_data, train), nodes=LEAVES)


def nodes() -> Seen:
    own = client_app(model, lambda c: data(int(c.node_config["partition-id"])), train)
    return Seen(own, nodes=CLIENTS)


TREE = {"clients": CLIENTS, "nodes": LEAVES}
FLAT = {"num-partitions": CLIENTS, "nodes": CLIENTS}


def in_process(name: str, privacy: str = PRIVACY, **more) -> Finished:
    torch.manual_seed(seed_of(0, "model"))
    run = fedlada.simulate(
        model(),
        [data(client) for client in range(CLIENTS)],
        algorithm=name,
        rounds=ROUNDS,
        cohort=0.5,
        privacy=privacy,
        train=train,
        quiet=True,
        **more,
    )
    records = run.run()
    return Finished(model=run.model, state=run.state, history=records)


@pytest.mark.parametrize("name", NAMES)
def test_on_flower_and_through_a_tree_it_has_the_bits_of_the_run_in_process(name):
    """Sums are of whole multiples of a step; epsilon, clips and all that is on record agree."""
    alone = in_process(name)
    for there in (through(nodes(), name, **FLAT), through(leaves(), name, **TREE)):
        assert same_bits(there.state.vectors, alone.state.vectors)
        assert there.history == alone.history


@pytest.mark.parametrize("more", [{"workers": 2}, {"at_once": 4}], ids=str)
def test_with_workers_and_at_once_too(more):
    alone = in_process("scaffold")
    there = in_process("scaffold", **more)
    if "workers" in more:
        assert same_bits(there.state.vectors, alone.state.vectors)
    else:  # batched kernels may give other last bits
        both = zip(there.state.vectors.x, alone.state.vectors.x, strict=True)
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in both)
    assert there.history == alone.history


def test_a_leaf_learns_of_no_other_client_and_a_client_of_none():
    """The cohort, earlier replies and the secret stay with the server."""
    for grid, given in ((leaves(), TREE), (nodes(), FLAT)):
        run = through(grid, "scaffold", **given)
        assert run.state.account.releases == ROUNDS
        told = {key for header in grid.headers for key in header}
        assert ("cohort" in told) == ("clients" in told) == (given is TREE)
        for header in grid.headers:
            assert header.get("cohort") == header.get("clients")
            order = json.loads(header.get("order", "{}"))
            assert not order.get("history")
            assert not order.get("contributed")


def altered(grid: MemoryGrid, change) -> None:
    """Let the first leaf tell lies about its tally."""
    honest = grid.reply

    def reply(message: Message) -> Message | None:
        answer = honest(message)
        first = message.metadata.dst_node_id == 1000
        if first and answer is not None and "tally" in answer.content[HEADER]:
            header = dict(answer.content[HEADER])
            told = json.loads(header["tally"])
            change(told)
            answer.content[HEADER] = ConfigRecord(header | {"tally": json.dumps(told)})
        return answer

    grid.reply = reply


def more_bits(told: dict) -> None:
    for name in told["total"]["scalars"]["sums"]:
        told["total"]["scalars"]["sums"][name][0] = ["fff", 0]


def other_count(told: dict) -> None:
    told["observed"]["scalars"]["weight"] = ["ff", 0]


@pytest.mark.filterwarnings("ignore:the guard stepped in")
@pytest.mark.parametrize("change", [more_bits, other_count])
def test_a_leaf_that_lies_about_its_sum_loses_its_clients(change):
    honest, grid = through(leaves(), "fedavg", **TREE), leaves()
    altered(grid, change)
    lied = through(grid, "fedavg", **TREE)
    assert not same_bits(lied.state.vectors, honest.state.vectors)
    assert [record.clips for record in lied.history] == [r.clips for r in honest.history]


def test_the_number_of_clients_must_be_the_plans():
    with pytest.raises(FedladaError, match="needs the number of clients, connected or not"):
        through(nodes(), "fedavg", nodes=CLIENTS)
    with pytest.raises(FedladaError, match="clients' metrics have no noise"):
        through(nodes(), "fedavg", **FLAT, **{"evaluate-cohort": "all"})
