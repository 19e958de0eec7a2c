"""Devices: how long clients take, when they are there and how often they fail, without waiting.

Everything is a function of (seed, client, round), so simulated seconds are the same on every
machine, and the order of arrival is known before anybody trains.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import FedladaError, require, require_known
from ..protocol.seeds import seed_of

__all__ = ["Device", "Devices", "Outcome", "Work"]

ZONES = 0.25
"""Standard deviation of the hour at which clients come, as a share of a day.  Many are there at the
same time, so participation swings about threefold over a day."""
PUNCTUAL = 1 / 24
"""Standard deviation of the same client's hour from day to day."""
MEGABIT = 1e6 / 8
"""Bytes."""
COLUMNS = ("client", "step", "down", "up", "from", "until")
"""The columns of a table; the last two may be left out."""


class Device(NamedTuple):
    """One client's row of a table."""

    client: int
    step: float
    """Seconds of a local step."""
    down: float
    """Mbit/s."""
    up: float
    """Mbit/s."""
    windows: tuple[tuple[float, float], ...] = ()
    """When it is there, in seconds of a day; always, if there is no window."""


class Work(NamedTuple):
    """What a task is made of: the bytes that a client receives and sends, and its local steps."""

    down: float
    up: float
    steps: Callable[[int], float]
    """Maps a client to its number of local steps."""


class Outcome(NamedTuple):
    """When a task ends, in seconds after the start of the run, and why it failed, if it did."""

    time: float
    reason: str = ""
    reached: bool = True


@dataclass(frozen=True, kw_only=True)
class Devices:
    """How long the clients of a simulation take, when they are there, and how often they fail.

    A task takes ``latency`` seconds, the time of its bytes down and up, and that of its local
    steps.  The defaults are placeholders, no measurement: name the devices beside every figure.

    >>> simulate(model, clients, devices=Devices(step=0.02, speeds=1.0, drop_out=0.05))
    """

    seed: int = 0
    """Determines every random choice below, independently of the run's seed."""
    step: float = 0.05
    """Median seconds of a local step."""
    speeds: float = 1.0
    """How clients differ in speed: the standard deviation of the logarithm of their seconds."""
    noise: float = 0.25
    """How the tasks of one client differ, in the same unit."""
    latency: float = 1.0
    """Seconds of a task beside its steps and bytes."""
    down: float = 20.0
    """Median Mbit/s to a client."""
    up: float = 5.0
    """Median Mbit/s from a client."""
    links: float = 1.0
    """How clients differ in both, in the unit of ``speeds``."""
    drop_out: float = 0.0
    """Probability that a client never answers a task."""
    notice: float = 60.0
    """Seconds until the server notices that a client has gone, if no deadline is earlier."""
    present: float = 1.0
    """Share of a day that a client is there, in one piece; clients come at different hours."""
    day: float = 86400.0
    """Seconds of a day."""
    steps: float | None = None
    """Number of local steps of a task, for a training loop that does not say it."""
    table: tuple[Device, ...] | str = ()
    """A CSV file with a row for each client: ``client,step,down,up``, and ``from,until`` for the
    seconds of a day when it is there (several rows for several times).  It replaces ``step``,
    ``speeds``, ``down``, ``up``, ``links`` and ``present``."""

    def __post_init__(self) -> None:
        if isinstance(self.table, str | Path):
            read = _table(Path(self.table)) if str(self.table) else ()
            object.__setattr__(self, "table", read)
        for name in ("step", "down", "up", "day"):
            self._check(name, "a positive number", lambda v: 0 < v < math.inf)
        for name in ("speeds", "noise", "latency", "links", "notice"):
            self._check(name, "0 or a positive number", lambda v: 0 <= v < math.inf)
        self._check("drop_out", "0 or more and below 1", lambda v: 0 <= v < 1)
        self._check("present", "above 0 and at most 1", lambda v: 0 < v <= 1)
        if self.steps is not None:
            self._check("steps", "a positive number, or left out", lambda v: 0 < v < math.inf)

    def _check(self, name: str, allowed: str, fits: Callable[[float], bool]) -> None:
        value = getattr(self, name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        require(number and fits(value), f"{name} of devices is {value!r}; it must be {allowed}")

    @classmethod
    def read(cls, value: Devices | Mapping[str, Any]) -> Devices:
        """Return devices, or make them from a table of their settings."""
        if isinstance(value, Devices):
            return value
        known = [field.name for field in fields(cls)]
        for name in value:
            require_known(name, known, f"devices have no {name!r}")
        return cls(**value)

    def outcome(
        self, client: int, round: int, *, start: float, work: Work, deadline: float | None = None
    ) -> Outcome:
        """Return when the task of a round ends that a client is sent at ``start``.

        The client has failed at ``deadline`` seconds after the start.
        """
        until = self._until(client, start)
        if until is None:
            return Outcome(start, "not there", reached=False)
        own = random.Random(seed_of(self.seed, "task", client, round))
        end = start + self.seconds(client, work, noise=math.exp(own.gauss(0, self.noise)))
        reason = ""
        if own.random() < self.drop_out:
            end, reason = start + own.random() * (end - start) + self.notice, "dropped out"
        elif end > until:
            end, reason = until + self.notice, "went away"
        if deadline is not None and end > start + deadline:
            end, reason = start + deadline, "deadline"
        return Outcome(end, reason)

    def present_at(self, client: int, time: float) -> bool:
        """Return whether a client is there, so many seconds after the start of the run."""
        return self._until(client, time) is not None

    def seconds(self, client: int, work: Work, *, noise: float = 1.0) -> float:
        """Return how long a client takes for a task, if it stays; the median without ``noise``."""
        if self.table:
            device = self._device(client)
            step, down, up = device.step, device.down, device.up
        else:
            own = random.Random(seed_of(self.seed, "device", client))
            speed, link = math.exp(own.gauss(0, self.speeds)), math.exp(own.gauss(0, self.links))
            step, down, up = self.step * speed, self.down / link, self.up / link
        sending = work.down / (down * MEGABIT) + work.up / (up * MEGABIT)
        return self.latency + sending + work.steps(client) * step * noise

    def _until(self, client: int, time: float) -> float | None:
        """Return until when a client stays that is there; None if it is not there."""
        end = time
        # Windows may touch, or overlap: follow them to the end of the last.
        while (later := self._end(client, end)) is not None and later > end:
            if later == math.inf or later > time + self.day:
                return later
            end = later
        return end if end > time else None

    def _end(self, client: int, time: float) -> float | None:
        """Return the end of a window that covers this moment."""
        if not (self.table or self.present < 1):
            return math.inf
        if self.table and not self._device(client).windows:
            return math.inf
        ends = [end for start, end in self._windows(client, time) if start <= time < end]
        return max(ends, default=None)

    def _windows(self, client: int, time: float) -> Iterable[tuple[float, float]]:
        """Yield the windows around a moment."""
        if self.table:
            today = math.floor(time / self.day)
            for day in (today - 1, today):
                for start, end in self._device(client).windows:
                    yield day * self.day + start, day * self.day + end
            return
        hour = random.Random(seed_of(self.seed, "hour", client)).gauss(0, ZONES)
        today = math.floor(time / self.day - hour)
        for day in range(today - 1, today + 2):
            shift = random.Random(seed_of(self.seed, "day", client, day)).gauss(0, PUNCTUAL)
            start = day + hour + shift
            yield start * self.day, (start + self.present) * self.day

    def _device(self, client: int) -> Device:
        found = self._by_client.get(client)
        if found is None:
            raise FedladaError(
                f"the table of devices has no row for client {client}; give every client one"
            )
        return found

    @cached_property
    def _by_client(self) -> dict[int, Device]:
        assert not isinstance(self.table, str)
        return {device.client: device for device in self.table}


def _table(path: Path) -> tuple[Device, ...]:
    """Read the rows of a CSV file, one device for each client."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise FedladaError(f"the table of devices {path} cannot be read ({error})") from None
    devices: dict[int, Device] = {}
    for number, row in enumerate(rows, 2):
        device = _row(row, f"line {number} of {path}")
        before = devices.get(device.client)
        if before is not None:
            require(
                before[:4] == device[:4] and bool(before.windows) and bool(device.windows),
                f"line {number} of {path} is a second row of client {device.client}; it may differ"
                " in from and until alone, and each row must have both",
            )
            device = before._replace(windows=(*before.windows, *device.windows))
        devices[device.client] = device
    require(bool(devices), f"the table of devices {path} has no rows; give every client one")
    return tuple(devices[client] for client in sorted(devices))


def _row(row: Mapping[str, str | None], where: str) -> Device:
    missing = [name for name in COLUMNS[:4] if row.get(name) is None]
    require(
        not missing, f"{where} has no {', '.join(missing)}; the columns are {', '.join(COLUMNS)}"
    )
    try:
        client = int(row["client"] or "")
        step, down, up = (float(row[name] or "") for name in COLUMNS[1:4])
        ends = tuple(float(row[name] or "") for name in COLUMNS[4:] if row.get(name))
    except ValueError as error:
        raise FedladaError(f"{where} has something else than numbers ({error})") from None
    require(
        client >= 0 and min(step, down, up) > 0 and math.isfinite(step + down + up),
        f"{where} has numbers that are not positive: client counts from 0, step is seconds, down"
        " and up are Mbit/s",
    )
    require(
        not ends or (len(ends) == 2 and 0 <= ends[0] < ends[1] < math.inf),
        f"{where}: from and until must be seconds of a day, until after from, or both left out",
    )
    return Device(client, step, down, up, (ends,) if len(ends) == 2 else ())
