"""A client's evaluation of the server's model, the same under every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from ..algorithms import LocalRule, Vector, Vectors
from ..protocol.federated import (
    PERSONAL,
    BufferPolicy,
    federated_buffers,
    federated_parameters,
    personal_tensors,
)
from ..protocol.messages import Assessment, Task, as_numbers
from .optimizer import FederatedOptimizer
from .round import D, Train, asked, last_accepted, seeded, set_buffers
from .store import Store

__all__ = ["EvaluateLocally", "EvaluationSession", "evaluation_session", "fine_tuned"]

EvaluateLocally = Callable[[nn.Module, D], Mapping[str, float]]
"""An evaluation on a client: ``evaluate(model, data)`` returns metrics by name."""


class EvaluationSession:
    """A client's evaluation of the server's model, as seen by the code inside it."""

    def __init__(self, client: int) -> None:
        self.client = client
        """The number of the client on whose data to evaluate."""
        self.examples = 1
        """Number of examples evaluated on: the weight of the metrics."""
        self.metrics: Mapping[str, float] | None = None
        self.assessment: Assessment
        """The answer; it is available after the session has ended."""


@contextmanager
def evaluation_session(
    model: nn.Module,
    task: Task,
    *,
    client: int,
    store: Store,
    buffers: BufferPolicy = "refuse",
    personal: Sequence[str] = (),
) -> Iterator[EvaluationSession]:
    """Set the model to the server's, let the block evaluate it, then make the answer.

    Inside the block the model is in eval mode and torch records no gradients.  If buffers or
    personal tensors stay on the client, the model has those of the client's last accepted round;
    a client without one has the personal tensors that ``model`` has.  The vectors that the client
    keeps do not change.
    """
    keeps = bool(personal) or buffers == "local"
    kept = store.load(client, last_accepted(task, client)) if keeps else Vectors()
    model.eval()
    session = EvaluationSession(client)
    with seeded(task, client), torch.no_grad():
        parameters = Vector(federated_parameters(model, personal).values())
        parameters.copy_(task.vectors.x.to(parameters))
        set_buffers(federated_buffers(model, buffers, personal), task.vectors, kept, buffers)
        if PERSONAL in kept:
            Vector(personal_tensors(model, personal).values()).copy_(kept.personal)
        yield session
    session.assessment = Assessment(
        client=client,
        round=task.round,
        examples=session.examples,
        metrics=as_numbers(session.metrics or {}, f"client {client}"),
        nonce=task.nonce,
    )


@contextmanager
def fine_tuned(
    model: nn.Module, local: LocalRule, task: Task, train: Train[D], data: D, *, client: int
) -> Iterator[None]:
    """Train the whole model on a client's data, let the block evaluate it, then put all back.

    The algorithm's ``local`` rule trains it, at the round's rate and without corrections, as it
    trains personal parts.
    """
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    tensors = [*model.parameters(), *model.buffers()]
    before = [t.detach().clone() for t in tensors]
    gradients = [p.grad for p in model.parameters()]
    try:
        model.zero_grad()
        model.train()
        optimizer = FederatedOptimizer(
            parameters.values(),
            part=local,
            c=local.alone(Vector((p.detach() for p in parameters.values()), parameters)),
            parameters=parameters.values(),
            lr=task.lr,
        )
        with torch.enable_grad():
            train(model, data, optimizer, **asked(train, client=client, round=task.round + 1))
        model.eval()
        yield
    finally:
        with torch.no_grad():
            for t, value in zip(tensors, before, strict=True):
                t.copy_(value)
        for p, gradient in zip(model.parameters(), gradients, strict=True):
            p.grad = gradient
        model.eval()
