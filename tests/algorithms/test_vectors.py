"""Vectors are compared by their bits, and all that a client has is a vector."""

from dataclasses import dataclass

import pytest
import torch

from fedlada import Algorithm, FedladaError, LocalTraining, simulate
from fedlada.algorithms import Vector
from fedlada.algorithms.local import SGD


def test_bits_are_compared_and_not_numbers():
    zero, minus, nan = (Vector([torch.tensor([x])]) for x in (0.0, -0.0, float("nan")))
    assert not zero.equal(minus)
    assert nan.equal(nan.clone())
    assert zero.equal(zero.clone())
    double = Vector([torch.tensor([0.0], dtype=torch.float64)])
    assert not zero.equal(double)


@dataclass(frozen=True, kw_only=True)
class Slower(SGD):
    """Each step is shorter than the one before; ``counts`` makes what counts them."""

    counts: object

    def begin(self, client):
        super().begin(client)
        client.t_each = self.counts(client)

    def step(self, client, g, lr):
        for t in client.t_each:
            t += 1
        super().step(client, g, lr / float(client.t_each.tensors[0]))


def test_a_number_on_a_client_is_refused_and_the_counter_of_the_message_counts():
    data = [(torch.ones(10, 2), torch.ones(10))]

    def last(rule, steps):
        run = simulate(
            lambda: torch.nn.Linear(2, 1),
            data,
            algorithm=Algorithm(rule),
            rounds=1,
            train=LocalTraining(steps=steps),
            quiet=True,
        )
        run.run()
        return run.state.vectors.x

    with pytest.raises(FedladaError, match=r"t_each is 0, and.*client\.y\.counter\(\) in begin"):
        last(Slower(lr=0.1, counts=lambda client: 0), 1)
    counting = Slower(lr=0.1, counts=lambda client: client.y.counter())
    assert last(counting, 1).equal(last(SGD(lr=0.1), 1)), "the first step is a whole one"
    assert last(counting, 2).distance(last(SGD(lr=0.1), 2)) > 0.01
