"""A client's side of one round, the same under every engine and around any training loop."""

from __future__ import annotations

import functools
import inspect
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager
from typing import Concatenate, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT, register_optimizer_step_pre_hook

from .. import devices
from ..algorithms import Algorithm, Round, Vector, Vectors
from ..errors import require
from ..privacy.news import private_reply
from ..protocol.federated import (
    BUFFERS,
    PERSONAL,
    BufferPolicy,
    clients_keep,
    constant_buffers,
    federated_buffers,
    federated_parameters,
    personal_tensors,
)
from ..protocol.messages import Reply, Task, as_numbers
from ..protocol.residual import residual
from ..protocol.seeds import seed_of
from ..training.examples import examples_in
from .errors import named_errors
from .optimizer import FederatedOptimizer
from .store import NEVER, Store, Version

__all__ = [
    "ClientSession",
    "LocalRound",
    "Train",
    "asked",
    "client_session",
    "ended",
    "joined",
    "last_accepted",
    "recall",
    "seeded",
    "set_buffers",
    "train_client",
]

D = TypeVar("D", bound=Sized)

Train = Callable[Concatenate[nn.Module, D, FederatedOptimizer, ...], Mapping[str, float] | None]
"""A training loop: ``train(model, data, optimizer)``; the server averages its metrics.

A loop with a parameter named ``client`` gets the number of the client by that name, and one with a
parameter named ``round`` the number of the round, from 1.
"""


class LocalRound:
    """Sets the model to x, makes the optimizer and builds the reply from its steps.

    After :meth:`finish`, :attr:`client_state` has the vectors to keep if the reply is accepted.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        model: nn.Module,
        task: Task,
        *,
        client: int,
        client_state: Vectors | None = None,
        buffers: BufferPolicy = "refuse",
        personal: Sequence[str] = (),
    ) -> None:
        self.client_state = client_state or Vectors()
        self.lr = task.lr
        self._began = time.perf_counter()
        self._algorithm, self._task, self._client, self._policy = algorithm, task, client, buffers
        federated = federated_parameters(model, personal)
        self._names, self._parameters = tuple(federated), list(federated.values())
        self._personal = personal_tensors(model, personal)
        self._buffers = federated_buffers(model, buffers, personal)
        self._model, self._constants = model, copied(constant_buffers(model, buffers, personal))
        self._optimizer: FederatedOptimizer | None = None
        # An engine may evaluate the same model between rounds, which leaves it in eval mode.
        model.train()
        with torch.no_grad():
            self._c = self._begin()
            self._before = self._own().clone()

    def _begin(self) -> Vectors:
        received = self._task.vectors
        y = Vector((p.detach() for p in self._parameters), self._names)
        c = joined(self._algorithm, y, received, self.client_state)
        set_buffers(self._buffers, received, self.client_state, self._policy)
        if PERSONAL in self.client_state:  # otherwise this is the client's first round
            self._own().copy_(self.client_state.personal)
        self._algorithm.part.begin(c)
        return c

    def _own(self) -> Vector:
        """Return the personal tensors, sharing memory with the model."""
        return Vector(t.detach() for t in self._personal.values())

    def optimizer(self, params: ParamsT | None = None) -> FederatedOptimizer:
        """Make the round's only optimizer; ``params`` may be torch's parameter groups."""
        require(
            self._optimizer is None,
            f"client {self._client} asked for a second optimizer in round {self._task.round + 1};"
            " the steps of the first would not be counted: make one, and use it for the whole"
            " round",
        )
        own = {n: p for n, p in self._personal.items() if isinstance(p, nn.Parameter)}
        y = Vector((p.detach() for p in own.values()), own)
        self._optimizer = FederatedOptimizer(
            [*self._parameters, *own.values()] if params is None else params,
            part=self._algorithm.part,
            c=self._c,
            parameters=self._parameters,
            lr=self._task.lr,
            own=self._algorithm.local.alone(y) if own else None,
            personal=own.values(),
        )
        return self._optimizer

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Refuse, inside the block, steps of other optimizers on the shared parameters."""
        shared = set(map(id, self._parameters))

        def check(optimizer: Optimizer, *_: object) -> None:
            every = (p for group in optimizer.param_groups for p in group["params"])
            require(
                optimizer is self._optimizer or not any(id(p) in shared for p in every),
                f"client {self._client} took a step with an optimizer of its own,"
                f" {type(optimizer).__name__}, in round {self._task.round + 1}; the algorithm would"
                " not know of that step: take steps with the optimizer that the loop gets, and"
                " choose what a step is with algorithm=",
            )

        hook = register_optimizer_step_pre_hook(check)
        try:
            yield
        finally:
            hook.remove()

    def finish(self, *, examples: int, metrics: Mapping[str, float] | None = None) -> Reply:
        """Return the reply; call this after training."""
        measured = as_numbers({} if metrics is None else metrics, f"client {self._client}")
        optimizer = self._optimizer
        require(
            optimizer is not None and optimizer.lr_sum > 0,
            f"client {self._client} took no optimizer step in round {self._task.round + 1}; its"
            " training loop must call step() of the optimizer it gets, with a positive lr",
        )
        assert optimizer is not None
        self._check_tensors()
        r = Round(steps=optimizer.steps, lr_sum=optimizer.lr_sum)
        with torch.no_grad():
            vectors, self.client_state = ended(self._algorithm, self._task, self._c, r)
            if self._policy == "average":
                vectors.buffers = self._buffers.clone()
            elif self._policy == "local":
                self.client_state.buffers = self._buffers.clone()
            if self._personal:
                self.client_state.personal = self._kept()
        reply = Reply(
            client=self._client,
            round=self._task.round,
            vectors=vectors,
            examples=examples,
            steps=optimizer.steps,
            lr_sum=optimizer.lr_sum,
            nonce=self._task.nonce,
            seconds=time.perf_counter() - self._began,
            metrics=measured,
        )
        if self._task.clips is not None:
            with torch.no_grad():
                reply, self.client_state = private_reply(
                    self._algorithm, self._task, reply, self.client_state, r
                )
        return reply

    def _kept(self) -> Vector:
        """Return the personal tensors to keep: those of the start if training made some infinite.

        The guard does not see them, and a client could never recover from them.
        """
        after, names = self._own().clone(), list(self._personal)
        finite = [[bool(torch.isfinite(t).all()) for t in v] for v in (self._before, after)]
        broken = [name for name, old, new in zip(names, *finite, strict=True) if old and not new]
        if not broken:
            return after
        warnings.warn(
            f"{', '.join(broken)} of client {self._client} are not finite after round"
            f" {self._task.round + 1}, so the client keeps its personal part as it was before;"
            " lower lr or clip gradients",
            stacklevel=2,
        )
        return self._before

    def _check_tensors(self) -> None:
        """Raise an error if training replaced a tensor, or changed a constant one."""
        now = dict(self._model.named_buffers())
        current = {id(t) for t in (*now.values(), *self._model.parameters())}
        tensors = (*self._parameters, *self._buffers, *self._personal.values())
        lost = sum(id(t) not in current for t in tensors)
        require(
            lost == 0,
            f"training of client {self._client} replaced {lost} parameters or buffers of the model"
            " by new tensors, whose values would be lost; change them in place, for example with"
            " copy_()",
        )
        for name, before in self._constants.items():
            require(
                name in now and Vector([now[name]]).equal(Vector([before])),
                f"training of client {self._client} changed the buffer {name!r}, which is neither"
                f" sent nor kept with buffers={self._policy!r}; choose buffers='average' or"
                " buffers='local', which both require finite values",
            )


def joined(algorithm: Algorithm, y: Vector, received: Vectors, kept: Vectors) -> Vectors:
    """Set y to the received x and return a client's vectors before its round begins.

    A client that has ``kept`` nothing yet gets the vectors of a new one.
    """
    c = Vectors(y=y)
    for name in algorithm.down:
        c[name] = getattr(received, name).to(y)
    y.copy_(c.x)
    for part in algorithm.part.chain():
        if any(name not in kept for name in part.client_state):
            part.join(c)
    for name in algorithm.client_state:
        if name in kept:
            c[name] = kept[name].to(y)
    return c


def ended(algorithm: Algorithm, task: Task, c: Vectors, r: Round) -> tuple[Vectors, Vectors]:
    """Return the vectors that are sent after training, and those that the client keeps."""
    c.delta = c.x - c.y
    algorithm.part.end(c, r)
    reply = c.only(algorithm.up)
    if task.clips is None:  # otherwise private_reply subtracts what the server knows
        reply.delta = residual(algorithm, task.codecs, task.vectors, reply.delta, r.lr_sum)
    return reply, c.only(algorithm.client_state)


def copied(buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of buffers, to check later whether they changed."""
    return {name: b.detach().clone() for name, b in buffers.items()}


class ClientSession:
    """A client's round, as seen by the training code inside it."""

    def __init__(self, local: LocalRound, client: int, round: int) -> None:
        self._local = local
        self.client = client
        """The number of the client whose data to train on."""
        self.round = round
        """The number of the round, from 1, as in its record."""
        self.optimizer = local.optimizer
        self.lr = local.lr
        self.examples = 1
        """Number of examples trained on: the reply's weight if the server weights by examples."""
        self.metrics: Mapping[str, float] | None = None
        self.reply: Reply
        """The reply; it is available after the session has ended."""


@contextmanager
def client_session(
    algorithm: Algorithm,
    model: nn.Module,
    task: Task,
    *,
    client: int,
    store: Store,
    buffers: BufferPolicy = "refuse",
    personal: Sequence[str] = (),
) -> Iterator[ClientSession]:
    """Load the client's vectors, let the block train, then make the reply and stage new vectors.

    Every engine uses this session: in process, the ready ClientApp and an app of your own.  A
    client's personal tensors begin its first round as they are in ``model``.
    """
    keeps = clients_keep(algorithm, buffers, personal)
    local = LocalRound(
        algorithm,
        model,
        task,
        client=client,
        client_state=recall(store, task, client) if keeps else None,
        buffers=buffers,
        personal=personal,
    )
    session = ClientSession(local, client, task.round + 1)
    with seeded(task, client), local.alone():
        yield session
    session.reply = local.finish(examples=session.examples, metrics=session.metrics)
    if local.client_state:
        store.stage(client, (task.run, task.round), local.client_state)


def train_client(
    algorithm: Algorithm,
    model: nn.Module,
    task: Task,
    *,
    client: int,
    data: D,
    train: Train[D],
    store: Store,
    buffers: BufferPolicy = "refuse",
    personal: Sequence[str] = (),
    name: str = "",
) -> Reply:
    """Run a session around ``train(model, data, optimizer)`` and return the reply.

    Errors show the ``name`` of the client, if it has one.
    """
    with (
        client_session(
            algorithm, model, task, client=client, store=store, buffers=buffers, personal=personal
        ) as session,
        named_errors(client, task.round, name),
    ):
        more = asked(train, client=client, round=session.round)
        session.metrics = train(model, data, session.optimizer(), **more)
        session.examples = examples_in(data)
    return session.reply


def asked(train: Train[D], *, client: int, round: int) -> dict[str, int]:
    """Return the keyword arguments that a training loop asks for by the names of its parameters.

    ``round`` counts from 1.
    """
    try:
        signature = inspect.signature(train)
        first = signature.bind_partial(None, None, None).arguments  # model, data, optimizer
    except (TypeError, ValueError):  # such as a function of a compiled module
        return {}
    names = signature.parameters.keys() - first.keys()
    bound = train.keywords if isinstance(train, functools.partial) else {}
    offered = {"client": client, "round": round}
    return {name: n for name, n in offered.items() if name in names and name not in bound}


def recall(store: Store, task: Task, client: int) -> Vectors:
    """Load the vectors that belong to the client's last accepted reply."""
    version = last_accepted(task, client)
    store.settle(client, version, task.resumable_from)
    return store.load(client, version)


def last_accepted(task: Task, client: int) -> Version:
    """Return the version of the vectors of the client's last accepted reply."""
    return task.run, task.last_accepted.get(client, NEVER)


def set_buffers(mine: Vector, received: Vectors, kept: Vectors, policy: BufferPolicy) -> None:
    """Set a model's buffers to those that came with the task, or that the client has kept."""
    source = received if policy == "average" else kept
    if BUFFERS in source:
        mine.copy_(source.buffers)


def seeded(task: Task, client: int) -> AbstractContextManager[None]:
    """Seed torch by (seed, round, client) inside the block and restore its state afterwards."""
    return devices.seeded(seed_of(task.seed, "client", task.round, client))
