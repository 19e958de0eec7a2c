r"""Averaging, with or without momentum: the mean displacement d of a round becomes the new x.

.. math::
    \text{Averaging} &: x \leftarrow x - \eta_g d \\
    \text{Momentum} &: m \leftarrow \beta m + d,\quad x \leftarrow x - \eta_g m

Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019 (momentum: FedAvgM).  The server's moments are called m_g and v_g because a
local rule may share its own v.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...errors import require
from ..part import Names, Round
from ..vectors import Vector, Vectors

__all__ = ["Averaging", "Momentum", "momentum_is_late"]

MOST_LATE = 0.5
"""The largest momentum of a server with which late replies did no harm when it was tried."""


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """Move x by the mean displacement; ``server_lr`` 1 is plain averaging of the clients."""

    name: ClassVar[str] = "averaging"
    server_state: ClassVar[Names] = ()
    """Vectors only the server keeps."""

    server_lr: float = 1.0
    """Factor on the server's step."""

    def __post_init__(self) -> None:
        require(self.server_lr > 0, f"server_lr is {self.server_lr}; it must be positive")

    @property
    def late(self) -> str:
        """Why replies that come late may do harm (``staleness``); empty if nothing is known."""
        return ""

    @property
    def leaks(self) -> str:
        """Why a private run cannot have this rule; empty if it uses nothing but the mean."""
        return ""

    def start(self, server: Vectors) -> None:
        """Make the ``server_state`` vectors before the first round."""
        for name in self.server_state:
            server[name] = server.x.zeros_like()

    def apply(self, server: Vectors, d: Vector, r: Round) -> None:
        """Update ``server.x`` from the mean displacement ``d``."""
        server.x = server.x.add(d, alpha=-self.server_lr * r.damping)


@dataclass(frozen=True, kw_only=True)
class Momentum(Averaging):
    """Heavy-ball momentum on the server (FedAvgM)."""

    name = "momentum"
    server_state = ("m_g",)

    momentum: float = 0.9
    """Weight of the old momentum in the server's step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            0 <= self.momentum < 1, f"momentum is {self.momentum}; it must be from 0 up to below 1"
        )

    @property
    def late(self) -> str:
        return momentum_is_late(self.momentum)

    def apply(self, server: Vectors, d: Vector, r: Round) -> None:
        server.m_g = d.add(server.m_g, alpha=self.momentum)
        super().apply(server, server.m_g, r)


def momentum_is_late(momentum: float) -> str:
    """Return why a momentum of the server is doubtful where replies are late; empty if it is not.

    >>> momentum_is_late(0.5)
    ''
    """
    if momentum <= MOST_LATE:
        return ""
    return (
        f"the server's momentum is {momentum:g}, and late replies act like momentum of their own:"
        f" FedAvgM with 0.9 failed where {MOST_LATE:g} did not; lower it, or tune lr again"
    )
