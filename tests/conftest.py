"""What all tests share: one thread each, and how they are spread over processes.

The tests of a group run in one process, one after the other, because they share fixtures or need
each other's results. A file is a group, and so is each line of `FLOWER`, `COMPUTING` and
`PROGRAMS`: a test belongs to the first line that its name matches. Groups begin in the order of
these lines.
"""

import re

import pytest
import torch
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

torch.set_num_threads(1)

FLOWER = (
    r"flower/test_process_faults\.py",  # its rounds have deadlines: no other of these beside it
    r"faults/test_flower_resume\.py::(.*\[deployed|test_supernodes)",
    r"flower/test_loopback\.py::(?!test_as_many)",
    r"test_documents\.py::test_the_commands.*examples/deployment",
    r"test_documents\.py::test_the_flwr_commands",
    r"flower/test_apps\.py::test_(a_run_in_which|the_readmes)",
    r"faults/test_flower_resume\.py",
    r"flower/test_tree_over_tls\.py",
    r"flower/test_engines_agree\.py",
    r"experiment/test_engines\.py::test_a_deployment",
    r"test_documents\.py::test_a_run_on_ray",
    r"faults/test_flower_sigterm\.py",
)
"""Tests that start Flower's processes, and mostly wait for them; the longest first."""

COMPUTING = (
    r"test_documents\.py::test_the_example_of_the_paper",
    r"test_documents\.py::test_the_commands.*cifar10",
    r"test_documents\.py::test_the_commands.*digits",
    r"test_documents\.py",
    r"test_guide\.py",
    r"test_trainers\.py",
    r"data/test_cifar\.py",
    r"test_notebooks\.py",
    r"test_site\.py",
)
"""Tests that read CIFAR, run what a document says, build the site or import large packages; the
longest first."""

PROGRAMS = (
    r"test_fixtures\.py",
    r"faults/test_checkpoints\.py::.*kill",
    r"experiment/test_sweep\.py",
    r"test_workers\.py::test_(no_worker_outlives|ranks)",
    r"experiment/test_attack\.py::test_two_processes",
    r"faults/test_patient\.py",
    r"experiment/test_engines\.py::test_rounds_that_were_finished",
    r"experiment/test_runs\.py::test_a_killed_run",
    r"experiment/test_open_ends\.py::test_a_sweep",
    r"experiment/test_files\.py::test_tables",
    r"flower/test_warm\.py",
    r"data/test_cache\.py::test_processes",
    r"test_defects\.py::test_robust_rules",
)
"""Tests that run whole experiments in processes of their own, often to kill them."""

SLOW = FLOWER + COMPUTING + PROGRAMS
AT_ONCE = 2
"""At most so many groups of `FLOWER` run at once, while others compute."""


def slow_group(nodeid: str) -> int | None:
    """The number of the line of `SLOW` that the test belongs to, if any."""
    return next((i for i, pattern in enumerate(SLOW) if re.search(pattern, nodeid)), None)


class InGroups(LoadScopeScheduling):
    """Sends the tests of a group to one process, and groups of Flower only a few at a time."""

    def _split_scope(self, nodeid: str) -> str:
        number = slow_group(nodeid)
        return nodeid.partition("::")[0] if number is None else SLOW[number]

    def _assign_work_unit(self, node: WorkerController) -> None:
        running = {
            group
            for groups in self.assigned_work.values()
            for group, tests in groups.items()
            if group in FLOWER and not all(tests.values())
        }
        if len(running) >= (1 if FLOWER[0] in running else AT_ONCE):
            other = next((group for group in self.workqueue if group not in FLOWER), None)
            if other is not None:
                self.workqueue.move_to_end(other, last=False)
        super()._assign_work_unit(node)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: scripts/test --quick leaves it out")


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> InGroups:
    return InGroups(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {}
    for item in items:
        number = slow_group(item.nodeid)
        if number is not None:
            item.add_marker(pytest.mark.slow)
        order[item] = len(SLOW) if number is None else number
    items.sort(key=order.__getitem__)
