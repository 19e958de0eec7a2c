"""Devices of a federation on Flower: of its clients, and of its server."""

import pytest
import torch

import fedlada
from devices.on_device import CLIENTS, CPU, TRAINING, examples, network
from fedlada import Evaluation, FedladaError, devices
from fedlada.algorithms import Vectors
from fedlada.flower import ServerConfig, client_app, run_server
from fedlada.flower.memory_grid import MemoryGrid


def test_flower_clients_and_server_may_each_have_a_device(device):
    def ended(clients_on: torch.device, server_on: torch.device, codec: str = "exact") -> Vectors:
        app = client_app(
            lambda: network().to(clients_on),
            lambda context: examples()[int(context.node_config["partition-id"])],
            TRAINING,
            evaluate=lambda model, data: Evaluation(data=data)(model),
        )
        plan = fedlada.Plan(algorithm="scaffold", rounds=3, cohort=4, codec=codec)
        return run_server(
            MemoryGrid(app, nodes=CLIENTS),
            ServerConfig(plan=plan, nodes=CLIENTS, evaluate_cohort=2),
            lambda: network().to(server_on),
        ).state.vectors

    here = ended(CPU, CPU)
    for places in ((device, CPU), (CPU, device), (device, device), (device, device, "int8")):
        there = ended(*places)
        assert there.x.device == devices.home(places[1])
        for t, u in zip(there.x, here.x, strict=True):
            atol = 1e-5 if len(places) == 2 else 0.05
            torch.testing.assert_close(t.cpu(), u, rtol=0, atol=atol)


def test_a_key_of_the_node_or_the_run_names_the_device(device):
    used = []

    def train(model: torch.nn.Module, data: object, optimizer: torch.optim.Optimizer) -> object:
        used.append(devices.device_of(model))
        return TRAINING(model, data, optimizer)

    app = client_app(
        network, lambda context: examples()[int(context.node_config["partition-id"])], train
    )
    plan = fedlada.Plan(algorithm="fedavg", rounds=1, cohort=4)
    for run, node, wanted in (
        ({"device": "auto"}, {}, (device, device)),
        ({}, {"device": device.type}, (CPU, device)),
        ({"device": device.type}, {"device": "cpu"}, (device, CPU)),
    ):
        grid = MemoryGrid(app, nodes=CLIENTS, run_config=run, node_config=node)
        config = ServerConfig(plan=plan, nodes=CLIENTS, **run)
        vectors, on = run_server(grid, config, network).state.vectors, {*used}
        used.clear()
        assert {d.type for d in on} == {wanted[1].type}
        assert vectors.x.device.type == devices.home(wanted[0]).type


def test_a_device_that_a_node_does_not_have_is_one_sentence(device):
    app = client_app(network, lambda context: examples()[0], TRAINING)
    grid = MemoryGrid(app, nodes=1, node_config={"device": "cuda:7"})
    plan = fedlada.Plan(algorithm="fedavg", rounds=1, cohort=1)
    with pytest.raises(FedladaError, match=r"device is 'cuda:7', and this machine.*'auto' or"):
        run_server(grid, ServerConfig(plan=plan), network)
