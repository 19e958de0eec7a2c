"""The data, model, training and evaluation of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ...data import Augment, Clients, Examples, Images, Partition, partition
from ...data.partitioning import held_out_alike
from ...devices import seeded
from ...errors import ExperimentError
from ...protocol.seeds import seed_of
from ...training.evaluation import Evaluation, LocalEvaluation
from ...training.local import LocalTraining
from ...training.objective import BINARY, Objective, objective_of
from ..config.experiment import Experiment
from ..config.named import maker, objective_named, source
from ..config.sections import Data

__all__ = ["Problem", "build", "holders", "participants", "split"]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The model, client data, training and evaluation of a federation."""

    model: nn.Module
    clients: Clients
    held_out: Clients | None
    """The examples of the evaluation, split over the clients, if these evaluate."""
    train: LocalTraining
    evaluate: Callable[[nn.Module], Mapping[str, float]]
    evaluate_client: LocalEvaluation
    objective: Objective


def build(config: Experiment) -> Problem:
    """Load the data and make the problem; every bit of it follows from the configuration."""
    train, held_out = split(config)
    held = holders(config.data, train)
    if config.data.clients is None:
        config.check_clients(len(held) if config.data.only is None else len(set(_owners(train))))
    objective = _objective(config, train)
    prepare = _preparation(config, train)
    with seeded(seed_of(config.federation.seed, "model")):
        model = _model(config, _one_output(train) if objective is BINARY else train)
    return Problem(
        model=model,
        clients=Clients(train, held),
        held_out=_held_out(config, train, held_out),
        train=LocalTraining(
            steps=config.train.steps,
            epochs=config.train.epochs,
            batch_size=config.train.batch_size,
            clip_norm=config.train.clip_norm,
            loss=_loss(objective, train),
            prepare=prepare,
            autocast=config.train.autocast,
        ),
        evaluate=_evaluation(config, train, held_out, objective, prepare),
        evaluate_client=LocalEvaluation(prepare=_plain(prepare), objective=objective),
        objective=objective,
    )


def split(config: Experiment) -> tuple[Examples, Examples]:
    """Load the training examples and the evaluation examples.

    The validation split is taken from the training set before the partition; runs that use it
    never load the test set.  If every owner is a client, the split contains a share of each
    owner's examples.
    """
    train = _load(config.data, "train")
    if config.evaluate.split == "test":
        return train, _load(config.data, "test")
    rows = _shuffled(len(train), config.data.seed, "validation")
    if config.data.partition == "natural":
        held_out = _share_of_each(_owners(train), rows, config.data.validation)
        return train.rows(rows[~held_out]), train.rows(rows[held_out])
    count = round(config.data.validation * len(train))
    return train.rows(rows[count:]), train.rows(rows[:count])


def holders(data: Data, train: Examples) -> Partition:
    """Return the partition of the training examples over the clients."""
    return _only(data, _everybody(data, train))


def _everybody(data: Data, train: Examples) -> Partition:
    """Return the partition over all clients, even if one of them is alone."""
    return partition(
        train.labels,
        data.partition,
        clients=data.clients,
        concentration=data.concentration,
        seed=data.seed,
        owners=_owners(train) if data.partition == "natural" else None,
    )


def _held_out(config: Experiment, train: Examples, held_out: Examples) -> Clients | None:
    """Return the examples of the evaluation split over the clients, if these evaluate."""
    if not config.evaluate.cohort:
        return None
    data = config.data
    seed, everybody = seed_of(data.seed, "held out"), _everybody(data, train)
    dealt = held_out_alike(held_out.labels, everybody, seed=seed, owners=held_out.owners)
    return Clients(held_out, _only(data, dealt))


def _only(data: Data, everybody: Partition) -> Partition:
    if data.only is None:
        return everybody
    if data.only >= len(everybody):
        raise ExperimentError(
            f"data.only is {data.only}, but clients are numbered from 0 to {len(everybody) - 1}."
        )
    return replace(
        everybody,
        indices=(everybody.indices[data.only],),
        names=everybody.names[data.only :][:1],
    )


def participants(config: Experiment) -> int:
    """Return the number of clients to sample from; load the data if they determine it."""
    known = config.data.participants
    return known if known is not None else len(holders(config.data, split(config)[0]))


def _load(data: Data, name: str) -> Examples:
    found = source(data.dataset).load(name, **data.options)
    if not isinstance(found, Examples):
        raise ExperimentError(
            f"{data.dataset} returned a {type(found).__name__}; it must return"
            " fedlada.data.Examples(inputs, labels), or fedlada.data.Images."
        )
    return found


def _owners(train: Examples) -> list[int | str]:
    if train.owners is None:
        raise ExperimentError(
            "data.partition is 'natural', but the data set does not say whom its examples belong"
            " to; choose another partition, or give Examples owners."
        )
    return list(train.owners)


def _share_of_each(owners: list[int | str], rows: Tensor, share: float) -> Tensor:
    """Mark a share of each owner's rows, the first in order, but never all rows of an owner."""
    left: dict[int | str, int] = {}
    for owner in owners:
        left[owner] = left.get(owner, 0) + 1
    left = {owner: min(round(share * count), count - 1) for owner, count in left.items()}
    marked = []
    for row in rows.tolist():
        marked.append(left[owners[row]] > 0)
        left[owners[row]] -= 1
    return torch.tensor(marked)


def _objective(config: Experiment, train: Examples) -> Objective:
    named = config.data.task
    return objective_of(train.labels) if named is None else objective_named(named)


def _loss(objective: Objective, train: Examples) -> Callable[[Tensor, Tensor], Tensor] | Objective:
    """Return the loss, or the objective if LocalTraining would replace the loss."""
    replaced = objective.loss is cross_entropy and train.labels.is_floating_point()
    return objective if replaced else objective.loss


def _preparation(config: Experiment, train: Examples) -> Callable[[Tensor], Tensor] | None:
    """Return the augmentation of images, or the preparation that other data sets define."""
    if isinstance(train, Images):
        if train.statistics is None:
            raise ExperimentError(
                f"{config.data.dataset} does not say how its images are normalised; give Images"
                " statistics, such as statistics=Statistics.of(inputs) of the training set."
            )
        chosen = config.train.model_dump(include={"crop", "flip", "crop_share"})
        return Augment(*train.statistics, **chosen)
    for key, off in (("crop", 0), ("flip", False), ("crop_share", 1.0)):
        value = getattr(config.train, key)
        if value != off:
            raise ExperimentError(
                f"train.{key} is {value!r}, but {config.data.dataset} holds no images; leave it"
                " out."
            )
    return train.prepare


def _model(config: Experiment, train: Examples) -> nn.Module:
    model = maker(config.model.name)(train, **config.model.options)
    if not isinstance(model, nn.Module):
        raise ExperimentError(
            f"{config.model.name} returned a {type(model).__name__}; it must return a"
            " torch.nn.Module."
        )
    return model


def _one_output(train: Examples) -> Examples:
    """Return examples with outcomes as numbers: classes would ask for an output each."""
    return Examples(train.inputs, train.labels.double(), owners=train.owners)


def _evaluation(
    config: Experiment,
    train: Examples,
    held_out: Examples,
    objective: Objective,
    prepare: Callable[[Tensor], Tensor] | None,
) -> Callable[[nn.Module], dict[str, float]]:
    sets: dict[str, Examples] = {config.evaluate.split: held_out}
    if config.evaluate.train_sample:
        rows = _shuffled(len(train), config.data.seed, "train sample")
        sets["train"] = train.rows(rows[: config.evaluate.train_sample])
    evaluations = [
        Evaluation(data=examples, prepare=_plain(prepare), objective=objective, split=name)
        for name, examples in sets.items()
    ]

    def evaluate(model: nn.Module) -> dict[str, float]:
        return {
            name: value for evaluation in evaluations for name, value in evaluation(model).items()
        }

    return evaluate


def _plain(prepare: Callable[[Tensor], Tensor] | None) -> Callable[[Tensor], Tensor] | None:
    """Return how inputs are prepared for an evaluation."""
    return prepare.plain if isinstance(prepare, Augment) else prepare


def _shuffled(count: int, seed: int, purpose: str) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed_of(seed, purpose)))
