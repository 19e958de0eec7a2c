"""Data, model, training and evaluation as a configuration asks for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn

from .. import models
from ..data import STATISTICS, Augment, Clients, Images, Partition, load, partition
from ..sampling import seed_of
from ..training import Evaluation, LocalTraining
from .config import Experiment
from .sections import Data, LeNet, Mlp, ResNet18

__all__ = ["Problem", "build", "split"]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What a federation is run on."""

    model: nn.Module
    clients: Clients
    train: LocalTraining
    evaluate: Callable[[nn.Module], Mapping[str, float]]


def build(config: Experiment) -> Problem:
    """Load the data and make everything; the configuration alone decides every bit of it."""
    prepare = Augment(
        *STATISTICS[config.data.dataset], crop=config.train.crop, flip=config.train.flip
    )
    train, held_out = split(config)
    sets: dict[str, Images] = {config.evaluate.split: held_out}
    if config.evaluate.train_sample:
        rows = _shuffled(len(train), config.data.seed, "train sample")
        sets["train"] = _rows(train, rows[: config.evaluate.train_sample])
    evaluations = {
        name: Evaluation(data=images, prepare=prepare.plain) for name, images in sets.items()
    }

    def evaluate(model: nn.Module) -> dict[str, float]:
        return {
            f"{name}_{metric.removeprefix('test_')}": value
            for name, evaluation in evaluations.items()
            for metric, value in evaluation(model).items()
        }

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(config.federation.seed, "model"))
        model = _model(config, train)
    return Problem(
        model=model,
        clients=Clients(train, holders(config.data, train)),
        train=LocalTraining(
            steps=config.train.steps,
            epochs=config.train.epochs,
            batch_size=config.train.batch_size,
            clip_norm=config.train.clip_norm,
            prepare=prepare,
        ),
        evaluate=evaluate,
    )


def split(config: Experiment) -> tuple[Images, Images]:
    """Images to train on, and those to evaluate on.

    The validation split is taken out of the training set before that is dealt out to clients;
    runs that use it never load the test set.
    """
    train = load(config.data.dataset, split="train")
    if config.evaluate.split == "test":
        return train, load(config.data.dataset, split="test")
    rows = _shuffled(len(train), config.data.seed, "validation")
    count = round(config.data.validation * len(train))
    return _rows(train, rows[count:]), _rows(train, rows[:count])


def holders(data: Data, train: Images) -> Partition:
    """Which client holds which of the training images."""
    everybody = partition(
        train.labels,
        data.partition,
        clients=data.clients,
        concentration=data.concentration,
        seed=data.seed,
    )
    if data.only is None:
        return everybody
    return replace(everybody, indices=(everybody.indices[data.only],))


def _model(config: Experiment, images: Images) -> nn.Module:
    classes = len(images.classes)
    _, channels, size, _ = images.inputs.shape
    match config.model:
        case LeNet(activation=activation):
            return models.LeNet(classes, channels=channels, size=size, activation=activation)
        case ResNet18(stem=stem, groups=groups):
            return models.ResNet18(classes, stem=stem, groups=groups)
        case Mlp(hidden=hidden):
            pixels = channels * size * size
            return nn.Sequential(
                *(nn.Flatten(), nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, classes))
            )


def _shuffled(count: int, seed: int, purpose: str) -> torch.Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed_of(seed, purpose)))


def _rows(images: Images, rows: torch.Tensor) -> Images:
    return Images(inputs=images.inputs[rows], labels=images.labels[rows], classes=images.classes)
