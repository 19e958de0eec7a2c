"""An algorithm is a chain of parts and a server rule; its messages are derived from these."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from ..errors import require, require_known
from ..named import word
from .corrections import CORRECTIONS
from .local import LOCAL_RULES
from .part import Correction, LocalRule, Moment, Names, Part, Round, Sum
from .server_rules import SERVER_RULES, Averaging
from .vectors import Vector, Vectors, is_small

__all__ = ["Algorithm", "Traffic", "rebuild"]


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Vectors (or, after :meth:`bytes`, bytes) per sampled client and round."""

    down: int
    """From the server to a client."""
    up: int
    """From a client to the server."""
    client_state: int
    """Kept on a client between rounds."""

    def bytes(self, vector: int) -> Traffic:
        """Return the traffic in bytes, for vectors of ``vector`` bytes each."""
        return Traffic(
            down=self.down * vector, up=self.up * vector, client_state=self.client_state * vector
        )


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A federated optimizer: ``Algorithm(Amend(AMSGrad(), alpha=0.1), server=Averaging())``."""

    part: Part = field(kw_only=False)
    """The local rule, with the corrections around it."""
    server: Averaging = field(default_factory=Averaging)
    """The server rule."""

    def __post_init__(self) -> None:
        rule = list(self.part.chain())[-1]
        require(
            isinstance(rule, LocalRule),
            f"the innermost part is {type(rule).__name__}; a chain must end in a local rule"
            " (SGD, Adam, AMSGrad or your own LocalRule)",
        )
        for name, value in self.settings().items():
            numbers = value if isinstance(value, tuple) else (value,)
            require(
                all(math.isfinite(n) for n in numbers if isinstance(n, float)),
                f"{name} is {value}; it must be finite",
            )
        for names in ("down", "up", "client_state", "server_state"):
            declared = list(getattr(self, names))
            twice = {name for name in declared if declared.count(name) > 1}
            require(
                not twice,
                f"{', '.join(sorted(twice))} is declared twice in {names!r}; two parts of one"
                " algorithm may not share a vector",
            )
        moments = {moment.up for moment in self.moments}
        for name in self.up:
            require(
                not is_small(name) or name in moments,
                f"{name} is declared in 'up', and its name says that it has few numbers, which only"
                " a moment may; declare it in 'moments', or give it the shapes of the parameters"
                " and another name",
            )

    @property
    def down(self) -> Names:
        """Names of the vectors that go to every sampled client."""
        return ("x", *self._names("down"))

    @property
    def up(self) -> Names:
        """Names of the vectors that every sampled client sends back."""
        return ("delta", *self._names("up"))

    @property
    def client_state(self) -> Names:
        """Names of the vectors that every client keeps between rounds."""
        return self._names("client_state")

    @property
    def server_state(self) -> Names:
        """Names of the vectors that only the server keeps."""
        return self._names("server_state") + self.server.server_state

    @property
    def moments(self) -> tuple[Moment, ...]:
        """The second moments among the ``up`` vectors."""
        return tuple(moment for part in self.part.chain() for moment in part.moments)

    @property
    def sums(self) -> tuple[Sum, ...]:
        """The ``up`` vectors that the server adds up over all rounds."""
        return tuple(total for part in self.part.chain() for total in part.sums)

    @property
    def directions(self) -> Names:
        """Names of the ``up`` vectors whose mean sets the direction of everybody's next steps."""
        return self._names("directions")

    @property
    def traffic(self) -> Traffic:
        """Number of vectors sent down, sent up and kept by the client.

        Vectors with one number per tensor, or per row of a tensor, are too small to count.
        """
        ways = (self.down, self.up, self.client_state)
        down, up, kept = (sum(not is_small(name) for name in names) for names in ways)
        return Traffic(down=down, up=up, client_state=kept)

    @property
    def local(self) -> LocalRule:
        """The local rule at the end of the chain."""
        rule = list(self.part.chain())[-1]
        assert isinstance(rule, LocalRule)
        return rule

    @property
    def unit_delta(self) -> bool:
        """Whether a reply's delta is divided by its lr_sum."""
        return any(part.unit_delta for part in self.part.chain())

    def span(self, lr_sum: float) -> float:
        """Return the lr_sum of a reply's delta: 1 if it is divided by the client's."""
        return 1.0 if self.unit_delta else lr_sum

    def lr(self, round: int, *, decay: float = 1.0) -> float:
        """Return the learning rate of a round; rounds are counted from 0."""
        return self.local.lr * decay**round * self.part.lr_factor(round)

    def start(self, x: Vector) -> Vectors:
        """Return the server's vectors before the first round."""
        server = Vectors(x=x)
        for part in self.part.chain():
            part.start(server)
        self.server.start(server)
        return server

    def serve(self, server: Vectors, mean: Vectors, r: Round) -> None:
        """Update the server's vectors from the mean of the replies."""
        mean = Vectors(mean)  # a part may replace mean.delta
        self.part.serve(server, mean, r)
        self.server.apply(server, self.part.displacement(server, mean), r)

    @property
    def composition(self) -> str:
        """The ingredients as text, such as ``Amend(AMSGrad) + Averaging``."""
        names = [type(part).__name__ for part in self.part.chain()]
        return f"{'('.join(names)}{')' * (len(names) - 1)} + {type(self.server).__name__}"

    def settings(self) -> dict[str, Any]:
        """Return the value of every hyper-parameter by name."""
        owners: list[Part | Averaging] = [*self.part.chain(), self.server]
        return {key: getattr(owner, key) for owner in owners for key in _tunable(owner)}

    def spec(self) -> dict[str, Any]:
        """Return the algorithm as plain values: ``algorithm(a.spec()) == a``.

        This is the only encoding of an algorithm: checkpoints store it and clients receive it.
        An ingredient of this package is written as its registry name, any other as
        ``"package.module:Name"``.
        """
        *corrections, local = self.part.chain()
        structure = {
            "local": word(local, LOCAL_RULES),
            "corrections": [word(part, CORRECTIONS) for part in corrections],
            "server": word(self.server, SERVER_RULES),
        }
        settings = self.settings()
        for owner in (*corrections, local, self.server):
            for key, value in settings.items():
                require(
                    getattr(owner, key, value) == value,
                    f"two parts of the algorithm share the setting {key!r} and differ in it, so it"
                    " cannot be written down; rename the setting of one of them",
                )
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}
        return structure | plain

    def replace(self, **settings: Any) -> Algorithm:
        """Return a copy with other hyper-parameters: ``replace(lr=0.01, alpha=0.05)``."""
        known = self.settings()
        # Config files and messages have lists where settings have tuples.
        settings = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
        for key in settings:
            require_known(key, known, f"{key!r} is no setting of this algorithm")
            require(
                _of_a_kind(settings[key], known[key]),
                f"{key} is {settings[key]!r}; it must be of the kind of its default, {known[key]!r}"
                + _without_quotes(key, settings[key]),
            )
        return Algorithm(
            rebuild(self.part, lambda owner: _own(owner, settings)),
            server=dataclasses.replace(self.server, **_own(self.server, settings)),
        )

    def _names(self, kind: str) -> Names:
        return tuple(name for part in self.part.chain() for name in getattr(part, kind))


def rebuild(part: Part, changes: Callable[[Part], dict[str, Any]]) -> Part:
    """Return a copy of the chain with ``changes(part)`` applied to each part."""
    own = changes(part)
    if isinstance(part, Correction):
        own["inner"] = rebuild(part.inner, changes)
    return dataclasses.replace(part, **own)


def _tunable(owner: Part | Averaging) -> list[str]:
    return [f.name for f in dataclasses.fields(owner) if f.name not in ("inner", "lr_scale")]


def _own(owner: Part | Averaging, settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key in _tunable(owner)}


def _of_a_kind(value: object, default: object) -> bool:
    """Tell whether a value may replace a default, if that is a number, a switch or numbers."""
    if isinstance(default, bool):
        return isinstance(value, bool)
    if isinstance(default, int | float):
        return isinstance(value, Real) and not isinstance(value, bool)
    if isinstance(default, tuple) and default:
        return isinstance(value, tuple) and all(_of_a_kind(part, default[0]) for part in value)
    return True


def _without_quotes(key: str, value: object) -> str:
    return f": write {key}={value}, without quotes" if isinstance(value, str) else ""
