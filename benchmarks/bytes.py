"""Bytes of a round per client over real nodes against FedAvg without a codec, headers and all.

ResNet-18-GN on two SuperNodes over TLS.  Clients train two steps; the second round is counted, as
the first has no g_a yet.  A hook in every SuperNode reads what passes Flower's own HTTP layer,
heads and bodies of all requests, so that names, manifests, hashes and polls count, too.

Run: python benchmarks/bytes.py --check
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import measure
from fedlada.flower.loopback import Deployment

HERE = Path(__file__).parent
APP, HOOK = HERE / "apps" / "bytes", HERE / "apps" / "counted"
NODES, ROUNDS = 2, 2
PLAIN = "fedavg:exact"
RUNS = [PLAIN, *(f"fedlada-rows:{codec}" for codec in ("safe", "default", "small"))]
GOALS = {"default down": 0.36, "default up": 0.11, "small down": 0.30, "small up": 0.07}


@dataclass
class Sent:
    """Bytes per client of one round, counted and as its record tells."""

    down: int = 0
    up: int = 0
    told_down: int = 0
    told_up: int = 0


def read(counted: Path) -> dict[str, Sent]:
    """Return what was sent between each run's marks."""
    found, now = {}, None
    for line in counted.read_text().splitlines():
        first, *rest = line.split()
        if first == "begin":
            now = found[rest[0]] = Sent()
        elif first == "end" and now is not None:
            now.down, now.up = now.down // NODES, now.up // NODES
            now.told_down, now.told_up = map(int, rest)
            now = None
        elif now is not None:
            now.up += int(rest[0]) + int(rest[1])
            now.down += int(rest[2]) + int(rest[3])
    return found


def measured() -> dict[str, Sent]:
    """Run all of them on one deployment."""
    with tempfile.TemporaryDirectory() as directory:
        counted = Path(directory) / "counted"
        counted.touch()
        paths = [str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {"PYTHONPATH": os.pathsep.join(paths), "COUNTED": str(counted)}
        with Deployment(
            Path(directory) / "flower", nodes=NODES, environment=environment
        ) as deployment:
            for run in RUNS:
                config = {"run": run, "counted": str(counted), "nodes": NODES, "rounds": ROUNDS}
                deployment.run(APP, config=config)
                print(f"{run} is done", flush=True)
        return read(counted)


def main() -> None:
    options = measure.arguments(__doc__.splitlines()[0])
    print(measure.machine())
    found = measured()
    plain, figures = found[PLAIN], {}
    for run, sent in found.items():
        algorithm, codec = run.split(":")
        print(
            f"{algorithm:12} {codec:8} {sent.down:11,} bytes down, {sent.up:11,} up; the record"
            f" tells {sent.told_down:,} and {sent.told_up:,}"
        )
        if run != PLAIN:
            figures[f"{codec} down"] = sent.down / plain.down
            figures[f"{codec} up"] = sent.up / plain.up
    what = "bytes of fedlada-rows per round and client over those of fedavg without a codec"
    measure.finish(options, figures, goal=GOALS, what=what)


if __name__ == "__main__":
    main()
