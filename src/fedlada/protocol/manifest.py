"""The manifest: names, dtypes and shapes of a vector's tensors, in an order both sides share.

Each side derives the manifest from its own model, and the two must be equal.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..algorithms.vectors import shape_in
from ..errors import FedladaError, require
from .federated import PERSONAL, BufferPolicy, federated_names, kind_of

__all__ = ["DTYPES", "Entry", "Layout", "Manifest"]

DTYPES = {
    str(dtype): dtype for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}


class Entry(NamedTuple):
    """The name, dtype and shape of one tensor of a vector."""

    name: str
    dtype: str
    shape: list[int]

    def __str__(self) -> str:
        return f"{self.name[:200]} ({self.dtype[:20].removeprefix('torch.')} {self.shape[:10]})"

    @property
    def numel(self) -> int:
        """Number of elements."""
        return torch.Size(self.shape).numel()

    @property
    def nbytes(self) -> int:
        """Number of bytes without a codec."""
        return self.numel * DTYPES[self.dtype].itemsize


Layout = list[Entry]


@dataclass(frozen=True)
class Manifest:
    """Names, dtypes and shapes of the tensors of a vector, for parameters and for buffers."""

    parameters: Layout
    buffers: Layout
    personal: Layout = field(default_factory=list)
    """The tensors that this side keeps to itself: they are not sent, and sides may differ."""

    @classmethod
    def of(cls, model: nn.Module, buffers: BufferPolicy, personal: Sequence[str] = ()) -> Manifest:
        """Derive the manifest of a model."""
        tensors = model.state_dict(keep_vars=True)
        names = federated_names(model, buffers, personal)
        return cls(
            [_entry(name, tensors[name]) for name in names["parameters"]],
            [_entry(name, tensors[name]) for name in names["buffers"]],
            [_entry(name, tensors[name]) for name in names.get(PERSONAL, ())],
        )

    def layout(self, vector: str) -> Layout:
        """Return the layout of a vector by its name."""
        kind = kind_of(vector)
        if kind != "parameters":
            return self.buffers if kind == "buffers" else self.personal
        return [entry._replace(shape=shape_in(vector, entry.shape)) for entry in self.parameters]

    def text(self) -> str:
        """Return the manifest as the JSON text that is sent."""
        return json.dumps([self.parameters, self.buffers])

    def check(self, other: str) -> None:
        """Raise an error that names the first difference from the other side's manifest, if any."""
        if other == self.text():
            return
        for kind, ours, theirs in zip(
            ("parameters", "buffers"), (self.parameters, self.buffers), _layouts(other), strict=True
        ):
            require(
                len(ours) == len(theirs),
                f"the server's model has {len(theirs)} {kind}, this client's has {len(ours)}; both"
                " must build the same model",
            )
            for mine, yours in zip(ours, theirs, strict=True):
                require(
                    mine == yours,
                    f"the server's model has {yours} where this client's has {mine}; both must"
                    " build the same model",
                )


def _entry(name: str, t: Tensor) -> Entry:
    require(
        str(t.dtype) in DTYPES,
        f"{name} is {t.dtype}; federated tensors must be one of {', '.join(DTYPES)}",
    )
    return Entry(name, str(t.dtype), list(t.shape))


def _layouts(text: str) -> list[Layout]:
    """Read the other side's manifest, which may be any text."""
    sentence = "the server sent no manifest of a model; both sides must run the same fedlada"
    try:
        layouts = json.loads(text)
    except (ValueError, RecursionError) as wrong:
        raise FedladaError(sentence) from wrong
    require(
        isinstance(layouts, list)
        and len(layouts) == 2
        and all(isinstance(layout, list) and all(map(_is_entry, layout)) for layout in layouts),
        sentence,
    )
    return [[Entry(*entry) for entry in layout] for layout in layouts]


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, list)
        and [type(part) for part in entry] == [str, str, list]
        and all(type(size) is int for size in entry[2])
    )
