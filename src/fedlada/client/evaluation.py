"""A client's evaluation of the server's model, the same under every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from ..algorithms import Vector, Vectors
from ..protocol.federated import (
    PERSONAL,
    BufferPolicy,
    federated_buffers,
    federated_parameters,
    personal_tensors,
)
from ..protocol.messages import Assessment, Task, as_numbers
from .round import D, last_accepted, seeded, set_buffers
from .store import Store

__all__ = ["EvaluateLocally", "EvaluationSession", "evaluation_session"]

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
