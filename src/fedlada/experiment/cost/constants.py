"""The constants of a machine, in seconds, from which costs are predicted."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEPLOYED", "REFERENCE", "Constants", "Deployed"]


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What work takes on a machine: a fixed part, and a part that grows with the model."""

    source: str
    """Where they come from, for the reader of a table."""
    step: float
    """Of a step of any model."""
    flop: float
    """Of a floating-point operation in a step."""
    client: float
    """Of a client's round without steps."""
    client_element: float
    """Of an element that a client receives or sends."""
    reply: float
    """Of a reply at the server."""
    reply_element: float
    """Of an element of a reply."""
    round: float
    """Of the server's part of a round beside replies."""
    round_element: float
    """Of an element of the server's state."""
    save: float
    """Of a checkpoint."""
    save_byte: float
    """Of a byte of a checkpoint."""

    def client_seconds(self, down: int, up: int, steps: float, flops: float) -> float:
        """Return the seconds of a client's round."""
        return (
            self.client
            + self.client_element * (down + up)
            + steps * (self.step + self.flop * flops)
        )

    def reply_seconds(self, up: int) -> float:
        """Return the seconds in which a server checks and folds a reply."""
        return self.reply + self.reply_element * up

    def update_seconds(self, state: int) -> float:
        """Return the server's seconds of a round beside replies."""
        return self.round + self.round_element * state

    def save_seconds(self, count: int) -> float:
        """Return the seconds of a checkpoint with so many bytes of vectors."""
        return self.save + self.save_byte * count


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """What Flower adds to a round; none of it depends on the model, but for its bytes."""

    message: float
    """Seconds of a round in which nothing is trained and nothing is large."""
    byte: float
    """CPU seconds of a server per byte sent or received: serialising and hashing."""
    node_minute: float
    """CPU seconds of a SuperLink per connected node and minute, when all are idle."""


REFERENCE = Constants(
    source="of a machine with two virtual Xeon cores, one thread, 2026-11-16",
    step=7e-4,
    flop=5e-11,  # 8e-11 with LeNet, 4e-11 with a ResNet-18
    client=1.5e-3,
    client_element=1.7e-9,
    reply=8e-4,
    reply_element=1.9e-8,
    round=2e-3,
    round_element=1.4e-8,
    save=6e-3,
    save_byte=8e-9,
)
"""Measured by ``benchmarks/cost.py`` while the machine was busy; others differ, by far."""

DEPLOYED = Deployed(
    message=8.7,  # benchmarks/flower_round.py: a round of LeNet on two cold nodes
    byte=1e-8,  # benchmarks/cost.py
    node_minute=0.3,  # benchmarks/supernodes.py
)
"""Measured on the same machine."""
