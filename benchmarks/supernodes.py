"""How many real SuperNodes this machine holds, and what they cost the SuperLink while idle.

A SuperLink with TLS, node keys and a database, and more and more idle SuperNodes, all on
127.0.0.1.  A SuperNode asks for work every 3 seconds and Flower has no option for it, so this is
what a registered client costs before it is ever sampled.  The program stops growing at ``--nodes``,
when less than 4 GB of memory is left, when SuperNodes no longer come up or when ``--minutes`` are
over, and stops everything that it started.

Run: python benchmarks/supernodes.py --check
"""

import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import measure
from fedlada.flower.loopback import CONNECTION, Deployment, DeploymentError
from fedlada.flower.loopback.certificates import write_node_key
from fedlada.flower.loopback.processes import Process, marked

FEWEST = 20
"""The goal: so many SuperNodes at least."""
BATCH, STARTUP, WINDOW, LEFT_OVER = 5, 180.0, 30.0, 4e9
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Growing(Deployment):
    """A deployment whose SuperNodes are started a few at a time."""

    up = 0

    def _start_nodes(self) -> None:
        """Start none yet."""

    def grow(self, nodes: int) -> None:
        for first in range(self.up, nodes, BATCH):
            batch = range(first, min(first + BATCH, nodes))
            for i in batch:
                write_node_key(self._key(i))
                self.flwr("supernode", "register", f"{self._key(i)}.pub", CONNECTION)
                self._supernodes.begin(
                    i, self.address, authority=self._certificate.authority, key=self._key(i)
                )
            for i in batch:
                self._supernodes.await_online(i, time.monotonic() + STARTUP)
                self.up += 1

    def superlink(self) -> list[int]:
        """The processes of the SuperLink."""
        assert self._superlink is not None
        return pids(self._superlink)

    def supernodes(self) -> list[list[int]]:
        """The processes of each SuperNode."""
        return [pids(process) for process in self._supernodes._processes.values()]


def pids(process: Process) -> list[int]:
    return list(marked(process._mark + "\0"))


def cpu(processes: list[int]) -> float:
    """CPU seconds that the processes have used so far."""
    total = 0
    for pid in processes:
        # What follows the name, which is in parentheses: utime and stime are fields 14 and 15.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def rss(processes: list[int]) -> float:
    """Megabytes of memory of the processes."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in processes)
    return pages * PAGE / 1e6


def available() -> float:
    """Bytes of memory that are left."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


@dataclass(frozen=True)
class Row:
    nodes: int
    superlink: float
    """CPU seconds per minute."""
    node: float
    """CPU seconds per minute of one SuperNode, the median."""
    memory: float
    """MB of one SuperNode, the median."""
    superlink_memory: float


def idle(deployment: Growing) -> Row:
    """What everything costs while nothing happens."""
    time.sleep(10)  # the last ones are still busy with their start
    link, nodes = deployment.superlink(), deployment.supernodes()
    began, before = time.monotonic(), [cpu(link), *map(cpu, nodes)]
    time.sleep(WINDOW)
    after, minutes = [cpu(link), *map(cpu, nodes)], (time.monotonic() - began) / 60
    used = [(b - a) / minutes for a, b in zip(before, after, strict=True)]
    row = Row(
        nodes=len(nodes),
        superlink=used[0],
        node=statistics.median(used[1:]),
        memory=statistics.median(map(rss, nodes)),
        superlink_memory=rss(link),
    )
    print(
        f"{row.nodes:4} SuperNodes: SuperLink {row.superlink:6.2f} CPU seconds a minute and"
        f" {row.superlink_memory:.0f} MB; a SuperNode {row.node:.2f} and {row.memory:.0f} MB;"
        f" {available() / 1e9:.1f} GB left",
        flush=True,
    )
    return row


def slope(rows: list[Row]) -> float:
    """CPU seconds of the SuperLink per node and minute, by least squares."""
    if len(rows) == 1:
        return rows[0].superlink / rows[0].nodes
    return statistics.linear_regression(
        [row.nodes for row in rows], [row.superlink for row in rows]
    ).slope


def main() -> None:
    parser = measure.parser(__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=40, help="at most so many (40)")
    parser.add_argument("--minutes", type=float, default=10, help="begin nothing after these (10)")
    options = parser.parse_args()
    print(measure.machine())
    end = time.monotonic() + 60 * options.minutes
    rows: list[Row] = []
    # Flower's own interval; the loopback's other one is for quicker tests.
    usual = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "1"}
    sizes = [n for n in (5, 10, *range(20, options.nodes, 10)) if n < options.nodes]
    with (
        tempfile.TemporaryDirectory() as directory,
        Growing(Path(directory) / "flower", nodes=options.nodes, environment=usual) as deployment,
    ):
        for nodes in [*sizes, options.nodes]:
            if available() < LEFT_OVER or time.monotonic() > end:
                print(f"no more: {available() / 1e9:.1f} GB of memory left, or the time is over")
                break
            try:
                deployment.grow(nodes)
            except DeploymentError as error:
                print(f"no more than {deployment.up}: {str(error).splitlines()[0]}", flush=True)
                break
            rows.append(idle(deployment))
    figures = {
        f"{FEWEST} over the SuperNodes held": FEWEST / rows[-1].nodes,
        "SuperNodes held": rows[-1].nodes,
        "SuperLink, CPU seconds per node and minute": slope(rows),
        "SuperNode, CPU seconds per minute": rows[-1].node,
        "SuperNode, MB": rows[-1].memory,
    }
    goal = {f"{FEWEST} over the SuperNodes held": 1.0}
    measure.finish(options, figures, goal=goal, what="idle SuperNodes")


if __name__ == "__main__":
    main()
