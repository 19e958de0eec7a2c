"""What travels arrives bit for bit, and what does not fit is explained."""

import pytest
import torch
from flwr.app import Array
from torch import nn

from fedlada.algorithms import Vector, Vectors
from fedlada.flower.records import Manifest, pack, unpack


class Mixed(nn.Module):
    def __init__(self, *dtypes: torch.dtype) -> None:
        super().__init__()
        self.w = nn.ParameterList(
            nn.Parameter(torch.randn(3, i + 1).to(dtype)) for i, dtype in enumerate(dtypes)
        )
        self.scalar = nn.Parameter(torch.tensor(1.5))


@pytest.mark.parametrize(
    "dtypes",
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float64, torch.float16, torch.float32),
        (),
    ],
)
def test_vectors_of_any_type_arrive_bit_for_bit(dtypes):
    model = Mixed(*dtypes)
    sent = Vectors(x=Vector(p.detach() for p in model.parameters()))
    arrived = unpack(pack(sent), Manifest.of(model, "refuse"))
    assert arrived.x.equal(sent.x)


def test_a_channels_last_model_travels_in_logical_order():
    model = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
    sent = Vectors(x=Vector(p.detach() for p in model.parameters()))
    assert unpack(pack(sent), Manifest.of(model, "refuse")).x.equal(sent.x)


def test_a_vector_is_one_array():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    record = pack(Vectors(x=Vector(model.parameters()), v=Vector(model.parameters())))
    assert list(record) == ["x", "v"]
    assert record["x"].numpy().size == 4 * sum(p.numel() for p in model.parameters())


def test_unlike_models_are_told_apart_by_name_and_shape():
    server, client = Manifest.of(nn.Linear(2, 3), "refuse"), Manifest.of(nn.Linear(2, 4), "refuse")
    with pytest.raises(ValueError, match=r"weight \(float32 \[3, 2\]\) where this client's has"):
        client.check(server.text())
    with pytest.raises(ValueError, match="has 2 parameters, this client's has 1"):
        Manifest.of(nn.Linear(2, 3, bias=False), "refuse").check(server.text())


@pytest.mark.parametrize(
    "wrong",
    [torch.zeros(35, dtype=torch.uint8), torch.zeros(9), torch.zeros(6, 6, dtype=torch.uint8)],
)
def test_what_is_not_the_packed_bytes_is_refused(wrong):
    with pytest.raises(ValueError, match="it must be 36 packed bytes"):
        Manifest.of(nn.Linear(2, 3), "refuse").unpack("x", Array(wrong.numpy()))
