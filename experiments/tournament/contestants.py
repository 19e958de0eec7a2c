"""Contestants of the leaderboard that the library does not have."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedlada import Algorithm
from fedlada.algorithms import Vector, Vectors
from fedlada.algorithms.local import FreshMuon, SharedMuon


@dataclass(frozen=True, kw_only=True)
class SharedSGD(SharedMuon):
    """SGD along a momentum that is shared through the server: Muon without orthogonalising."""

    name = "shared-sgd"

    def move(self, client: Vectors, g: Vector, lr: float) -> None:
        torch._foreach_lerp_(client.m.tensors, g.tensors, 1 - self.beta)
        client.y.add_(client.m.add(client.y, alpha=self.weight_decay), alpha=-lr)


@dataclass(frozen=True, kw_only=True)
class FreshSGD(FreshMuon):
    """SGD along a momentum that is new in every round: the same without sharing."""

    name = "fresh-sgd"
    move = SharedSGD.move


SHARED_SGD = Algorithm(SharedSGD(lr=0.1, beta=0.9))
FRESH_SGD = Algorithm(FreshSGD(lr=0.1, beta=0.9))
