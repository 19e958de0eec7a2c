"""Parts: the ingredients of a federated optimizer, each with its client and its server half.

A federated optimizer is a protocol: the server sends vectors down, clients take local steps and
send vectors up, and the server updates its state.  A :class:`Part` defines the client half and
the server half of one ingredient in one class.  A chain of parts ends in a local rule, and
corrections wrap it.  Engines only move the vectors that a part declares.

Conventions: ``x`` is the server's model, ``y`` the client's working copy, ``g`` a stochastic
gradient at ``y``, ``delta = x - y`` a descent displacement (the server subtracts it).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from numbers import Real
from types import FunctionType
from typing import ClassVar

from ..errors import require
from .vectors import Vector, Vectors

__all__ = ["Correction", "LocalRule", "Moment", "Names", "Part", "Round", "Sum"]

Names = tuple[str, ...]

OUTSIDE = frozenset({"chain", "lr_factor", "start", "join", "known", "serve", "displacement"})
"""The methods of a part that never see a client's vectors during a round."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """The scalars of one round.

    On a client, ``steps`` and ``lr_sum`` are those of the client; on the server they are means
    over the accepted replies.  ``lr_sum`` is the sum of the learning rates of the K steps: lr·K
    if the rate is constant within the round.  ``delta_square`` and ``damping`` are the server's
    alone: the mean of the squared norms of the replies' deltas, and a factor on the server's step,
    below 1 where replies came late.
    """

    steps: float
    lr_sum: float
    accepted: int = 1
    """Number of accepted replies."""
    clients: int = 1
    """Number of clients of the federation."""
    updates: int = 0
    """Number of earlier rounds that changed the model."""
    delta_square: float = 0.0
    damping: float = 1.0


@dataclass(frozen=True)
class Moment:
    """An ``up`` vector that is a running mean of squares."""

    up: str
    of: str
    """The ``down`` vector it starts from."""
    rising: bool = False
    """Whether it never falls within a round."""


@dataclass(frozen=True)
class Sum:
    """An ``up`` vector that the server adds up over all rounds."""

    up: str
    into: str
    """The server's vector that is the sum."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One ingredient of a federated optimizer: its client half and its server half.

    ``step`` must act on each tensor by itself and in place: an engine may run it over any subset
    of the tensors at a time.  What it needs to know of a parameter is in ``client.y``: its names
    and its tensors' shapes.  ``probe`` sees all tensors at once.

    A vector has the shapes of the parameters.  If its name ends in ``_rows`` it has one number per
    row of each tensor, and if it ends in ``_each`` one number per tensor.  An ``up`` vector may
    have such a name only if it is one of the ``moments``: replies are checked by the shapes of what
    was sent, and only a moment starts from a vector of its own shapes.
    """

    name: ClassVar[str]
    """Its name in files and messages; a part of another package is named by its path."""
    down: ClassVar[Names] = ()
    """Vectors the client needs from the server, besides x."""
    up: ClassVar[Names] = ()
    """Vectors the client sends back, besides delta; the server sees only their mean."""
    client_state: ClassVar[Names] = ()
    """Vectors each client keeps between rounds; ``join`` makes them."""
    server_state: ClassVar[Names] = ()
    """Vectors only the server keeps."""
    moments: ClassVar[tuple[Moment, ...]] = ()
    """The ``up`` vectors that are second moments; a guard measures their rise, not their norm."""
    sums: ClassVar[tuple[Sum, ...]] = ()
    """The ``up`` vectors that the server adds up; a guard limits each client's total."""
    directions: ClassVar[Names] = ()
    """The ``up`` vectors whose mean sets the direction of everybody's next steps, such as a shared
    momentum; a guard limits each of their tensors, since few long ones would turn all clients."""
    unit_delta: ClassVar[bool] = False
    """Whether ``end`` divides delta by lr_sum, so that it grows no longer with it."""
    late: ClassVar[str] = ""
    """Why replies that come late may do harm (``staleness``); empty if nothing is known."""
    stacks: ClassVar[bool] = False
    """Whether the client half serves a :class:`~.stack.Stack` of clients as it serves one: it acts
    elementwise, or through ``Vector.lift``, ``each`` and ``of_length``.  A class that overrides a
    method of the client half must say it again."""

    def __init_subclass__(cls) -> None:
        methods = {name for name, value in vars(cls).items() if isinstance(value, FunctionType)}
        during = {name for name in methods - OUTSIDE if not name.startswith("__")}
        if during and "stacks" not in vars(cls):
            cls.stacks = False

    def chain(self) -> Iterator[Part]:
        """Yield this part and the parts inside it, outermost first."""
        yield self

    def lr_factor(self, round: int) -> float:
        """Return this part's factor on the learning rate of a round (counted from 0)."""
        return 1.0

    def start(self, server: Vectors) -> None:
        """Make the ``down`` and ``server_state`` vectors (server, before the first round)."""
        for name in self.down + self.server_state:
            server[name] = server.x.zeros(name)

    def join(self, client: Vectors) -> None:
        """Make the ``client_state`` vectors (client, before its first round)."""
        for name in self.client_state:
            client[name] = client.y.zeros(name)

    def begin(self, client: Vectors) -> None:
        """Make working vectors (client, at the start of a round)."""

    def probe(self, client: Vectors, g: Vector) -> Vector | None:
        """Look at the whole gradient (client, for every batch, before ``step``).

        All tensors are here at once, so this may leave a number over them in a working vector.
        If it returns a vector, ``step`` gets the gradient at y plus that vector instead; y itself
        is left where it was.
        """
        return None

    def step(self, client: Vectors, g: Vector, lr: float) -> None:
        """Move ``client.y`` in place (client, for every batch)."""
        raise NotImplementedError(f"{type(self).__name__} defines no step")

    def end(self, client: Vectors, r: Round) -> None:
        """Set the ``up`` and ``client_state`` vectors (client, at the end of a round).

        ``client.delta`` is set already, and may be replaced.
        """

    def known(self, down: Vectors, r: Round) -> Vectors:
        """Return what a new client would send whose gradients are all zero, by name.

        ``r`` has the steps and the lr_sum of the client; delta is proportional to lr_sum, and with
        ``unit_delta`` it is per unit of it.  A vector that is missing is zero, or the server cannot
        know it.  A guard measures a reply from here: the rest is what the client's data say.
        """
        return Vectors()

    def serve(self, server: Vectors, mean: Vectors, r: Round) -> None:
        """Update the ``down`` and ``server_state`` vectors (server, at the end of a round).

        What ``end`` did to delta is undone here in ``mean.delta``, before ``super().serve``.
        """

    def displacement(self, server: Vectors, mean: Vectors) -> Vector:
        """Return what the server rule subtracts from x (server, after ``serve``)."""
        return mean.delta


@dataclass(frozen=True, kw_only=True)
class LocalRule(Part):
    """The part that ends a chain: it turns a gradient into a step of size ``lr``.

    A rule defines ``move``.  ``lr_scale`` is the learning rate of a parameter group as a multiple
    of the round's rate.  It acts inside every correction around the rule, so a vector measured in
    units of the round's rate (g_a) stays consistent across groups.
    """

    lr: float
    """Learning rate of a client's step in the first round; ``lr_decay`` lowers it from then on."""
    weight_decay: float
    """Strength of the pull of the weights towards 0."""
    lr_scale: float = 1.0
    """Learning rate of a parameter group, as a multiple of the round's rate."""

    def __post_init__(self) -> None:
        for name in ("lr", "weight_decay", "lr_scale"):
            value = getattr(self, name)
            require(
                isinstance(value, Real) and not isinstance(value, bool),
                f"{name} is {value!r}; it must be a number, such as 0.1, without quotes",
            )
        require(self.lr > 0, f"lr is {self.lr}; it must be positive")
        require(
            self.weight_decay >= 0,
            f"weight_decay is {self.weight_decay}; it must be 0 (none) or positive",
        )
        require(self.lr_scale > 0, f"lr_scale is {self.lr_scale}; it must be positive")

    def alone(self, y: Vector) -> Vectors:
        """Return the vectors of a client before its first step, without a server: for parameters
        that stay on the client."""
        client = Vectors(y=y, x=y.clone())
        self.start(client)
        self.join(client)
        self.begin(client)
        return client

    def step(self, client: Vectors, g: Vector, lr: float) -> None:
        self.move(client, g, lr * self.lr_scale)

    def move(self, client: Vectors, g: Vector, lr: float) -> None:
        """Move ``client.y`` in place by a step of size ``lr``, as :meth:`Part.step` does."""
        raise NotImplementedError(f"{type(self).__name__} defines no move")


@dataclass(frozen=True, kw_only=True)
class Correction(Part):
    """A part that wraps another part; this base class passes every call on unchanged."""

    inner: Part = field(kw_only=False)
    """The part that it corrects."""

    def chain(self) -> Iterator[Part]:
        yield self
        yield from self.inner.chain()

    def lr_factor(self, round: int) -> float:
        return self.inner.lr_factor(round)

    def begin(self, client: Vectors) -> None:
        self.inner.begin(client)

    def probe(self, client: Vectors, g: Vector) -> Vector | None:
        return self.inner.probe(client, g)

    def step(self, client: Vectors, g: Vector, lr: float) -> None:
        self.inner.step(client, g, lr)

    def end(self, client: Vectors, r: Round) -> None:
        self.inner.end(client, r)

    def known(self, down: Vectors, r: Round) -> Vectors:
        return self.inner.known(down, r)

    def serve(self, server: Vectors, mean: Vectors, r: Round) -> None:
        self.inner.serve(server, mean, r)

    def displacement(self, server: Vectors, mean: Vectors) -> Vector:
        return self.inner.displacement(server, mean)
