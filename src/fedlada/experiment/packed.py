"""Packs the runs of a sweep into one text file, and reads a packed run as if it were a directory.

A line of the file is a run: an object with its name and its files.  Text is kept as it is, JSON as
an object, and ``records.jsonl`` as columns: a number that is the same in all rounds stands once.
``FILE.jsonl/NAME`` is the path of a packed run, wherever the directory of a run can be given to be
read.  Nothing is rounded or left out, except checkpoints and logs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..atomic import write
from ..errors import ExperimentError

__all__ = ["directory_of", "file_text", "is_packed", "pack", "packed_runs", "unpack"]

SUFFIX, ENDED, RECORDS = ".jsonl", "done.json", "records.jsonl"
FILES = ("config.toml", "objective.json", ENDED, RECORDS)
"""The files of a run that are packed, if it has them."""


def pack(directory: Path, file: Path) -> list[str]:
    """Add the runs below a directory that have ended to a packed file; return their names.

    A run replaces the packed one of its name.  Paths below the working directory become relative.
    """
    if file.suffix != SUFFIX:
        raise ExperimentError(f"{file} is to hold packed runs; give it a name ending in {SUFFIX}.")
    runs = sorted(ended.parent for ended in directory.rglob(ENDED))
    if not runs:
        raise ExperimentError(
            f"{directory} has no run that has ended; give the --out of a run or a sweep, or finish"
            f" it with fedlada resume {directory}."
        )
    packed: dict[str, dict[str, object]] = {}
    for path in runs:
        run = path.name if path == directory else path.relative_to(directory).as_posix()
        texts = ((name, file_text(path / name)) for name in FILES)
        files = {name: _packed(name, text) for name, text in texts if text is not None}
        packed[run] = {"run": run, **files}
    lines = {**(_lines(file) if file.exists() else {}), **packed}
    text = "".join(f"{json.dumps(lines[run], separators=(',', ':'))}\n" for run in sorted(lines))
    write(file, text.replace(f"{Path.cwd()}/", "").encode())
    return list(packed)


def unpack(file: Path, directory: Path, *, again: bool = True) -> None:
    """Write the runs of a packed file as directories; those that exist only if ``again``."""
    for run in packed_runs(file):
        where = directory / run.relative_to(file)
        if where.exists() and not again:
            continue
        where.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            if (text := file_text(run / name)) is not None:
                (where / name).write_text(text)


def is_packed(path: Path) -> bool:
    """Tell whether a path is that of a packed file."""
    return path.suffix == SUFFIX and path.is_file()


def directory_of(path: Path) -> Path:
    """Return where files about runs go: their directory, or beside a packed file one of its name.

    It exists afterwards.
    """
    found = path.with_suffix("") if is_packed(path) else path
    found.mkdir(parents=True, exist_ok=True)
    return found


def packed_runs(file: Path) -> list[Path]:
    """Return the paths of the runs in a packed file, sorted by name."""
    return [file / name for name in _lines(file)]


def file_text(path: Path) -> str | None:
    """Return the text of a run's file, on disk or packed; None if there is no such file."""
    file = next((above for above in path.parents if is_packed(above)), None)
    if file is None:
        try:
            return path.read_text(encoding="utf-8")
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None
    run = _lines(file).get(path.parent.relative_to(file).as_posix(), {})
    return _unpacked(path.name, run[path.name]) if path.name in run else None


def _packed(name: str, text: str) -> object:
    if name == RECORDS:
        lines = text.rpartition("\n")[0].splitlines()  # an incomplete last line is no record
        return {"rounds": len(lines), "records": _column([json.loads(line) for line in lines])}
    return json.loads(text) if name.endswith(".json") else text


def _unpacked(name: str, content: Any) -> str:
    if name == RECORDS:
        return "".join(f"{json.dumps(r)}\n" for r in _values(content["records"], content["rounds"]))
    return json.dumps(content, indent=2) if name.endswith(".json") else str(content)


def _column(values: Sequence[Any]) -> Any:
    """Return objects with the same keys as an object of columns, and equal plain values as one."""
    first = values[0] if values else []
    if isinstance(first, Mapping):
        alike = all(isinstance(value, Mapping) and [*value] == [*first] for value in values)
        return {key: _column([v[key] for v in values]) for key in first} if alike else [*values]
    plain = not isinstance(first, list)
    return first if plain and len({json.dumps(value) for value in values}) == 1 else [*values]


def _values(column: Any, rounds: int) -> list[Any]:
    """Return the value of every round."""
    if isinstance(column, Mapping):
        columns = {key: _values(own, rounds) for key, own in column.items()}
        return [{key: own[at] for key, own in columns.items()} for at in range(rounds)]
    return column if isinstance(column, list) else [column] * rounds


def _lines(file: Path) -> dict[str, dict[str, Any]]:
    """Return the lines of a packed file by the names of the runs."""
    state = file.stat()
    return _parsed(file, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=64)
def _parsed(file: Path, changed: int, size: int) -> dict[str, dict[str, Any]]:
    try:
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        return {line["run"]: line for line in lines}
    except (ValueError, KeyError, TypeError) as error:
        raise ExperimentError(
            f"{file} is no file of packed runs; fedlada pack DIR {file} writes one."
        ) from error
