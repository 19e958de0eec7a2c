"""The models, data sets, objectives and engines that an experiment file names.

A name is a word of a registry, or ``module:NAME``; such a module may be in the file's directory.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from pathlib import Path

from pydantic import AfterValidator, ValidationInfo
from torch import nn

from ...data import SOURCES, Source
from ...errors import ExperimentError, FedladaError, nearest, require_known
from ...models import MODELS
from ...named import find
from ...server.record import RoundRecord
from ...training.objective import OBJECTIVES, Objective

__all__ = [
    *("ENGINES", "LOOKING", "MODULES", "foreign", "located", "maker", "objective_named"),
    *("one_of", "rounds_on", "source"),
]

LOOKING = "looking"
"""The key of a validation's context that is true if nothing may be imported."""
MODULES = "modules"
"""The key for the directory in which modules are looked for."""
KEYS = ("algorithm", "model.name", "data.dataset", "data.task")
"""The keys whose values may name a module."""

ENGINES = {
    "process": "fedlada.experiment.run.execute:rounds",
    "ray": "fedlada.experiment.run.on_flower:watched_rounds",
    "deployment": "fedlada.experiment.run.on_flower:watched_rounds",
}
"""The function of each engine that runs the remaining rounds: it maps the configuration and the
directory of a run to its records.  It is imported when a run starts."""


def maker(name: str) -> Callable[..., nn.Module]:
    """Return the function that makes the named model."""
    model = _named(name, MODELS, "model.name", "model")
    if not callable(model):
        raise FedladaError(
            f"model.name is {name!r}, which is a {type(model).__name__}; it must be a function"
            " make(data, **options) that returns a torch.nn.Module"
        )
    return model


def source(name: str) -> Source:
    """Return the named data set."""
    data = _named(name, SOURCES, "data.dataset", "data set")
    if isinstance(data, Source):
        return data
    if not callable(data):
        raise FedladaError(
            f"data.dataset is {name!r}, which is a {type(data).__name__}; it must be a function"
            " load(split, **options) that returns fedlada.data.Examples, or a fedlada.data.Source"
        )
    return Source(load=data)


def objective_named(name: str) -> Objective:
    """Return the named objective."""
    objective = _named(name, OBJECTIVES, "data.task", "objective")
    if not isinstance(objective, Objective):
        raise FedladaError(
            f"data.task is {name!r}, which is a {type(objective).__name__}; it must be a"
            " fedlada.training.Objective"
        )
    return objective


def _named(name: str, known: Mapping[str, object], key: str, what: str) -> object:
    if ":" in name:
        return find(name, what)
    if name not in known:
        near = nearest(name, known)
        raise FedladaError(f"{key} is {name!r}; {near}, or your own as 'package.module:NAME'")
    return known[name]


def rounds_on(engine: str) -> Callable[..., Generator[RoundRecord, None, int | str | None]]:
    """Return the function of an engine that runs the remaining rounds.

    It may return how many clients were trained at once.
    """
    found = find(ENGINES[engine], "engine")
    assert callable(found)
    return found


def one_of(key: str, names: Collection[str]) -> AfterValidator:
    """Return a validator for a key whose value must be one of the names."""

    def check(value: str) -> str:
        require_known(value, names, f"{key} is {value!r}")
        return value

    return AfterValidator(check)


def foreign(value: object, info: ValidationInfo) -> bool:
    """Return whether a value names code of another package, and may not be imported.

    The file of a run is somebody's: to read it in a report must not execute anything.
    """
    looking = info.context is not None and info.context.get(LOOKING, False)
    return looking and any(":" in word for word in _words(value))


def located(flat: Mapping[str, object], beside: Path | None) -> dict[str, object]:
    """Make the modules that the dotted keys name importable, and add their directory to the keys.

    It is the directory that the keys already name, if that exists, else the directory of the file.
    """
    names = [word for key in KEYS for word in _words(flat.get(key)) if ":" in word]
    given = flat.get(MODULES)
    if not names or not (given is None or isinstance(given, str)):
        return dict(flat)
    directory = beside
    if given is not None:
        noted = (beside or Path()) / given
        directory = noted if noted.is_dir() or beside is None else beside
    if directory is None:
        return dict(flat)
    directory = directory.resolve()
    _put_first(directory)
    for name in names:
        _check_origin(name, directory)
    return {**flat, MODULES: str(directory)}


def _words(value: object) -> Iterator[str]:
    """Yield the strings in a value, including those in lists and tables."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _words(list(value.values()))
    elif isinstance(value, Iterable):
        for part in value:
            yield from _words(part)


def _put_first(directory: Path) -> None:
    """Put the directory first on ``sys.path``, as Python does with a program's directory."""
    if sys.path[:1] != [str(directory)]:
        sys.path[:] = [str(directory), *(p for p in sys.path if p != str(directory))]
        importlib.invalidate_caches()


def _check_origin(name: str, directory: Path) -> None:
    """Raise an error if another directory's module of the same name is already loaded."""
    top = name.partition(":")[0].partition(".")[0]
    loaded = getattr(sys.modules.get(top), "__file__", None)
    here = [directory / f"{top}.py", directory / top / "__init__.py"]
    if loaded is not None and any(p.exists() for p in here) and Path(loaded).resolve() not in here:
        raise ExperimentError(
            f"{name!r} is to be found in {directory}, but a module {top!r} was already loaded from"
            f" {loaded}; give one of them another name, or use one command for each."
        )
