"""The server's model and state, and how a run starts or continues."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from ..algorithms import Vector, Vectors
from ..devices import device_of, home
from ..errors import require
from ..protocol.engine import Engine
from ..protocol.federated import (
    BUFFERS,
    PERSONAL,
    federated_buffers,
    federated_names,
    federated_parameters,
    kind_of,
    personal_tensors,
    variances,
)
from ..protocol.messages import as_numbers
from .collect.collect import Collector
from .loop import federate
from .plan import Plan
from .private.account import Account
from .record import RoundRecord
from .saving.checkpoint import Checkpoints
from .saving.fingerprint import Plain, describe
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
        numerics: Mapping[str, object] | None = None,
        watch: Callable[[], Sequence[Watcher]] = watchers,
    ) -> None:
        """Start a new run, or continue from ``state`` or from the newest of the ``checkpoints``.

        Checkpoints must be of a run with the same plan and the same ``config``, which has all
        other values that affect the result; only the plan's ``FREE`` fields may change.
        The server's vectors are where the model is, or on the CPU if that device has no float64.
        ``numerics`` decide last bits beside the settings, such as the number of threads: that of
        the clients if they train here, or that of this process.
        ``watch`` makes the watchers, which get every record; by default the environment chooses
        them.
        """
        self._plan, self._model = plan, model
        self.numerics = {**(numerics or {}), "device": device_of(model).type}
        """What decides last bits; ``at_once`` is that of the checkpoint if it was to be chosen."""
        parameters = federated_parameters(model, plan.personal)
        self._parameters = Vector(p.detach() for p in parameters.values())
        self._buffers = federated_buffers(model, plan.buffers, plan.personal)
        self._initial_buffers = self._buffers.clone()
        own = personal_tensors(model, plan.personal)
        self._personal = Vector(t.detach() for t in own.values())
        self._names = federated_names(model, plan.buffers, plan.personal)
        self._checkpoints = checkpoints
        self._config: dict[str, Plain] = {}
        if checkpoints is not None:  # only a checkpoint is compared with it
            self._config = {
                **plan.identity(),
                "parameters": {n: f"{p.dtype} {list(p.shape)}" for n, p in parameters.items()},
                **{key: describe(value) for key, value in (config or {}).items()},
            }
        self.resumed: RoundRecord | None = None
        """The record of the last saved round if the run continues from a checkpoint, else None."""
        self.records: list[RoundRecord] = []
        """The records of all rounds done, also of those before a resume."""
        require(
            state is None or checkpoints is None,
            "state and checkpoints are both given; give one of them: a checkpoint holds a state",
        )
        self.state = state or self._resume() or self._new()
        if plan.privacy is not None and checkpoints is not None:
            seed = plan.seed if plan.privacy.seeded else None
            self.state.account = Account(seed=seed, directory=checkpoints.directory)
            self.state.account.check(self.state.updates)
        self._saved = len(self.records)
        self.state.vectors |= self.state.vectors.on(home(device_of(model)))
        self.state.variances = variances(self._names["buffers"])
        self._watchers = watch()
        for watcher in self._watchers:
            watcher.begin(
                self.state.run, round=self.state.round, rounds=plan.rounds, resumed=self.resumed
            )

    def model(self) -> nn.Module:
        """Return a copy of the model with the server's current parameters.

        Its personal parts are those with which a client begins: clients send none back.
        """
        return copy.deepcopy(self._current())

    def evaluation(self, evaluate: Evaluate | None) -> Callable[[int], Mapping[str, float]]:
        """Return a function for the server loop that evaluates after the rounds that are due."""
        kept = ["personal parts"] if self._personal else []
        kept += ["buffers"] if self._buffers and self._plan.buffers == "local" else []
        if evaluate is not None and kept:
            warnings.warn(
                f"evaluate runs on the server, whose model has the {' and '.join(kept)} as they"
                " were before the first round; clients evaluate with their own: evaluate_clients in"
                " simulate, evaluate.cohort in an experiment file, evaluate-cohort on Flower",
                stacklevel=2,
            )

        def metrics(round: int) -> Mapping[str, float]:
            if evaluate is None or not self._plan.evaluates(round):
                return {}
            return as_numbers(evaluate(self._current()), "evaluate")

        return metrics

    def rounds(
        self,
        engine: Engine,
        *,
        plan: Plan | None = None,
        evaluate: Evaluate | None = None,
        survey: Callable[[ServerState, RoundRecord], RoundRecord] | None = None,
        collector: Collector | None = None,
    ) -> Iterator[RoundRecord]:
        """Run the remaining rounds of the plan, or of a ``plan`` with another cohort."""
        return federate(
            plan or self._plan,
            engine,
            self.state,
            evaluate=self.evaluation(evaluate),
            survey=survey,
            save=self.save,
            collector=collector,
        )

    def save(self, state: ServerState, record: RoundRecord) -> int | None:
        """Write a checkpoint if one is due, and pass the record to the watchers.

        Returns the earliest round to resume from.
        """
        saving, kept = self._checkpoints, state.resumable_from
        self.records.append(record)
        due = saving is not None and (
            state.round % saving.every == 0 or state.round == self._plan.rounds
        )
        if saving is not None and due:
            kept = saving.save(
                state,
                record,
                config=self._config,
                names=self._names,
                numerics=self.numerics,
                earlier=self.records[self._saved : -1],
            )
            self._saved = len(self.records)
        for watcher in self._watchers:
            watcher.record(record, saved=due)
        return kept

    def close(self) -> None:
        """Release the directory of the checkpoints for another run, and close the watchers."""
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
            if self._personal:
                self._personal.copy_(self.state.vectors.personal)
        return self._model

    def _new(self) -> ServerState:
        averaged = self._buffers.clone() if self._plan.buffers == "average" else None
        state = ServerState.new(self._plan.algorithm, self._parameters.clone(), averaged)
        if self._personal:
            state.vectors[PERSONAL] = self._personal.clone()
        state.resumable_from = None if self._checkpoints is None else 0
        return state

    def _resume(self) -> ServerState | None:
        if self._checkpoints is None:
            return None
        saved, self.records = self._checkpoints.resume()
        if saved is None:
            return None
        chosen = saved.versions.get("at_once", "auto")
        if self.numerics.get("at_once") == "auto" and chosen != "auto":
            self.numerics["at_once"] = int(chosen)
        saved.check(self._config, numerics=self.numerics)
        torch.set_rng_state(saved.random)
        self.resumed = saved.record
        state = saved.state
        state.vectors |= self._placed(state.vectors)
        for number, kept in state.versions.items():
            base = None if kept.base is None else kept.base.to(self._parameters)
            state.versions[number] = replace(kept, vectors=self._placed(kept.vectors), base=base)
        return state

    def _placed(self, vectors: Vectors) -> Vectors:
        """Return vectors that were read from a file as the server has its own."""
        like = {"parameters": self._parameters, "buffers": self._buffers, PERSONAL: self._personal}
        return Vectors((name, v.to(like[kind_of(name)])) for name, v in vectors.items())
