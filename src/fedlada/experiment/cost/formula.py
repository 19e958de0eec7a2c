r"""The cost of a round as closed formulas over measured constants.

With :math:`n` clients in a cohort of :math:`k` steps, and the constants in words:

.. math::

    client &= client + client\_element\,(down + up) + k\,(step + flop \cdot flops) \\
    reply  &= reply + reply\_element \cdot up \\
    update &= round + round\_element \cdot state

where down, up and state are numbers of elements.  A simulated round over :math:`w` workers takes

.. math:: \lceil n / w\rceil\,(client + reply) + (w - 1)\,reply + update

because workers share the cohort and a merged tally costs about what a reply does.  A deployed
round over :math:`l` leaves (or none, with :math:`l = 1`) takes

.. math:: message + client / speed + transfer + \lceil n / l\rceil\,(reply + wire) + update

in which all clients train at once, transfer is the longer of a client's own transfer and that of
all its collector's clients over the collector's connection, and wire is what a message costs a
server beside folding.  With leaves the root adds the same for :math:`l` tallies, of 16 bytes per
element each.  Nothing is assumed to overlap, so a deployed round is an upper estimate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from .constants import Constants, Deployed

__all__ = ["Cost", "Deployment", "Setting", "Workload", "predict"]

Deployment = Literal["process", "flower"]

TALLY = 16
"""Bytes per element of a sum in :mod:`fedlada.server.mean`."""
ENTRY, MEMO = 24, 200
"""Bytes per client that keeps vectors: in the ledger of a checkpoint, and in memory."""
PROCESS = 250e6
"""Bytes of a Python process that has imported torch."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What one experiment computes and sends, counted from its definition."""

    parameters: int
    down: int
    """Elements that one client receives."""
    up: int
    """Elements that one client sends."""
    state: int
    """Elements that the server keeps."""
    bytes_down: int
    """Bytes that one client receives, as a record counts them."""
    bytes_up: int
    bytes_state: int
    bytes_kept: int
    """Bytes that one client keeps between rounds."""
    flops: float
    """Floating-point operations of one step, forward and backward."""
    steps: float
    """Steps of one client in a round."""
    holds: float
    """Replies that a server holds at once: all in some aggregators, else those that set the
    guard's limits in the first round."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where an experiment runs, with how many clients, and at what prices."""

    clients: int
    cohort: float
    """Clients sampled in a round, on average."""
    rounds: int
    deployment: Deployment = "process"
    workers: int = 1
    leaves: int = 0
    down: float = 50.0
    """Megabits per second to a client."""
    up: float = 10.0
    """Megabits per second from a client."""
    link: float = 1000.0
    """Megabits per second of a server, or of a leaf."""
    speed: float = 1.0
    """How fast a client computes; 1 is the machine of the constants."""
    price_gb: float = 0.08
    """Per gigabyte that servers send; what they receive is free."""
    price_hour: float = 0.5
    """Per hour and server."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The predicted cost of a round, and of the run where it says so."""

    bytes_down: float
    bytes_up: float
    bytes_root: float
    """Bytes between the leaves and the root, both ways."""
    client_seconds: float
    """CPU seconds of one client, by its own clock."""
    transfer_seconds: float
    server_seconds: float
    """CPU seconds of all servers together."""
    server_memory: float
    """Bytes at the peak, which is in the first round."""
    seconds: float
    """Duration of a round, without evaluation and checkpoint."""
    save_seconds: float
    save_bytes: float
    kept_bytes: float
    """Bytes that all clients together keep at the end of the run."""
    polling: float
    """Cores of one SuperLink that its idle nodes keep busy."""
    servers: int
    run_seconds: float
    """Duration of the run with a checkpoint after every round, without evaluation."""
    run_money: float


def predict(work: Workload, setting: Setting, constants: Constants, on: Deployed) -> Cost:
    """Return what a run of this work in this setting costs."""
    n, flower = setting.cohort, setting.deployment == "flower"
    leaves = setting.leaves if flower else 0
    collectors = (leaves or 1) if flower else setting.workers
    share = math.ceil(n / collectors)
    client = constants.client_seconds(work.down, work.up, work.steps, work.flops)
    reply = constants.reply_seconds(work.up)
    update = constants.update_seconds(work.state)
    seen = setting.clients * (1 - (1 - min(n / setting.clients, 1)) ** setting.rounds)
    kept = seen * work.bytes_kept
    save_bytes = work.bytes_state + (ENTRY * seen if kept else 0)
    tally = TALLY * work.up + work.bytes_down  # a leaf's round, both ways
    if flower:
        both = work.bytes_down + work.bytes_up
        wire = on.byte * both
        own = _seconds(work.bytes_down, setting.down) + _seconds(work.bytes_up, setting.up)
        transfer = max(own, _seconds(share * both, setting.link))
        merge = leaves * (constants.reply_seconds(work.up) + on.byte * tally)
        root = leaves and on.message + merge + _seconds(leaves * tally, setting.link)
        client /= setting.speed
        seconds = on.message + client + transfer + share * (reply + wire) + root + update
        server = n * (reply + wire) + merge + update
    else:
        transfer, merge = 0.0, (setting.workers - 1) * reply
        seconds = share * (client + reply) + merge + update
        server = n * reply + merge + update
    save = constants.save_seconds(work.bytes_state)
    run = setting.rounds * (seconds + save)
    sent = setting.rounds * n * work.bytes_down if flower else 0.0
    servers = 1 + leaves
    held = min(share if flower else n, work.holds) * work.bytes_up
    return Cost(
        bytes_down=n * work.bytes_down,
        bytes_up=n * work.bytes_up,
        bytes_root=leaves * tally,
        client_seconds=client,
        transfer_seconds=transfer,
        server_seconds=server,
        server_memory=PROCESS
        + work.bytes_state
        + TALLY * work.up
        + held
        + (MEMO * seen if kept else 0),
        seconds=seconds,
        save_seconds=save,
        save_bytes=save_bytes,
        kept_bytes=kept,
        polling=on.node_minute / 60 * setting.clients / (leaves or 1) if flower else 0.0,
        servers=servers,
        run_seconds=run,
        run_money=sent / 1e9 * setting.price_gb + run / 3600 * servers * setting.price_hour,
    )


def _seconds(count: float, megabits: float) -> float:
    """Return how long so many bytes take over a connection."""
    return 8 * count / (megabits * 1e6)
