"""A table of your own, split by owner, federated and plotted: python examples/own_table.py [PNG]"""

import sys

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer

import fedlada
from fedlada.data import by_owner

# Any table of numbers will do; this one comes with scikit-learn: tumours, benign or malignant.
x, y = load_breast_cancer(return_X_y=True)
rows = np.random.default_rng(0).permutation(len(x))
held_out, rows = rows[:100], rows[100:]
x = (x - x[rows].mean(0)) / x[rows].std(0)
clinic = np.digitize(x[:, 0], [-0.8, -0.4, 0.0, 0.6])  # five clinics by size of tumour

runs = {}
for name, lr in (("fedavg", 0.1), ("fedcm", 1.0)):  # first guesses: tune both to compare
    torch.manual_seed(0)
    runs[name] = fedlada.simulate(
        torch.nn.Sequential(torch.nn.Linear(30, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)),
        by_owner(x[rows], y[rows], owners=clinic[rows]),
        algorithm=fedlada.algorithm(name, lr=lr),
        rounds=20,
        train=fedlada.LocalTraining(steps=5, batch_size=20),
        evaluate=fedlada.Evaluation(data=(x[held_out], y[held_out])),
    )
    *_, last = runs[name]
    print(f"{name}: test accuracy {last.metrics['test_accuracy']:.1%} after {last.round} rounds")

picture = sys.argv[1] if len(sys.argv) > 1 else "own_table.png"
fedlada.plot(runs).savefig(picture)
print(f"written to {picture}")
