"""The keys of an experiment file and their defaults."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Container, Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from ...algorithms import Algorithm, algorithm as by_name
from ...algorithms.registry import outside_names
from ...devices import named as named_device
from ...errors import ExperimentError
from ...redteam.defences import DEFENCES, HONEST
from ...redteam.hostile import colluders_of
from ...server.plan import Plan
from ...training.objective import CLASSIFICATION, OBJECTIVES, Objective
from .keys import flatten
from .named import foreign, objective_named, source
from .sections import (
    Data,
    Devices,
    Engine,
    Evaluate,
    Federation,
    Free,
    Model,
    Section,
    Train,
    section_in,
)

__all__ = ["FREE", "Experiment"]

AT_ONCE = {"mlp": 100, "decoder": 20}
"""The networks that train faster at once, and how many clients: `benchmarks/stacked.py`."""
LONGEST = 100
"""Largest number of characters in a name or a label."""

Setting = bool | int | float | str | list[float]

# The key of each field of a plan; the algorithm has its own keys, algorithm and settings.
PLANNED = {
    f.name: "evaluate.every" if f.name == "evaluate_every" else f"federation.{f.name}"
    for f in dataclasses.fields(Plan)
    if f.name != "algorithm"
}


class Experiment(Section):
    """The complete configuration of one run."""

    name: Annotated[str, Field(min_length=1), Free] = "experiment"
    algorithm: str | dict[str, str | list[str]] = "fedlada"
    """A name, ``package.module:NAME``, or a table with local, corrections and server."""
    label: Annotated[str, Free] = ""
    """The name of the run in tables and figures; if empty, the algorithm's name."""
    settings: dict[str, Setting] = Field(default_factory=dict)
    """The settings of the algorithm: lr, weight_decay, alpha, server_lr and so on."""
    device: Annotated[str, Free] = "cpu"
    """Where models train: cpu, cuda, cuda:1, mps, or auto for the accelerator of the machine."""
    data: Data = Data()
    model: Model = Model()
    train: Train = Train(steps=50)
    federation: Federation = Federation()
    devices: Devices | None = None
    evaluate: Evaluate = Evaluate()
    engine: Annotated[Engine, Free] = Engine()
    track: Annotated[
        tuple[Literal["tensorboard", "mlflow", "wandb"], ...], Field(strict=False), Free
    ] = ()
    modules: Annotated[str | None, Free] = None
    """The directory of the modules that other keys name; by default that of the file."""

    @field_validator("name", "label")
    @classmethod
    def _names_a_directory(cls, value: str, info: ValidationInfo) -> str:
        if len(value) > LONGEST or (value and not value.strip(". ")):
            raise ValueError(
                f"{info.field_name} is {value[:LONGEST]!r}; it names a directory, so it must have"
                f" at most {LONGEST} characters, and not dots alone"
            )
        return value

    @model_validator(mode="before")
    @classmethod
    def _defaults_that_follow_the_data(cls, given: object, info: ValidationInfo) -> object:
        tables = ("data", "model", "train")
        if not (
            isinstance(given, dict) and all(isinstance(given.get(t, {}), dict) for t in tables)
        ):
            return given
        name = given.get("data", {}).get("dataset", "cifar10")
        if not isinstance(name, str) or foreign(name, info):
            return given
        chosen = source(name)
        model = {"name": chosen.model} | given.get("model", {})
        train = {"crop": chosen.crop} | given.get("train", {})
        return {**given, "model": model, "train": train}

    @model_validator(mode="after")
    def _fits_together(self, info: ValidationInfo) -> Experiment:
        known = not foreign(self.data.dataset, info)
        if known and self.model.name in source(self.data.dataset).too_small_for:
            raise ValueError(
                f"model.name is {self.model.name!r}, which needs larger images than those of"
                f" {self.data.dataset}; leave model out, or choose another data.dataset"
            )
        if self.data.clients is not None:
            self.check_clients(self.data.clients)
        self._check_devices()
        self._check_device()
        engine = self.engine
        alone = engine.name == "process" and engine.workers == 1
        if self.federation.attack != HONEST and not alone:
            raise ValueError(
                f"federation.attack is {self.federation.attack!r}, which needs all clients in one"
                " process; choose engine.name=process and engine.workers=1"
            )
        if self.evaluate.cohort and not (
            self.engine.name == "process" and self.federation.attack == HONEST
        ):
            raise ValueError(
                f"evaluate.cohort is {self.evaluate.cohort!r}, and only clients in this process"
                " that do not attack evaluate the model; leave it out, or choose"
                " engine.name=process without federation.attack"
            )
        if not foreign(self.data.task, info):
            for target in self.evaluate.targets:
                self.objective().scale.check_target(target, "evaluate.targets")
        if not foreign(self.algorithm, info):
            self._settings_have_their_type()
            self.plan()
        return self

    def _check_devices(self) -> None:
        in_process = self.engine.name == "process"
        if self.devices is not None and not in_process:
            raise ValueError(
                f"engine.name is {self.engine.name!r} and there are devices; real nodes take real"
                " time: leave [devices] out, or choose engine.name=process"
            )
        if self.federation.staleness:
            self._check_staleness()
        if self.devices is None and in_process and self.federation.deadline is not None:
            raise ValueError(
                f"federation.deadline is {self.federation.deadline}, and without [devices] nobody"
                " is late; add that table, or leave the deadline out"
            )

    def _check_device(self) -> None:
        named_device(self.device)
        if self.device != "cpu" and self.engine.name == "ray":
            raise ValueError(
                f"device is {self.device!r} and engine.name is 'ray', whose workers see no GPU;"
                " choose engine.name=process, or leave device out"
            )

    def _check_staleness(self) -> None:
        key = f"federation.staleness is {self.federation.staleness}"
        if self.engine.name != "process":
            raise ValueError(
                f"{key} and engine.name is {self.engine.name!r}, on which an experiment cannot have"
                " late replies; choose engine.name=process, or leave staleness out"
            )
        if self.devices is None:
            raise ValueError(
                f"{key}, and without [devices] nobody is late; add that table, or leave staleness"
                " out"
            )
        if self.federation.attack != HONEST:
            raise ValueError(
                f"{key} and federation.attack is {self.federation.attack!r}; attackers collude"
                " within a cohort, which has no end here: choose one of the two"
            )

    def check_clients(self, clients: int) -> None:
        """Check the keys that depend on the number of clients, which may follow from the data."""
        if self.data.only is not None and self.data.only >= clients:
            raise ExperimentError(
                f"data.only is {self.data.only}, but clients are numbered from 0 to {clients - 1}"
            )
        if self.federation.attack != HONEST:
            colluders_of(clients, self.federation.attackers)
        there = clients if self.data.only is None else 1
        cohort = self.federation.cohort
        if not isinstance(cohort, str) and cohort > there:
            key = "the data have" if self.data.clients is None else "data.clients is"
            key = key if self.data.only is None else "with data.only there is"
            raise ExperimentError(
                f"federation.cohort is {cohort}, but {key} {there}; a cohort"
                " cannot be larger than that: give a smaller one"
            )
        if self.engine.name == "deployment" and self.engine.nodes > there:
            raise ExperimentError(
                f"engine.nodes is {self.engine.nodes}, more than the {there} clients that they"
                " would share; give fewer"
            )

    def _settings_have_their_type(self) -> None:
        known = by_name(self.algorithm).settings()
        for key, value in self.settings.items():
            default = known.get(key)
            kinds = (int, float) if isinstance(default, float) else (type(default),)
            kinds = (list,) if isinstance(default, tuple) else kinds
            if key in known and (type(value) not in kinds):
                raise ValueError(
                    f"settings.{key} is {value!r}; it must be of the kind of its default, {default}"
                )

    def optimizer(self) -> Algorithm:
        """Return the algorithm with its settings."""
        return by_name(self.algorithm, **self.settings)

    def plan(self) -> Plan:
        """Return the plan of the run."""
        flat: dict[str, Any] = self.model_dump(exclude={"algorithm", "settings"})
        given: dict[str, Any] = {
            name: functools.reduce(operator.getitem, key.split("."), flat)
            for name, key in PLANNED.items()
        }
        given |= DEFENCES[self.federation.defence]
        return Plan(algorithm=self.optimizer(), **given)

    def objective(self, recorded: Container[str] = ()) -> Objective:
        """Return the objective that data.task names, else the one whose score was recorded."""
        if self.data.task is not None:
            return objective_named(self.data.task)
        scores = {f"{self.evaluate.split}_{known.score}": known for known in OBJECTIVES.values()}
        return next((known for score, known in scores.items() if score in recorded), CLASSIFICATION)

    def identity(self) -> dict[str, object]:
        """Return the values that identify the run beside its plan, by dotted key."""
        flat = flatten(self.model_dump(mode="json"))
        beside = (*FREE, *PLANNED.values(), "federation.defence")
        beside += ("devices",)  # a simulation notes them itself, with the content of a table
        beside += ("train.autocast",)  # it is noted with the local training
        if self.federation.attack == HONEST:
            beside += ("federation.attack",)  # and all keys that begin with it
        return {key: value for key, value in flat.items() if not key.startswith(beside)}

    def differences(self, other: Experiment) -> Iterator[tuple[str, object, object]]:
        """Yield each key in which another configuration is another run, with both values.

        Names of one composition are equal: what else a name means stands in the settings.
        """
        ours, theirs = (flatten(c.model_dump(mode="json")) for c in (self, other))
        for key in sorted(ours.keys() | theirs.keys()):
            pair = ours.get(key), theirs.get(key)
            same = pair[0] == pair[1]
            if key == "algorithm" and not any(
                map(outside_names, (self.algorithm, other.algorithm))
            ):
                same = by_name(self.algorithm).composition == by_name(other.algorithm).composition
            if not (same or key in FREE):
                yield key, *pair

    def resolved(self) -> Experiment:
        """Return a copy with every setting of the algorithm, so that no later default matters."""
        settings = self.optimizer().settings()
        full = {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}
        return self.model_copy(update={"settings": full})

    def at_once_where_faster(self) -> Experiment:
        """Return a copy whose clients are trained at once if that is faster, unless it says how.

        Sweeps and tournaments do this.  The file alone decides, and no clock: equal files end in
        equal bits.
        """
        engine = self.engine
        alone = (
            engine.name != "process"
            or self.federation.attack != HONEST
            or bool(self.federation.personal)
            or self.train.autocast is not None
            or ":" in (self.data.task or "")
            or not all(part.stacks for part in self.optimizer().part.chain())
        )
        if alone or "at_once" in engine.model_fields_set:
            return self
        number = AT_ONCE.get(self.model.name, 1)
        return self.model_copy(update={"engine": engine.model_copy(update={"at_once": number})})

    @property
    def title(self) -> str:
        """The name of the algorithm in tables and figures: ``label``, or its own name."""
        return self.label or self.algorithm_name

    @property
    def algorithm_name(self) -> str:
        """The name of the algorithm, or those of its parts."""
        if isinstance(self.algorithm, str):
            return self.algorithm
        parts = (self.algorithm.get(key, ()) for key in ("corrections", "local", "server"))
        return "-".join(w for part in parts for w in ([part] if isinstance(part, str) else part))


def _free(table: type[Section], prefix: str = "", free: bool = False) -> Iterator[str]:
    """Yield the dotted keys of a table that are marked as free, or are in a marked table."""
    for name, field in table.model_fields.items():
        marked, kind = free or Free in field.metadata, section_in(field.annotation)
        if kind is not None:
            yield from _free(kind, f"{prefix}{name}.", marked)
        elif marked:
            yield prefix + name


FREE = tuple(_free(Experiment))
"""The keys that may change when a run is resumed."""
