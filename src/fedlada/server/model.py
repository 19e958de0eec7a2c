"""The server's model and state, and how a run starts or continues."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from ..algorithms import Vector
from ..errors import require
from ..protocol.federated import (
    BUFFERS,
    federated_buffers,
    federated_names,
    federated_parameters,
    kind_of,
    variances,
)
from ..protocol.metrics import as_numbers
from .checkpoint import Checkpoints
from .fingerprint import Plain, describe
from .plan import Plan
from .record import RoundRecord
from .state import ServerState
from .watch import Watcher, watchers

__all__ = ["Evaluate", "Server"]

Evaluate = Callable[[nn.Module], Mapping[str, float]]


class Server:
    """Holds the working model, the server's state, the checkpoints and the run's watchers."""

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        *,
        state: ServerState | None = None,
        checkpoints: Checkpoints | None = None,
        config: Mapping[str, object] | None = None,
        watch: Callable[[], Sequence[Watcher]] = watchers,
    ) -> None:
        """Start a new run, or continue from ``state`` or from the newest of the ``checkpoints``.

        Checkpoints must be of a run with the same plan and the same ``config``, which has all
        other values that affect the result; only the plan's ``FREE`` fields may change.
        ``watch`` makes the watchers, which are told of every round; by default those that the
        environment asks for.
        """
        self._plan, self._model = plan, model
        parameters = federated_parameters(model)
        self._parameters = Vector(p.detach() for p in parameters.values())
        self._buffers = federated_buffers(model, plan.buffers)
        self._initial_buffers = self._buffers.clone()
        self._names = federated_names(model, plan.buffers)
        self._checkpoints = checkpoints
        self._config: dict[str, Plain] = {}
        if checkpoints is not None:  # else nobody asks which run this is
            self._config = {
                **plan.identity(),
                "parameters": {n: f"{p.dtype} {list(p.shape)}" for n, p in parameters.items()},
                **{key: describe(value) for key, value in (config or {}).items()},
            }
        self.resumed: RoundRecord | None = None
        """The record of the last saved round if the run continues from a checkpoint, else None."""
        require(
            state is None or checkpoints is None,
            "there is a state and there are checkpoints; give one: a checkpoint holds a state",
        )
        self.state = state or self._resume() or self._new()
        self.state.variances = variances(self._names["buffers"])
        self._watchers = watch()
        for watcher in self._watchers:
            watcher.begin(self.state.run, round=self.state.round, rounds=plan.rounds)

    def model(self) -> nn.Module:
        """Return a copy of the model with the server's current parameters."""
        return copy.deepcopy(self._current())

    def evaluation(self, evaluate: Evaluate | None) -> Callable[[int], Mapping[str, float]]:
        """Return a function for the server loop that evaluates in the rounds the plan asks for."""

        def metrics(round: int) -> Mapping[str, float]:
            if evaluate is None or not self._plan.evaluates(round):
                return {}
            return as_numbers(evaluate(self._current()), "evaluate")

        return metrics

    def save(self, state: ServerState, record: RoundRecord) -> int | None:
        """Write a checkpoint if one is due, and tell the watchers of the round.

        Returns the earliest round to resume from.
        """
        saving, kept = self._checkpoints, state.resumable_from
        due = saving is not None and (
            state.round % saving.every == 0 or state.round == self._plan.rounds
        )
        if saving is not None and due:
            kept = saving.save(state, record, config=self._config, names=self._names)
        for watcher in self._watchers:
            watcher.record(record, saved=due)
        return kept

    def close(self) -> None:
        """Release the directory of the checkpoints for another run, and end the watching."""
        if self._checkpoints is not None:
            self._checkpoints.close()
        watching, self._watchers = self._watchers, ()
        for watcher in watching:
            watcher.close()

    def _current(self) -> nn.Module:
        """Return the working model itself, set to the server's current parameters."""
        with torch.no_grad():
            self._parameters.copy_(self.state.vectors.x)
            self._buffers.copy_(self.state.vectors.get(BUFFERS, self._initial_buffers))
        return self._model

    def _new(self) -> ServerState:
        averaged = self._buffers.clone() if self._plan.buffers == "average" else None
        state = ServerState.new(self._plan.algorithm, self._parameters.clone(), averaged)
        state.resumable_from = None if self._checkpoints is None else 0
        return state

    def _resume(self) -> ServerState | None:
        if self._checkpoints is None:
            return None
        self._checkpoints.open()
        saved = self._checkpoints.latest()
        if saved is None:
            return None
        saved.check(self._config)
        torch.set_rng_state(saved.random)
        self.resumed = saved.record
        state = saved.state
        like = {"parameters": self._parameters, "buffers": self._buffers}
        for name, vector in state.vectors.items():
            state.vectors[name] = vector.to(like[kind_of(name)])
        return state
