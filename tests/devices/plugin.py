"""Runs tests on a device: ``-p devices.plugin --device cuda``, with ``tests`` on the PYTHONPATH.

The summary has rows of docs/devices.md: how far runs on the device end from those on the CPU.
Tests that ask for it get the fixture ``device``.  All others find that what they make without a
word about a device, models and data, is on this device; what the library makes is where it puts it.
"""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

TORCH, TESTS = str(Path(torch.__file__).parent), str(Path(__file__).parents[1])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        action="append",
        help="a device of torch; 'xla'; 'second', a CPU that says it is another device; or"
        " 'second-without-float64'; tests that ask for a device run on all that are given",
    )


def found(name: str) -> torch.device:
    """The device of this name, ready for use."""
    if name.startswith("second"):
        from devices import second
        from fedlada import devices

        second.BACKEND.float64 = name == "second"
        others = tuple(kind for kind in devices.WITHOUT_FLOAT64 if kind != second.NAME)
        devices.WITHOUT_FLOAT64 = others + (() if second.BACKEND.float64 else (second.NAME,))
        return second.DEVICE
    if name == "xla":
        os.environ.setdefault("PJRT_DEVICE", "CPU")
        import torch_xla
        import torch_xla.experimental

        # One operation at a time, as on other devices; else XLA compiles each client's round.
        torch_xla.experimental.eager_mode(True)
        return torch_xla.device()
    return torch.empty(0, device=name).device


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        names = metafunc.config.getoption("--device")
        metafunc.parametrize("device", names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    """The device of the test; the first one for a test that does not ask for any."""
    return found(getattr(request, "param", None) or request.config.getoption("--device")[0])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.stats.get("passed", []):
        for run, difference in report.user_properties:
            terminalreporter.write_line(f"| {run} | {difference:.1e} |")


class MadeThere(TorchFunctionMode):
    """Moves what a test makes to a device."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self, function: Callable, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        kwargs = kwargs or {}
        made = function(*args, **kwargs)
        if function not in _device_constructors() or "device" in kwargs or not by_a_test():
            return made
        wanted = made.requires_grad
        return made.detach().to(self.device).requires_grad_(wanted)


def by_a_test() -> bool:
    """Whether a test calls torch, itself or by a layer of torch's."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(TORCH):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(TESTS)


@pytest.fixture(autouse=True)
def on_the_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make what a test makes on the device, unless it says so itself."""
    if "device" in request.fixturenames:
        yield
        return
    with MadeThere(request.getfixturevalue("device")):
        yield
