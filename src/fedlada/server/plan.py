"""The plan of a run: all settings that affect its result under every engine.

:func:`fedlada.simulate`, a Flower app's config and an experiment's TOML file use the same plan:
each passes plain values to :class:`Plan`, by the same names.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from typing import Any, TypedDict, Unpack, cast, get_args

from ..algorithms import ALGORITHMS, Algorithm, Vector, algorithm as named_algorithm
from ..algorithms.registry import title
from ..errors import require, require_known
from ..privacy import Masks, Privacy
from ..protocol.codecs import Codecs
from ..protocol.federated import BufferPolicy
from .aggregate.mean import Mean
from .aggregate.robust import AGGREGATORS
from .collect.by_version import Aging
from .collect.tally import Aggregator
from .guard import Guard, Weighting
from .sampling import Bernoulli, FixedSize, Sampler
from .saving.fingerprint import Plain, describe, described

__all__ = ["OtherSettings", "Plan", "PlanSettings", "sampler", "settings_table"]


class OtherSettings(TypedDict, total=False):
    """The arguments of a :class:`Plan` that :func:`fedlada.simulate` does not spell out."""

    lr_decay: float
    weighting: Weighting
    close_after: int | None
    deadline: float | None
    staleness: int
    aging: Aging
    minimum: int
    guard: Guard | Mapping[str, Any] | str | None
    aggregator: Callable[[], Aggregator] | Mapping[str, Any] | str
    buffers: BufferPolicy
    personal: Sequence[str] | str
    codec: Codecs | str
    privacy: Privacy | Mapping[str, Any] | str | None
    masks: Masks | Mapping[str, Any] | str | bool | None
    evaluate_every: int


class PlanSettings(OtherSettings, total=False):
    """The arguments of a :class:`Plan`: its fields, as objects or as plain values."""

    algorithm: Algorithm | Mapping[str, Any] | str
    rounds: int
    cohort: Sampler | int | float | str
    seed: int


WHOLE = ("exact", "fixed", "masked")
"""What a plan with privacy may name as the codec of what goes up, which it chooses itself."""
FREE = {"free": True}
"""Marks a field that a resumed run may change: the rounds already done do not depend on it."""
NEW = {"new": True}
"""Marks a field that 0.3 does not have: a checkpoint of 0.3 has its default."""


def _algorithm(value: Any) -> Algorithm:
    """Read an algorithm, its name, its spec, or its spec as text in braces."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = settings_table(value)
    return named_algorithm(value)


def sampler(value: Any) -> Sampler:
    """Read a sampler, a number of clients, a share of them, or ``all``."""
    if value == "all":
        return Bernoulli(1.0)
    if type(value) is int:
        return FixedSize(value)
    if isinstance(value, float) and 0 < value < 1:
        return Bernoulli(value)
    require(
        hasattr(value, "cohort"),
        f"cohort is {value!r}; it must be a number of clients such as 10, a share between 0 and 1"
        " such as 0.1, 'all', or a sampler such as fedlada.server.FixedSize(10)",
    )
    sampler: Sampler = value
    return sampler


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


def _guard(value: Any) -> Guard | None:
    """Read a guard, its settings, ``strict``, or None or ``off`` for no guard."""
    if value is None or isinstance(value, Guard):
        return value
    if value == "strict":
        return Guard.strict()
    return None if value == "off" else Guard(**_checked(settings_table(value), Guard, "guard"))


def _privacy(value: Any) -> Privacy | None:
    """Read the settings of privacy; None or no text for none."""
    if value is None or value == "" or isinstance(value, Privacy):
        return value or None
    table = _checked(settings_table(value), Privacy, "privacy")
    for name in ("noise", "delta"):
        require(
            name in table,
            f"privacy has no {name}: fedlada privacy says which noise your budget needs, and delta"
            " is below one over the number of clients, such as noise = 0.94, delta = 1e-5",
        )
    return Privacy(**table)


def _masks(value: Any) -> Masks | None:
    """Read the settings of masks; True for the usual ones, None, False or no text for none."""
    if value is None or isinstance(value, Masks):
        return value
    if isinstance(value, bool) or value == "":
        return Masks() if value else None
    return Masks(**_checked(settings_table(value), Masks, "masks"))


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
    require_known(name, AGGREGATORS, f"there is no aggregator {name!r}")
    rule = AGGREGATORS[name]
    if not table:
        return rule
    require(dataclasses.is_dataclass(rule), f"aggregator {name!r} has no settings")
    return dataclasses.replace(rule, **_checked(table, type(rule), name))  # type: ignore[type-var]


def _checked(table: dict[str, Any], kind: type, what: str) -> dict[str, Any]:
    known = [f.name for f in dataclasses.fields(kind)]
    for key in table:
        require_known(key, known, f"{key!r} is no setting of {what}")
    return table


def _number_or_none(value: Any) -> Any:
    """Read a number; 0 means None, which a file cannot express."""
    return value or None


def _codec(value: Any) -> Codecs:
    return value if isinstance(value, Codecs) else Codecs.read(value)


def _personal(value: Any) -> tuple[str, ...]:
    """Read patterns of names, or text with patterns between spaces or commas."""
    patterns = tuple(value.replace(",", " ").split() if isinstance(value, str) else value)
    require(
        all(isinstance(pattern, str) and pattern for pattern in patterns),
        f"personal is {value!r}; it must be patterns of names, such as ('head.*',)",
    )
    return patterns


@dataclass(frozen=True, init=False)
class Plan:
    """The settings of a run, given as objects or as plain values, by name.

    >>> Plan(algorithm="fedcm", cohort=10, guard="slack = 3.0", aggregator="trimmed-mean")
    """

    algorithm: Algorithm = field(default=ALGORITHMS["fedlada"], metadata={"read": _algorithm})
    """One of :data:`ALGORITHMS` by its name, or any other :class:`Algorithm`."""
    rounds: int = field(default=100, metadata=FREE)
    """Total number of rounds."""
    cohort: Sampler = field(default=FixedSize(10), metadata={"read": sampler})
    """Chooses the clients of each round."""
    seed: int = 0
    """Determines every random choice of the rounds."""
    lr_decay: float = 0.998
    """Factor on the learning rate after each round."""
    weighting: Weighting = "uniform"
    """``"uniform"``: replies count equally, and the federation's loss is the mean of its clients'
    losses.  ``"examples"``: a reply counts by its number of examples, and the federation's loss is
    the mean of its examples' losses."""
    close_after: int | None = field(default=None, metadata={"read": _number_or_none})
    """Close a round once this many replies are accepted; None waits for the whole cohort.  Sample
    more clients than this so that a round does not wait for the slowest.  In a simulation replies
    arrive in a random order, which follows from the seed and the round."""
    deadline: float | None = field(default=None, metadata={"read": _number_or_none, **FREE, **NEW})
    """Seconds that a client has for a task, on Flower and in a simulation with devices; None waits
    without a limit."""
    staleness: int = field(default=0, metadata=NEW)
    """A reply may be this many rounds late; 0 drops every reply that comes after ``close_after``
    others.  Otherwise ``cohort`` clients train at any time, a round ends with ``close_after``
    replies to any of its own or earlier tasks, and only the clients that have answered are
    replaced."""
    aging: Aging = field(default="root", metadata=NEW)
    """How much a reply that is ``a`` rounds late counts: ``"root"`` is 1/sqrt(1 + a), ``"none"`` is
    1.  The server's step is multiplied by the mean of these weights."""
    minimum: int = 1
    """Abandon a round with fewer accepted replies than this and leave all vectors unchanged."""
    guard: Guard | None = field(default=Guard(), metadata={"read": _guard})
    """The limits that every reply must pass; None accepts every reply."""
    aggregator: Callable[[], Aggregator] = field(default=Mean, metadata={"read": _aggregator})
    """Makes the object that combines the replies of a round."""
    buffers: BufferPolicy = "refuse"
    """How to treat the model's buffers, such as BatchNorm's statistics."""
    personal: tuple[str, ...] = field(default=(), metadata={"read": _personal, **NEW})
    """Patterns of the names of parameters and buffers that stay on each client, such as
    ``("head.*",)``: they are trained and kept there, and never sent."""
    codec: Codecs = field(default_factory=Codecs, metadata={"read": _codec})
    """How vectors are encoded for sending."""
    privacy: Privacy | None = field(default=None, metadata={"read": _privacy, **NEW})
    """Privacy of whole clients by noise on the server; None adds none.  Replies are clipped in the
    place of a guard, and sent by the codec ``fixed``."""
    masks: Masks | None = field(default=None, metadata={"read": _masks, **NEW})
    """Groups of clients of which the server opens the sum alone; None lets it see every reply.
    They need ``privacy``, whose clips make replies whole numbers, and change no bit of the
    result."""
    evaluate_every: int = field(default=1, metadata=FREE)
    """Evaluate each time this many rounds are done, and after the last round."""

    def __init__(self, **settings: Unpack[PlanSettings]) -> None:
        fields = {f.name: f for f in dataclasses.fields(self)}
        for name in settings:
            require_known(name, fields, f"a plan has no {name!r}")
        for name, f in fields.items():
            if name in settings:
                value, read = settings[name], f.metadata.get("read")  # type: ignore[literal-required]
                value = value if read is None else read(value)
            else:
                value = f.default if f.default_factory is MISSING else f.default_factory()
            object.__setattr__(self, name, value)
        self._check()
        if self.privacy is not None:
            self._check_privacy(self.privacy)
            object.__setattr__(self, "guard", None)
            up = "fixed" if self.masks is None else "masked"
            object.__setattr__(self, "codec", Codecs(self.codec.down, {"*": up}))
        require(
            self.masks is None or self.privacy is not None,
            "there are masks and no privacy: masks hide whole numbers, and it is privacy whose"
            " clips make every reply such numbers; give privacy, or leave masks out",
        )

    def _check(self) -> None:
        literals = {"weighting": Weighting, "aging": Aging, "buffers": BufferPolicy}
        for name, kind in literals.items():
            value = getattr(self, name)
            require(
                value in get_args(kind),
                f"{name} is {value!r}; it must be one of {', '.join(get_args(kind))}",
            )
        for name in ("rounds", "seed", "staleness", "minimum", "evaluate_every"):
            value, least = getattr(self, name), int(name in ("minimum", "evaluate_every"))
            require(
                type(value) is int and value >= least,
                f"{name} is {value!r}; it must be a whole number, {least} or more",
            )
        close = self.close_after
        require(
            close is None or (type(close) is int and close >= self.minimum),
            f"close_after is {close!r} and minimum is {self.minimum}; a round cannot close below"
            " its minimum",
        )
        deadline = self.deadline
        require(
            deadline is None or (isinstance(deadline, int | float) and 0 < deadline < math.inf),
            f"deadline is {deadline!r}; it must be positive seconds, or None for no deadline",
        )
        require(
            isinstance(self.lr_decay, int | float) and 0 < self.lr_decay <= 1,
            f"lr_decay is {self.lr_decay!r}; it must be above 0 and at most 1",
        )
        sums = ", ".join(total.into for total in self.algorithm.sums)
        require(
            self.weighting == "uniform" or not sums,
            f"weighting is {self.weighting!r} and {title(self.algorithm)} keeps {sums}, a sum over"
            " all clients, which needs equal weights to be right while only some take part: choose"
            " weighting='uniform'",
        )
        require(
            self.guard is None or self.privacy is not None or len(self.algorithm.sums) < 2,
            f"{title(self.algorithm)} keeps {sums}, several sums over all clients, and the guard"
            " can limit what a client adds to one of them alone: choose guard='off', or keep one"
            " sum",
        )
        self._check_aggregator()
        if self.staleness:
            self._check_staleness()

    def evaluates(self, round: int) -> bool:
        """Return whether to evaluate after round ``round``."""
        return round % self.evaluate_every == 0 or round == self.rounds

    def enough(self, accepted: int) -> bool:
        """Return whether a round with ``accepted`` replies changes the model."""
        return accepted >= self.minimum and _combines(self.aggregator(), accepted)

    def _check_aggregator(self) -> None:
        made = self.aggregator()
        require(
            self.weighting == "uniform" or getattr(made, "weighted", True),
            f"weighting is {self.weighting!r} and the aggregator is {self.aggregator}, which takes"
            " no weights: choose weighting='uniform' or aggregator='mean'",
        )
        size = self.cohort.size if isinstance(self.cohort, FixedSize) else None
        for what, count in (("cohort", size), ("close_after", self.close_after)):
            require(
                count is None or _combines(made, count),
                f"{what} lets a round have {count} replies, and the aggregator {self.aggregator}"
                f" needs {getattr(made, 'least', 'more')}: sample more clients, or choose another"
                " aggregator",
            )

    def _check_staleness(self) -> None:
        given, close, cohort = f"staleness is {self.staleness}", self.close_after, self.cohort
        require(
            close is not None,
            f"{given} and close_after is None, so every round waits for its whole cohort and no"
            " reply is late: give close_after, the number of replies of a round",
        )
        require(
            not isinstance(cohort, Bernoulli),
            f"{given} and cohort is a share of the clients; with staleness it is the number of"
            " clients that train at any time: give a number, such as 20",
        )
        require(
            not isinstance(cohort, FixedSize) or cohort.size > cast(int, close),
            f"{given}, cohort is {getattr(cohort, 'size', 0)} and close_after is {close}, so every"
            " round waits for all clients that train and no reply is late: give a cohort above"
            " close_after",
        )
        require(
            self.aging == "none" or getattr(self.aggregator(), "weighted", True),
            f"{given} and the aggregator is {self.aggregator}, which takes no weights: choose"
            " aging='none' or aggregator='mean'",
        )

    def _check_privacy(self, privacy: Privacy) -> None:
        """Refuse what would tell more of a client than its noised and clipped reply."""
        algorithm, cohort = self.algorithm, self.cohort
        require(
            isinstance(cohort, Bernoulli),
            f"cohort is {getattr(cohort, 'size', cohort)} and there is privacy, whose account"
            " needs clients that are drawn each by its own chance: give the share of the clients,"
            " such as cohort=0.1 for 10 of 100",
        )
        require(
            self.guard is None or self.guard == Guard(),
            "there are a guard and privacy: a guard's limits follow the median of all replies, so"
            " one of them would change what happens to the others. Leave guard out: every reply is"
            " clipped",
        )
        require(
            issubclass(self.aggregator, Mean)
            if isinstance(self.aggregator, type)
            else self.aggregator is Mean,
            f"aggregator is {self.aggregator} and there is privacy: noise hides what a reply adds"
            " to a mean, and no other rule; leave aggregator out",
        )
        names = [self.codec.name("up", name) for name in algorithm.up]
        require(
            all(name in WHOLE for name in names),
            f"codec sends {', '.join(n for n in names if n not in WHOLE)} up and there"
            " is privacy, for which vectors are whole multiples of a step; leave the codec of what"
            " goes up out",
        )
        for name, usual, why in (
            ("weighting", "uniform", "the number of examples would be told"),
            ("close_after", None, "who answers first would replace others"),
            ("minimum", 1, "a round that is left out would tell how many took part"),
        ):
            value = getattr(self, name)
            require(
                value == usual,
                f"{name} is {value!r} and there is privacy: {why}; leave {name} out",
            )
        require(
            self.buffers != "average",
            "buffers is 'average' and there is privacy: the means of buffers have no noise; choose"
            " buffers='local', or replace BatchNorm by GroupNorm",
        )
        leaks = algorithm.server.leaks
        require(
            not leaks,
            f"the server rule of {title(algorithm)} cannot be private: {leaks}. Choose another"
            " algorithm",
        )
        privacy.clips(algorithm), privacy.shares_of(algorithm)

    def settings(self) -> PlanSettings:
        """Return the fields by name: ``Plan(**plan.settings()) == plan``."""
        return cast(PlanSettings, {f.name: getattr(self, f.name) for f in dataclasses.fields(self)})

    def summary(self, x: Vector, clients: int) -> str:
        """Return what a run with a model like ``x`` will do, so that no default surprises."""
        rule, vectors = self.algorithm.local, self.algorithm.traffic.bytes(x.nbytes())
        size = len(self.cohort.cohort(self.seed, 0, clients))
        if self.privacy is not None:  # the seed does not say who is drawn
            size = round(cast(Bernoulli, self.cohort).rate * clients)
        about = "about " if isinstance(self.cohort, Bernoulli) and self.cohort.rate < 1 else ""
        before = "" if self.codec == Codecs() else f" before the codec {self.codec}"
        personal = f" personal {' '.join(self.personal)};" if self.personal else ""
        who = f"{about}{size} of {clients} clients"
        if self.staleness:  # as many are asked in a round as have answered
            who, size = f"{self.close_after} replies, {who} at any time", self.close_after or size
        return (
            f"{title(self.algorithm)}, lr {rule.lr:g} times {self.lr_decay:g} each round, weight"
            f" decay {rule.weight_decay:g}; {self.rounds} rounds of {who};"
            f" guard {'off' if self.guard is None else 'on'};{personal}"
            f" {_size(size * vectors.down)} down and {_size(size * vectors.up)} up a round{before}"
        )

    def identity(self) -> dict[str, Plain]:
        """Return every setting that affects the result, as plain values."""
        return {
            f.name: describe(getattr(self, f.name))
            for f in described(self)
            if "free" not in f.metadata
        }


def _size(count: int) -> str:
    return f"{count / 1e6:.3g} MB" if count >= 1e6 else f"{count / 1e3:.3g} kB"


def _combines(aggregator: Aggregator, count: int) -> bool:
    """Return whether an aggregator can combine ``count`` replies; most can combine any number."""
    combines: Callable[[int], bool] | None = getattr(aggregator, "combines", None)
    return combines is None or combines(count)
