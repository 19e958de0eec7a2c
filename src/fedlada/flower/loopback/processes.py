"""Start commands that can be stopped together with everything they start.

Run as a program, this module is a guardian. It waits until its standard input is closed, which
happens when the process that started it ends, for whatever reason. Then it kills every process
that carries the mark it was given.
"""

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

__all__ = [
    "GRACE",
    "DeploymentError",
    "Process",
    "await_ready",
    "free_port",
    "guardian",
    "kill_marked",
    "log_error",
    "marked",
    "sigterm_raises",
]

GRACE = 5.0
"""Seconds between asking a process to stop and killing it."""
_POLL = 0.1  # seconds between two checks of a starting process
_TAIL = 30  # lines of a log that an error shows
# These ports are below the range that the kernel uses for outgoing connections, so that none of
# those can take a port between its choice and its use. Processes begin at different places.
_PORTS = itertools.cycle(range(20000, 32000))
next(itertools.islice(_PORTS, os.getpid() * 64 % 12000, None))


class DeploymentError(RuntimeError):
    """Something in the deployment failed; the message ends with the end of the log."""


class Process:
    """A running command with its log and everything it starts."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str],
        directory: Path,
        mark: str,
    ) -> None:
        self.log = log
        self._mark = mark
        with log.open("ab") as file:
            self._begin = file.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=directory,
                start_new_session=True,  # only this process handles Ctrl-C
            )

    def ask(self) -> None:
        """Send SIGTERM; Flower's programs then stop what they started."""
        self._process.terminate()

    def wait(self, timeout: float) -> int | None:
        """Return the exit code, or None if the command has not ended after `timeout` seconds."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def finish(self, timeout: float, show: Callable[[str], None] | None = None) -> int | None:
        """Wait for the exit code as `wait` does, and kill whatever is left in any case.

        Each line of the output is passed to `show` as soon as it is written.
        """
        deadline, shown = time.monotonic() + timeout, 0
        try:
            while True:
                code = self.wait(min(0.5, timeout) if show else timeout)
                if show:
                    lines = self.output().splitlines(keepends=True)
                    whole = [
                        line for line in lines[shown:] if line.endswith("\n") or code is not None
                    ]
                    for line in whole:
                        show(line.rstrip())
                    shown += len(whole)
                if code is not None or time.monotonic() >= deadline:
                    return code
        finally:
            self.kill()

    def running(self) -> bool:
        """Return whether the command has not ended yet."""
        return self._process.poll() is None

    def crash(self) -> None:
        """Kill only the command; the processes that it started continue."""
        self._process.kill()
        self._process.wait()

    def kill(self) -> None:
        """Kill the command and everything it started."""
        self._process.kill()
        kill_marked(self._mark + "\0")
        self._process.wait()

    def output(self) -> str:
        """Return what the command has written since it was started."""
        with self.log.open("rb") as file:
            file.seek(self._begin)
            return file.read().decode(errors="replace")


def await_ready(process: Process, ready: Callable[[], bool], deadline: float) -> None:
    """Wait until `ready` returns true; raise if the process ends first or the time is up."""
    while not ready():
        code = process.wait(_POLL)
        if code is not None:
            raise log_error(f"{process.log.stem} ended with exit code {code} at its start", process)
        if time.monotonic() > deadline:
            raise log_error(f"{process.log.stem} was not ready in time", process)


def log_error(sentence: str, process: Process) -> DeploymentError:
    """Make an error that shows the end of the process's log."""
    tail = "\n".join(process.output().splitlines()[-_TAIL:])
    return DeploymentError(f"{sentence}. The end of {process.log}:\n{tail}")


def kill_marked(mark: str, program: str | None = None) -> list[int]:
    """Kill all processes that carry the mark, and those they start meanwhile; return which.

    With `program`, such as `flwr-serverapp`, kill only the processes that run it.
    """
    deadline = time.monotonic() + GRACE
    killed: dict[int, None] = {}
    # A process has no environment for a moment while it starts its program, and cannot be found
    # then, so one look that finds none is not enough.
    unseen = 0
    while unseen < 2:
        alive = list(marked(mark, program))
        if alive and time.monotonic() > deadline:
            raise DeploymentError(f"The processes {alive} do not end, not even by SIGKILL")
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= dict.fromkeys(alive)
        unseen = 0 if alive else unseen + 1
        time.sleep(0.01)
    return list(killed)


def marked(mark: str, program: str | None = None) -> Iterator[int]:
    """Yield the processes that carry the mark and, if one is given, run the program."""
    for process in Path("/proc").glob("[0-9]*"):
        # A process may end while we read; processes of other users cannot be read.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if f"\0{mark}".encode() not in b"\0" + (process / "environ").read_bytes():
                continue
            # The first two words are the program, or the interpreter and its script.
            command = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")[:2]
            if program is None or program in (Path(part).name for part in command):
                yield int(process.name)


def guardian(mark: str) -> subprocess.Popen[bytes]:
    """Start a process that kills all that carry the mark when its stdin closes or we end."""
    return subprocess.Popen(
        [sys.executable, "-I", __file__, mark], stdin=subprocess.PIPE, start_new_session=True
    )


def free_port() -> int:
    """Return a free port of 127.0.0.1."""
    for port in itertools.islice(_PORTS, 12000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise DeploymentError("No port between 20000 and 32000 is free on 127.0.0.1")


@contextlib.contextmanager
def sigterm_raises() -> Iterator[None]:
    """Turn a SIGTERM into SystemExit, unless the program has its own handler.

    By default a SIGTERM ends Python at once, without stopping what Python has started.
    """
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if ours:
        signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        if ours and signal.getsignal(signal.SIGTERM) is _leave:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    kill_marked(sys.argv[1])
