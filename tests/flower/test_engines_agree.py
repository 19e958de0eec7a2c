"""In process, on Ray and on real nodes over TLS a run ends in the same bits.

The app is the shipped one of ``examples/flower`` with a server that runs several algorithms, one
after the other, so that Ray and the nodes are started once.
"""

import shutil
import sys
from pathlib import Path

import pytest
import torch

import fedlada
from fedlada import InProcess, ServerState, federate
from fedlada.algorithms import Vector
from fedlada.flower.loopback import Deployment, RaySimulation
from fedlada.protocol.seeds import seed_of

SHIPPED = Path(__file__).parents[2] / "examples" / "flower"
ROUNDS, SEED = 3, 5

SERVER = '''
"""Run several algorithms and save what each ends with."""

import torch
from digits.task import model
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedlada import Plan
from fedlada.flower import ServerConfig, run_server

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    given = context.run_config
    for name in given["algorithms"].split():
        plan = Plan.of(
            algorithm=name, rounds=given["rounds"], sampling=given["cohort"], seed=given["seed"]
        )
        config = ServerConfig(plan=plan, nodes=given["nodes"])
        _, state = run_server(grid, config, model)
        vectors = {key: vector.tensors for key, vector in state.vectors.items()}
        torch.save(vectors, f"{given['save']}/{name}.pt")
'''


@pytest.fixture(scope="module")
def app(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("app") / "several"
    shutil.copytree(SHIPPED, directory)
    (directory / "digits" / "several.py").write_text(SERVER)
    project = (directory / "pyproject.toml").read_text()
    project = project.replace("digits.server:app", "digits.several:app")
    project += '\nalgorithms = ""\nrounds = 0\n'
    (directory / "pyproject.toml").write_text(project)
    return directory


def in_process(name: str, *, clients: int, cohort: int) -> dict[str, list[torch.Tensor]]:
    sys.path.insert(0, str(SHIPPED))
    try:
        from digits.task import client_data, model, train
    finally:
        sys.path.remove(str(SHIPPED))
    chosen = fedlada.algorithm(name)
    torch.manual_seed(seed_of(SEED, "model"))
    own = model()
    state = ServerState.new(chosen, Vector(p.detach().clone() for p in own.parameters()))
    data = [client_data(client, clients) for client in range(clients)]
    list(
        federate(
            fedlada.Plan.of(algorithm=chosen, rounds=ROUNDS, sampling=cohort, seed=SEED),
            InProcess(chosen, own, data, train),
            state,
        )
    )
    return {key: vector.tensors for key, vector in state.vectors.items()}


def assert_all_agree(engine, app, names, save: Path, *, clients: int, cohort: int) -> None:
    save.mkdir()
    config = {
        "algorithms": " ".join(names),
        "rounds": ROUNDS,
        "cohort": cohort,
        "nodes": clients,
        "seed": SEED,
        "save": str(save),
    }
    engine.run(app, config=config, timeout=500)
    for name in names:
        expected = in_process(name, clients=clients, cohort=cohort)
        found = torch.load(save / f"{name}.pt", weights_only=True)
        assert set(found) == set(expected)
        for key in expected:
            for a, b in zip(found[key], expected[key], strict=True):
                assert torch.equal(a, b), f"{key} of {name} differs"


def test_every_algorithm_on_ray_ends_in_the_bits_of_the_in_process_engine(app, tmp_path):
    with RaySimulation(tmp_path / "simulation", nodes=10) as engine:
        names = list(fedlada.ALGORITHMS)
        assert_all_agree(engine, app, names, tmp_path / "saved", clients=10, cohort=4)


def test_real_nodes_over_tls_end_in_the_bits_of_the_in_process_engine(app, tmp_path):
    with Deployment(tmp_path / "deployment", nodes=3) as engine:
        names = ["fedlada", "scaffold", "fedavg"]
        assert_all_agree(engine, app, names, tmp_path / "saved", clients=3, cohort=2)
