"""The origin of a report's numbers: settings, commands, machines and versions."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..config.keys import flatten
from ..results.frames import SEEDS
from ..run.directory import RunDirectory
from .blocks import Block, Code, Section, Table
from .runs import Runs

__all__ = ["origin", "settings"]

UNTOLD = (*SEEDS, "algorithm", "label", "name")


def settings(runs: Runs) -> list[Block]:
    """Return a table of the settings that differ, and one complete configuration."""
    members: dict[str, list[dict[str, object]]] = {}
    directories: dict[str, Path] = {}
    by_name = {str(run): run for run in runs.configs}
    for variant, directory in runs.ends.select("variant", "directory").rows():
        run = by_name[directory]
        directories.setdefault(variant, run)
        flat = flatten(runs.configs[run].model_dump(mode="json"))
        members.setdefault(variant, []).append(flat)
    shared = _shared([flat for flats in members.values() for flat in flats])
    rows = []
    for variant in runs.by_score:
        own = members[variant][0]
        told = [
            f"{key.removeprefix('settings.')} = {json.dumps(value)}"
            for key, value in own.items()
            if key.startswith("settings.") or key not in (*shared, *UNTOLD)
        ]
        seeds = sorted({runs.seed(d)[0] for d in runs.of(variant)["directory"]})
        algorithm = own["algorithm"]
        name = algorithm if isinstance(algorithm, str) else json.dumps(algorithm)
        called = f"{name}: " if name != runs.titles[variant] else ""
        rows.append((variant, called + (", ".join(told) or "–"), ", ".join(map(str, seeds))))
    first = runs.by_score[0]
    return [
        Table(
            caption="Settings, and what else differs between algorithms",
            columns=("algorithm", "settings", "seeds"),
            rows=tuple(rows),
            words=("settings",),
            note="All else is the same for all, as in the file below; `lr` is that of round 1.",
        ),
        Code(
            caption=f"Configuration in full of {first}, `{directories[first].name}`",
            text=RunDirectory(directories[first]).config_file.read_text(),
            language="toml",
            folded=True,
        ),
    ]


def _shared(flats: Sequence[dict[str, object]]) -> set[str]:
    """Return the keys that have the same value in all configurations."""
    first, *others = flats
    return {k for k, v in first.items() if all(k in f and f[k] == v for f in others)}


def origin(runs: Runs, command: str) -> Section:
    """Return the commands that were typed, how to repeat a run, and the machines."""
    done = [end for run in runs.configs if (end := RunDirectory(run).done()) is not None]
    typed = Counter(_words(end["command"]) for end in done)
    example = next(iter(runs.configs))
    blocks: list[Block] = []
    if typed:
        lines = "\n".join(f"{words}  # ended {_runs(count)}" for words, count in typed.items())
        blocks.append(Code(caption="What was typed:", text=lines))
    blocks += [
        Code(
            caption="Any run can be repeated from its own directory alone, to the same bits on the"
            " same machine and versions; for example:",
            text=f"fedlada run {shlex.quote(str(RunDirectory(example).config_file))}"
            f" --out {shlex.quote(f'again/{example.name}')}",
        ),
        Code(caption="This report:", text=command),
    ]
    machines = Counter(tuple(_machine(end)) for end in done)
    if machines:
        blocks.append(
            Table(
                caption="Machines and versions",
                columns=("processor", "cores", "threads", "system", "versions", "runs"),
                rows=tuple((*machine, str(count)) for machine, count in machines.items()),
                words=("system", "versions"),
            )
        )
    return Section("How to repeat it", blocks)


def _words(command: Iterable[str]) -> str:
    program, *words = command
    name = Path(program).name
    return shlex.join(["fedlada" if name == "cli.py" else name, *words])


def _machine(end: dict[str, dict[str, object]]) -> list[str]:
    machine, versions = end["machine"], end["versions"]
    told = ", ".join(f"{name} {version}" for name, version in versions.items())
    return [*(str(machine[k]) for k in ("processor", "cores", "torch_threads", "system")), told]


def _runs(count: int) -> str:
    return f"{count} run" + "s" * (count != 1)
