"""The tables of an experiment file: their keys, types and defaults."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, create_model, model_validator

from ...data import KINDS
from ...engines import devices
from ...errors import MOST
from ...redteam.defences import ATTACK_NAMES, DEFENCES, HONEST
from ...server.plan import Plan
from .named import ENGINES, foreign, maker, objective_named, one_of, source
from .options import checked

__all__ = [
    *(
        "Count",
        "Data",
        "Devices",
        "Engine",
        "Evaluate",
        "Federation",
        "Free",
        "Model",
        "Section",
        "Seed",
    ),
    *("Train", "section_in"),
]

CLIENTS = 100  # the default, except for the natural partition

Share = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(gt=0, lt=MOST)]
Seed = Annotated[int, Field(ge=0)]


class Free:
    """Marks a key or a table that a resumed run may change: no finished round depends on it."""


class Section(BaseModel):
    """A table of the file, which accepts only known keys and the right types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def section_in(annotation: object) -> type[Section] | None:
    """Return the table that a key holds, by the key's type; None if it holds a value."""
    kinds = get_args(annotation) or (annotation,)
    tables = (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section))
    return next(tables, None)


class Data(Section):
    """The examples, their partition over clients, and the task to learn from them."""

    dataset: str = "cifar10"
    """A name, or ``package.module:load``."""
    partition: Annotated[str, one_of("data.partition", KINDS)] = "client-prior"
    """By default the data set's own: ``natural`` for texts, ``client-prior`` for images."""
    clients: Count | None = None
    """100 by default; None for ``natural``, where the data determine it: one per owner."""
    concentration: Annotated[float, Field(gt=0)] = 0.6
    only: Annotated[int, Field(ge=0)] | None = None
    """The number of a client that trains alone, without a federation: the lower reference."""
    seed: Seed = 0
    """The seed of the partition and the validation split, independent of federation.seed."""
    validation: Share = 0.1
    """The share of the training set to hold out, if evaluate.split is ``validation``."""
    task: str | None = None
    """``classification``, ``regression``, ``text`` or ``package.module:NAME``; by default that of
    the data set, and None follows the labels."""
    options: dict[str, object] = Field(default_factory=dict)
    """The options of the data set."""

    @model_validator(mode="before")
    @classmethod
    def _what_follows_from_the_data_set(cls, given: object, info: ValidationInfo) -> object:
        if not (isinstance(given, dict) and isinstance(given.get("options", {}), dict)):
            return given
        name, task = given.get("dataset", "cifar10"), given.get("task")
        if not isinstance(name, str):
            return given
        if isinstance(task, str) and not foreign(task, info):
            objective_named(task)
        known = None if foreign(name, info) else source(name)
        if known is not None:
            given = {"partition": known.partition, "task": known.task, "options": {}, **given}
        natural = given.get("partition") == "natural"
        if natural and given.get("clients") is not None:
            raise ValueError(
                f"data.clients is {given['clients']}, but data.partition is 'natural', which has"
                " one client for each owner in the data; leave data.clients out"
            )
        if known is None:
            return given
        options = checked(known.load, given["options"], table="data.options")
        return ({} if natural else {"clients": CLIENTS}) | given | {"options": options}

    @property
    def participants(self) -> int | None:
        """The number of clients to sample from; None if the data determine it."""
        return self.clients if self.only is None else 1


class Model(Section):
    """The network: its name, and the options of the function that makes it."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: str = "lenet"
    """A name, or ``package.module:make``."""

    @model_validator(mode="before")
    @classmethod
    def _only_its_options(cls, given: object, info: ValidationInfo) -> object:
        if not isinstance(given, dict) or not isinstance(given.get("name", ""), str):
            return given
        name = given.get("name", "lenet")
        if foreign(name, info):
            return given
        options = {key: value for key, value in given.items() if key != "name"}
        return {"name": name} | checked(maker(name), options, table="model")

    @property
    def options(self) -> dict[str, object]:
        """Every option of the function with its value."""
        return dict(self.model_extra or {})


class Train(Section):
    """A client's training in one round: a number of steps, or of epochs over its data."""

    steps: Count | None = None
    """50 unless epochs are given."""
    epochs: Count | None = None
    batch_size: Count = 50
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    crop: Annotated[int, Field(ge=0)] = 4
    """The largest random shift of images, in pixels; the default depends on the data set."""
    crop_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The share of images that are shifted."""
    flip: bool = False
    autocast: Literal["bfloat16"] | None = None
    """The type in which the forward pass and the loss are computed, if not that of the model."""

    @model_validator(mode="before")
    @classmethod
    def _steps_or_epochs(cls, given: object) -> object:
        if isinstance(given, dict) and given.get("steps") is None and given.get("epochs") is None:
            return {**given, "steps": 50}
        return given

    @model_validator(mode="after")
    def _one_of_the_two(self) -> Train:
        if self.steps is not None and self.epochs is not None:
            raise ValueError(
                f"train.steps is {self.steps} and train.epochs is {self.epochs}; give only one"
            )
        return self


def _plain_fields(kind: type, *others: str) -> dict[str, Any]:
    """Return the fields that a file gives as they are, with their types and defaults."""
    kinds = get_type_hints(kind)
    return {
        f.name: (kinds[f.name], f.default)
        for f in dataclasses.fields(kind)
        if f.metadata.keys() <= {"new"} and f.name not in others
    }


_Plain: Any = create_model(
    "_Plain", __base__=Section, **_plain_fields(Plan, "algorithm", "evaluate_every")
)


class Federation(_Plain):  # type: ignore[misc]
    """The server's loop: the fields of a :class:`Plan` that the lines below do not repeat.

    A field is declared here if a file gives it in another form than the plan has it, or if a
    resumed run may change it.
    """

    rounds: Annotated[Count, Free] = 100
    cohort: Count | Annotated[float, Field(gt=0, lt=1)] | Literal["all"] = 10
    """The number of clients sampled per round; as a fraction, each client's probability; or all."""
    close_after: Count | None = None
    """The number of accepted replies that closes a round; None waits for the whole cohort."""
    deadline: Annotated[float | None, Field(gt=0), Free] = None
    """Seconds that a client has for a task."""
    guard: str | dict[str, int | float] = ""
    """Other limits for the guard, such as { slack = 5.0 }; "off" admits every reply."""
    aggregator: str | dict[str, str | int | float] = "mean"
    """The rule that combines the replies: a name, or a table with name and settings."""
    personal: str | Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Patterns of the names of parameters and buffers that stay on each client, "head.*" say."""
    codec: str = "exact"
    """The encoding of the vectors in messages, such as "x=exact | delta=exact"."""
    privacy: str | dict[str, Any] = ""
    """Privacy of whole clients by noise on the server, such as { noise = 1.0, delta = 1e-5 }."""
    masks: bool | str | dict[str, int] = False
    """Whether the server opens sums of replies alone, or settings such as { least = 10 }."""
    attack: Annotated[str, one_of("federation.attack", ATTACK_NAMES)] = HONEST
    """The attack of lying clients; with "absent" they send nothing."""
    attackers: Share | Count = 0.1
    """The share or the number of the clients that attack."""
    attack_strength: Annotated[float, Field(ge=0)] | None = None
    """The strength in the unit of the attack; by default the attack's own."""
    defence: Annotated[str, one_of("federation.defence", DEFENCES)] = "default"
    """A name for values of guard and aggregator, which replace those keys."""


_Timing: Any = create_model("_Timing", __base__=Section, **_plain_fields(devices.Devices, "table"))


class Devices(_Timing):  # type: ignore[misc]
    """The clients' devices, if the run is in simulated time (:class:`fedlada.engines.Devices`)."""

    table: str = ""
    """A CSV file with a row for each client, in the directory of the experiment's file."""


class Evaluate(Section):
    """The evaluation after a round."""

    split: Literal["test", "validation"] = "test"
    every: Count = 1
    train_sample: Annotated[int, Field(ge=0)] = 0
    """The number of training examples to evaluate on as well."""
    targets: Annotated[tuple[float, ...], Field(strict=False), Free] = ()
    """Scores, such as accuracies; comparisons show when each run reached them."""
    cohort: Annotated[
        Annotated[int, Field(ge=0)] | Annotated[float, Field(gt=0, lt=1)] | Literal["all"], Free
    ] = 0
    """The number of clients that evaluate the model on held-out examples of their own, or the
    probability of each; or all."""
    tune: Annotated[int, Field(ge=0), Free] = 0
    """The number of local steps after which these clients evaluate once more."""

    @model_validator(mode="after")
    def _tuned_clients_evaluate(self) -> Evaluate:
        if self.tune and not self.cohort:
            raise ValueError(
                f"evaluate.tune is {self.tune} and evaluate.cohort is 0, so no client evaluates;"
                ' add evaluate.cohort = "all", or leave evaluate.tune out'
            )
        return self


class Engine(Section):
    """The engine that runs the clients; every engine gives the same bits, but for at_once."""

    name: Annotated[str, one_of("engine.name", ENGINES)] = "process"
    """One process, Flower's simulation on Ray, or Flower's SuperNodes on this machine."""
    nodes: Count = 2
    """The number of SuperNodes that share the clients of a deployment; Ray ignores it."""
    workers: Count = 1
    """The number of processes that share the clients of a round, if name is ``process``."""
    at_once: Count | Literal["auto"] = 1
    """The number of clients that each process trains as one model; ``auto`` tries if it is faster.
    """

    @model_validator(mode="after")
    def _workers_are_of_this_process(self) -> Engine:
        if self.workers > 1 and self.name != "process":
            raise ValueError(
                f"engine.workers is {self.workers} and engine.name is {self.name!r}, which starts"
                " processes of its own; leave engine.workers out, or take engine.name=process"
            )
        if self.at_once != 1 and self.name != "process":
            raise ValueError(
                f"engine.at_once is {self.at_once!r} and engine.name is {self.name!r}, whose nodes"
                " train one client at a time; leave engine.at_once out, or take"
                " engine.name=process"
            )
        return self
