"""Vectors are compared by their bits."""

import torch

from fedlada.algorithms import Vector


def test_bits_are_compared_and_not_numbers():
    zero, minus, nan = (Vector([torch.tensor([x])]) for x in (0.0, -0.0, float("nan")))
    assert not zero.equal(minus)
    assert nan.equal(nan.clone())
    assert zero.equal(zero.clone())
    double = Vector([torch.tensor([0.0], dtype=torch.float64)])
    assert not zero.equal(double)
