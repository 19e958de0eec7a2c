"""Start Flower's programs so that each of them, and all they start, can be found and killed.

Flower detaches some of the processes it starts from their session, so a process group does not
hold them all. Every process started here therefore carries a mark in its environment, which its
own children inherit, and is found through /proc by that mark.
"""

import os
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from .processes import GRACE, DeploymentError, Process, guardian, kill_marked, marked

__all__ = ["Launcher"]

_MARK = "FEDLADA_LOOPBACK"
_OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    # Flower's default is 1; at 0.1 the polling of two idle nodes takes a quarter of a core.
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": os.environ.get("FEDLADA_LOOPBACK_POLL", "0.3"),
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


class Launcher:
    """Starts programs with their homes and logs in `directory`.

    Args:
        directory: Where the homes and the logs are written.
        environment: Variables that every process gets in addition.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._directory = directory
        self._environment = dict(environment)
        self._mark = uuid.uuid4().hex
        self._names: Counter[str] = Counter()
        self._started: list[Process] = []
        self._guardian: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        """Make the directory of the logs and start the guardian, in case this process is killed."""
        (self._directory / "logs").mkdir(mode=0o700)
        self._guardian = guardian(f"{_MARK}={self._mark}/")

    def close(self) -> None:
        """Kill whatever still runs, and end the guardian."""
        self.kill()
        for process in self._started:
            process.wait(GRACE)  # otherwise it would stay as a zombie
        self._started.clear()
        if self._guardian is not None:
            self._guardian.communicate()
            self._guardian = None

    def start(self, name: str, command: Sequence[str], *, home: str) -> Process:
        """Start a program of Flower's in the directory `home`, with the log `name`.log."""
        working = self._directory / home
        working.mkdir(mode=0o700, exist_ok=True)
        programs = Path(sys.executable).parent
        program = programs / command[0]
        if not program.exists():
            raise DeploymentError(f"There is no {program}; install Flower where this Python is")
        environment = self._inherited(programs) | {"FLWR_HOME": str(working)}
        return self.process(
            name, [str(program), *command[1:]], environment=environment, directory=working
        )

    def process(
        self, name: str, command: Sequence[str], *, environment: Mapping[str, str], directory: Path
    ) -> Process:
        """Start any command in a directory, with the log `name`.log and the mark."""
        mark = self.mark(name)
        process = Process(
            command,
            log=self._directory / "logs" / f"{name}.log",
            environment={**environment, **mark},
            directory=directory,
            mark="=".join(*mark.items()),
        )
        self._started.append(process)
        return process

    def mark(self, name: str) -> dict[str, str]:
        """Return the variable by which a process and its children are found."""
        return {_MARK: f"{self._mark}/{name}"}

    def numbered(self, name: str) -> str:
        """Return the name with the next number, which no earlier process had."""
        self._names[name] += 1
        return f"{name}-{self._names[name]}"

    def running(self, program: str) -> list[int]:
        """Return the processes that run the program."""
        return list(marked(f"{_MARK}={self._mark}/", program))

    def kill(self, program: str | None = None) -> list[int]:
        """Kill all processes, or those that run the program, and return which they were."""
        return kill_marked(f"{_MARK}={self._mark}/", program)

    def _inherited(self, programs: Path) -> dict[str, str]:
        # Flower's variables are set only here and never taken from the caller's shell.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("FLWR_")}
        environment |= _OFFLINE | self._environment
        # Every task is a new process, which should not compile this package again.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        # Processes work in other directories and must still find Flower's programs and our package.
        environment["PATH"] = os.pathsep.join([str(programs), environment.get("PATH", "")])
        if "PYTHONPATH" in environment:
            entries = environment["PYTHONPATH"].split(os.pathsep)
            environment["PYTHONPATH"] = os.pathsep.join(str(Path(e).resolve()) for e in entries)
        return environment
