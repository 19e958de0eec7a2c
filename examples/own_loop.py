"""Your model and your training loop, federated on CIFAR-10: python examples/own_loop.py [ROUNDS]"""

import sys

from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import fedlada
from fedlada.data import STATISTICS, Augment, Clients, load, partition

prepare = Augment(*STATISTICS["cifar10"]).plain
model = nn.Sequential(
    *(nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()),
    *(nn.Flatten(), nn.Linear(32 * 7 * 7, 10)),
)


def train(model, data, optimizer):  # nothing here knows of federated learning
    model.train()
    for inputs, labels in DataLoader(TensorDataset(data.inputs, data.labels), 50, shuffle=True):
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10)
        optimizer.step()


images = load("cifar10", split="train")
clients = Clients(images, partition(images.labels, "client-prior", clients=100), prepare)
run = fedlada.simulate(
    model,
    clients,
    algorithm=fedlada.algorithm("fedlada", lr=0.01, weight_decay=0.001),
    rounds=int(sys.argv[1]) if len(sys.argv) > 1 else 20,
    train=train,
    evaluate=fedlada.Evaluation(data=load("cifar10", split="test"), prepare=prepare),
)
for record in run:
    print(f"round {record.round:3}  test accuracy {record.metrics['test_accuracy']:.1%}")
