"""Evaluation of the model by every client of a simulation, on data of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from ..client.evaluation import EvaluateLocally
from ..client.round import D, Train
from ..errors import require
from ..protocol.messages import Assessment, Task
from ..server.evaluation import Survey
from ..server.plan import Plan, sampler
from ..server.sampling import Sampler
from ..training.evaluation import as_trained
from .in_process import InProcess
from .sites import ClientDatasets, client_number, names_of, sites

__all__ = ["ClientEvaluation"]


@dataclass(frozen=True, kw_only=True)
class ClientEvaluation(Generic[D]):
    """Evaluates the new model on the clients' own held-out examples.

    Every client has the server's model with its own personal parts and local buffers.  The metrics
    are in the ``evaluation`` fields of a record, and never change the model.
    """

    data: ClientDatasets[D] | Mapping[str, D] | None = None
    """The held-out examples of each client, in the order of the clients; or a dict of those of some
    clients, by name or number.  By default clients evaluate on what they train on."""
    evaluate: EvaluateLocally[D] | None = None
    """``evaluate(model, data)`` returns metrics by name.  By default it is a
    :class:`LocalEvaluation` that prepares inputs and judges outputs as the training does."""
    tune: Train[D] | None = None
    """A training such as ``LocalTraining(steps=5)``: each client evaluates once more after this
    training on its own data, with the algorithm's local rule and without corrections.  The model
    is then put back.  These metrics have ``_tuned`` in their names."""
    every: int | None = None
    """Evaluate each time this many rounds are done, and after the last; by default as the plan."""
    cohort: Sampler | int | float | str = "all"
    """The number of clients that evaluate, or a share of them."""

    def __post_init__(self) -> None:
        for name in ("evaluate", "tune"):
            value = getattr(self, name)
            require(
                callable(value) or value is None,
                f"{name} is {value!r:.100}; it must be a function, or left out",
            )
        require(
            self.tune is None or self.data is not None,
            "tune is given and data is not, so clients would be evaluated on what they were tuned"
            " on; give data, the held-out examples of each client",
        )
        require(
            self.every is None or (type(self.every) is int and self.every >= 1),
            f"every is {self.every!r}; it must be a number of rounds, 1 or more",
        )
        sampler(self.cohort)

    @property
    def lower(self) -> Collection[str]:
        """The metrics of which a lower value is better, as far as the objective says it."""
        objective = getattr(self.evaluate, "objective", None)
        if objective is None or objective.scale.higher:
            return ()
        return (objective.score, f"{objective.score}_tuned")

    def survey(self, plan: Plan, engine: InProcess[D], train: Train[D]) -> Survey:
        """Return the server's hook that asks the clients, trained by ``train``, after a round."""
        every, evaluate = self.every or plan.evaluate_every, self.evaluate or as_trained(train)
        how = dataclasses.replace(self, evaluate=evaluate)
        return Survey(
            dataclasses.replace(plan, evaluate_every=every),
            _Evaluating(engine, how, evaluate),
            sampler(self.cohort),
            lower=how.lower,
            name=engine.name,
        )


class _Evaluating(Generic[D]):
    """The clients of an engine as evaluators; those without held-out examples give no answer."""

    def __init__(
        self,
        engine: InProcess[D],
        evaluation: ClientEvaluation[D],
        evaluate: EvaluateLocally[D],
    ) -> None:
        self.clients = engine.clients
        self._engine, self._tune, self._evaluate = engine, evaluation.tune, evaluate
        self._data = None if evaluation.data is None else _HeldOut(evaluation.data, engine)

    def evaluate(self, task: Task, cohort: Sequence[int]) -> Iterator[Assessment]:
        """Yield the assessments of those clients of the cohort that have held-out examples."""
        data = self._data
        having = cohort if data is None else [client for client in cohort if client in data.places]
        return self._engine.evaluate(task, having, self._evaluate, data, tune=self._tune)


class _HeldOut(Generic[D]):
    """The held-out examples of the clients that have some, by the client's number."""

    def __init__(self, data: ClientDatasets[D] | Mapping[str, D], engine: InProcess[D]) -> None:
        self._data = sites(data)
        count, names = engine.clients, engine.names
        keys = list(data) if isinstance(data, Mapping) else names and names_of(data)
        require(
            bool(keys) or len(data) == count,
            f"there are held-out examples of {len(data)} clients, and the federation has {count};"
            " give those of all clients in their order, or a dict of those of some, by the name or"
            " number of each",
        )
        of_clients = enumerate(keys or range(count))
        self.places = {client_number(key, count, names): place for place, key in of_clients}
        """The clients that have some, and the position of each in the data."""

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, client: int, /) -> D:
        return self._data[self.places[client]]
