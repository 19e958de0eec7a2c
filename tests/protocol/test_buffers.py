"""Buffers: statistics are averaged or kept, constants are neither sent nor refused."""

import warnings
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import fedlada
from federations import kept
from fedlada import FedladaError, LocalTraining, simulate
from fedlada.engines import MemoryStore
from fedlada.protocol.federated import constant_buffers, federated_names

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(40, 4, generator=GENERATOR)
CLIENTS = [(X[i::4] * (i + 1), X[i::4].argmax(1)) for i in range(4)]
TRAIN = LocalTraining(steps=3, batch_size=5)


class Masked(nn.Module):
    """A network with a float mask and a table, as transformers have, and BatchNorm if asked."""

    def __init__(self, *, norm: bool = False, infinite: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4) if norm else nn.Identity()
        self.register_buffer("mask", torch.zeros(4).index_fill(0, torch.tensor([3]), -1e9))
        if infinite:
            self.mask[3] = float("-inf")
        self.register_buffer("table", torch.arange(4.0))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.norm(self.layer(inputs + self.table)) + torch.exp(self.mask)


class Moving(nn.Linear):
    """A layer with a running mean of its own, which is no BatchNorm's."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("centre", torch.zeros(4))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.centre.mul_(0.9).add_(inputs.detach().mean(0), alpha=0.1)
        return super().forward(inputs - self.centre)


@pytest.mark.parametrize("infinite", [True, False])
def test_a_mask_is_understood_without_a_word(infinite):
    run = simulate(Masked(infinite=infinite), CLIENTS, rounds=2, train=TRAIN)
    assert all(record.applied for record in run.run())
    assert "buffers" not in run.state.vectors
    assert run.model.mask.equal(Masked(infinite=infinite).mask)


@pytest.mark.parametrize("policy", ["average", "local"])
def test_a_mask_of_infinities_beside_statistics_neither_travels_nor_is_kept(policy):
    model = Masked(norm=True)
    names = federated_names(model, policy)["buffers"]
    assert "mask" not in names
    assert {"norm.running_mean", "norm.running_var"} <= set(names)
    assert list(constant_buffers(model, policy)) == ["mask"]
    run = simulate(model, CLIENTS, rounds=2, train=TRAIN, buffers=policy)
    assert all(record.applied for record in run.run())


def test_a_finite_constant_that_is_averaged_stays_what_it_is():
    run = simulate(Masked(norm=True), CLIENTS, rounds=2, train=TRAIN, buffers="average")
    run.run()
    assert run.model.table.tolist() == [0, 1, 2, 3]


def test_a_buffer_that_training_changes_is_no_constant_and_is_named():
    with pytest.raises(FedladaError, match=r"changed the buffer 'centre'.*buffers='average'"):
        simulate(Moving(), CLIENTS, rounds=1, train=TRAIN).run()
    with pytest.raises(ValueError, match=r"norm\.running_mean"):
        simulate(Masked(norm=True), CLIENTS)


@dataclass(frozen=True)
class Only:
    """Samples the same clients in every round."""

    clients: list[int]

    def cohort(self, seed, round, clients):
        return self.clients


class Replacing(Moving):
    """The same, but the buffer becomes another tensor."""

    def forward(self, inputs: Tensor) -> Tensor:
        self.centre = self.centre.clone()
        return super().forward(inputs)


def test_a_tensor_that_is_replaced_is_an_error_and_not_lost():
    for policy in ("average", "local"):
        with pytest.raises(FedladaError, match="replaced 1 parameters or buffers"):
            simulate(Replacing(), CLIENTS, rounds=1, train=TRAIN, buffers=policy).run()

    def train(model, data, optimizer):
        TRAIN(model, data, optimizer)
        model.layer.weight = nn.Parameter(torch.zeros(4, 4))

    with pytest.raises(FedladaError, match="replaced 1 parameters or buffers"):
        simulate(Masked(), CLIENTS, rounds=1, train=train).run()


@pytest.mark.parametrize("model", [lambda: Masked(norm=True), Moving])
def test_no_client_begins_with_the_statistics_of_another(model):
    """As on Flower, where every client has a process of its own."""
    settings = {"rounds": 1, "train": TRAIN, "buffers": "local", "algorithm": "fedavg"}
    buffers = []
    for clients in ([0, 1, 2, 3], [2]):
        store = MemoryStore()
        torch.manual_seed(0)
        run = simulate(model(), CLIENTS, cohort=Only(clients), store=store, **settings)
        run.run()
        buffers.append(kept(store, run.state, 2).buffers)
    assert buffers[0].equal(buffers[1])


def test_the_policies_are_those_of_the_plan():
    with pytest.raises(ValueError, match="buffers is 'mean'"):
        fedlada.simulate(Masked(), CLIENTS, buffers="mean")


def test_the_server_says_that_its_evaluation_has_no_buffers_of_clients_and_clients_have():
    evaluate = fedlada.Evaluation(data=CLIENTS[0])
    settings = {"rounds": 1, "train": TRAIN, "evaluate": evaluate, "quiet": True}
    with pytest.warns(UserWarning, match=r"the buffers as they were .* evaluate_clients"):
        simulate(Masked(norm=True), CLIENTS, buffers="local", **settings).run()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulate(Masked(norm=True), CLIENTS, buffers="average", **settings).run()
    settings |= {"evaluate": None, "evaluate_clients": CLIENTS}
    run = simulate(Masked(norm=True), CLIENTS, buffers="local", **settings)
    (record,) = run.run()
    assert record.evaluated_by == len(CLIENTS)
