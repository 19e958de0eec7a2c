"""Modules that a file names, as in ``module:NAME``, and that lie beside the file."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ...errors import ExperimentError

__all__ = ["MODULES", "located"]

MODULES = "modules"
"""The key that says in which directory modules are looked for."""
KEYS = ("algorithm", "model.name", "data.dataset", "data.task")


def located(flat: Mapping[str, object], beside: Path | None) -> dict[str, object]:
    """Make the modules that the dotted keys name importable, and note the directory they are in.

    That directory is the one which the keys name, if it exists, else the one of the file.
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
    """Yield the words in a value, in lists and tables too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _words(list(value.values()))
    elif isinstance(value, Iterable):
        for part in value:
            yield from _words(part)


def _put_first(directory: Path) -> None:
    """Look for modules in the directory first, as Python does with that of a program."""
    if sys.path[:1] != [str(directory)]:
        sys.path[:] = [str(directory), *(p for p in sys.path if p != str(directory))]
        importlib.invalidate_caches()


def _check_origin(name: str, directory: Path) -> None:
    """Refuse a module of another experiment that has the name of one in this directory."""
    top = name.partition(":")[0].partition(".")[0]
    loaded = getattr(sys.modules.get(top), "__file__", None)
    here = [directory / f"{top}.py", directory / top / "__init__.py"]
    if loaded is not None and any(p.exists() for p in here) and Path(loaded).resolve() not in here:
        raise ExperimentError(
            f"{name!r} is to be found in {directory}, but a module {top!r} was already loaded from"
            f" {loaded}; give one of them another name, or use one command for each."
        )
