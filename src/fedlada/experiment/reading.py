"""From a file and ``key=value`` words to a configuration, or to one helpful sentence."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

import tomli_w
from pydantic import BaseModel, ValidationError

from ..algorithms import ALGORITHMS, nearest
from .config import Experiment
from .errors import ExperimentError
from .keys import flatten, nest
from .sections import LeNet, Mlp, ResNet18

__all__ = ["dump", "experiment", "parse", "read", "table"]

_MODELS: dict[str, type[BaseModel]] = {"lenet": LeNet, "resnet18": ResNet18, "mlp": Mlp}


def read(path: Path, overrides: Iterable[str] = ()) -> Experiment:
    """The experiment in a file that holds no sweep, with ``key=value`` words applied."""
    flat = flatten(table(path))
    if any(key.split(".")[0] == "sweep" for key in flat):
        raise ExperimentError(f"{path} holds a sweep, many runs: use fedlada sweep {path}.")
    return experiment(flat | dict(map(parse, overrides)), source=str(path))


def table(path: Path) -> dict[str, object]:
    """What the file holds, as it is."""
    try:
        return tomllib.loads(path.read_text())
    except (FileNotFoundError, IsADirectoryError):
        raise ExperimentError(f"There is no file {path}; give an experiment's TOML file.") from None
    except tomllib.TOMLDecodeError as error:
        raise ExperimentError(f"{path} is not TOML: {error}.") from None


def parse(word: str) -> tuple[str, object]:
    """``federation.rounds=20`` as a dotted key and a TOML value; quotes may be left out."""
    key, equals, text = (part.strip() for part in word.partition("="))
    if not (key and equals and text):
        raise ExperimentError(f"{word!r} is not key=value; write, for example, settings.lr=0.1.")
    try:
        return key, tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        if re.fullmatch(r"[A-Za-z][\w.:-]*", text):
            return key, text
        raise ExperimentError(f"{text!r}, given for {key}, is not a TOML value.") from None


def experiment(flat: Mapping[str, object], *, source: str) -> Experiment:
    """The configuration of dotted keys; an error names the key, or the nearest to it."""
    try:
        return Experiment.model_validate(nest(flat))
    except ValidationError as error:
        first = error.errors()[0]
        loc = [str(part) for part in first["loc"] if not isinstance(part, int)]
        if loc[:1] == ["model"] and len(loc) > 2:
            del loc[1]  # the tag of the union
        if loc[:1] in (["algorithm"], ["settings"]):
            del loc[1 + (loc[0] == "settings") :]  # the member of the union
        key = ".".join(loc)
        if first["type"] == "extra_forbidden":
            sentence = _unknown(key, flat)
        elif first["type"] == "value_error":
            sentence = first["msg"].removeprefix("Value error, ")
        elif first["type"] == "union_tag_invalid":
            sentence = (
                f"no model {flat['model.name']!r}; {nearest(str(flat['model.name']), _MODELS)}"
            )
        elif loc[:1] == ["settings"]:
            sentence = f"{key} is {first['input']!r}; it must be a number, a word or numbers"
        else:
            wanted = first["msg"].replace("Input should be", "it must be")
            sentence = f"{key} is {first['input']!r}; {wanted}"
        raise ExperimentError(f"{source}: {sentence.rstrip('.')}.") from None


def dump(config: Experiment) -> str:
    """The configuration in full as TOML, which :func:`read` reads back."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def _unknown(key: str, flat: Mapping[str, object]) -> str:
    sections = Experiment.model_fields
    known = [name for name in sections if name in ("name", "algorithm", "label", "track")]
    for section, field in sections.items():
        kind = field.annotation
        if section == "model":
            default = "mlp" if flat.get("data.dataset") == "digits" else "lenet"
            kind = _MODELS[str(flat.get("model.name", default))]
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            known += [f"{section}.{name}" for name in kind.model_fields]
    settings = {f"settings.{name}" for a in ALGORITHMS.values() for name in a.settings()}
    table, _, word = key.rpartition(".")
    elsewhere = sorted(k for k in {*known, *settings} if k.rpartition(".")[2] == word)
    if elsewhere:
        return f"there is no key {key!r}; it is {' or '.join(map(repr, elsewhere))}"
    siblings = [k for k in known if k.rpartition(".")[0] == table] if table else [*sections]
    return f"there is no key {key!r}; {nearest(key, siblings)}"
