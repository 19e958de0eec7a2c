import pytest
import torch

from fedlada.data import Examples
from fedlada.models import MODELS, mlp


@pytest.mark.parametrize("shape", [(5,), (1, 8, 8), (2, 3, 4, 5)])
@pytest.mark.parametrize("labels", [torch.tensor([0, 2]), torch.rand(2), torch.rand(2, 4)])
def test_inputs_and_labels_of_any_shape_fit(shape, labels):
    data = Examples(torch.rand(2, *shape), labels)
    outputs = mlp.make(data, hidden=3)(data.inputs)
    assert outputs.shape == (2, data.outputs)


def test_hidden_units_are_those_asked_for():
    data = Examples(torch.rand(2, 5), torch.tensor([0, 2]))
    assert sum(p.numel() for p in mlp.make(data, hidden=7).parameters()) == 6 * 7 + 8 * 3
    with pytest.raises(ValueError, match="hidden is 0; it must be positive"):
        mlp.make(data, hidden=0)


@pytest.mark.parametrize("name", ["lenet", "resnet18"])
def test_networks_for_images_refuse_all_else(name):
    with pytest.raises(ValueError, match=f"{name} takes square images, but one input has shape"):
        MODELS[name](Examples(torch.rand(2, 5), torch.tensor([0, 2])))


def test_resnet_takes_three_channels():
    with pytest.raises(ValueError, match="3 channels, not 1"):
        MODELS["resnet18"](Examples(torch.rand(2, 1, 32, 32), torch.tensor([0, 2])))
