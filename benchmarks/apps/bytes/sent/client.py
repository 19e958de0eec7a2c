"""The ClientApp: a few steps of ResNet-18-GN on images of its own."""

import torch
from flwr.app import Context

from fedlada import LocalTraining
from fedlada.data import ClientData
from fedlada.flower import client_app
from fedlada.models import ResNet18


def data(context: Context) -> ClientData:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    images = torch.randn(40, 3, 32, 32, generator=generator)
    return ClientData(images, images[:, 0, 0, :10].argmax(1))


app = client_app(lambda: ResNet18(10), data, LocalTraining(steps=2, batch_size=20))
