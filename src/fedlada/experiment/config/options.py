"""Options of a function as keys of a file, with names, types and defaults from its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_origin, get_type_hints

from pydantic import ConfigDict, Field, ValidationError, create_model
from pydantic_core import PydanticCustomError

from ...errors import FedladaError, require

__all__ = ["UNKNOWN", "checked", "option_names"]

UNKNOWN = "unknown_key"
"""The type of the error about an unknown option; its context holds the dotted ``key``."""


def option_names(function: Callable[..., object]) -> list[str]:
    """Return the options of a function: the names of its keyword-only parameters."""
    return [parameter.name for parameter in _parameters(function)]


def checked(
    function: Callable[..., object], given: Mapping[str, object], *, table: str
) -> dict[str, Any]:
    """Check the options given in ``table`` of a file and add the defaults of all others."""
    hints = _hints(function)
    fields: dict[str, Any] = {}
    for parameter in _parameters(function):
        key = f"{table}.{parameter.name}"
        require(
            parameter.name in hints,
            f"{key} has no type; annotate the parameter of {function.__qualname__}",
        )
        kind = hints[parameter.name]
        if get_origin(kind) is tuple:  # TOML has lists but no tuples
            kind = Annotated[kind, Field(strict=False)]
        needed = parameter.default is inspect.Parameter.empty
        fields[parameter.name] = (kind, ... if needed else parameter.default)
    for name in given:
        if name not in fields:
            raise PydanticCustomError(UNKNOWN, "{key}", {"key": f"{table}.{name}"})
    model = create_model("Options", __config__=ConfigDict(strict=True), **fields)
    try:
        valid = model.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join((table, str(first["loc"][0])))
        if first["type"] == "missing":
            raise FedladaError(f"{key} is missing; {function.__qualname__} needs it") from None
        wanted = first["msg"].replace("Input should be", "it must be")
        value = given[str(first["loc"][0])]
        raise FedladaError(f"{key} is {value!r}; {wanted}") from None
    return {name: getattr(valid, name) for name in fields}


def _hints(function: Callable[..., object]) -> dict[str, Any]:
    written = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    try:
        return get_type_hints(written, include_extras=True)
    except NameError as error:
        raise FedladaError(
            f"the types of {function.__qualname__} cannot be read ({error}); import them where"
            " the module is run, not for type checkers alone"
        ) from None


def _parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise FedladaError(
            f"{function!r} cannot be called with options; write a function with keyword-only"
            " parameters"
        ) from None
    return [parameter for parameter in found if parameter.kind is parameter.KEYWORD_ONLY]
