"""Memory of a ServerApp with 100 clients under way whose replies may be 20 rounds late.

ResNet-18 and `fedlada` over a grid in this process: a round ends with 25 replies, clients differ
in speed as simulated devices do (sigma 1), and make up their replies.  As on a SuperLink, what
a client was sent is not kept here.  The same rounds without late replies stand beside it, and both
with a checkpoint after each round, which keeps what was sent in files.  The memory is the greatest
anonymous memory of a process of its own: what is mapped from a file can be taken back at any time.

Run: python benchmarks/late_memory.py --check
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from threading import Event, Thread

import torch
from flwr.app import Message, MessageType, RecordDict

import measure
from fedlada import Plan
from fedlada.engines import Devices
from fedlada.engines.devices import Work
from fedlada.flower import ServerConfig, run_server
from fedlada.flower.memory_grid import MemoryGrid
from fedlada.flower.wire.records import HEADER
from fedlada.models import ResNet18
from server_memory import fabricator, replies_of

GOAL = {"in memory": 1.9, "in files": 0.3}
UNDER_WAY, TARGET, STALENESS, ROUNDS = 100, 25, 20, 24


class Timed(MemoryGrid):
    """Has answers come in the order of simulated devices."""

    def __init__(self, *arguments, **settings) -> None:
        super().__init__(*arguments, **settings)
        self._under_way: dict[str, tuple[int, float]] = {}
        """The round and the end of each task whose reply the server still takes."""
        self._now = 0.0

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = list(super().push_messages(messages))
        work = Work(1e8, 1e8, lambda client: 50)
        for message_id in ids:
            message = self._pushed[message_id]
            if message.metadata.message_type == MessageType.TRAIN:
                header = message.content[HEADER]
                client, now = message.metadata.dst_node_id - 1000, header["round"]
                end = Devices().outcome(client, now, start=self._now, work=work).time
                self._under_way = {
                    other: (round, at)
                    for other, (round, at) in self._under_way.items()
                    if now - round <= STALENESS
                }
                self._under_way[message_id] = now, end
                message.content = RecordDict({HEADER: header})
        return ids

    def reply(self, message: Message) -> Message | None:
        message_id = message.metadata.message_id
        if message_id in self._under_way:
            end = self._under_way[message_id][1]
            if end > min(at for _, at in self._under_way.values()):
                return None
            del self._under_way[message_id]
            self._now = end
        return super().reply(message)


def served(staleness: int, checkpoints: str) -> None:
    """Run the rounds with late replies, or drop those: then a few rounds tell."""
    grid = Timed(fabricator(replies_of("fedlada")), nodes=4 * UNDER_WAY)
    plan = Plan(
        algorithm="fedlada",
        rounds=ROUNDS if staleness else 2,
        cohort=UNDER_WAY if staleness else TARGET,
        close_after=TARGET if staleness else None,
        staleness=staleness,
        deadline=1e6,
    )
    run_server(grid, ServerConfig(plan=plan, checkpoints=checkpoints), lambda: ResNet18(10))


def watch(peak: list[int], done: Event) -> None:
    """Note the greatest anonymous memory of this process, in kB."""
    while not done.wait(0.01):
        status = Path("/proc/self/status").read_text()
        now = next(line for line in status.splitlines() if line.startswith("RssAnon"))
        peak[0] = max(peak[0], int(now.split()[1]))


def case(staleness: int, *, files: bool) -> float:
    """Peak memory in GB of one case, in a process of its own."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, "--case", str(staleness), directory if files else ""]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    peak: float = json.loads(done.stdout.splitlines()[-1])
    print(f"staleness {staleness}, checkpoints {files}: {peak:.2f} GB", flush=True)
    return peak


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--case"]:
        peak, done = [0], Event()
        watching = Thread(target=watch, args=[peak, done])
        watching.start()
        try:
            served(int(sys.argv[2]), sys.argv[3])
        finally:
            done.set()
            watching.join()
        print(json.dumps(peak[0] * 1024 / 1e9))
        return
    options = measure.arguments(__doc__.splitlines()[0])
    print(measure.machine())
    more = {
        name: case(STALENESS, files=files) - case(0, files=files)
        for name, files in {"in memory": False, "in files": True}.items()
    }
    what = f"GB more with {UNDER_WAY} under way, {TARGET} replies a round"
    measure.finish(options, more, goal=GOAL, what=what)


if __name__ == "__main__":
    main()
