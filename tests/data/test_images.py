import pytest
import torch

from fedlada.data import Images


def test_length_is_the_number_of_images():
    images = Images(torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 0]), ("a", "b"))
    assert len(images) == 3


@pytest.mark.parametrize(
    ("inputs", "labels", "sentence"),
    [
        (torch.zeros(3, 1, 2, 2), torch.zeros(3).long(), "torch.uint8 of shape"),
        (torch.zeros(3, 2, 2).byte(), torch.zeros(3).long(), "torch.uint8 of shape"),
        (torch.zeros(3, 1, 2, 2).byte(), torch.zeros(3), "torch.int64 of shape"),
        (torch.zeros(3, 1, 2, 2).byte(), torch.zeros(2).long(), "3 inputs and 2 labels"),
        (torch.zeros(1, 1, 2, 2).byte(), torch.tensor([2]), "from 0 to 1"),
        (torch.zeros(1, 1, 2, 2).byte(), torch.tensor([-1]), "from 0 to 1"),
    ],
)
def test_malformed_images_are_refused_with_advice(inputs, labels, sentence):
    with pytest.raises(ValueError, match=sentence):
        Images(inputs, labels, ("a", "b"))
