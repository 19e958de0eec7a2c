"""What depends on a device, on a machine without any."""

from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from federations import KINDS, Federation, Point, local_steps, quadratics
from fedlada import ALGORITHMS, FedladaError, devices
from fedlada.algorithms import Round, Vector
from fedlada.engines import LocalRound, Task
from fedlada.protocol.codecs import CODECS, Codec, Codecs
from fedlada.protocol.manifest import Layout
from fedlada.protocol.wire import send
from fedlada.server.aggregate.exact_sum import ExactSum
from fedlada.server.aggregate.robust import CoordinateMedian, TrimmedMean


class Accelerator:
    """An accelerator with two devices, of which only the random numbers exist."""

    def __init__(self) -> None:
        self.generators = [torch.Generator().manual_seed(i) for i in range(2)]

    def device_count(self) -> int:
        return len(self.generators)

    def get_rng_state(self, i: int) -> torch.Tensor:
        return self.generators[i].get_state()

    def set_rng_state(self, state: torch.Tensor, i: int) -> None:
        self.generators[i].set_state(state)

    def manual_seed(self, seed: int) -> None:
        raise AssertionError("it seeds one device, and there are two")

    def manual_seed_all(self, seed: int) -> None:
        for generator in self.generators:
            generator.manual_seed(seed)

    def draw(self) -> list[int]:
        return [int(torch.randint(2**60, (), generator=g)) for g in self.generators]


@pytest.fixture
def accelerator(monkeypatch) -> Accelerator:
    found = Accelerator()
    known = SimpleNamespace(
        current_accelerator=lambda: torch.device("cuda"), is_available=lambda: True
    )
    monkeypatch.setattr(torch, "accelerator", known)
    monkeypatch.setattr(torch, "get_device_module", lambda device: found)
    return found


def test_every_device_is_seeded_and_has_its_own_state_afterwards(accelerator):
    untouched = Accelerator()
    with devices.seeded(7):
        first, on_cpu = accelerator.draw(), torch.rand(3)
    assert accelerator.draw() == untouched.draw(), "the block left the state as it was"
    with devices.seeded(7):
        assert accelerator.draw() == first
        assert torch.equal(torch.rand(3), on_cpu)
    with devices.seeded(8):
        assert accelerator.draw() != first


def test_without_an_accelerator_auto_is_the_cpu():
    assert devices.chosen() == devices.chosen("cpu") == torch.device("cpu")
    with pytest.raises(FedladaError, match=r"this machine has no accelerator.*'auto' or 'cpu'"):
        devices.chosen("cuda")


def test_a_device_has_a_name_and_may_have_a_number(accelerator, monkeypatch):
    assert devices.chosen() == devices.chosen("cuda") == torch.device("cuda")
    assert devices.chosen("cuda:1") == torch.device("cuda:1")
    with pytest.raises(FedladaError, match=r"'gpu'.*auto, cpu, cuda, mps.*cuda:1"):
        devices.chosen("gpu")
    with pytest.raises(FedladaError, match="numbered from 0 to 1"):
        devices.chosen("cuda:2")
    with pytest.raises(FedladaError, match="this machine has cuda"):
        devices.chosen("mps")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert devices.chosen() == devices.chosen("cuda") == torch.device("cuda:1")
    assert devices.chosen("cuda:0") == torch.device("cuda:0"), "a number is what the user wants"


@pytest.mark.parametrize("name", [*KINDS, "fedlada-rows", "sharedmuon", "fedlion", "fedadamw"])
def test_steps_without_fused_kernels_are_the_same_steps(name, monkeypatch):
    def ended() -> Vector:
        training = local_steps(4, noise=0.3)
        there = Federation(ALGORITHMS[name], Point(), quadratics(4), training)
        there.run(5)
        return there.vectors.x

    fused = ended()
    monkeypatch.setattr(devices, "WITH_FUSED", ())
    for one, other in zip(ended(), fused, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_many_numbers_are_read_as_one():
    scalars = [torch.tensor(1.5), torch.tensor(2.0**-60, dtype=torch.float64)]
    assert devices.numbers(scalars) == [1.5, 2.0**-60]
    assert devices.numbers([]) == []


class Looks(Codec):
    """A codec that only looks at where its numbers are."""

    name = "looks"
    exact = False

    def size(self, layout: Layout) -> int:
        return 0

    def encode(self, vector: Vector, *, seed: int) -> torch.Tensor:
        assert {t.device for t in vector} == {devices.CPU}
        return torch.empty(0, dtype=torch.uint8)

    def decode(self, payload: torch.Tensor, layout: Layout) -> Vector:
        raise AssertionError("nobody looks at it")


ON_NUMBERS = {"fedadamw", "diloco", "fedsam"}
"""Their steps read a number of a tensor, and a faked one has none."""


@pytest.mark.parametrize("kind", ["cuda", "mps"])
@pytest.mark.parametrize("name", sorted({*KINDS} - ON_NUMBERS))
def test_a_round_on_a_faked_gpu_mixes_no_devices(name, kind, monkeypatch):
    """A faked tensor has a device and no numbers, and mixing devices is an error, as on a GPU.

    It cannot carry: copies to a GPU, slices on one and its fused kernels, which need a torch with
    CUDA; codecs and the guard, which read numbers.  `tests/devices` has all of them on another
    device.
    """
    monkeypatch.setattr(devices, "WITH_FUSED", ())
    monkeypatch.setitem(CODECS, "looks", Looks())
    chosen, there = ALGORITHMS[name], torch.device(kind, 0)
    with FakeTensorMode():
        model = torch.nn.Module()
        model.w = torch.nn.Parameter(torch.empty(4, 3, device=kind))
        model.b = torch.nn.Parameter(torch.empty(4, device=kind))
        server = chosen.start(Vector(p.detach().clone() for p in model.parameters()))
        task = Task(round=0, seed=0, lr=chosen.lr(0), vectors=server.only(chosen.down))
        local = LocalRound(chosen, model, task, client=0)
        optimizer = local.optimizer()
        for _ in range(2):
            for p in model.parameters():
                p.grad = torch.zeros_like(p)
            optimizer.step()
        sent = local.finish(examples=1).vectors
        assert {v.device for v in (*sent.values(), *local.client_state.values())} == {there}
        for codecs in (Codecs(), Codecs(up={"delta": "looks"})):
            payload = send(sent, codecs, "up", seed=0).payload("delta")
            assert payload.device == devices.CPU
        r = Round(steps=2, lr_sum=0.2, accepted=3, clients=9, delta_square=1.0)
        chosen.serve(server, sent, r)
        assert {v.device for v in server.values()} == {there}


@pytest.mark.parametrize("rule", [TrimmedMean(trim=0.2), CoordinateMedian()])
def test_replies_of_a_faked_mps_are_folded_in_float64_on_the_cpu(rule):
    with FakeTensorMode():
        reply = Vector([torch.empty(4, 3, device="mps"), torch.empty(4, device="mps")])
        here = reply.on(devices.home(reply.device))
        total = ExactSum(here)
        total.add([(here, 1.0), (here, 3.0)])
        total.merge(ExactSum(here))
        assert {t.dtype for t in total.exact()} == {torch.float64}
        for mean in (total.over(4.0), rule.combine([here] * 6)):
            assert {(t.device, t.dtype) for t in mean} == {(devices.CPU, torch.float32)}


def test_the_server_keeps_its_vectors_where_float64_is():
    assert devices.home(torch.device("cuda", 1)) == torch.device("cuda", 1)
    assert devices.home(torch.device("mps")) == devices.CPU, "MPS has none"
