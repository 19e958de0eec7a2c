import pytest
import torch

from fedlada.data import Augment, ClientData, Clients, Examples, Images, Partition

IMAGES = Images(
    torch.arange(6 * 4, dtype=torch.uint8).view(6, 1, 2, 2),
    torch.tensor([0, 1, 0, 1, 0, 1]),
    ("even", "odd"),
)
PARTITION = Partition("iid", (torch.tensor([4, 0, 1]), torch.tensor([5])), IMAGES.labels)


def test_a_client_has_the_rows_of_its_partition():
    clients = Clients(IMAGES, PARTITION)
    assert len(clients) == 2
    assert [len(clients[i]) for i in range(2)] == [3, 1]
    assert torch.equal(clients[0].inputs, IMAGES.inputs[[4, 0, 1]])
    assert clients[0].labels.tolist() == [0, 0, 1]


def test_nothing_is_made_for_a_client_before_it_is_asked_for():
    asked = []

    def transform(inputs):
        asked.append(len(inputs))
        return inputs.float()

    clients = Clients(IMAGES, PARTITION, transform=transform)
    assert asked == []
    assert clients[1].inputs.dtype == torch.float32
    assert asked == [1]


def test_plain_augmentation_is_a_transform():
    augment = Augment(mean=(0.5,), std=(0.5,))
    client = Clients(IMAGES, PARTITION, transform=augment.plain)[0]
    assert torch.equal(client.inputs, augment.plain(IMAGES.inputs[[4, 0, 1]]))


@pytest.mark.parametrize("client", [-1, 2])
def test_an_unknown_client_is_named(client):
    with pytest.raises(IndexError, match=f"no client {client}; clients are numbered from 0 to 1"):
        Clients(IMAGES, PARTITION)[client]


def test_a_partition_of_other_images_is_refused():
    other = Partition("iid", (torch.tensor([0]),), torch.tensor([0]))
    with pytest.raises(ValueError, match="partition is of 1 samples and there are 6 examples"):
        Clients(IMAGES, other)


def test_inputs_without_labels_are_refused():
    with pytest.raises(ValueError, match="2 inputs and 1 labels"):
        ClientData(torch.zeros(2, 3), torch.zeros(1))


def test_what_is_printed_of_them_says_how_many_there_are_and_of_what():
    said = repr(Clients(IMAGES, PARTITION))
    assert (
        "2 clients with 1 to 3 of Images(6 examples of shape [1, 2, 2]; classes even, odd" in said
    )
    table = Examples(torch.ones(4, 7), torch.ones(4), owners=list("abca"), columns=tuple("tuvwxyz"))
    for part in ("columns t, u, v, w, x, ...", "numbers to predict", "3 owners"):
        assert part in repr(table)
