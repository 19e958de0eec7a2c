"""Lookup of the models, data sets and objectives that an experiment file names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

from ...algorithms.ingredients import find
from ...client.objective import OBJECTIVES, Objective
from ...data import SOURCES, Source
from ...errors import FedladaError, nearest, require
from ...models import MODELS

__all__ = ["maker", "objective_named", "source"]


def maker(name: str) -> Callable[..., nn.Module]:
    """Return the function that makes the named model."""
    if ":" not in name:
        require(name in MODELS, f"no model {name!r}; {_nearest(name, MODELS, 'make')}")
        return MODELS[name]
    found = find(name, "model")
    require(
        callable(found),
        f"model.name is {name!r}, which is a {type(found).__name__}; it must be a function"
        " make(data, **options) that returns a torch.nn.Module",
    )
    assert callable(found)
    return found


def source(name: str) -> Source:
    """Return the named data set."""
    if ":" not in name:
        require(
            name in SOURCES,
            f"data.dataset is {name!r}; {_nearest(name, SOURCES, 'load')}",
        )
        return SOURCES[name]
    found = find(name, "data set")
    if isinstance(found, Source):
        return found
    require(
        callable(found),
        f"data.dataset is {name!r}, which is a {type(found).__name__}; it must be a function"
        " load(split, **options) that returns fedlada.data.Examples, or a fedlada.data.Source",
    )
    assert callable(found)
    return Source(load=found)


def objective_named(name: str) -> Objective:
    """Return the named objective."""
    if ":" not in name:
        require(
            name in OBJECTIVES, f"data.task is {name!r}; {_nearest(name, OBJECTIVES, 'OBJECTIVE')}"
        )
        return OBJECTIVES[name]
    found = find(name, "objective")
    if not isinstance(found, Objective):
        raise FedladaError(
            f"data.task is {name!r}, which is a {type(found).__name__}; it must be a"
            " fedlada.Objective"
        )
    return found


def _nearest(name: str, known: Mapping[str, object], outside: str) -> str:
    return f"{nearest(name, known)}, or your own as 'package.module:{outside}'"
