"""Clients of a cohort that are trained together, as one model with a dimension for the clients.

A small model takes less time than the calls that compute it.  A stack makes the same calls for all
its clients.  Each client has the batches that it would have alone; batched kernels may give other
last bits than single ones.  What clients send is theirs alone again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, NoReturn

import torch
from torch import Tensor, nn

from ..algorithms import Algorithm, Round, Vector, Vectors
from ..algorithms.stack import Stack, part_of, unstacked
from ..algorithms.vectors import EACH
from ..client.errors import named_errors
from ..client.optimizer import FederatedOptimizer
from ..client.round import D, ended, joined, recall, seeded
from ..client.store import Store
from ..devices import device_of
from ..errors import FedladaError
from ..privacy.news import private_reply
from ..protocol.federated import BufferPolicy, federated_buffers, federated_parameters
from ..protocol.messages import Reply, Task
from ..training.examples import examples_in
from ..training.local import LocalTraining
from ..training.stacked import Drawn, Together, drawn

__all__ = ["Choice", "Stacked", "Unstackable", "unstackable"]

TRIES = 2
"""How often each way is tried by ``at_once="auto"``; the first try of each loads code."""
MOST, NUMBERS = 1000, 2**24
"""How many clients, and numbers in their parameters, ``at_once="auto"`` trains together."""

REFUSED = (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError)
"""The errors with which torch refuses a batch, or to compute a model for many clients."""


class Unstackable(FedladaError):
    """Clients cannot be trained at once."""


class Choice:
    """How many clients are trained at once, if the first rounds are to decide."""

    def __init__(self, model: nn.Module) -> None:
        numbers = sum(p.numel() for p in federated_parameters(model).values())
        self._most = max(2, min(MOST, NUMBERS // numbers))
        self._seconds: dict[int, list[float]] = {1: [], self._most: []}
        self.made: int | None = None
        """The number that takes less time; None as long as it is not known."""

    def keep(self, chosen: object) -> None:
        """Take the number that was chosen before a resume; ``auto`` if none was."""
        if isinstance(chosen, int):
            self.made = chosen

    @property
    def size(self) -> int:
        """The number of clients to train at once now."""
        if self.made is not None:
            return self.made
        return min(self._seconds, key=lambda size: len(self._seconds[size]))

    def __str__(self) -> str:
        if not all(self._seconds.values()):
            return (
                "at_once='auto' trains one client after the other: these cannot be trained at once"
            )
        alone, many = (min(tries) for tries in self._seconds.values())
        chosen = f"up to {self._most} clients at once" if self.made != 1 else "one after the other"
        return (
            f"at_once='auto' trains {chosen}: at once, clients take {many / alone:.2g} of the time"
        )

    def learn(self, size: int, clients: int, seconds: float) -> None:
        """Note how long some clients took of which ``size`` were trained at once."""
        if self.made is None:
            self._seconds[size].append(seconds / clients)
            if all(len(tries) >= TRIES for tries in self._seconds.values()):
                self.made = min(self._seconds, key=lambda size: min(self._seconds[size]))


def unstackable(
    algorithm: Algorithm,
    model: nn.Module,
    train: object,
    buffers: BufferPolicy,
    personal: Sequence[str],
) -> str | None:
    """Return why clients cannot be trained at once, or None if nothing is known against it."""
    if type(train) is not LocalTraining:
        return f"the training loop is {train!r:.100}, and only LocalTraining trains many at once"
    if train.autocast is not None:
        return f"autocast={train.autocast!r} is for clients that are trained one after the other"
    own = [type(part).__name__ for part in algorithm.part.chain() if not part.stacks]
    if own:
        return f"{own[0]} does not say that it serves many clients at once (stacks = True)"
    if personal:
        return "personal parts of the model are trained one client after the other"
    if len(federated_buffers(model, buffers)):
        return f"buffers={buffers!r} and the model's buffers change from client to client"
    return None


@dataclass(eq=False)
class _Member(Generic[D]):
    """A client of a stack."""

    client: int
    data: D
    name: str
    batches: Drawn
    kept: Vectors
    loss: float = 0.0
    reply: Vectors | None = None

    @property
    def steps(self) -> int:
        return self.batches.steps

    @property
    def counts(self) -> tuple[float, ...]:
        """The numbers of steps that the client has kept: those of a stack are the same."""
        return tuple(float(t) for n, v in self.kept.items() if n.endswith(EACH) for t in v)


class Stacked(Generic[D]):
    """Trains clients together; every reply has what the client would send if trained alone."""

    def __init__(
        self,
        algorithm: Algorithm,
        model: nn.Module,
        train: LocalTraining,
        store: Store,
        *,
        keeps: bool,
        alone: Callable[[Task, int, D], Reply],
    ) -> None:
        """``alone`` trains one client; its error is raised if the stack's is not clear."""
        self._algorithm, self._model, self._train = algorithm, model, train
        self._store, self._keeps, self._alone = store, keeps, alone
        federated = federated_parameters(model)
        self._names = tuple(federated)
        self._like = Vector((p.detach() for p in federated.values()), federated)

    def replies(self, task: Task, clients: Sequence[tuple[int, str, D]]) -> list[Reply]:
        """Return the replies of clients, given by number, name and data, in their order."""
        began = time.perf_counter()
        self._model.train()
        members = [self._member(task, *client) for client in clients]
        stacks: dict[tuple[float, ...], list[_Member[D]]] = {}
        for member in members:
            stacks.setdefault(member.counts, []).append(member)
        for stack in stacks.values():
            # Those with most steps come first, so the stack of those that are left is a view.
            self._train_stack(task, sorted(stack, key=lambda m: (-m.steps, repr(m.batches.shapes))))
        seconds = (time.perf_counter() - began) / len(members)
        return [self._reply(task, member, seconds) for member in members]

    def _member(self, task: Task, client: int, name: str, data: D) -> _Member[D]:
        """Draw a client's batches, and load what it has kept or would have as a new one."""
        with named_errors(client, task.round, name), seeded(task, client):
            batches = drawn(self._train, self._model, data)
        kept = Vectors()
        if self._keeps:
            kept = recall(self._store, task, client)
            with torch.no_grad():
                c = joined(self._algorithm, self._like, task.vectors, kept)
            kept = c.only(self._algorithm.client_state)
        return _Member(client, data, name, batches, kept)

    def _train_stack(self, task: Task, members: Sequence[_Member[D]]) -> None:
        """Train clients of which each has at least as many steps as the next."""
        together = Together(self._train, self._model, [member.batches for member in members])
        with torch.no_grad():
            c = self._begin(task, members)
        losses, done, active = torch.zeros(len(members), device=c.y.device), 0, len(members)
        while active:
            until = members[active - 1].steps
            try:
                self._steps(task, part_of(c, 0, active), together, losses, range(done, until))
            except REFUSED as error:
                self._explain(task, members[:active], error)
            first = next(i for i, member in enumerate(members) if member.steps == until)
            self._end(task, part_of(c, first, active), members[first:active], losses[first:active])
            done, active = until, first

    def _begin(self, task: Task, members: Sequence[_Member[D]]) -> Vectors:
        """Return the vectors of all clients at the start of the round."""
        algorithm, count, c = self._algorithm, len(members), Vectors()
        x = Stack.repeated(task.vectors.x.to(self._like), count)
        c.y = Stack(x.clone(), self._names)
        for name in algorithm.down:
            vector = getattr(task.vectors, name).to(self._like)
            c[name] = vector if name.endswith(EACH) else Stack.repeated(vector, count)
        for name in algorithm.client_state:
            kept = [member.kept[name] for member in members]
            c[name] = kept[0] if name.endswith(EACH) else Stack.of(kept)
        algorithm.part.begin(c)
        return c

    def _steps(
        self, task: Task, c: Vectors, together: Together, losses: Tensor, steps: range
    ) -> None:
        """Take some steps of all clients of the stack, and add up their losses."""
        parameters = dict(zip(self._names, map(nn.Parameter, c.y), strict=True))
        values = {name: p.detach() for name, p in parameters.items()}
        optimizer = FederatedOptimizer(
            parameters.values(),
            part=self._algorithm.part,
            c=c,
            parameters=parameters.values(),
            lr=task.lr,
        )

        def closure(step: int, seen: list[Tensor]) -> float:
            gradients, loss = together.gradients(step, values)
            for p, g in zip(parameters.values(), gradients, strict=True):
                p.grad = g
            seen.append(loss)
            return 0.0

        count = len(c.y.tensors[0])
        for step in steps:
            seen = list[Tensor]()
            optimizer.step(partial(closure, step, seen))
            losses[:count] += seen[0]  # as if trained alone: of the first gradient of a batch

    def _explain(self, task: Task, members: Sequence[_Member[D]], error: Exception) -> NoReturn:
        """Raise the error of a client's data, which says what to do, or that of the stack."""
        for member in members:
            self._alone(task, member.client, member.data)
        raise Unstackable(
            "these clients cannot be trained at once, because torch.func.vmap does not compute"
            f" their model ({type(error).__name__}: {error}); leave at_once out, or give"
            " at_once='auto', which then trains one after the other"
        ) from error

    def _end(self, task: Task, c: Vectors, members: Sequence[_Member[D]], losses: Tensor) -> None:
        """Give the clients, which have the same number of steps, what they send and keep."""
        steps = members[0].steps
        r = Round(steps=steps, lr_sum=math.fsum([task.lr] * steps))
        with torch.no_grad():
            sent, kept = ended(self._algorithm, task, c, r)
        apart = zip(unstacked(sent, len(members)), unstacked(kept, len(members)), strict=True)
        for member, total, (reply, own) in zip(members, losses.tolist(), apart, strict=True):
            member.loss, member.reply = total / steps, reply
            # A view would keep the vectors of the whole stack in memory.
            member.kept = Vectors((name, vector.clone()) for name, vector in own.items())

    def _reply(self, task: Task, member: _Member[D], seconds: float) -> Reply:
        with named_errors(member.client, task.round, member.name):
            metrics = self._train.report(member.loss, member.data, device_of(self._model))
            examples = examples_in(member.data)
        assert member.reply is not None
        r = Round(steps=member.steps, lr_sum=math.fsum([task.lr] * member.steps))
        reply = Reply(
            client=member.client,
            round=task.round,
            vectors=member.reply,
            examples=examples,
            steps=member.steps,
            lr_sum=r.lr_sum,
            nonce=task.nonce,
            seconds=seconds,
            metrics=metrics,
        )
        if task.clips is not None:
            with torch.no_grad():
                reply, member.kept = private_reply(self._algorithm, task, reply, member.kept, r)
        if member.kept:
            self._store.stage(member.client, (task.run, task.round), member.kept)
        return reply
