"""A client that trains with Accelerate."""

from accelerate import Accelerator
from torch.nn.functional import cross_entropy

from trainers.batches import loader


def train_with_accelerate(model, data, optimizer):
    accelerator = Accelerator(cpu=True)
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader(data))
    for inputs, labels in batches:
        optimizer.zero_grad()
        accelerator.backward(cross_entropy(model(inputs), labels))
        optimizer.step()
