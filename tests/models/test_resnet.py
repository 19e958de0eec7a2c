import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, cross_entropy

from fedlada.models import STEMS, ResNet18
from fedlada.models.resnet import Conv3x3

# torchvision.models.resnet18 has 11,689,512 parameters with its 1,000 classes.
TORCHVISION = 11_689_512 - (512 + 1) * 1000 + (512 + 1) * 10


@pytest.fixture(scope="module", params=STEMS)
def model(request):
    torch.manual_seed(0)
    return ResNet18(stem=request.param)


def test_parameter_count_is_torchvisions():
    assert TORCHVISION == 11_181_642
    assert sum(p.numel() for p in ResNet18().parameters()) == TORCHVISION


def test_cifar_stem_differs_only_in_the_first_convolution():
    shapes = [{k: v.shape for k, v in ResNet18(stem=s).state_dict().items()} for s in STEMS]
    assert {key for key in shapes[0] if shapes[0][key] != shapes[1][key]} == {"conv1.weight"}


def test_parameters_have_torchvisions_names(model):
    names = {name for name, _ in model.named_parameters()}
    assert {"conv1.weight", "bn1.bias", "fc.weight", "layer4.1.conv2.weight"} <= names
    assert {"layer2.0.downsample.0.weight", "layer2.0.downsample.1.bias"} <= names
    # Three shortcuts of three tensors, 17 convolutions, 17 norms of two, and the last layer.
    assert len(names) == 3 * 3 + 17 + 17 * 2 + 2


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(1, 1), (2, 1), (2, 2), (3, 2), (4, 4)])
def test_leaving_out_taps_that_meet_padding_changes_nothing(size, stride):
    torch.manual_seed(0)
    ours = Conv3x3(3, 5, stride=stride).double()
    x = torch.randn(4, 3, *size, dtype=torch.float64, requires_grad=True)
    plain = conv2d(x, ours.weight, stride=stride, padding=1)
    torch.testing.assert_close(ours(x), plain)
    pull = torch.randn_like(plain)
    wanted = torch.autograd.grad(plain, (x, ours.weight), pull)
    torch.testing.assert_close(torch.autograd.grad(ours(x), (x, ours.weight), pull), wanted)


def test_there_are_no_buffers(model):
    assert not list(model.buffers())


def test_an_image_does_not_depend_on_the_rest_of_its_batch(model):
    x = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model(x)[1:2], model(x[1:2]), rtol=1e-4, atol=1e-4)


def test_gradients_are_finite_and_reach_every_parameter(model):
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    cross_entropy(model(x), torch.tensor([0, 9])).backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
        assert parameter.grad.any()


@pytest.mark.parametrize("size", [32, 64])
def test_logits_for_any_size(model, size):
    with torch.no_grad():
        assert model(torch.zeros(1, 3, size, size)).shape == (1, 10)


def test_classes_set_the_number_of_logits():
    assert ResNet18(200).fc.out_features == 200


def test_convolutions_start_with_the_variance_that_keeps_gradients():
    torch.manual_seed(0)
    # From 256 channels to 512, so that fan-in and fan-out differ.
    weight = ResNet18().layer4[0].conv1.weight.detach()
    assert float(weight.std()) == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)


def test_groups_are_those_asked_for():
    norms = [m for m in ResNet18(groups=8).modules() if isinstance(m, nn.GroupNorm)]
    assert len(norms) == 20
    assert {norm.num_groups for norm in norms} == {8}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"stem": "mnist"}, "'mnist'; There are cifar, imagenet"),
        ({"groups": 0}, "groups is 0; it must divide 64"),
        ({"groups": 3}, "groups is 3; it must divide 64"),
    ],
)
def test_wrong_arguments_are_answered_with_the_right_ones(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        ResNet18(**arguments)
