"""Faults that 0.2.0 had, each as the law it broke."""

import copy
import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import fedlada
from federations import Federation, Point, local_steps, quadratics
from fedlada import ALGORITHMS, LocalRound, Mean, Task
from fedlada.algorithms import Vector, Vectors
from fedlada.algorithms.vectors import is_small
from fedlada.cli import main
from fedlada.data import ClientData
from fedlada.engines.complete import Complete
from fedlada.engines.faulty import Faulty


def clients(count: int = 4) -> list[ClientData]:
    inputs = torch.randn(count, 20, 8, generator=torch.Generator().manual_seed(1))
    return [ClientData(x, x[:, :3].argmax(1)) for x in inputs]


def plain_loop(model, data, optimizer):
    """A training loop that leaves the model's mode alone."""
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(data.inputs), data.labels).backward()
    optimizer.step()


def test_a_loop_that_never_calls_train_trains_in_training_mode_after_an_evaluation():
    modes = []

    def train(model, data, optimizer):
        modes.append(model.training)
        plain_loop(model, data, optimizer)

    def evaluate(model):
        model.eval()
        return {}

    fedlada.simulate(nn.Linear(8, 3), clients(), rounds=3, train=train, evaluate=evaluate).run()
    assert modes == [True] * 12


def test_a_second_optimizer_is_refused():
    chosen = ALGORITHMS["fedlada"]
    fed = Federation(chosen, Point(), quadratics(2), local_steps(1))
    task = Task(round=0, seed=0, lr=0.1, vectors=fed.vectors.only(chosen.down))
    local = LocalRound(chosen, Point(), task, client=0)
    local.optimizer()
    with pytest.raises(ValueError, match="asked for a second optimizer in round 1"):
        local.optimizer()


def test_robust_rules_are_there_after_importing_the_library_and_their_advice_can_be_followed():
    program = "import fedlada; print(fedlada.TrimmedMean(trim=0.1))"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    rule = fedlada.TrimmedMean(trim=0.4)
    with pytest.raises(ValueError, match=r"a round have 4 replies, .* needs 9: ask for more"):
        fedlada.simulate(nn.Linear(8, 3), clients(4), rounds=1, aggregator=rule)
    run = fedlada.simulate(nn.Linear(8, 3), clients(9), rounds=1, aggregator=rule)
    (record,) = run.run()
    assert record.applied


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data.clients=5000", "federation.cohort=1"], "clients is 5000; it must be from 1 to"),
        (["federation.guard=slack"], "no table of settings"),
        (["federation.aggregator=meam"], "no aggregator 'meam'"),
    ],
)
def test_what_the_user_can_mend_is_a_sentence_and_no_traceback(tmp_path, words, said):
    file = tmp_path / "e.toml"
    file.write_text('[data]\ndataset = "digits"\n')
    with pytest.raises(SystemExit, match=f"^fedlada: .*{said}"):
        main(["run", str(file), *words, "--out", str(tmp_path / "run")])


def test_a_run_whose_checkpoints_are_all_damaged_ends_in_a_sentence(tmp_path):
    file = tmp_path / "e.toml"
    file.write_text(
        '[data]\ndataset = "digits"\nclients = 4\n[federation]\ncohort = 2\nrounds = 1\n'
    )
    where = ["--out", str(tmp_path / "here")]
    with pytest.raises(SystemExit) as ended:
        main(["run", str(file), *where])
    assert not ended.value.code
    for path in (tmp_path / "here" / "checkpoints").glob("*.safetensors"):
        path.write_bytes(b"")
    sentence = "Restore its files from a backup"
    with pytest.warns(UserWarning, match="is damaged"), pytest.raises(SystemExit, match=sentence):
        main(["run", str(file), "federation.rounds=2", *where])


def test_bits_are_compared_and_not_numbers():
    zero, minus, nan = (Vector([torch.tensor([x])]) for x in (0.0, -0.0, float("nan")))
    assert not zero.equal(minus)
    assert nan.equal(nan.clone())
    assert zero.equal(zero.clone())
    double = Vector([torch.tensor([0.0], dtype=torch.float64)])
    assert not zero.equal(double)


@pytest.mark.parametrize("wrap", [Complete, lambda engine: Faulty(engine, lambda r, c: None)])
def test_an_engine_around_another_follows_the_number_of_its_clients(wrap):
    class Growing:
        clients, keeps = 3, False

    inner = Growing()
    outer = wrap(inner)
    inner.clients = 5
    assert outer.clients == 5


def test_saving_leaves_the_state_as_it_is(tmp_path):
    run = fedlada.simulate(nn.Linear(8, 3), clients(), rounds=3, checkpoints=tmp_path)
    records = iter(run)
    next(records), next(records)
    state = copy.deepcopy(run.state)
    state.resumable_from = 0
    saving = fedlada.Checkpoints(tmp_path / "other")
    saving.open()
    names = {"parameters": ["weight", "bias"], "buffers": []}
    record = fedlada.Checkpoints(tmp_path).latest().record
    assert saving.save(state, record, config={}, names=names) == 2
    assert state.resumable_from == 0


def test_the_model_of_a_run_is_a_copy():
    run = fedlada.simulate(nn.Linear(8, 3), clients(), rounds=2, train=plain_loop)
    records = iter(run)
    next(records)
    model = run.model
    before = copy.deepcopy(model.state_dict())
    next(records)
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    with torch.no_grad():
        model.weight.zero_()
    assert run.model.weight.norm() > 0


def test_drift_is_known_for_whatever_is_a_mean():
    class Own:
        """A mean of somebody else's."""

        is_mean = True

        def __init__(self):
            self._mean = Mean()

        def __getattr__(self, name):
            return getattr(self._mean, name)

    model = nn.Linear(8, 3)
    usual, own = (
        fedlada.simulate(model, clients(), rounds=1, aggregator=rule).run()[0]
        for rule in (Mean, Own)
    )
    assert own.drift == usual.drift is not None


@pytest.mark.parametrize("chosen", ALGORITHMS.values(), ids=ALGORITHMS)
def test_an_up_vector_that_is_never_negative_is_declared_a_second_moment(chosen):
    """Whatever the signs of gradients and kept vectors; forgetting the declaration fails here."""
    never = set(chosen.up)
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)

        def signed(like: Vector, generator=generator) -> Vector:
            return Vector(torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in like)

        fed = Federation(chosen, Point(), quadratics(1, seed=seed), local_steps(1))
        x = fed.vectors.x
        squares = {moment.of for moment in chosen.moments}
        down = Vectors(
            (name, fed.vectors[name] if is_small(name) or name in squares else signed(x))
            for name in chosen.down
        )
        kept = Vectors(
            (name, x.zeros(name) if is_small(name) else signed(x)) for name in chosen.client_state
        )
        task = Task(round=0, seed=0, lr=chosen.lr(0), vectors=down)
        model = Point()
        local = LocalRound(chosen, model, task, client=0, client_state=kept)
        local_steps(3, noise=5.0)(model, quadratics(1, seed=seed)[0], local.optimizer())
        reply = local.finish(examples=1).vectors
        never = {name for name in never if all(bool((t >= 0).all()) for t in reply[name])}
    assert never == {moment.up for moment in chosen.moments}


def test_an_algorithm_built_in_code_travels_to_flower():
    from fedlada.algorithms import Amend, AMSGrad, Prox, ServerAdam
    from fedlada.flower import ServerConfig, client_app, run_server
    from fedlada.flower.memory_grid import MemoryGrid

    built = fedlada.Algorithm(Prox(Amend(AMSGrad(lr=0.01), alpha=0.3), mu=0.2), server=ServerAdam())
    data = clients(3)
    app = client_app(
        lambda: nn.Linear(8, 3),
        lambda context: data[int(context.node_config["partition-id"])],
        fedlada.LocalTraining(steps=2, batch_size=8),
    )
    plan = fedlada.Plan.of(algorithm=built, rounds=2, sampling=3)
    grid, config = MemoryGrid(app, nodes=3), ServerConfig(plan=plan, nodes=3)
    state = run_server(grid, config, lambda: nn.Linear(8, 3)).state
    assert state.updates == 2
    assert "m_g" in state.vectors


def test_outside_code_is_imported_by_a_client_only_if_its_own_config_names_it():
    from types import SimpleNamespace

    from fedlada.flower.client_side import agreed
    from fedlada.flower.records import Assignment

    spec = {"local": "sgd", "corrections": ["outside.module:Correction"], "server": "averaging"}
    task = Task(round=0, seed=0, lr=0.1, vectors=Vectors())
    assignment = Assignment(task=task, algorithm=json.dumps(spec), buffers="refuse")
    with pytest.raises(ValueError, match="the server names the outside code"):
        agreed(assignment, SimpleNamespace(run_config={"algorithm": "fedlada"}))
    with pytest.raises(ValueError, match="leads to no correction"):  # trusted, and not there
        agreed(assignment, SimpleNamespace(run_config={"algorithm": json.dumps(spec)}))
