"""The plan of a run: all settings that affect its result under every engine.

:func:`fedlada.simulate`, a Flower app's config and an experiment's TOML file use the same plan:
each passes plain values by the same names to :meth:`Plan.of`.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack, cast, get_args

from ..algorithms import ALGORITHMS, Algorithm, algorithm as named_algorithm
from ..errors import nearest, require
from ..protocol.codecs import Codecs
from ..protocol.federated import BufferPolicy
from .fingerprint import Plain, describe
from .guard import Guard, Weighting
from .mean import Mean
from .robust import AGGREGATORS
from .sampling import Bernoulli, FixedSize, Sampler
from .tally import Aggregator

__all__ = ["FREE", "Plan", "PlanSettings", "sampler", "settings_table"]

FREE = ("rounds", "evaluate_every")
"""The fields that do not affect the rounds already done, so a resumed run may change them."""


class PlanSettings(TypedDict, total=False):
    """The arguments of :meth:`Plan.of`: the fields of a plan, as objects or as plain values."""

    algorithm: Algorithm | Mapping[str, Any] | str
    rounds: int
    sampling: Sampler | int | float
    seed: int
    lr_decay: float
    weighting: Weighting
    target: int | None
    minimum: int
    guard: Guard | Mapping[str, Any] | str | None
    aggregator: Callable[[], Aggregator] | Mapping[str, Any] | str
    buffers: BufferPolicy
    codec: Codecs | str
    evaluate_every: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The settings of a run."""

    algorithm: Algorithm = ALGORITHMS["fedlada"]
    rounds: int = 100
    """Total number of rounds."""
    sampling: Sampler = field(default_factory=lambda: FixedSize(10))
    """Chooses the clients of each round."""
    seed: int = 0
    lr_decay: float = 0.998
    """Factor on the learning rate after each round."""
    weighting: Weighting = "uniform"
    target: int | None = None
    """Close a round once this many replies are accepted; None waits for the whole cohort.  Sample
    more clients than this so that a round does not wait for the slowest."""
    minimum: int = 1
    """Abandon a round with fewer accepted replies than this and leave all vectors unchanged."""
    guard: Guard | None = field(default_factory=Guard)
    """The limits that every reply must pass; None accepts every reply."""
    aggregator: Callable[[], Aggregator] = Mean
    """Makes the object that combines the replies of a round."""
    buffers: BufferPolicy = "refuse"
    """How to treat the model's buffers, such as BatchNorm's statistics."""
    codec: Codecs = field(default_factory=Codecs)
    """How vectors are encoded for sending."""
    evaluate_every: int = 1
    """Evaluate each time this many rounds are done, and after the last round."""

    def __post_init__(self) -> None:
        for name, kind in (("weighting", Weighting), ("buffers", BufferPolicy)):
            value = getattr(self, name)
            require(
                value in get_args(kind),
                f"{name} is {value!r}; it must be one of {', '.join(get_args(kind))}",
            )
        for name in ("rounds", "seed", "minimum", "evaluate_every"):
            value, least = getattr(self, name), 0 if name in ("seed", "rounds") else 1
            require(
                type(value) is int and value >= least,
                f"{name} is {value!r}; it must be a whole number, {least} or more",
            )
        require(
            self.target is None or (type(self.target) is int and self.target >= self.minimum),
            f"target is {self.target!r} and minimum is {self.minimum}; a round cannot close below"
            " its minimum",
        )
        require(
            isinstance(self.lr_decay, int | float) and 0 < self.lr_decay <= 1,
            f"lr_decay is {self.lr_decay!r}; it must be above 0 and at most 1",
        )
        self._check_aggregator()

    def evaluates(self, round: int) -> bool:
        """Return whether the model is evaluated after so many rounds."""
        return round % self.evaluate_every == 0 or round == self.rounds

    def enough(self, accepted: int) -> bool:
        """Return whether a round with so many accepted replies changes the model."""
        return accepted >= self.minimum and _combines(self.aggregator(), accepted)

    def _check_aggregator(self) -> None:
        made = self.aggregator()
        require(
            self.weighting == "uniform" or getattr(made, "weighted", True),
            f"weighting is {self.weighting!r} and the aggregator is {self.aggregator}, which takes"
            " no weights: choose weighting='uniform' or aggregator='mean'",
        )
        size = self.sampling.size if isinstance(self.sampling, FixedSize) else None
        for what, count in (("sampling", size), ("target", self.target)):
            require(
                count is None or _combines(made, count),
                f"{what} lets a round have {count} replies, and the aggregator {self.aggregator}"
                f" needs {getattr(made, 'least', 'more')}: ask for more, or choose another",
            )

    @classmethod
    def of(cls, **given: Unpack[PlanSettings]) -> Plan:
        """Return a plan made of plain values, as in files and messages, or of objects.

        >>> Plan.of(algorithm="fedcm", sampling=10, guard="slack = 3.0", aggregator="trimmed-mean")
        """
        for name in given:
            known = [f.name for f in dataclasses.fields(cls)]
            require(name in known, f"a plan has no {name!r}; {nearest(name, known)}")
        read = {name: _READ.get(name, _as_it_is)(value) for name, value in given.items()}
        return cls(**read)

    def settings(self) -> PlanSettings:
        """Return the fields by name: ``Plan.of(**plan.settings()) == plan``."""
        return cast(PlanSettings, {f.name: getattr(self, f.name) for f in dataclasses.fields(self)})

    def identity(self) -> dict[str, Plain]:
        """Return every setting that affects the result, as plain values."""
        return {
            f.name: describe(getattr(self, f.name))
            for f in dataclasses.fields(self)
            if f.name not in FREE
        }


def _combines(aggregator: Aggregator, count: int) -> bool:
    """Return whether an aggregator can combine so many replies; most can combine any number."""
    combines: Callable[[int], bool] | None = getattr(aggregator, "combines", None)
    return combines is None or combines(count)


def _as_it_is(value: Any) -> Any:
    return value


def settings_table(value: object) -> dict[str, Any]:
    """Return a mapping as a dict, or read TOML text such as ``lr = 0.01, alpha = 0.05``."""
    if isinstance(value, Mapping):
        return dict(value)
    text = str(value).strip().removeprefix("{").removesuffix("}")
    try:
        table: dict[str, Any] = tomllib.loads(f"table = {{ {text} }}")["table"]
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        require(
            False, f"{value!r:.200} is no table of settings ({error}); write it as a = 1, b = 2"
        )
        raise
    return table


def _algorithm(value: Any) -> Algorithm:
    """Read an algorithm, its name, its spec, or its spec as text in braces."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = settings_table(value)
    return named_algorithm(value)


def sampler(value: Any) -> Sampler:
    """Read a sampler, a number of clients, or a share of them."""
    if type(value) is int:
        return FixedSize(value)
    if isinstance(value, float):
        return Bernoulli(value)
    require(
        hasattr(value, "cohort"),
        f"sampling is {value!r}; it must be a number of clients such as 10, a share such as 0.1,"
        " or a sampler such as FixedSize(10)",
    )
    sampler: Sampler = value
    return sampler


def _guard(value: Any) -> Guard | None:
    """Read a guard, its settings, ``strict``, or None or ``off`` for no guard."""
    if value is None or isinstance(value, Guard):
        return value
    if value == "strict":
        return Guard.strict()
    return None if value == "off" else Guard(**_checked(settings_table(value), Guard, "guard"))


def _aggregator(value: Any) -> Callable[[], Aggregator]:
    """Read an aggregator, its name, or a table with its name and settings."""
    if callable(value):
        aggregator: Callable[[], Aggregator] = value
        return aggregator
    if isinstance(value, str) and not value.lstrip().startswith("{"):
        table = {"name": value}
    else:
        table = settings_table(value)
    name = str(table.pop("name", ""))
    require(name in AGGREGATORS, f"there is no aggregator {name!r}; {nearest(name, AGGREGATORS)}")
    rule = AGGREGATORS[name]
    if not table:
        return rule
    require(dataclasses.is_dataclass(rule), f"aggregator {name!r} has no settings")
    return dataclasses.replace(rule, **_checked(table, type(rule), name))  # type: ignore[type-var]


def _checked(table: dict[str, Any], kind: type, what: str) -> dict[str, Any]:
    known = [f.name for f in dataclasses.fields(kind)]
    for key in table:
        require(key in known, f"{key!r} is no setting of {what}; {nearest(key, known)}")
    return table


def _target(value: Any) -> int | None:
    """Read a number of replies; 0 means None, which a file cannot express."""
    return value or None


def _codec(value: Any) -> Codecs:
    return value if isinstance(value, Codecs) else Codecs.read(value)


_READ: dict[str, Callable[[Any], Any]] = {
    "algorithm": _algorithm,
    "sampling": sampler,
    "guard": _guard,
    "aggregator": _aggregator,
    "target": _target,
    "codec": _codec,
}
"""The reader of each field that is not a plain value."""
