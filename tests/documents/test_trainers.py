"""Lightning, Hugging Face's Trainer and Accelerate take a client's optimizer as it is.

The clients are those of `examples/trainers`; a plain loop over the same batches is their oracle.
"""

import gc
import importlib
import sys
from collections.abc import Iterator
from functools import cache

import pytest
import torch
from torch import nn

import fedlada
from fedlada.flower import ServerConfig, run_server
from fedlada.flower.dry_run import rehearse
from fedlada.flower.memory_grid import MemoryGrid
from fedlada.protocol.federated import federated_parameters
from fedlada.protocol.seeds import seed_of
from places import ROOT

pytestmark = pytest.mark.documents(seconds=50)

EXAMPLE = ROOT / "examples" / "trainers"
CLIENTS, COHORT, ROUNDS = 3, 2, 2

TRAINERS = ("lightning", "transformers", "accelerate")

each_trainer = pytest.mark.parametrize("name", TRAINERS)
each_algorithm = pytest.mark.parametrize("algorithm", ["fedlada", "scaffold"])


@pytest.fixture(scope="module", autouse=True)
def example() -> Iterator[None]:
    """The example's package can be imported."""
    sys.path.insert(0, str(EXAMPLE))
    for name in TRAINERS:
        trainer(name)
    gc.freeze()  # transformers.Trainer collects garbage after each training: not in these packages
    try:
        yield
    finally:
        gc.unfreeze()
        sys.path.remove(str(EXAMPLE))
        for name in [name for name in sys.modules if name.split(".")[0] == "trainers"]:
            del sys.modules[name]


def of_example(module: str, name: str):
    return getattr(importlib.import_module(module), name)


def trainer(name: str):
    return of_example("trainers", "trainer")(name)


def simulated(train, algorithm: str = "fedlada", model=None) -> fedlada.Simulation:
    """A federation that has ended, of the example's model and clients."""
    task = importlib.import_module("trainers.task")
    torch.manual_seed(seed_of(0, "model"))
    run = fedlada.simulate(
        task.model() if model is None else model(),
        [task.client_data(client, CLIENTS) for client in range(CLIENTS)],
        algorithm=algorithm,
        rounds=ROUNDS,
        cohort=COHORT,
        train=train,
        quiet=True,
    )
    run.run()
    return run


@cache
def plain(algorithm: str = "fedlada", model=None) -> fedlada.Simulation:
    """The same federation, whose clients train in a plain loop."""
    return simulated(of_example("trainers.batches", "STEPS"), algorithm, model)


def same(a: fedlada.engines.ServerState, b: fedlada.engines.ServerState) -> bool:
    return all(a.vectors[name].equal(b.vectors[name]) for name in a.vectors | b.vectors)


@each_algorithm
@each_trainer
def test_a_trainer_gives_the_bits_of_a_plain_loop_in_silence(
    name, algorithm, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    assert same(simulated(trainer(name), algorithm).state, plain(algorithm).state)
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


@each_algorithm
@each_trainer
def test_a_trainer_on_flower_gives_the_bits_of_a_plain_loop_in_process(name, algorithm):
    grid = MemoryGrid(
        of_example("trainers.client", "app"), nodes=CLIENTS, run_config={"trainer": name}
    )
    config = {"algorithm": algorithm, "rounds": ROUNDS, "cohort": COHORT}
    run = run_server(
        grid, ServerConfig.read(config | {"nodes": CLIENTS}), of_example("trainers.task", "model")
    )
    assert [record.accepted for record in run.history] == [COHORT] * ROUNDS
    assert same(run.state, plain(algorithm).state)


def test_a_node_of_the_app_can_rehearse_its_round():
    model = of_example("trainers.task", "model")
    node = "partition-id=1 num-partitions=3"
    assert rehearse(EXAMPLE, node, model).accepted == 1
    with pytest.raises(fedlada.FedladaError, match=r"/none with keys for masks cannot be read"):
        rehearse(EXAMPLE, f'{node} masks-key="/none" masks-known="/none"', model)


class Drawing(nn.Linear):
    """A layer that draws a random number for each batch, as dropout does."""

    drawn: list[float]

    def forward(self, inputs):
        self.drawn.append(float(torch.rand(())))
        return super().forward(inputs.flatten(1))


@each_trainer
def test_what_a_model_draws_differs_between_clients_and_rounds_and_repeats_between_runs(name):
    def drawn() -> list[float]:
        Drawing.drawn = []
        simulated(trainer(name), model=lambda: Drawing(64, 10))
        return Drawing.drawn

    first = drawn()
    assert len(set(first)) == len(first) >= COHORT * ROUNDS
    assert drawn() == first


def adapted() -> nn.Module:
    """The example's model with low-rank adapters, the only parameters to be trained."""
    import peft  # here, since it imports transformers

    settings = peft.LoraConfig(r=2, target_modules=["1", "3"])
    return peft.inject_adapter_in_model(settings, of_example("trainers.task", "model")())


@each_trainer
def test_adapters_of_peft_are_all_that_travels_and_changes(name):
    torch.manual_seed(seed_of(0, "model"))
    before = adapted()
    adapters = federated_parameters(before)
    assert adapters
    assert all("lora" in key for key in adapters)
    run = simulated(trainer(name), model=adapted)
    assert same(run.state, plain(model=adapted).state)
    assert [x.shape for x in run.state.vectors.x] == [p.shape for p in adapters.values()]
    after = run.model.state_dict()
    changed = {key for key, value in before.state_dict().items() if not after[key].equal(value)}
    assert changed == set(adapters)


@pytest.mark.parametrize("name", ["batches", *(f"{name}_client" for name in TRAINERS)])
def test_the_page_shows_the_example_s_code(name):
    text = (EXAMPLE / "trainers" / f"{name}.py").read_text()
    code = text.partition('"""\n\n')[2].replace("\nfrom trainers.batches import loader\n", "")
    assert f"```python\n{code}```" in (ROOT / "docs" / "guide" / "trainers.md").read_text()
