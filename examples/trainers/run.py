"""A federation in this process whose clients train with one of the trainers."""

import argparse

import torch

import fedlada
from trainers import TRAINERS, task, trainer

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("trainer", choices=TRAINERS)
parser.add_argument("--algorithm", default="scaffold", help="a name of `fedlada algorithms`")
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--rounds", type=int, default=20)
parser.add_argument("--clients", type=int, default=4)
given = parser.parse_args()

torch.manual_seed(0)
run = fedlada.simulate(
    task.model(),
    [task.client_data(client, given.clients) for client in range(given.clients)],
    algorithm=fedlada.algorithm(given.algorithm, lr=given.lr),
    rounds=given.rounds,
    train=trainer(given.trainer),
    evaluate=task.evaluate,
)
for record in run:
    print(f"round {record.round:2}  test accuracy {record.metrics['test_accuracy']:.1%}")
