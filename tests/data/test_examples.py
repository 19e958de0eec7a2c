"""Examples of any kind: what they say of themselves, and what is refused."""

import pytest
import torch

from fedlada.data import Augment, Examples, Images, Statistics


def test_labels_tell_how_many_outputs_a_model_needs():
    inputs = torch.zeros(4, 3, 5)
    classes = torch.tensor([0, 2, 1, 0])
    assert Examples(inputs, classes).outputs == 3
    assert Examples(inputs, classes, ("a", "b", "c", "d")).outputs == 4
    assert Examples(inputs, torch.rand(4)).outputs == 1
    assert Examples(inputs, torch.rand(4, 7)).outputs == 7
    assert Examples(inputs, classes).shape == (3, 5)


def test_rows_keep_all_else():
    images = Images(
        torch.arange(3 * 4, dtype=torch.uint8).view(3, 1, 2, 2),
        torch.tensor([0, 1, 2]),
        ("a", "b", "c"),
        owners=["x", "y", "x"],
        statistics=Statistics((0.5,), (0.5,)),
    )
    some = images.rows(torch.tensor([2, 0]))
    assert isinstance(some, Images)
    assert torch.equal(some.inputs, images.inputs[[2, 0]])
    assert some.labels.tolist() == [2, 0]
    assert some.owners == ("x", "x")
    assert (some.classes, some.statistics) == (images.classes, images.statistics)


def test_the_class_of_a_row_that_is_left_out_is_no_less_a_class():
    assert Examples(torch.zeros(2, 1), torch.tensor([0, 4])).rows(torch.tensor([0])).outputs == 5


def test_statistics_of_images_make_them_standard():
    pixels = torch.randint(256, (50, 3, 4, 4), generator=torch.Generator().manual_seed(0))
    inputs = pixels.to(torch.uint8)
    plain = Augment(*Statistics.of(inputs)).plain(inputs).transpose(0, 1).flatten(1)
    torch.testing.assert_close(plain.mean(1), torch.zeros(3), rtol=0, atol=1e-5)
    torch.testing.assert_close(plain.std(1, correction=0), torch.ones(3), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"labels": torch.zeros(2)}, "3 inputs and 2 labels"),
        ({"labels": torch.zeros(3, dtype=torch.bool)}, r"labels\.long\(\)"),
        ({"labels": torch.zeros(3, dtype=torch.int32)}, r"labels\.long\(\)"),
        ({"classes": ("a",)}, "name no classes"),
        ({"owners": [1, 2]}, "3 examples and 2 owners"),
        ({"owners": [1, "a", 2]}, "int and str"),
        ({"owners": torch.rand(3)}, "owners are of type float"),
    ],
)
def test_malformed_examples_are_refused_with_advice(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        Examples(**{"inputs": torch.zeros(3, 2), "labels": torch.rand(3)} | changes)


def test_images_are_not_prepared_twice():
    with pytest.raises(ValueError, match="use Examples"):
        Images(
            torch.zeros(1, 1, 2, 2).byte(), torch.tensor([0]), ("a",), prepare=torch.Tensor.float
        )
