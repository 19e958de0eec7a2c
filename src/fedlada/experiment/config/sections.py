"""The tables of an experiment file: their keys, types and defaults."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .named import maker, objective_named, source
from .options import checked

__all__ = ["Data", "Engine", "Evaluate", "Federation", "Model", "Section", "Train"]

CLIENTS = 100  # where the data do not come split by owner

Share = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(gt=0)]
Seed = Annotated[int, Field(ge=0)]


class Section(BaseModel):
    """A table of the file: only known keys, only the right types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Data(Section):
    """Which examples, who holds them, and what is to be learned from them."""

    dataset: str = "cifar10"
    """A name, or ``package.module:load``."""
    partition: Literal["iid", "client-prior", "client-prior-wrapped", "class-prior", "natural"] = (
        "client-prior"
    )
    clients: Count | None = None
    """100, except that ``natural`` has one for each owner, which only the data can tell."""
    concentration: Annotated[float, Field(gt=0)] = 0.6
    only: Annotated[int, Field(ge=0)] | None = None
    """The number of a client that trains alone, without a federation: the lower reference."""
    seed: Seed = 0
    """Of the partition and of the validation split; the same for every federation.seed."""
    validation: Share = 0.1
    """Share of the training set held out when evaluate.split is ``validation``; else all trains."""
    task: str | None = None
    """``classification``, ``regression`` or ``package.module:NAME``; else the labels tell."""
    options: dict[str, object] = Field(default_factory=dict)
    """Of the data set."""

    @model_validator(mode="before")
    @classmethod
    def _what_follows_from_the_data_set(cls, given: object) -> object:
        if not (isinstance(given, dict) and isinstance(given.get("options", {}), dict)):
            return given
        name, task = given.get("dataset", "cifar10"), given.get("task")
        if not isinstance(name, str):
            return given
        if isinstance(task, str):
            objective_named(task)
        natural = given.get("partition") == "natural"
        if natural and given.get("clients") is not None:
            raise ValueError(
                f"data.clients is {given['clients']}, but data.partition is 'natural', which has"
                " one client for each owner in the data; leave data.clients out"
            )
        options = checked(source(name).load, given.get("options", {}), table="data.options")
        return ({} if natural else {"clients": CLIENTS}) | given | {"options": options}

    @property
    def participants(self) -> int | None:
        """How many clients there are to sample from, None if only the data can tell."""
        return self.clients if self.only is None else 1


class Model(Section):
    """The network: its name, and the options of the function that makes it."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: str = "lenet"
    """A name, or ``package.module:make``."""

    @model_validator(mode="before")
    @classmethod
    def _only_its_options(cls, given: object) -> object:
        if not isinstance(given, dict) or not isinstance(given.get("name", ""), str):
            return given
        name = given.get("name", "lenet")
        options = {key: value for key, value in given.items() if key != "name"}
        return {"name": name} | checked(maker(name), options, table="model")

    @property
    def options(self) -> dict[str, object]:
        """Every option of the function, with its value."""
        return dict(self.model_extra or {})


class Train(Section):
    """What a client does in a round: steps, or epochs over its data."""

    steps: Count | None = None
    """50 unless epochs are given."""
    epochs: Count | None = None
    batch_size: Count = 50
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    crop: Annotated[int, Field(ge=0)] = 4
    """Pixels by which images are shifted at random; 0 unless the data set is CIFAR."""
    flip: bool = False

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


class Federation(Section):
    """The server's loop."""

    cohort: Count | Annotated[float, Field(gt=0, le=1)] = 10
    """Clients sampled per round, or with a fraction the chance of each."""
    rounds: Count = 100
    seed: Seed = 0
    """Of the first model, the cohorts and the clients' batches."""
    lr_decay: Annotated[float, Field(gt=0, le=1)] = 0.998
    weighting: Literal["uniform", "examples"] = "uniform"
    target: Count | None = None
    """Close a round at so many accepted replies; else it waits for the whole cohort."""
    minimum: Count = 1
    """Abandon a round that ends with fewer."""
    guard: str | dict[str, int | float] = ""
    """Other limits for the guard, such as { slack = 5.0 }; "off" lets in whatever comes."""
    aggregator: str | dict[str, str | int | float] = "mean"
    """How replies become one: a name, or a table with name and settings."""
    buffers: Literal["refuse", "average", "local"] = "refuse"
    """What becomes of a model's buffers, such as BatchNorm's statistics."""
    codec: str = "exact"
    """How vectors travel, such as "x=exact | delta=exact"."""


class Evaluate(Section):
    """What is measured after a round."""

    split: Literal["test", "validation"] = "test"
    every: Count = 1
    train_sample: Annotated[int, Field(ge=0)] = 0
    """How many training examples are evaluated as well."""
    targets: Annotated[tuple[Share, ...], Field(strict=False)] = ()
    """Accuracies, or other scores; comparisons tell when each was reached."""


class Engine(Section):
    """Where the clients run; the bits are the same everywhere."""

    name: Literal["process", "ray", "deployment"] = "process"
    """In one process, on Flower's simulation, or on Flower's SuperNodes on this machine."""
    nodes: Count = 2
    """SuperNodes of a deployment, which share the clients; on Ray each client is a node."""
