"""The server's model beside its state: where a run starts, or goes on from."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from .algorithms import Algorithm, Vector, Vectors, require
from .checkpoint import Checkpoints
from .federation import ServerState
from .fingerprint import Plain, describe
from .parameters import BufferPolicy, federated_buffers, federated_names, federated_parameters
from .rounds import RoundRecord

__all__ = ["Evaluate", "Server"]

Evaluate = Callable[[nn.Module], Mapping[str, float]]


class Server:
    """A model, the server's state of it, and the checkpoints of both."""

    def __init__(
        self,
        model: nn.Module,
        algorithm: Algorithm,
        *,
        rounds: int,
        buffers: BufferPolicy = "refuse",
        state: ServerState | None = None,
        checkpoints: Checkpoints | None = None,
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Start anew, from ``state``, or from the newest of the ``checkpoints``.

        These must be of a run with the same ``config``; how many ``rounds`` there are in all may
        change.
        """
        self._model, self._rounds = model, rounds
        parameters = federated_parameters(model)
        self._parameters = Vector(p.detach() for p in parameters.values())
        self._buffers = federated_buffers(model, buffers)
        self._initial_buffers = self._buffers.clone()
        self._names = federated_names(model, buffers)
        self._config: dict[str, Plain] = {
            "algorithm": describe(algorithm),
            "buffers": buffers,
            "parameters": {n: f"{p.dtype} {list(p.shape)}" for n, p in parameters.items()},
            **{key: describe(value) for key, value in (config or {}).items()},
        }
        self._checkpoints = checkpoints
        self.resumed: RoundRecord | None = None
        """The record of the last round that was done before, if the run goes on from one."""
        require(
            state is None or checkpoints is None,
            "there is a state and there are checkpoints; give one: a checkpoint holds a state",
        )
        self.state = state or self._resume() or self._new(algorithm, buffers)

    def model(self) -> nn.Module:
        """The model with the server's parameters of now."""
        with torch.no_grad():
            self._parameters.copy_(self.state.vectors.x)
            self._buffers.copy_(self.state.vectors.get("buffers", self._initial_buffers))
        return self._model

    def evaluation(
        self, evaluate: Evaluate | None, every: int = 1
    ) -> Callable[[Vectors, int], Mapping[str, float]]:
        """For the server loop: evaluate the model after each ``every`` rounds and the last."""

        def metrics(_: Vectors, round: int) -> Mapping[str, float]:
            due = round % every == 0 or round == self._rounds
            return evaluate(self.model()) if evaluate is not None and due else {}

        return metrics

    def save(self, state: ServerState, record: RoundRecord) -> None:
        """For the server loop: write a checkpoint if one is due."""
        saving = self._checkpoints
        if saving is not None and (state.round % saving.every == 0 or state.round == self._rounds):
            saving.save(state, record, config=self._config, names=self._names)

    def _new(self, algorithm: Algorithm, buffers: BufferPolicy) -> ServerState:
        averaged = self._buffers.clone() if buffers == "average" else None
        state = ServerState.new(algorithm, self._parameters.clone(), averaged)
        state.epoch = None if self._checkpoints is None else 0
        return state

    def _resume(self) -> ServerState | None:
        if self._checkpoints is None:
            return None
        self._checkpoints.open()
        found = self._checkpoints.latest()
        if found is None:
            return None
        found.check(self._config)
        torch.set_rng_state(found.random)
        self.resumed = found.record
        state = found.state
        for name, vector in state.vectors.items():
            like = self._buffers if name == "buffers" else self._parameters
            state.vectors[name] = vector.to(like)
        return state
