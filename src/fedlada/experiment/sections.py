"""The tables of an experiment file: their keys, types and defaults."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = [
    "Data",
    "Engine",
    "Evaluate",
    "Federation",
    "LeNet",
    "Mlp",
    "ResNet18",
    "Section",
    "Train",
]

Share = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(gt=0)]
Seed = Annotated[int, Field(ge=0)]


class Section(BaseModel):
    """A table of the file: only known keys, only the right types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Data(Section):
    """Which images, and who holds them."""

    dataset: Literal["cifar10", "cifar100", "digits"] = "cifar10"
    partition: Literal["iid", "client-prior", "client-prior-wrapped", "class-prior"] = (
        "client-prior"
    )
    clients: Count = 100
    concentration: Annotated[float, Field(gt=0)] = 0.6
    only: Annotated[int, Field(ge=0)] | None = None
    """The number of a client that trains alone, without a federation: the lower reference."""
    seed: Seed = 0
    """Of the partition and of the validation split; the same for every federation.seed."""
    validation: Share = 0.1
    """Share of the training set held out when evaluate.split is ``validation``; else all trains."""

    @property
    def participants(self) -> int:
        """How many clients there are to sample from."""
        return self.clients if self.only is None else 1


class LeNet(Section):
    """Two convolutions and two linear layers; the default."""

    name: Literal["lenet"] = "lenet"
    activation: Literal["relu", "gelu", "smu"] = "relu"


class ResNet18(Section):
    """The paper's network."""

    name: Literal["resnet18"] = "resnet18"
    stem: Literal["imagenet", "cifar"] = "imagenet"
    groups: Count = 2


class Mlp(Section):
    """One hidden layer; the default for digits, whose 8x8 pixels are too few for the others."""

    name: Literal["mlp"] = "mlp"
    hidden: Count = 32


class Train(Section):
    """What a client does in a round: steps, or epochs over its data."""

    steps: Count | None = None
    """50 unless epochs are given."""
    epochs: Count | None = None
    batch_size: Count = 50
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    crop: Annotated[int, Field(ge=0)] = 4
    """Pixels by which images are shifted at random; 0 for digits."""
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

    cohort: Count = 10
    rounds: Count = 100
    seed: Seed = 0
    """Of the first model, the cohorts and the clients' batches."""
    lr_decay: Annotated[float, Field(gt=0, le=1)] = 0.998
    weighting: Literal["uniform", "examples"] = "uniform"


class Evaluate(Section):
    """What is measured after a round."""

    split: Literal["test", "validation"] = "test"
    every: Count = 1
    train_sample: Annotated[int, Field(ge=0)] = 0
    """How many training images are evaluated as well."""
    targets: Annotated[tuple[Share, ...], Field(strict=False)] = ()
    """Accuracies; comparisons tell when each was reached."""


class Engine(Section):
    """Where the clients run; the bits are the same everywhere."""

    name: Literal["process", "ray", "deployment"] = "process"
    """In one process, on Flower's simulation, or on Flower's SuperNodes on this machine."""
    nodes: Count = 2
    """SuperNodes of a deployment, which share the clients; on Ray each client is a node."""
