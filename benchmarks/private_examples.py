"""Accuracy lost by protecting each example (PrivateTraining), at epsilon 7.7.

Ten clients with 5,000 pictures of CIFAR-10 each, pooled to 8 x 8, a perceptron of 6,506 parameters,
20 rounds of 10 steps of 250 pictures.  Both runs clip; they differ in the noise alone.

Run: python benchmarks/private_examples.py --check    (needs CIFAR-10 in FEDLADA_DATA)
"""

import torch
from torch import Tensor, nn

import measure
from fedlada import Evaluation, algorithm, simulate
from fedlada.data import Clients, load, partition
from fedlada.privacy import PrivateTraining

GOAL = 3.0
RATES = {"fedavg": 0.5, "fedcm": 0.5, "fedlada": 0.02, "scaffold": 0.5}
ROUNDS, STEPS, BATCH, NOISE, DELTA = 20, 10, 250, 0.8, 1e-5


def pooled(images: Tensor) -> Tensor:
    return (nn.functional.avg_pool2d(images.float() / 255, 4).flatten(1) - 0.47) / 0.25


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 10))


def main() -> None:
    options = measure.arguments(__doc__.splitlines()[0])
    torch.set_num_threads(1)
    print(measure.machine())
    train, test = load("cifar10", split="train"), load("cifar10", split="test")
    parts = partition(train.labels, "client-prior", clients=10, concentration=0.6)
    clients = Clients(train, parts)
    private = {
        noise: PrivateTraining(noise=noise, steps=STEPS, batch_size=BATCH, prepare=pooled)
        for noise in (0.0, NOISE)
    }
    fewest = min(len(client) for client in clients)
    epsilon = private[NOISE].epsilon(fewest, rounds=ROUNDS, delta=DELTA)
    print(f"{fewest} examples or more: epsilon {epsilon:.2f}, delta {DELTA:g}")
    lost = {}
    for name, lr in RATES.items():
        scores = {}
        for noise, training in private.items():
            run = simulate(
                network,
                clients,
                algorithm=algorithm(name, lr=lr, weight_decay=0.0),
                rounds=ROUNDS,
                cohort="all",
                lr_decay=1.0,
                train=training,
                evaluate=Evaluation(data=test, prepare=pooled),
                evaluate_every=ROUNDS,
                quiet=True,
            )
            run.run()
            scores[noise] = 100 * run.records[-1].metrics["test_accuracy"]
        lost[name] = scores[0.0] - scores[NOISE]
        print(
            f"{name:10} without noise {scores[0.0]:.1f} %, with {scores[NOISE]:.1f} %", flush=True
        )
    measure.finish(options, lost, goal=GOAL, what=f"points lost at epsilon {epsilon:.1f}")


if __name__ == "__main__":
    main()
