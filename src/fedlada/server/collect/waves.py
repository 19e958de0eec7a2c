"""Split a cohort over collectors so that the merged tally equals that of a single collector.

A single collector stops when ``plan.close_after`` replies are accepted, and in the first round the
first replies in the order of the cohort set the guard's limits.  So the cohort is not split all at
once.  A wave has only clients that a single collector would surely ask; the next wave has those
that are still needed after it.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...errors import FedladaError
from ...protocol.messages import Failure, Task
from ..guard import Admission, Limit, NoGuard
from ..plan import Plan
from ..private.admission import Private
from ..state import ServerState
from .by_version import ByVersion
from .collect import new_tally
from .tally import Tally

__all__ = ["Arrival", "Wave", "in_waves"]


class Arrival(NamedTuple):
    """A client in the order in which replies arrive."""

    client: int
    time: float = 0.0
    """In simulated time: when it answers, in seconds after the start of the run."""
    failure: Failure | None = None
    """In simulated time: why it does not answer."""


@dataclass(frozen=True, kw_only=True)
class Wave:
    """Clients that several collectors share."""

    clients: Sequence[int]
    limits: Mapping[str, Limit] | None
    """The guard's limits, unless this wave is to set them."""
    last: bool
    """Whether no other wave can follow in this round."""
    empty: Callable[[], Tally]
    """Makes an empty tally, to read a share's tally into."""


def in_waves(
    plan: Plan,
    task: Task,
    cohort: Sequence[int],
    state: ServerState,
    shares: Callable[[Wave], Iterable[Tally]],
    arrivals: Sequence[Arrival] | None = None,
) -> Tally:
    """Return the tally of the cohort; ``shares`` returns the tallies of a wave's collectors.

    The tensors of the last wave's tallies must not change until the round is done.  ``arrivals``
    are those of simulated time, which moves with them.
    """
    tally = new_tally(plan, task, cohort, state)
    summed = tally.summed
    left = deque(map(Arrival, cohort) if arrivals is None else arrivals)
    while left and not tally.enough(plan.close_after):
        size, clients = _surely_asked(plan, tally), list[int]()
        while left and len(clients) < size:
            arrival = left.popleft()
            state.flights.pop(arrival.client, None)
            if arrivals is not None:
                state.time = max(state.time or 0.0, arrival.time)
            if arrival.failure is None:
                clients.append(arrival.client)
            else:
                tally.add(arrival.failure)
        if not clients:
            break
        before = copy.copy(tally.admission)

        def empty(before: Admission | NoGuard | Private | ByVersion = before) -> Tally:
            return Tally(plan.aggregator(), cohort, copy.copy(before), summed=summed)

        wave = Wave(clients=clients, limits=before.limits, last=not left, empty=empty)
        counted = tally.counted
        for share in shares(wave):
            if wave.last and tally.untouched:
                tally = share  # equal to merging it into the empty tally, without a copy
            else:
                tally.merge(share)
        missing = len(clients) - (tally.counted - counted)
        if missing:
            raise FedladaError(
                f"in round {task.round + 1}, {missing} of {len(clients)} clients have no result,"
                " and no process reports an error: another program has changed the counter by which"
                " the processes of this run share clients. Start ranks on a network that only they"
                " can reach; a run with checkpoints continues from the last one when the same is"
                " run again"
            )
    return tally


def _surely_asked(plan: Plan, tally: Tally) -> int:
    """Return how many of the next clients a single collector would ask, whatever they answer."""
    most = len(tally.cohort)
    if plan.close_after is not None:
        most = plan.close_after - len(tally.accepted) - len(tally.held)
    return min(most, tally.uncalibrated or most)
