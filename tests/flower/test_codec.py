"""A codec is one file and one registry line, and works in process, on Ray and over TLS alike.

This is the model for real codecs: bfloat16, half the bytes of float32.  What the records count is
held against what passes Flower's own HTTP layer, where a hook in every process reads the lengths
of the bodies that Flower sends and receives.
"""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

import fedlada
from fedlada.flower.loopback import Deployment, RaySimulation

CODEC = '''
"""The codec: one file."""

import torch

from fedlada.algorithms import Vector
from fedlada.protocol.codecs.codec import Codec, split


class BF16(Codec):
    """The upper half of each float32."""

    def size(self, layout):
        return 2 * sum(entry.numel for entry in layout)

    def encode(self, vector, *, seed):
        return torch.cat([t.reshape(-1).bfloat16().view(torch.uint8) for t in vector])

    def decode(self, payload, layout):
        return Vector(t.float() for t in split(payload, layout, torch.bfloat16))
'''

INIT = '''
"""The app; its registry line is here, so that both sides have it."""

from coded.bf16 import BF16
from fedlada.protocol.codecs import CODECS

CODECS["bf16"] = BF16()
'''

TASK = """
import torch

from fedlada import LocalTraining
from fedlada.data import ClientData

train = LocalTraining(steps=2, batch_size=8)


def model():
    return torch.nn.Linear(300, 100)


def data(client):
    generator = torch.Generator().manual_seed(client)
    inputs = torch.randn(40, 300, generator=generator)
    return ClientData(inputs, inputs[:, :100].argmax(1))
"""

CLIENT = """
from coded.task import data, model, train
from fedlada.flower import client_app

app = client_app(model, lambda context: data(int(context.node_config["partition-id"])), train)
"""

SERVER = """
import json

import torch
from coded.task import model
from flwr.serverapp import ServerApp

from fedlada import Plan
from fedlada.flower import ServerConfig, run_server

app = ServerApp()


@app.main()
def main(grid, context):
    given = context.run_config
    for name in given["algorithms"].split():
        plan = Plan.of(algorithm=name, rounds=given["rounds"], codec=given["codec"])
        _, state = run_server(grid, ServerConfig(plan=plan, nodes=given["nodes"]), model)
        saved = {key: vector.tensors for key, vector in state.vectors.items()}
        torch.save(saved, f"{given['save']}/{name}.pt")
"""

PROJECT = """
[project]
name = "coded"
version = "1.0.0"
description = "A codec of its own"
license = "Apache-2.0"

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedlada"

[tool.flwr.app.components]
serverapp = "coded.server:app"
clientapp = "coded.client:app"

[tool.flwr.app.config]
algorithms = ""
codec = "exact"
rounds = 2
nodes = 2
save = ""
"""

HOOK = '''
"""Counts the objects that a SuperNode sends to, and receives from, the SuperLink."""

import os
import sys

if "flower-supernode" in sys.argv[0] or "supernode" in " ".join(sys.orig_argv):
    import httpx

    send = httpx.Client.send

    def counted(self, request, **options):
        response = send(self, request, **options)
        path = request.url.path
        if path.endswith(("fleet/push-object", "fleet/pull-object")):
            up = path.endswith("push-object")
            length = (request if up else response).headers["content-length"]
            with open(os.environ["COUNTED"], "a") as file:
                file.write(f"{'up' if up else 'down'} {length}\\n")
        return response

    httpx.Client.send = counted
'''

NAMES, ROUNDS, NODES = ["fedlada", "scaffold"], 2, 2
PARAMETERS = 300 * 100 + 100
ENVELOPE = 8_000
"""An upper bound of the bytes beside the vectors, per message: header, names, hashes, and what
Flower wraps it all in."""


@pytest.fixture(scope="module")
def app(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("app")
    (directory / "coded").mkdir()
    (directory / "pyproject.toml").write_text(PROJECT)
    files = {"__init__": INIT, "bf16": CODEC, "task": TASK, "client": CLIENT, "server": SERVER}
    for name, text in files.items():
        (directory / "coded" / f"{name}.py").write_text(text)
    return directory


@pytest.fixture(scope="module")
def coded(app):
    """The app's package, in this process."""
    sys.path.insert(0, str(app))
    try:
        yield importlib.import_module("coded.task")
    finally:
        sys.path.remove(str(app))
        from fedlada.protocol.codecs import CODECS

        CODECS.pop("bf16", None)
        for name in [name for name in sys.modules if name.split(".")[0] == "coded"]:
            del sys.modules[name]


def in_process(coded, name: str, codec: str) -> fedlada.Simulation:
    from fedlada.protocol.seeds import seed_of

    torch.manual_seed(seed_of(0, "model"))
    clients = [coded.data(client) for client in range(NODES)]
    settings = {"algorithm": name, "rounds": ROUNDS, "codec": codec, "sampling": NODES}
    return fedlada.simulate(coded.model(), clients, train=coded.train, **settings)


def assert_same_bits(coded, save: Path, codec: str) -> None:
    for name in NAMES:
        run = in_process(coded, name, codec)
        run.run()
        saved = torch.load(save / f"{name}.pt", weights_only=True)
        assert saved.keys() == run.state.vectors.keys()
        for key, vector in run.state.vectors.items():
            assert vector.equal(type(vector)(saved[key])), f"{key} of {name}"


def config(save: Path, codec: str) -> dict[str, object]:
    save.mkdir()
    return {"algorithms": " ".join(NAMES), "codec": codec, "save": str(save)}


def test_in_process_both_sides_see_what_was_decoded(coded):
    run = in_process(coded, "fedlada", "bf16")
    records = run.run()
    exact = in_process(coded, "fedlada", "exact").run()
    for record, other in zip(records, exact, strict=True):
        assert 2 * record.bytes_down == other.bytes_down == NODES * 3 * 4 * PARAMETERS
        assert 2 * record.bytes_up == other.bytes_up == NODES * 2 * 4 * PARAMETERS
    # The server's own x keeps all its bits, and only what travels loses some.
    assert not all(torch.equal(t, t.bfloat16().float()) for t in run.state.vectors.x)
    # The news of a round are what clients made of the x they saw.
    assert not any(record.rejected or record.limited for record in records)


def test_an_exact_vector_is_not_copied_in_process(coded):
    from fedlada.server.loop import next_task

    run = in_process(coded, "fedlada", "delta=bf16")
    task, _ = next_task(run.plan, run.state, NODES)
    for name, vector in task.vectors.items():
        for mine, theirs in zip(vector, run.state.vectors[name], strict=True):
            assert mine.data_ptr() == theirs.data_ptr()


def test_on_ray_it_ends_in_the_bits_of_the_in_process_engine(coded, app, tmp_path):
    with RaySimulation(tmp_path / "simulation", nodes=NODES) as engine:
        engine.run(app, config=config(tmp_path / "saved", "bf16"))
    assert_same_bits(coded, tmp_path / "saved", "bf16")


def test_over_tls_the_bits_are_equal_and_the_bytes_those_of_flowers_http(coded, app, tmp_path):
    hooks, counted = tmp_path / "hooks", tmp_path / "counted.txt"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(HOOK)
    environment = {"PYTHONPATH": str(hooks), "COUNTED": str(counted)}
    passed = {}
    with Deployment(tmp_path / "deployment", nodes=NODES, environment=environment) as engine:
        for codec in ("bf16",):
            save = tmp_path / codec
            before = len(counted.read_text().splitlines()) if counted.exists() else 0
            engine.run(app, config=config(save, codec))
            assert_same_bits(coded, save, codec)
            lines = [line.split() for line in counted.read_text().splitlines()[before:]]
            passed[codec] = {
                way: sum(int(length) for each, length in lines if each == way)
                for way in ("down", "up")
            }
    print(json.dumps(passed))
    messages = NODES * ROUNDS * len(NAMES) + NODES * len(NAMES)  # and who each node is
    for codec, both in passed.items():
        records = [record for name in NAMES for record in in_process(coded, name, codec).run()]
        for way in ("down", "up"):
            told = sum(getattr(record, f"bytes_{way}") for record in records)
            assert told < both[way] < told + messages * ENVELOPE, (codec, way)
