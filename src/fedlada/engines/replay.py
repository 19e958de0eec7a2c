"""Replay: train in this process what a run with late replies trained, from its records.

Which replies each round judged determines all of its bits: sums are exact, and randomness is a
function of (seed, round, client).  So the records of a run, wherever it took place, are enough to
check its result on one machine that has the data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..errors import require
from ..protocol.engine import Engine
from ..protocol.messages import Task
from ..server.collect.collect import new_tally
from ..server.collect.tally import Tally
from ..server.loop import federate
from ..server.plan import Plan
from ..server.record import Clock, RoundRecord
from ..server.state import ServerState

__all__ = ["Replay", "replay"]


def replay(
    plan: Plan, engine: Engine, state: ServerState, records: Iterable[RoundRecord]
) -> Iterator[RoundRecord]:
    """Run the rounds of ``records`` once more, from the ``state`` before the first of them.

    Afterwards ``state.vectors`` has the bits of the run that was recorded, if its clients were
    honest and have the same data here.
    """
    by_round = {record.round - 1: record for record in records}
    require(
        bool(plan.staleness),
        "staleness is 0, so the run is repeated by running its plan again, without a replay",
    )
    again = replace(plan, cohort=Recorded(by_round), rounds=max(by_round, default=-1) + 1)
    return federate(again, engine, state, collector=Replay(again, engine, by_round))


@dataclass(frozen=True)
class Recorded:
    """Returns the cohorts of records."""

    records: dict[int, RoundRecord]

    def cohort(self, seed: int, round: int, clients: int, busy: Collection[int] = ()) -> list[int]:
        """Return who was asked, whoever is busy: a record does not say whose task failed."""
        require(round in self.records, f"the records lack round {round + 1}; give all of them")
        return sorted(self.records[round].cohort)


class Replay:
    """Collects, for each round, the replies that its record names."""

    waits = True

    def __init__(self, plan: Plan, engine: Engine, records: dict[int, RoundRecord]) -> None:
        self._plan, self._engine, self._records = plan, engine, records

    def collect(self, task: Task, cohort: Sequence[int], state: ServerState, clock: Clock) -> Tally:
        """Return the tally of the replies that the round's record names."""
        tally = new_tally(self._plan, task, cohort, state)
        for client, version in self._records[state.round].members:
            flight = state.flights.pop(client, None)
            require(
                flight is not None and flight.version == version,
                f"the record of round {state.round + 1} has a reply of client {client} to the task"
                f" of round {version + 1}, which that client does not have: give all records of the"
                " run, from the first on, as they were written",
            )
            for reply in self._engine.exchange(state.task_of(task, version, [client]), [client]):
                tally.add(reply)
        return tally
