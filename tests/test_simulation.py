"""Whole federations in one process: digits, buffers, determinism, resume."""

import copy
import io

import pytest
import torch
from torch import nn
from tqdm import tqdm

import fedlada
from federations import flat, kept, same_bits
from fedlada.data import STATISTICS, Augment, ClientData, Clients, load, partition
from fedlada.protocol.seeds import seed_of


@pytest.fixture(scope="module")
def digits() -> Clients:
    train = load("digits", split="train")
    return Clients(train, partition(train.labels, "client-prior", clients=20, concentration=0.6))


prepare = Augment(*STATISTICS["digits"], crop=0)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def local(**changes) -> fedlada.LocalTraining:
    return fedlada.LocalTraining(**{"steps": 10, "batch_size": 20, "prepare": prepare} | changes)


@pytest.mark.parametrize("name", fedlada.ALGORITHMS)
def test_every_algorithm_learns_digits(digits, name):
    """Within 25 rounds."""
    test = load("digits", split="test")
    rates = {"localadam": 0.003, "fedlalr": 0.01}
    rates |= {
        "fedlada": 0.03,
        "fedlada-paper": 0.03,
        "fedada2": 0.01,
        "fedadamw": 0.003,
        "fedmuon": 0.03,
        "sharedmuon": 0.03,
        "freshmuon": 0.03,
        "keptmuon": 0.03,
        "fedmuon-corrected": 0.03,
    }
    settings = {"lr": rates[name]} if name in rates else {}
    run = fedlada.simulate(
        net(),
        digits,
        algorithm=fedlada.algorithm(name, **settings),
        rounds=25,
        train=local(),
        evaluate=fedlada.Evaluation(data=test, prepare=prepare.plain),
        evaluate_every=5,
    )
    records = []
    for record in run:
        records.append(record)
        if record.metrics.get("test_accuracy", 0.0) > 0.8:
            break
    assert records[-1].metrics["test_accuracy"] > 0.8
    assert "test_accuracy" not in records[0].metrics
    assert records[-1].client_metrics["loss"] < records[0].client_metrics["loss"]


def test_the_users_model_and_random_numbers_are_left_alone(digits):
    model = net()
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    fedlada.simulate(model, digits, rounds=2, train=local()).run()
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


def test_dropout_repeats_and_depends_on_round_and_client(digits):
    model = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(64, 10))
    runs = [fedlada.simulate(model, digits, rounds=3, train=local()) for _ in range(2)]
    torch.manual_seed(1)
    first = runs[0].run()
    torch.manual_seed(2)
    assert [r.client_metrics for r in runs[1].run()] == [r.client_metrics for r in first]
    keys = [(seed, "client", t, i) for seed in (0, 1) for t in (0, 1) for i in (0, 1)]
    assert len({seed_of(*key) for key in keys}) == len(keys)


def test_a_run_continues_from_its_state(digits):
    whole = fedlada.simulate(net(), digits, rounds=4, train=local())
    whole.run()
    first = fedlada.simulate(net(), digits, rounds=2, train=local())
    first.run()
    second = fedlada.simulate(net(), digits, rounds=4, train=local(), state=first.state)
    assert [record.round for record in second] == [3, 4]
    assert same_bits(whole.state.vectors, second.state.vectors)


def test_the_model_of_a_run_holds_the_servers_parameters(digits):
    run = fedlada.simulate(net(), digits, rounds=2, train=local())
    for _ in run:
        found = torch.cat([p.detach().flatten() for p in run.model.parameters()])
        assert torch.equal(found, flat(run.state.vectors.x))


def test_epochs_give_unequal_steps(digits):
    small, large = digits[0], digits[1]
    data = [ClientData(small.inputs[:30], small.labels[:30]), large]
    run = fedlada.simulate(net(), data, rounds=1, train=local(steps=None, epochs=2, batch_size=10))
    (record,) = run.run()
    assert record.steps == (2 * 3 + 2 * -(-len(large) // 10)) / 2


def test_clipping_bounds_the_step(digits):
    bound, lr = 0.01, 0.1
    run = fedlada.simulate(
        net(),
        digits,
        algorithm=fedlada.algorithm("fedavg", lr=lr, weight_decay=0.0),
        rounds=1,
        train=local(steps=1, clip_norm=bound),
        cohort=fedlada.server.FixedSize(1),
    )
    before = flat(run.state.vectors.x)
    run.run()
    moved = (flat(run.state.vectors.x) - before).norm()
    assert 0 < moved <= lr * bound * (1 + 1e-4)


def batchnorm() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Linear(16, 10))


def test_buffers_are_refused_with_what_to_do(digits):
    with pytest.raises(ValueError, match="buffers='average' or buffers='local'") as error:
        fedlada.simulate(batchnorm(), digits)
    assert "2.running_mean" in str(error.value)


def test_averaged_buffers_are_the_mean_of_the_clients_and_count_as_traffic(digits):
    settings = {"cohort": fedlada.server.FixedSize(3), "train": local(), "buffers": "average"}
    run = fedlada.simulate(batchnorm(), digits, rounds=1, algorithm="fedavg", **settings)
    (record,) = run.run()
    alone = []
    for client in record.cohort:
        task = fedlada.engines.Task(
            round=0,
            seed=0,
            lr=record.lr,
            vectors=fedlada.simulate(
                batchnorm(), digits, algorithm="fedavg", buffers="average"
            ).state.vectors,
        )
        engine = fedlada.engines.InProcess(
            fedlada.algorithm("fedavg"), batchnorm(), digits, local(), buffers="average"
        )
        (reply,) = engine.exchange(task, [client])
        alone.append(flat(reply.vectors.buffers))
    torch.testing.assert_close(flat(run.state.vectors.buffers), torch.stack(alone).mean(0))
    parameters = sum(p.numel() for p in batchnorm().parameters())
    assert record.bytes_up == 3 * 4 * (parameters + 32)
    assert torch.equal(run.model[2].running_mean, run.state.vectors.buffers.tensors[0])


def test_local_buffers_stay_with_their_client(digits):
    store = fedlada.engines.MemoryStore()
    run = fedlada.simulate(
        batchnorm(), digits, rounds=3, train=local(), buffers="local", store=store
    )
    records = run.run()
    assert "buffers" not in run.state.vectors
    assert torch.equal(run.model[2].running_mean, torch.zeros(16))
    first, second = (kept(store, run.state, client).buffers for client in records[-1].cohort[:2])
    assert not first.equal(second)


def test_the_loop_refuses_what_it_does_not_know(digits):
    with pytest.raises(
        ValueError, match="weighting is 'size'; it must be one of uniform, examples"
    ):
        fedlada.simulate(net(), digits, weighting="size").run()
    with pytest.raises(ValueError, match="steps is 5 and epochs is 5"):
        fedlada.LocalTraining(steps=5, epochs=5)
    with pytest.raises(ValueError, match="buffers is 'mean'"):
        fedlada.simulate(net(), digits, buffers="mean")


@pytest.mark.parametrize(("name", "settings"), [("fedavg", {}), ("fedcm", {"alpha": 0.9})])
def test_weights_without_a_gradient_decay_to_0_and_not_to_numbers_that_are_slow(name, settings):
    """The second input is always 0; weight decay halves its weights in every step."""
    inputs = torch.randn(40, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([1, 0])
    data = [ClientData(inputs, (inputs[:, 0] > 0).long())] * 3
    run = fedlada.simulate(
        nn.Linear(2, 2),
        data,
        algorithm=fedlada.algorithm(name, lr=0.5, weight_decay=1.0, **settings),
        rounds=60,
        train=fedlada.LocalTraining(steps=5, batch_size=20),
    )
    run.run()
    assert flat(run.state.vectors.x)[[1, 3]].eq(0).all()
    for vector in run.state.vectors.values():
        sizes = flat(vector).abs()
        assert not ((sizes > 0) & (sizes < 2.0**-100)).any()


def test_a_second_moment_that_starts_below_what_is_dropped_stays():
    eps = 1e-18  # its square is a normal number, smaller than those that are dropped
    inputs = torch.zeros(20, 2)
    run = fedlada.simulate(
        nn.Linear(2, 2, bias=False),
        [ClientData(inputs, torch.zeros(20, dtype=torch.long))],
        algorithm=fedlada.algorithm("fedlada", eps=eps, weight_decay=0.0),
        rounds=2,
        train=fedlada.LocalTraining(steps=2, batch_size=20),
    )
    run.run()
    torch.testing.assert_close(flat(run.state.vectors.v), torch.full((4,), eps**2))


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


@pytest.mark.parametrize(
    ("sizes", "settings", "said"),
    [
        ((20, 45), {}, True),
        ((20, 40), {}, False),
        ((20, 500), {"weighting": "examples"}, False),
        ((20, 500), {"algorithm": "scaffold"}, False),  # it needs equal weights
    ],
)
def test_a_run_says_that_clients_of_unlike_sizes_count_equally(capsys, sizes, settings, said):
    clients = [(torch.randn(n, 2), torch.arange(n) % 2) for n in sizes]
    fedlada.simulate(
        nn.Linear(2, 2), clients, rounds=1, train=fedlada.LocalTraining(steps=1), **settings
    ).run()
    sentence = f"count equally although they have {sizes[0]} to {sizes[1]} examples"
    assert (sentence in capsys.readouterr().err) == said


def test_the_length_of_a_run_is_the_number_of_rounds_that_are_left(digits):
    run = fedlada.simulate(net(), digits, rounds=4, train=local(steps=1))
    assert len(run) == 4
    next(iter(run))
    bar = tqdm(run, file=io.StringIO())
    assert bar.total == 3
    assert [record.round for record in bar] == [2, 3, 4]
    assert bar.n == bar.total
    assert (len(run), bool(run)) == (0, True)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("quiet", [False, True])
def test_a_terminal_shows_the_progress_unless_the_run_is_quiet(digits, monkeypatch, quiet):
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    run = fedlada.simulate(net(), digits, rounds=2, train=local(steps=1), quiet=quiet)
    assert [record.round for record in run.run()] == [1, 2]
    written = terminal.getvalue()
    assert ("round 2/2: " in written) is not quiet
    assert written.endswith("\n") is not quiet
    assert all(len(line) < 80 for line in written.split("\r")[1:])
