"""The directory of ``fedlada attack``: which cells there are, and which of them are done.

``attacked.toml``  the federation that is attacked, as a complete configuration
``cells.jsonl``    one line per finished cell
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...atomic import write
from ...engines.attacks import ATTACKS, Target
from ...engines.worker import end_with_parent
from ...errors import ExperimentError, nearest
from ...server.lock import DirectoryLock
from ..config.experiment import Experiment
from ..config.keys import flatten
from ..config.reading import dump, read
from .attack import ABSENT, BASELINES, HONEST, Cell, run_cell
from .defences import unfit
from .sweep import PRELOADED

__all__ = ["AttackDirectory", "Line", "Wanted", "chosen", "wanted"]

Line = dict[str, Any]
NOT_THE_RUN = ("name", "label", "track", "evaluate.targets", "modules", "federation.seed")
"""The keys that may differ between two calls in one directory."""


@dataclass(frozen=True)
class Wanted:
    """The cells to run, baselines first, and the names that do not apply with the reasons."""

    cells: list[Cell]
    skipped: dict[str, str]


def chosen(words: Sequence[str], table: Mapping[str, object], what: str) -> list[str]:
    """Return names, given one by one or with commas between them; all if there are none."""
    names = [name.strip() for word in words for name in word.split(",") if name.strip()]
    for name in names:
        if name not in table:
            raise ExperimentError(f"there is no {what} {name!r}; {nearest(name, table)}.")
    return list(dict.fromkeys(names)) or list(table)


def wanted(
    config: Experiment,
    target: Target,
    *,
    attacks: Sequence[str],
    defences: Sequence[str],
    shares: Sequence[float],
    seeds: Sequence[int],
    strengths: Sequence[float] = (),
) -> Wanted:
    """Return the cells of all combinations; those of one seed come before the next seed's."""
    plan = config.plan()
    skipped = {name: why for name in defences if (why := unfit(plan, name)) is not None}
    against = [name for name in defences if name not in skipped]
    if not against:
        raise ExperimentError("no defence is left: " + "; ".join(map(": ".join, skipped.items())))
    left = [name for name in attacks if name not in BASELINES]
    skipped |= {n: why for n in left if (why := ATTACKS[n].unfit(target)) is not None}
    left = [name for name in left if name not in skipped]
    honest = [Cell(HONEST, None, d, 0.0, seed) for seed in seeds for d in against]
    absent = [Cell(ABSENT, None, d, s, seed) for seed in seeds for s in shares for d in against]
    attacked = [
        Cell(name, strength, defence, share, seed)
        for seed in seeds
        for share in shares
        for name in left
        for defence in against
        for strength in _strengths(name, strengths)
    ]
    return Wanted(honest + absent + attacked, skipped)


def _strengths(attack: str, asked: Sequence[float]) -> list[float | None]:
    own = ATTACKS[attack].strength
    return [None] if own is None else [*asked] or [own]


@dataclass(frozen=True)
class AttackDirectory:
    """An attack on disk, which may be running, stopped or finished."""

    path: Path

    @property
    def config_file(self) -> Path:
        """The file of the federation's configuration, in TOML."""
        return self.path / "attacked.toml"

    @property
    def cells_file(self) -> Path:
        """The file of the finished cells, one JSON object per line."""
        return self.path / "cells.jsonl"

    def prepare(self, config: Experiment) -> None:
        """Write the configuration; the directory must be new or hold the same federation."""
        config = config.resolved()
        if self.config_file.exists():
            old, new = (
                flatten(c.model_dump(mode="json")) for c in (read(self.config_file), config)
            )
            for key in sorted(old.keys() | new.keys()):
                if key not in NOT_THE_RUN and old.get(key) != new.get(key):
                    raise ExperimentError(
                        f"{self.path} holds attacks on a federation whose {key} is"
                        f" {old.get(key)!r}, not {new.get(key)!r}; choose another --out, or delete"
                        " that directory."
                    )
        self.path.mkdir(parents=True, exist_ok=True)
        write(self.config_file, dump(config).encode())

    def held(self) -> AbstractContextManager[None]:
        """Hold the directory, so that no other command writes to it at the same time."""
        return DirectoryLock(self.path).held()

    def lines(self) -> dict[Cell, Line]:
        """Return the lines of the finished cells; an incomplete last line is left out."""
        text = self.cells_file.read_text() if self.cells_file.exists() else ""
        found = map(json.loads, text.rpartition("\n")[0].splitlines())
        return {_cell(line): line for line in found}

    def rewrite(self, lines: Mapping[Cell, Line]) -> None:
        """Write all lines anew."""
        text = "".join(json.dumps(line) + "\n" for line in lines.values())
        write(self.cells_file, text.encode())

    def finish(
        self, cells: Sequence[Cell], *, jobs: int, watch: Callable[[Cell, Line], None]
    ) -> dict[Cell, Line]:
        """Run the cells that are not done, ``jobs`` at a time, and return all lines."""
        lines = self.lines()
        self.rewrite(lines)  # without an incomplete last line
        left = [cell for cell in cells if cell not in lines]
        for cell, line in self._run(left, jobs):
            lines[cell] = line
            with self.cells_file.open("a") as file:
                file.write(json.dumps(line) + "\n")
            watch(cell, line)
        return lines

    def _run(self, cells: Sequence[Cell], jobs: int) -> Iterator[tuple[Cell, Line]]:
        if jobs == 1 or len(cells) < 2:
            for cell in cells:
                yield cell, run_cell(self.config_file, cell)
            return
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(PRELOADED))
        pool = ProcessPoolExecutor(min(jobs, len(cells)), context, initializer=_start)
        try:
            futures = {pool.submit(run_cell, self.config_file, cell): cell for cell in cells}
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()


def _start() -> None:
    """Leave Ctrl-C to the parent, and end with it even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()


def _cell(line: Line) -> Cell:
    return Cell(*(line[key] for key in ("attack", "strength", "defence", "share", "seed")))
