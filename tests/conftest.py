"""What all tests share: one thread each, and how they are spread over processes.

The tests of a group run in one process, one after the other, because they share fixtures. A file
is a group, and so are its tests with one of the markers `flower`, `cifar`, `documents` and
`programs`; `group` of a marker names another. Groups of Flower begin first, because they mostly
wait, and of all others those with the largest `seconds` of a marker.
"""

import gc
import json
import os
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Generator
from functools import cached_property
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

torch.set_num_threads(1)

MARKERS = ("flower", "cifar", "documents", "programs")
"""Those of slow tests, which `scripts/test --quick` leaves out; described in pyproject.toml."""
AT_ONCE = 2
"""At most this number of groups of Flower runs at once, while other tests compute."""


def marker_of(item: pytest.Item) -> pytest.Mark | None:
    """The marker of a slow test."""
    return next((mark for name in MARKERS for mark in item.iter_markers(name)), None)


def group_of(item: pytest.Item) -> str:
    """The name of a test's group."""
    marker, file = marker_of(item), item.nodeid.partition("::")[0]
    return file if marker is None else f"{marker.name} {marker.kwargs.get('group', file)}"


def is_flower(group: str) -> bool:
    return group.startswith("flower ")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    groups = {item.nodeid: group_of(item) for item in items}
    seconds: dict[str, float] = defaultdict(float)
    for item in items:
        marker = marker_of(item)
        if marker is not None:
            group = groups[item.nodeid]
            seconds[group] = max(seconds[group], marker.kwargs.get("seconds", 1.0))

    def order(item: pytest.Item) -> tuple[bool, float]:
        group = groups[item.nodeid]
        return not is_flower(group), -seconds[group]

    items.sort(key=order)
    if hasattr(config, "workerinput"):
        Path(config.workerinput["groups"]).write_text(json.dumps(groups))


def pytest_collection_finish() -> None:
    """Keep the garbage collector from what lives as long as the tests."""
    gc.freeze()


GROUPS = Path(tempfile.gettempdir()) / f"fedlada-test-groups-{os.getpid()}.json"
"""The group of each test. Only the processes that xdist starts see the markers; they tell the one
that schedules."""


def pytest_configure_node(node: WorkerController) -> None:
    node.workerinput["groups"] = str(GROUPS)


class InGroups(LoadScopeScheduling):
    """Sends the tests of a group to one process, and groups of Flower only a few at a time."""

    @cached_property
    def _groups(self) -> dict[str, str]:
        groups = json.loads(GROUPS.read_text())
        GROUPS.unlink()
        return groups

    def _split_scope(self, nodeid: str) -> str:
        return self._groups[nodeid]

    def _assign_work_unit(self, node: WorkerController) -> None:
        running = {
            group
            for groups in self.assigned_work.values()
            for group, tests in groups.items()
            if is_flower(group) and not all(tests.values())
        }
        if len(running) >= (1 if "flower alone" in running else AT_ONCE):
            other = next((group for group in self.workqueue if not is_flower(group)), None)
            if other is not None:
                self.workqueue.move_to_end(other, last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> InGroups:
    return InGroups(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Keep CIFAR and Flower's programs from tests without a marker, which `--quick` runs."""
    if marker_of(item) is not None:
        return (yield)
    hidden = {"FEDLADA_DATA": "/a/test/that/reads/CIFAR/needs/the/marker/cifar"}
    with patch.dict(os.environ, hidden), patch.object(subprocess.Popen, "__init__", start):
        return (yield)


STARTED = subprocess.Popen.__init__


def start(self: subprocess.Popen, command: object, *more: object, **options: object) -> None:
    words = [command] if isinstance(command, str | Path) else command
    if any(Path(os.fsdecode(word)).name.startswith(("flower-", "flwr")) for word in words):
        raise AssertionError(f"a test that starts {command} needs the marker flower")
    STARTED(self, command, *more, **options)
