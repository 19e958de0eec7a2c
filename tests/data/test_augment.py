import pytest
import torch
from hypothesis import given, settings, strategies as st

from fedlada.data import STATISTICS, Augment, normalise, random_crop, random_flip


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def images(count, seed=0):
    return torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator(seed))


def test_normalise_is_its_formula():
    inputs = images(5)
    mean, std = STATISTICS["cifar10"]
    column = (1, 3, 1, 1)
    expected = inputs.double() / 255
    expected = (expected - torch.tensor(mean).view(column)) / torch.tensor(std).view(column)
    result = normalise(inputs, mean, std)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=1e-6)


def test_normalise_leaves_its_input_alone():
    inputs = images(2).float()
    before = inputs.clone()
    normalise(inputs, *STATISTICS["cifar10"])
    assert torch.equal(inputs, before)


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(0, 6),
    height=st.integers(9, 12),
    width=st.integers(9, 12),
    padding=st.integers(0, 4),
    seed=st.integers(0, 1000),
)
def test_each_crop_is_a_cut_from_its_padded_image(count, height, width, padding, seed):
    # Every pixel carries its own number, so that a crop's centre tells where it was cut.
    batch = torch.arange(1, count * 2 * height * width + 1).view(count, 2, height, width)
    result = random_crop(batch, padding=padding, generator=generator(seed))
    assert result.shape == batch.shape
    for image, crop in zip(batch, result, strict=True):
        y, x = (image[0] == crop[0, height // 2, width // 2]).nonzero()[0].tolist()
        top, left = y - height // 2 + padding, x - width // 2 + padding
        padded = torch.zeros(2, height + 2 * padding, width + 2 * padding, dtype=batch.dtype)
        padded[:, padding : padding + height, padding : padding + width] = image
        assert torch.equal(crop, padded[:, top : top + height, left : left + width])


def test_every_corner_is_equally_likely():
    batch = torch.arange(9).view(1, 1, 3, 3).expand(9000, 1, 3, 3)
    centres = random_crop(batch, padding=1, generator=generator())[:, 0, 1, 1]
    assert centres.bincount() / 9000 == pytest.approx([1 / 9] * 9, abs=0.02)


def test_a_share_of_the_images_is_shifted_and_shifted_as_all_would_be():
    batch = images(4000)
    all_shifted = random_crop(batch, padding=4, generator=generator())
    half = random_crop(batch, padding=4, generator=generator(), share=0.5)
    same, shifted = ((half == other).flatten(1).all(dim=1) for other in (batch, all_shifted))
    assert (same | shifted).all()
    # One shift of 81 moves nothing, so that a little over half stay; 4 sigma are 0.03.
    assert float(same.float().mean()) == pytest.approx(0.5 + 0.5 / 81, abs=0.03)


def test_flip_mirrors_half_of_the_images_and_nothing_else():
    batch = images(400)
    result = random_flip(batch, generator())
    same = (result == batch).flatten(1).all(dim=1)
    mirrored = (result == batch.flip(-1)).flatten(1).all(dim=1)
    assert torch.equal(same, ~mirrored)
    assert int(mirrored.sum()) == pytest.approx(200, abs=40)


def test_augment_pads_with_the_mean_colour():
    augment = Augment(*STATISTICS["cifar10"])
    white = torch.full((50, 3, 32, 32), 255, dtype=torch.uint8)
    values = augment(white, generator())[:, 0].unique()
    assert torch.equal(values, torch.cat([torch.zeros(1), augment.plain(white)[0, 0, 0, :1]]))


@pytest.mark.parametrize("flip", [False, True])
def test_augment_is_a_function_of_its_generator(flip):
    augment = Augment(*STATISTICS["cifar100"], flip=flip)
    inputs = images(20)
    before = torch.get_rng_state()
    first, again, other = (augment(inputs, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


def test_augment_without_crop_and_flip_is_plain():
    augment = Augment(*STATISTICS["cifar10"], crop=0)
    inputs = images(3)
    assert torch.equal(augment(inputs, generator()), augment.plain(inputs))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"mean": (0.5,), "std": (0.5, 0.5)}, "one number per channel"),
        ({"mean": (0.5,), "std": (0.0,)}, "positive"),
        ({"mean": (0.5,), "std": (0.5,), "crop": -1}, "crop is -1"),
        ({"mean": (0.5,), "std": (0.5,), "crop_share": 0.0}, "crop_share is 0.0; give the share"),
    ],
)
def test_impossible_augmentation_is_refused_with_advice(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        Augment(**arguments)


def test_statistics_of_other_channels_are_refused():
    with pytest.raises(ValueError, match="have 3 channels, mean and std have 1"):
        Augment(*STATISTICS["digits"]).plain(images(1))
