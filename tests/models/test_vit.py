"""The vision transformer: a patch is a position, and it is small and deterministic."""

import pytest
import torch
from torch.nn.functional import cross_entropy

import fedlada
from federations import KINDS
from fedlada.errors import FedladaError
from fedlada.models import MODELS, ViT


def pictures(count=8, size=8):
    drawn = torch.Generator().manual_seed(0)
    return torch.randn(count, 3, size, size, generator=drawn), torch.arange(count) % 4


def vit(**settings):
    torch.manual_seed(0)
    return ViT(4, **{"size": 8, "patch": 4, "width": 12, "layers": 2, "heads": 3} | settings)


def test_parameter_count_is_that_of_its_layers():
    width, layers, patch, classes = 48, 2, 4, 10
    block = 12 * width**2 + 9 * width + 4 * width  # weights, biases, two norms
    ends = (3 * patch**2 + 1) * width + (32 // patch) ** 2 * width + (width + 1) * classes
    count = ends + layers * block + 2 * width
    assert sum(p.numel() for p in ViT().parameters()) == count < 300_000


@pytest.mark.parametrize(("size", "patch"), [(8, 4), (32, 8), (12, 3)])
def test_logits_and_gradients_for_any_image(size, patch):
    inputs, labels = pictures(size=size)
    model = vit(size=size, patch=patch)
    logits = model(inputs)
    assert logits.shape == (8, 4)
    cross_entropy(logits, labels).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert not list(model.buffers())


def test_without_positions_the_order_of_patches_does_not_matter():
    inputs, _ = pictures()
    model = vit()
    moved = inputs.roll(4, dims=-1)  # by a whole patch
    assert not torch.allclose(model(inputs), model(moved), atol=1e-6)
    torch.nn.init.zeros_(model.position)
    torch.testing.assert_close(model(inputs), model(moved))


def test_training_and_evaluation_compute_the_same():
    inputs, _ = pictures()
    model = vit()
    assert torch.equal(model.train()(inputs), model.eval()(inputs))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"patch": 3}, "model.patch is 3, and images have 8 x 8 pixels; it must divide 8"),
        ({"heads": 5}, "model.width is 12 and model.heads is 5"),
    ],
)
def test_wrong_arguments_are_answered_with_the_right_ones(settings, sentence):
    with pytest.raises(FedladaError, match=sentence):
        vit(**settings)


def test_it_is_made_for_the_images_of_a_training_set():
    inputs, labels = pictures()
    model = MODELS["vit"](fedlada.data.Examples(inputs, labels), width=12)
    assert model(inputs).shape == (8, 4)


@pytest.mark.parametrize("name", KINDS)
def test_it_runs_with_every_algorithm_and_twice_the_same(name):
    inputs, labels = pictures(12)
    clients = [(inputs[i::3], labels[i::3]) for i in range(3)]
    lr = 0.1 if name in ("fedavg", "fedcm", "scaffold") else 0.01
    runs = [
        fedlada.simulate(
            vit(layers=1),
            clients,
            train=fedlada.LocalTraining(steps=2, batch_size=4),
            evaluate=fedlada.Evaluation(data=(inputs, labels)),
            algorithm=fedlada.algorithm(name, lr=lr),
            rounds=2,
            cohort=fedlada.server.FixedSize(2),
        ).run()
        for _ in range(2)
    ]
    losses = [[record.metrics["test_loss"] for record in records] for records in runs]
    assert losses[0] == losses[1]
    assert losses[0][0] != losses[0][1]
