"""Follow one `flwr run` from its start to its end."""

import json
import re
from collections.abc import Callable
from pathlib import Path

from .processes import Process, log_error

__all__ = ["CONNECTION", "Run", "Value"]

Value = bool | int | float | str
"""A value of a run config or a node config: Flower accepts no lists."""

CONNECTION = "loopback"
"""The name of the connection in the config file that `flwr` reads."""


class Run:
    """An app that runs; :meth:`Deployment.begin` returns it.

    Args:
        flwr: Runs a command of `flwr` on the same SuperLink and returns what it printed.
        app_dir: The app's directory, for messages.
        process: The process of `flwr run`.
    """

    def __init__(self, flwr: Callable[..., str], app_dir: Path | str, process: Process) -> None:
        self._flwr, self._app_dir, self._process = flwr, app_dir, process

    def output(self) -> str:
        """Return what the run has printed; the last lines of a killed ServerApp may be missing."""
        return self._process.output()

    def running(self) -> bool:
        """Return whether `flwr run` still waits for the run to end."""
        return self._process.running()

    def wait(self, *, timeout: float = 600.0, show: Callable[[str], None] | None = None) -> str:
        """Wait for the end of the run and return what it printed.

        Each line is passed to `show`, such as `print`, as soon as it is written. A run that does
        not complete, or not within `timeout` seconds, is stopped and raises DeploymentError.
        """
        process, app_dir = self._process, self._app_dir
        code = process.finish(timeout, show)
        output = process.output()
        run_id = re.search(r"Successfully started run (\d+)", output)
        if code is None:
            if run_id is not None:
                self._flwr("stop", run_id[1], CONNECTION)
            raise log_error(f"The app {app_dir} did not end within {timeout:g} s", process)
        if code != 0 or run_id is None:
            raise log_error(f"flwr run of {app_dir} failed with exit code {code}", process)
        # `flwr run` exits with 0 even if the run has failed, so ask for the run's status.
        listed = self._flwr("list", CONNECTION, "--run-id", run_id[1], "--format", "json")
        status = json.JSONDecoder().raw_decode(listed, listed.index("{"))[0]["runs"][0]
        if status["status"] != "finished:completed":
            raise log_error(
                f"The run of {app_dir} ended as {status['status']}: {status['status-details']}",
                process,
            )
        return output

    def leave(self) -> None:
        """Kill `flwr run`; the run itself continues."""
        self._process.kill()
