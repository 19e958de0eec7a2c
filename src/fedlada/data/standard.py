r"""Inputs with mean 0 and standard deviation 1 over all sites, without moving a row.

Each site sends three numbers of each column: how many values it has, their sum, and the sum of
their squared distances from the site's own mean.  Mean and standard deviation over all sites follow
exactly, whatever the sites' sizes and order:

.. math::
    m = \frac{\sum_i s_i}{\sum_i n_i}, \qquad
    \sigma^2 = \frac{\sum_i \bigl(q_i + n_i (s_i / n_i - m)^2\bigr)}{\sum_i n_i}

Plain sums of squares would lose all digits of a column whose mean is large (Chan, Golub and
LeVeque, "Algorithms for computing the sample variance", 1983).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any, Literal, Self, cast

import torch
from torch import Tensor

from ..errors import FedladaError, require
from ..training.diagnosis import check_numbers
from ..training.examples import read

__all__ = ["Moments", "Standard", "moments", "standardise"]

READ = 1000
"""Examples that are read at a time."""
ROUNDING = 2.0**-50
"""A column that varies by no more than this share of its mean is constant: the rest is rounding."""


@dataclass(frozen=True)
class Moments:
    """What a site tells of each column of its inputs."""

    count: tuple[int, ...]
    """The number of values."""
    total: tuple[float, ...]
    """Their sum."""
    squares: tuple[float, ...]
    """The sum of their squared distances from the mean of these values."""


@dataclass(frozen=True)
class Standard:
    """Turns inputs into multiples of the standard deviation over all sites, around their mean.

    It is a function of a batch of inputs, for ``prepare`` of LocalTraining and of Evaluation.
    """

    mean: tuple[float, ...]
    """The mean of each column."""
    std: tuple[float, ...]
    """A column whose values are all equal has 0 here and becomes 0."""
    missing: Literal["refuse", "mean"] = "refuse"
    """Whether a missing value (NaN) becomes the mean, which is 0 afterwards."""

    @property
    def plain(self) -> Self:
        """Itself: nothing in it is for training alone."""
        return self

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return standardised inputs, as floating-point numbers."""
        require(
            inputs.dim() == 2 and inputs.shape[1] == len(self.mean),
            f"inputs have shape {list(inputs.shape)}, and {len(self.mean)} columns were"
            " standardised; give rows with the same columns in the same order",
        )
        numbers = inputs if inputs.is_floating_point() else inputs.float()
        mean, std = (numbers.new_tensor(values) for values in (self.mean, self.std))
        scaled = (numbers - mean) / torch.where(std > 0, std, torch.ones_like(std))
        return scaled.nan_to_num(nan=0.0) if self.missing == "mean" else scaled


def moments(data: object, *, missing: Literal["refuse", "mean"] = "refuse") -> Moments:
    """Return the moments of one site's inputs, the only numbers that leave the site.

    ``data`` are ``(inputs, labels)``, a dataset or whatever else a client may have.
    ``missing="mean"`` leaves out missing values.
    """
    read_all = [inputs.detach().cpu().double() for inputs, _ in read(data, READ)]
    require(bool(read_all), "a site has no examples; leave it out of the federation")
    inputs = torch.cat(read_all)
    require(
        inputs.dim() == 2,
        f"inputs have shape {list(inputs.shape)}; only columns of a table can be standardised",
    )
    if missing == "refuse":
        check_numbers(data)
    count, total, squares = [], [], []
    for column in inputs.T:
        values = column[~column.isnan()].tolist()
        mean = fsum(values) / len(values) if values else 0.0
        count.append(len(values))
        total.append(fsum(values))
        squares.append(fsum((value - mean) ** 2 for value in values))
    return Moments(tuple(count), tuple(total), tuple(squares))


def standardise(clients: object, *, missing: Literal["refuse", "mean"] = "refuse") -> Standard:
    """Return a function that standardises inputs over all sites, for ``prepare``.

    Args:
        clients: the data of each client, as for ``fedlada.simulate``, or their :func:`moments`.
        missing: ``"refuse"`` raises an error for a missing value (NaN) and names it; ``"mean"``
            leaves it out, and later replaces it by the mean over all sites.
    """
    require(missing in ("refuse", "mean"), f"missing is {missing!r}; it must be 'refuse' or 'mean'")
    names, each = _sites(clients)
    sites = []
    for name, data in zip(names, each, strict=True):
        try:
            sites.append(data if isinstance(data, Moments) else moments(data, missing=missing))
        except FedladaError as error:
            raise FedladaError(f"{name}: {error}") from error
    require(bool(sites), "there are no clients to standardise over; give the data of each")
    widths = [len(site.count) for site in sites]
    require(
        len(set(widths)) == 1,
        f"the sites have {sorted(set(widths))} columns; give all of them the same columns",
    )
    mean, std = zip(*(_pooled(sites, column) for column in range(widths[0])), strict=True)
    return Standard(mean, std, missing)


def _pooled(sites: Sequence[Moments], column: int) -> tuple[float, float]:
    """Return mean and standard deviation of a column over all sites."""
    known = [(s.count[column], s.total[column], s.squares[column]) for s in sites]
    known = [(n, total, squares) for n, total, squares in known if n]
    count = sum(n for n, _, _ in known)
    require(count > 0, f"column {column} has no value at any site; leave it out")
    mean = fsum(total for _, total, _ in known) / count
    spread = fsum(squares + n * (total / n - mean) ** 2 for n, total, squares in known)
    std = math.sqrt(spread / count)
    return mean, std if std > ROUNDING * abs(mean) else 0.0


def _sites(clients: object) -> tuple[list[str], list[Any]]:
    """Return what each client is called in a message, and its data."""
    if isinstance(clients, Mapping):
        return [f"site {name}" for name in clients], list(clients.values())
    require(
        hasattr(clients, "__getitem__") and hasattr(clients, "__len__"),
        f"clients are a {type(clients).__name__}; give a list with the data of each client, or a"
        " dict of them",
    )
    several = cast(Sequence[Any], clients)
    names = getattr(clients, "names", ()) or range(len(several))
    return [f"client {name}" for name in names], [several[i] for i in range(len(several))]
