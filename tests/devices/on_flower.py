"""Devices of a federation on Flower: of its clients, and of its server."""

import torch

import fedlada
from devices.on_device import CLIENTS, CPU, TRAINING, examples, network
from fedlada import Evaluation, devices
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
