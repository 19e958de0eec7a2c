"""Import of the modules that a file names as ``module:NAME`` and that are in its directory."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pydantic import ValidationInfo

from ...errors import ExperimentError

__all__ = ["LOOKING", "MODULES", "foreign", "located"]

LOOKING = "looking"
"""The key of a validation's context that is true if nothing may be imported."""

MODULES = "modules"
"""The key for the directory in which modules are looked for."""
KEYS = ("algorithm", "model.name", "data.dataset", "data.task")


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
