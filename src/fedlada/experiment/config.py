"""What an experiment file may say, and what it means where it says nothing."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ..algorithms import Algorithm, algorithm as by_name
from .sections import Data, Engine, Evaluate, Federation, LeNet, Mlp, ResNet18, Section, Train

__all__ = ["FREE", "Experiment"]

Setting = bool | int | float | str | list[float]

# What does not change the bits of a run, so that a finished one may be continued with others.
FREE = (
    *("name", "label", "track", "federation.rounds", "evaluate.targets"),
    *("engine.name", "engine.nodes"),
)


class Experiment(Section):
    """One run, in full."""

    name: Annotated[str, Field(min_length=1)] = "experiment"
    algorithm: str | dict[str, str | list[str]] = "fedlada"
    """A name, ``package.module:NAME``, or a table with local, corrections and server."""
    label: str = ""
    """What tables and figures call it; the algorithm's name if empty."""
    settings: dict[str, Setting] = Field(default_factory=dict)
    """Of the algorithm: lr, weight_decay, alpha, server_lr and so on."""
    data: Data = Data()
    model: Annotated[LeNet | ResNet18 | Mlp, Field(discriminator="name")] = LeNet()
    train: Train = Train(steps=50)
    federation: Federation = Federation()
    evaluate: Evaluate = Evaluate()
    engine: Engine = Engine()
    track: Annotated[
        tuple[Literal["tensorboard", "mlflow", "wandb"], ...], Field(strict=False)
    ] = ()

    @model_validator(mode="before")
    @classmethod
    def _defaults_that_follow_the_data(cls, given: object) -> object:
        tables = ("data", "model", "train")
        if not (
            isinstance(given, dict) and all(isinstance(given.get(t, {}), dict) for t in tables)
        ):
            return given
        digits = given.get("data", {}).get("dataset") == "digits"
        model = {"name": "mlp" if digits else "lenet"} | given.get("model", {})
        train = ({"crop": 0} if digits else {}) | given.get("train", {})
        return {**given, "model": model, "train": train}

    @model_validator(mode="after")
    def _fits_together(self) -> Experiment:
        if self.data.dataset == "digits" and self.model.name != "mlp":
            raise ValueError(
                f"model.name is {self.model.name!r}, which the 8x8 pixels of digits are too few"
                " for; leave model out, or choose another data.dataset"
            )
        if self.data.only is not None and self.data.only >= self.data.clients:
            raise ValueError(
                f"data.only is {self.data.only}, but clients are numbered from 0 to"
                f" {self.data.clients - 1}"
            )
        if self.federation.cohort > self.data.participants:
            key = "data.clients is" if self.data.only is None else "with data.only there is"
            raise ValueError(
                f"federation.cohort is {self.federation.cohort}, but {key}"
                f" {self.data.participants}; a cohort cannot be larger than that"
            )
        if self.engine.name == "deployment" and self.engine.nodes > self.data.participants:
            raise ValueError(
                f"engine.nodes is {self.engine.nodes}, more than the {self.data.participants}"
                " clients that they would share; give fewer"
            )
        self._settings_have_their_type()
        self.optimizer()
        return self

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
        """The algorithm with its settings."""
        return by_name(self.algorithm, **self.settings)

    def resolved(self) -> Experiment:
        """The same with every setting of the algorithm, so that later defaults change nothing."""
        settings = self.optimizer().settings()
        full = {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}
        return self.model_copy(update={"settings": full})

    @property
    def title(self) -> str:
        """What to call the algorithm: ``label``, or its name."""
        if self.label or isinstance(self.algorithm, str):
            return self.label or str(self.algorithm)
        parts = (self.algorithm.get(key, ()) for key in ("corrections", "local", "server"))
        return "-".join(w for part in parts for w in ([part] if isinstance(part, str) else part))
