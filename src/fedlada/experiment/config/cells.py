"""The runs of a sweep: every combination of the alternatives that its file lists.

In ``[sweep]`` and in each ``[[sweep.cell]]`` a list holds alternatives (write a value that is
itself a list as a list within the list)::

    [sweep]
    federation.seed = [0, 1, 2]

    [[sweep.cell]]
    algorithm = "fedavg"
    settings.lr = [0.03, 0.1, 0.3]

    [[sweep.cell]]
    algorithm = "fedlada"
    settings = { lr = 0.01, alpha = [0.05, 0.1] }

Every cell is combined with all of ``[sweep]``, which gives (3 + 2) x 3 runs here.  Without cells
``[sweep]`` is the whole grid.
"""

from __future__ import annotations

import fnmatch
import itertools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ...errors import ExperimentError
from .experiment import Experiment
from .keys import flatten
from .reading import experiment, parse, read, table

__all__ = ["cells", "combined", "first", "matching"]

_SEEDS = ("data.seed", "federation.seed")
MOST = 10_000
"""Largest number of runs in a sweep."""
LONGEST = 200
"""Largest number of characters in the name of a run, which names a directory."""


def cells(path: Path, overrides: Iterable[str] = ()) -> dict[str, Experiment]:
    """Return the experiments of a sweep by readable name, such as ``fedlada-lr0.01-seed0``.

    All runs of one seed come before those of the next seed, so that an unfinished sweep can
    already be compared.
    """
    tree = table(path)
    sweep = tree.pop("sweep", None)
    if not isinstance(sweep, dict):
        raise ExperimentError(f"{path} has no table [sweep]; use fedlada run {path}.")
    blocks = sweep.pop("cell", [{}])
    if not (isinstance(blocks, list) and all(isinstance(block, dict) for block in blocks)):
        raise ExperimentError(f"{path}: write each cell of the sweep under [[sweep.cell]].")
    common, changes = flatten(sweep), dict(map(parse, overrides))
    grids = [common | flatten(block) for block in blocks]
    runs = sum(map(_size, grids))
    if runs > MOST:
        raise ExperimentError(
            f"{path}: the sweep has {runs:,} runs, and at most {MOST:,} are allowed; list fewer"
            " alternatives, or make several sweeps."
        )
    found: dict[str, Experiment] = {}
    for axes in grids:
        if swept := sorted(axes.keys() & changes.keys()):
            raise ExperimentError(
                f"{swept[0]} is set by the sweep; change it in {path}, or choose runs"
                " by name with --only."
            )
        for name, config in combined(flatten(tree) | changes, axes, path):
            if name in found:
                raise ExperimentError(
                    f"{path}: two runs of the sweep are called {name}; give one of them a label."
                )
            found[name] = config
    order = sorted(found, key=lambda name: (found[name].federation.seed, found[name].data.seed))
    return {name: found[name] for name in order}


def first(file: Path, changes: Iterable[str], *, only: str | None = None) -> Experiment:
    """Return the experiment of a file, or of its sweep the first with a name like ``only``."""
    if "sweep" not in table(file):
        if only is not None:
            raise ExperimentError(f"{file} has no table [sweep], so leave --only {only} out.")
        return read(file, changes)
    every = cells(file, changes)
    return every[matching(every, ["*" if only is None else only], file)[0]]


def combined(
    flat: Mapping[str, object],
    axes: Mapping[str, object],
    path: Path,
    *,
    beside: Path | None = None,
) -> Iterator[tuple[str, Experiment]]:
    """Yield the experiments of all combinations of the axes, with readable names.

    ``path`` is the file that the axes come from; modules are looked for ``beside``, by default
    in the directory of that file.
    """
    for chosen in _combinations(axes, path):
        config = experiment(
            {**flat, **chosen}, source=str(path), beside=path.parent if beside is None else beside
        )
        name = _name(config, chosen)
        if len(name) > LONGEST:
            raise ExperimentError(
                f"{path}: the name of a run, {name[:40]}..., has {len(name)} characters, and"
                f" at most {LONGEST} are allowed; give it a label, or sweep fewer keys."
            )
        yield name, config


def matching(names: Collection[str], patterns: Sequence[str], path: Path) -> list[str]:
    """Return the names in a file that match a pattern of the shell; none is an error."""
    chosen = [name for name in names if any(fnmatch.fnmatch(name, p) for p in patterns)]
    if not chosen:
        some = ", ".join([*list(names)[:3], *(["..."] if len(names) > 3 else [])])
        raise ExperimentError(
            f"Nothing in {path} matches {' or '.join(map(repr, patterns))}; there are {some}."
        )
    return chosen


def _size(axes: Mapping[str, object]) -> int:
    return math.prod(len(values) for values in axes.values() if isinstance(values, list))


def _combinations(axes: Mapping[str, object], path: Path) -> Iterator[dict[str, object]]:
    for key, values in axes.items():
        if values == []:
            raise ExperimentError(f"{path}: {key} has no alternatives in the sweep; list some.")
    lists = [values if isinstance(values, list) else [values] for values in axes.values()]
    return (dict(zip(axes, chosen, strict=True)) for chosen in itertools.product(*lists))


def _name(config: Experiment, chosen: Mapping[str, object]) -> str:
    """Return the name of a run: the algorithm, then the other keys of the sweep, seeds last."""
    keys = [key for key in chosen if key not in ("algorithm", "label")]
    keys.sort(key=lambda key: key in _SEEDS)
    short = [key.rpartition(".")[2] for key in keys]
    words = [
        f"{word if short.count(word) == 1 else key}{_text(chosen[key])}"
        for key, word in zip(keys, short, strict=True)
    ]
    return re.sub(r"[^\w.+-]+", "_", "-".join([config.title, *words]))


def _text(value: object) -> str:
    return "_".join(map(str, value)) if isinstance(value, list) else str(value)
