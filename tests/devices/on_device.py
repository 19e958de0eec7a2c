"""What a run on any device must do: ``scripts/devices`` runs this on one, and the gate on `second`.

A run on the device is compared with the same run on the CPU: the same seeds, batches and client
data.  The weights agree to 1e-5, since devices add numbers in another order.  Other vectors agree
to 1e-3, since some have the rounding of the weights divided by a learning rate.
"""

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import fedlada
from federations import KINDS
from fedlada import ALGORITHMS, Evaluation, FedladaError, LocalTraining, Simulation, devices
from fedlada.algorithms import Vector, Vectors
from fedlada.data import ClientData
from fedlada.engines import InProcess
from fedlada.privacy import PrivateTraining
from fedlada.protocol.codecs import Codecs
from fedlada.protocol.wire import send
from fedlada.redteam.faulty import FAULTS, Faulty

CPU = torch.device("cpu")
CLIENTS, EXAMPLES = 8, 40
NAMES = (*KINDS, "fedlada-rows", "fedmuon")
CODECS = ("bf16", "int8", "int5", "sub8", "sub5", "eden2")
TRAINING = LocalTraining(steps=4, batch_size=10)

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:the guard stepped in")


def examples(clients: int = CLIENTS) -> list[tuple[Tensor, Tensor]]:
    """Clients that differ in their inputs and, by a little, in what they call a class."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(clients, EXAMPLES, 5, generator=generator)
    x += torch.randn(clients, 1, 5, generator=generator)
    return [(each, (each[:, 0] + each[:, 1] > 0.1 * i).long()) for i, each in enumerate(x)]


def network(*between: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(6)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), *between, nn.Linear(8, 2))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / 3)
    return model


def run_on(
    device: torch.device,
    name: str | fedlada.Algorithm = "fedlada",
    *,
    model: nn.Module | None = None,
    **settings,
) -> Simulation:
    """A run that has ended, of a model on the device, whose data are on the CPU."""
    data = examples()
    usual = {
        "rounds": 3,
        "cohort": 4,
        "train": TRAINING,
        "evaluate": Evaluation(data=data[0]),
        "quiet": True,
    }
    there = (network() if model is None else model).to(device)
    run = fedlada.simulate(there, data, algorithm=name, **usual | settings)
    run.run()
    return run


def largest_difference(one: Vector, other: Vector) -> float:
    """The largest difference of two vectors, relative to their largest number if above 1."""
    pairs = [(t.cpu(), u.cpu()) for t, u in zip(one, other, strict=True)]
    return max(float((t - u).abs().max() / u.abs().max().clamp_min(1)) for t, u in pairs)


def check_close(one: Simulation, other: Simulation) -> float:
    """Check that two runs agree, in all vectors and all that they measured.

    Returns the largest difference of the weights.
    """
    assert one.state.vectors.keys() == other.state.vectors.keys()
    for name, vector in one.state.vectors.items():
        most = 1e-5 if name == "x" else 1e-3
        assert largest_difference(vector, other.state.vectors[name]) <= most, name
    for a, b in zip(one.records, other.records, strict=True):
        assert (a.accepted, a.rejected, a.limited) == (b.accepted, b.rejected, b.limited)
        assert a.metrics == pytest.approx(b.metrics, abs=1e-4)
        assert a.client_metrics == pytest.approx(b.client_metrics, abs=1e-4)
    return largest_difference(one.state.vectors.x, other.state.vectors.x)


@pytest.fixture
def rounds(device) -> int:
    """Ten rounds; fewer on `second`, which the gate waits for."""
    return 3 if device.type == "second" else 10


@pytest.mark.parametrize("name", NAMES)
def test_strict_rounds_end_as_on_the_cpu(device, name, rounds, record_property):
    here = run_on(CPU, name, rounds=rounds, guard="strict")
    there = run_on(device, name, rounds=rounds, guard="strict")
    home = devices.home(device)
    assert {v.device for v in there.state.vectors.values()} == {home}, "vectors stay there"
    assert devices.device_of(there.model) == device
    assert all(record.applied for record in there.records)
    record_property(f"`{name}`", check_close(there, here))


@pytest.mark.parametrize("codec", [*CODECS, "default"])
def test_strict_rounds_with_a_codec_end_as_on_the_cpu(device, codec, rounds, record_property):
    settings = {"rounds": rounds, "codec": codec, "guard": "strict"}
    there, here = (run_on(d, "fedcm", **settings) for d in (device, CPU))
    record_property(f"`fedcm`, codec `{codec}`", check_close(there, here))


@pytest.mark.parametrize("codec", ["exact", "fixed", *CODECS])
def test_a_vector_has_the_same_bytes_on_every_device(device, codec):
    generator = torch.Generator().manual_seed(1)
    vector = Vector(torch.randn(shape, generator=generator) / 99 for shape in [(40, 20), (3,)])
    chosen = Codecs.read(codec)
    there = send(Vectors(x=vector.on(device)), chosen, "up", seed=4)
    here = send(Vectors(x=vector), chosen, "up", seed=4)
    assert torch.equal(there.payload("x"), here.payload("x"))
    assert there.vectors.x.device == device
    assert there.vectors.x.on(CPU).equal(here.vectors.x)


class Items(Dataset):
    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        self.inputs, self.rows = inputs, labels

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.inputs[row], self.rows[row]


FORMS: dict[str, Callable[[Tensor, Tensor, torch.device], object]] = {
    "on the device": lambda x, y, device: (x.to(device), y.to(device)),
    "arrays": lambda x, y, device: (x.numpy(), y.numpy()),
    "float64": lambda x, y, device: (x.double().numpy(), y.numpy()),
    "a Dataset": lambda x, y, device: Items(x, y),
    "an object": lambda x, y, device: ClientData(x, y),
}


@pytest.mark.parametrize("form", FORMS)
def test_data_of_every_form_reach_the_model(device, form):
    data = [FORMS[form](x, y, device) for x, y in examples()]
    usual = {"rounds": 2, "cohort": 4, "train": TRAINING, "quiet": True}
    evaluate = Evaluation(data=data[0])
    there = fedlada.simulate(network().to(device), data, **usual, evaluate=evaluate)
    there.run()
    check_close(there, run_on(CPU, rounds=2))


def test_batches_are_prepared_on_the_device_also_to_explain_what_diverged(device):
    seen = set()

    def prepare(inputs: Tensor) -> Tensor:
        seen.add(inputs.device)
        return inputs * 2

    run_on(
        device,
        train=dataclasses.replace(TRAINING, prepare=prepare),
        evaluate=Evaluation(data=examples()[0], prepare=prepare),
    )
    diverging = fedlada.algorithm("fedavg", lr=1e30)
    with pytest.raises(FedladaError, match="none of 1 rounds"):
        run_on(device, diverging, train=dataclasses.replace(TRAINING, prepare=prepare), rounds=1)
    assert seen == {device}


def test_a_regression_is_measured_as_on_the_cpu(device):
    x, y = examples()[0]
    evaluate = Evaluation(data=(x, x[:, :2] + y[:, None]))
    assert evaluate(network().to(device)) == pytest.approx(evaluate(network()), rel=1e-5)


@pytest.mark.parametrize("aggregator", ["trimmed-mean", "coordinate-median", "centered-clipping"])
def test_robust_rules_end_as_on_the_cpu(device, aggregator):
    settings = {"aggregator": aggregator, "cohort": 6}
    check_close(run_on(device, **settings), run_on(CPU, **settings))


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_statistics_of_batchnorm_end_as_on_the_cpu(device, buffers):
    settings = {"buffers": buffers, "evaluate": None}
    runs = [run_on(d, model=network(nn.BatchNorm1d(8)), **settings) for d in (device, CPU)]
    # XLA's running variance is that of the batch: 9/10 of an unbiased one, a tenth of which counts.
    most = 0.05 if device.type == "xla" else 1e-5
    assert largest_difference(*(run.state.vectors.x for run in runs)) <= 1e-5
    for t, u in zip(*(run.model_of(2).buffers() for run in runs), strict=True):
        torch.testing.assert_close(t.cpu(), u, rtol=10 * most, atol=most)


def test_personal_parts_stay_with_their_client_on_the_device(device):
    runs = [run_on(d, "fedavg", personal=("2.*",), evaluate=None) for d in (device, CPU)]
    check_close(*runs)
    for t, u in zip(*(run.model_of(2).parameters() for run in runs), strict=True):
        assert t.device == device
        torch.testing.assert_close(t.cpu(), u.detach(), rtol=1e-4, atol=1e-5)


def test_what_clients_draw_on_the_device_follows_from_the_seed(device):
    drawn = []

    def train(model: nn.Module, data: tuple[Tensor, Tensor], optimizer) -> dict[str, float]:
        inputs, _ = data
        noise = torch.rand(len(inputs), 5, device=device)
        drawn.append(noise.sum().item())
        optimizer.zero_grad()
        model(inputs.to(device) + noise).square().mean().backward()
        optimizer.step()
        return {}

    def once(seed: int = 0) -> list[float]:
        drawn.clear()
        torch.rand(3, device=device)  # what was drawn before does not matter
        run_on(device, "fedavg", rounds=2, train=train, seed=seed, evaluate=None)
        return list(drawn)

    first = once()
    assert len(set(first)) == 8, "every client and round has its own numbers"
    assert once() == first
    assert once(seed=1) != first


def test_a_function_makes_the_same_first_model_on_the_device(device):
    def make() -> nn.Module:
        layer = nn.Linear(5, 2).to(device)
        nn.init.normal_(layer.weight)  # drawn there
        return layer

    one, two = (
        fedlada.simulate(make, examples(), rounds=1, quiet=True).state.vectors.x for _ in range(2)
    )
    assert one.equal(two)


@pytest.mark.parametrize(
    "fault", ["nan", "huge v", "negative v", "delta x 1000", "stale", "vector missing"]
)
def test_the_guard_turns_faulty_replies_away(device, fault):
    assert fault in FAULTS
    algorithm, model = ALGORITHMS["fedlada"], network().to(device)
    honest = InProcess(algorithm, model, examples(), TRAINING)
    engine = Faulty(honest, lambda round, client: fault if client == 3 and round else None)
    run = fedlada.simulate(
        model, examples(), algorithm=algorithm, rounds=3, cohort=8, engine=engine, quiet=True
    )
    with pytest.warns(UserWarning, match="the guard stepped in"):
        run.run()
    assert sum(sum(r.rejected.values()) + sum(r.limited.values()) for r in run.records) >= 2
    assert all(math.isfinite(v.norm()) for v in run.state.vectors.values())


def test_private_training_ends_as_on_the_cpu_without_noise(device):
    train = PrivateTraining(steps=3, batch_size=10, noise=0.0, seeded=True)
    check_close(*(run_on(d, "fedavg", train=train) for d in (device, CPU)))
    run_on(device, "fedavg", train=dataclasses.replace(train, noise=1.0, seeded=False))


def test_training_in_bfloat16_stays_near_float32(device):
    bfloat16 = dataclasses.replace(TRAINING, autocast="bfloat16")
    runs = [run_on(device, "fedavg", train=train) for train in (bfloat16, TRAINING)]
    for t, u in zip(*(run.state.vectors.x for run in runs), strict=True):
        assert t.dtype == torch.float32
        torch.testing.assert_close(t, u, rtol=0, atol=0.02)


def test_a_run_moves_to_another_device(device, tmp_path):
    for first, then in ((device, CPU), (CPU, device)):
        saved = tmp_path / first.type
        run_on(first, rounds=2, checkpoints=saved)
        moved = f"device {first.type} then, {then.type} now"
        with pytest.warns(UserWarning, match=moved):
            resumed = run_on(then, rounds=4, checkpoints=saved)
        assert [record.round for record in resumed.records] == [1, 2, 3, 4]
        whole = run_on(CPU, rounds=4)
        for t, u in zip(resumed.state.vectors.x, whole.state.vectors.x, strict=True):
            torch.testing.assert_close(t.cpu(), u, rtol=0, atol=1e-5)


def test_an_earlier_state_moves_to_another_device(device):
    earlier = run_on(device, rounds=2)
    run = run_on(CPU, rounds=4, state=earlier.state)
    assert {v.device for v in run.state.vectors.values()} == {CPU}


def test_workers_refuse_a_device_that_they_could_not_use(device):
    with pytest.raises(FedladaError, match=r"a forked worker could not use it.*torchrun"):
        run_on(device, workers=2)


class OnBoth(nn.Module):
    """A model whose second half is on the CPU."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.body, self.head = network()[:2].to(device), network()[2:]

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.body(inputs).cpu())


def test_a_model_may_be_on_two_devices(device):
    data = examples()

    def train(model: nn.Module, data: tuple[Tensor, Tensor], optimizer) -> None:
        for _ in range(3):
            optimizer.zero_grad()
            inputs, labels = data
            nn.functional.cross_entropy(
                model(inputs.to(devices.device_of(model))), labels
            ).backward()
            optimizer.step()

    for name in ("fedlada", "fedadam", "scaffold"):
        both, here = (
            fedlada.simulate(
                OnBoth(d), data, algorithm=name, rounds=3, cohort=4, train=train, quiet=True
            )
            for d in (device, CPU)
        )
        both.run()
        here.run()
        check_close(both, here)
