"""Reads a file and ``key=value`` words into a configuration; an error is one helpful sentence."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path

import tomli_w
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ...algorithms import ALGORITHMS
from ...errors import ExperimentError, nearest
from ..packed import file_text
from .experiment import Experiment
from .keys import flatten, nest
from .named import LOOKING, MODULES, located, maker, source
from .options import UNKNOWN, option_names
from .sections import section_in

__all__ = ["complaint", "dump", "experiment", "parse", "read", "table"]


def read(path: Path, overrides: Iterable[str] = (), *, looking: bool = False) -> Experiment:
    """Return the experiment of a file without a sweep, with ``key=value`` words applied.

    When only ``looking``, no module that the file names is imported, and what depends on such a
    module is not checked.
    """
    flat = flatten(table(path))
    if any(key.split(".")[0] == "sweep" for key in flat):
        raise ExperimentError(f"{path} holds a sweep, many runs: use fedlada sweep {path}.")
    flat |= dict(map(parse, overrides))
    return experiment(flat, source=str(path), beside=path.parent, looking=looking)


def table(path: Path) -> dict[str, object]:
    """Return the content of a TOML file, unchecked."""
    try:
        text = file_text(path)
        if text is None:
            raise ExperimentError(f"There is no file {path}; give an experiment's TOML file.")
        found = tomllib.loads(text)
        flatten(found)  # raises RecursionError if dotted keys are too deep
        return found
    except tomllib.TOMLDecodeError as error:
        raise ExperimentError(
            f"{path} is not TOML: {error}; write each key as key = value, and text in quotes."
        ) from None
    except UnicodeDecodeError as error:
        raise ExperimentError(
            f"{path} is not UTF-8, as TOML must be ({error.reason} at byte {error.start}); save it"
            " again in that encoding."
        ) from None
    except RecursionError:
        raise ExperimentError(
            f"{path} has tables or lists within one another hundreds of times; no experiment needs"
            " more than a few."
        ) from None


def parse(word: str) -> tuple[str, object]:
    """Split ``federation.rounds=20`` into a dotted key and a TOML value; quotes are optional."""
    key, equals, text = (part.strip() for part in word.partition("="))
    if not (key and equals and text):
        raise ExperimentError(f"{word!r} is not key=value; write, for example, settings.lr=0.1.")
    try:
        return key, tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        if re.fullmatch(r"[A-Za-z][\w.:/-]*|\.{1,2}(/[\w./-]*)?|/[\w./-]*", text):  # word or path
            return key, text
        quoted = tomli_w.dumps({"value": text}).partition("= ")[2].strip()
        raise ExperimentError(
            f"{text!r}, given for {key}, is not a TOML value, such as 0.1, true or [1, 2]; put text"
            f" in quotes, and the quotes in quotes for the shell: '{key}={quoted}'."
        ) from None


def experiment(
    flat: Mapping[str, object], *, source: str, beside: Path | None = None, looking: bool = False
) -> Experiment:
    """Return the configuration of dotted keys; an error names the key, or the nearest known one.

    Modules that the keys name are looked for in the directory ``beside``, unless the key
    ``modules`` names another directory; when only ``looking``, none is.
    """
    flat = dict(flat) if looking else located(flat, beside)
    table = flat.get("devices.table")
    if isinstance(table, str) and table and beside is not None and (beside / table).exists():
        flat["devices.table"] = str((beside / table).resolve())
    try:
        return Experiment.model_validate(nest(flat), context={LOOKING: looking})
    except ValidationError as error:
        raise ExperimentError(f"{source}: {_sentence(error, flat, looking).rstrip('.')}.") from None


def _sentence(error: ValidationError, flat: Mapping[str, object], looking: bool) -> str:
    first = error.errors()[0]
    loc = [str(part) for part in first["loc"] if not isinstance(part, int)]
    if loc[:1] in (["algorithm"], ["settings"]):
        del loc[1 + (loc[0] == "settings") :]  # the member of the union
    if loc[:1] == ["federation"]:
        del loc[2:]
    key = ".".join(loc)
    if looking and first["type"] in ("extra_forbidden", UNKNOWN):
        return f"there is no key {key!r}"
    if first["type"] == "extra_forbidden":
        return _unknown(key, flat)
    if first["type"] == UNKNOWN:
        return _unknown(first["ctx"]["key"], flat)
    if loc[:1] == ["settings"] and first["type"] != "value_error":
        return f"{key} is {first['input']!r}; it must be a number, a word or numbers"
    return complaint(key, first)


def complaint(key: str, error: ErrorDetails) -> str:
    """Return what is wrong with the value of a key."""
    if error["type"] == "value_error":
        return error["msg"].removeprefix("Value error, ")
    wanted = error["msg"].replace("Input should be", "it must be")
    return f"{key} is {error['input']!r}; {wanted}"


def dump(config: Experiment) -> str:
    """Return the complete configuration as TOML, which :func:`read` reads back."""
    tree = config.model_dump(mode="json", exclude_none=True)
    options = {k: v for k, v in tree["data"].pop("options").items() if v is not None}
    if options:
        tree["data"]["options"] = options
    return tomli_w.dumps(tree)


def _unknown(key: str, flat: Mapping[str, object]) -> str:
    sections = Experiment.model_fields
    plain = ("name", "algorithm", "label", "device", "track", MODULES)
    known = [name for name in sections if name in plain]
    for section, field in sections.items():
        kind = section_in(field.annotation)
        if kind is not None:
            known += [f"{section}.{name}" for name in kind.model_fields]
    data_set = str(flat.get("data.dataset", "cifar10"))
    data = source(data_set)
    make = maker(str(flat.get("model.name", data.model)))
    known += [f"model.{name}" for name in option_names(make)]
    known += [f"data.options.{name}" for name in option_names(data.load)]
    settings = {f"settings.{name}" for a in ALGORITHMS.values() for name in a.settings()}
    table, _, word = key.rpartition(".")
    siblings = [k for k in known if k.rpartition(".")[0] == table] if table else [*sections]
    elsewhere = sorted(k for k in {*known, *settings} if k.rpartition(".")[2] == word)
    misspelt = get_close_matches(key, siblings, n=1, cutoff=0.9)
    if elsewhere and not misspelt:
        return f"there is no key {key!r}; it is {' or '.join(map(repr, elsewhere))}"
    if not siblings:
        return f"there is no key {key!r}; {data_set!r} has no options"
    return f"there is no key {key!r}; {nearest(key, siblings)}"
