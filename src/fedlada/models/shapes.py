"""The shapes of training data that a network needs to know."""

from __future__ import annotations

from typing import Protocol

from ..errors import require

__all__ = ["Shaped", "image_shape"]


class Shaped(Protocol):
    """The shapes of a training set; ``fedlada.data.Examples`` has them."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        ...

    @property
    def outputs(self) -> int:
        """The number of outputs a model needs: one per class, or one per number in a label."""
        ...


def image_shape(data: Shaped, model: str) -> tuple[int, int]:
    """Return the number of channels and the height in pixels of images, which must be square."""
    require(
        len(data.shape) == 3 and data.shape[1] == data.shape[2],
        f"{model} takes square images, but one input has shape {data.shape}; choose another"
        " model, such as mlp.",
    )
    return data.shape[0], data.shape[1]
