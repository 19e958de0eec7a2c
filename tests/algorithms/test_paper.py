"""FedLADA against a literal transcription of the paper's Algorithm 3, on LeNet and real data."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from federations import flat
from fedlada import LocalTraining, algorithm, simulate
from fedlada.algorithms import Vector
from fedlada.data import ClientData
from fedlada.models import LeNet
from fedlada.protocol.seeds import seed_of
from fedlada.server import FixedSize

ALPHA, BETA1, BETA2, EPS, LR, DECAY, LAMBDA, ETA_G = 0.3, 0.9, 0.99, 1e-8, 0.01, 0.9, 0.05, 0.8
ROUNDS, K, S, SEED = 5, 4, 3, 11


@pytest.fixture(scope="module")
def clients() -> list[ClientData]:
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images / 16).view(-1, 1, 8, 8).repeat_interleave(4, 2)
    images, labels = images.repeat_interleave(4, 3), torch.tensor(labels)
    order = labels[:600].argsort(stable=True)  # sorted by label: clients as unlike as can be
    return [ClientData(images[rows], labels[rows]) for rows in order.split(60)]


def algorithm_3(model, clients, local, *, decoupled):
    """Sun et al., Algorithm 3, line by line; λ where the notes of the algorithm put it."""
    params = list(model.parameters())
    x = [p.detach().clone() for p in params]
    v, g_a = [torch.full_like(t, EPS**2) for t in x], [torch.zeros_like(t) for t in x]
    for t in range(ROUNDS):
        lr = LR * DECAY**t
        deltas, v_hats = [], []
        for i in FixedSize(S).cohort(SEED, t, len(clients)):
            y, m = [a.clone() for a in x], [torch.zeros_like(a) for a in x]
            v_i, v_hat = [a.clone() for a in v], [a.clone() for a in v]
            torch.manual_seed(seed_of(SEED, "client", t, i))
            for rows in local.batches(len(clients[i])):
                for p, a in zip(params, y, strict=True):
                    p.data = a
                loss = cross_entropy(model(clients[i].inputs[rows]), clients[i].labels[rows])
                grads = torch.autograd.grad(loss, params)
                for j, g in enumerate(grads):
                    g = g if decoupled else g + LAMBDA * y[j]
                    m[j] = BETA1 * m[j] + (1 - BETA1) * g
                    v_i[j] = BETA2 * v_i[j] + (1 - BETA2) * g * g
                    v_hat[j] = torch.maximum(v_i[j], v_hat[j])
                    direction = m[j] / v_hat[j].sqrt() + (LAMBDA * y[j] if decoupled else 0)
                    y[j] = y[j] - lr * (ALPHA * direction + (1 - ALPHA) * g_a[j])
            deltas.append([a - b for a, b in zip(x, y, strict=True)])
            v_hats.append(v_hat)
        v = [sum(per_client) / S for per_client in zip(*v_hats, strict=True)]
        delta = [sum(per_client) / S for per_client in zip(*deltas, strict=True)]
        new = [a - ETA_G * d for a, d in zip(x, delta, strict=True)]
        g_a = [(a - b) / (ETA_G * lr * K) for a, b in zip(x, new, strict=True)]
        x = new
    return x, v, g_a


@pytest.mark.parametrize("decoupled", [False, True])
def test_fedlada_is_the_papers_algorithm_3(clients, decoupled):
    torch.manual_seed(0)
    model = LeNet(10, channels=1).double()
    local = LocalTraining(steps=K, batch_size=20)
    run = simulate(
        model,
        clients,
        algorithm=algorithm(
            "fedlada",
            lr=LR,
            alpha=ALPHA,
            weight_decay=LAMBDA,
            decoupled_weight_decay=decoupled,
            server_lr=ETA_G,
        ),
        rounds=ROUNDS,
        train=local,
        cohort=FixedSize(S),
        seed=SEED,
        lr_decay=DECAY,
    )
    run.run()
    for name, expected in zip(
        ("x", "v", "g_a"), algorithm_3(model, clients, local, decoupled=decoupled), strict=True
    ):
        found = flat(run.state.vectors[name])
        assert_close(found, flat(Vector(expected)), rtol=1e-9, atol=1e-12)
