"""Seconds per round through this library against Flower's own FedAvg, on Flower.

The same LeNet, data, loop and nodes: two SuperNodes over TLS with keys, and ten virtual nodes on
Ray.  One ServerApp gives Flower's strategy, `fedavg` and `fedlada` a round in turn.  What a round
of `fedlada` takes longer is its local steps and its vectors: it sends x, g_a and v for x, and
delta and v_hat for delta.

Run: python benchmarks/flower_round.py --check
"""

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import measure
from fedlada.flower.loopback import Deployment, RaySimulation

APP = Path(__file__).parent / "apps" / "round"
PLACES = {"deployment": (Deployment, 2, 6), "Ray": (RaySimulation, 10, 15)}
GOALS = {"deployment": 0.75, "Ray": 1.0}
OURS = ("fedavg", "fedlada")

Turn = dict[str, dict[str, float]]


def turns(place: str) -> list[Turn]:
    """What every turn took, without the first, in which all is started."""
    engine, nodes, repeats = PLACES[place]
    with (
        tempfile.TemporaryDirectory() as directory,
        engine(Path(directory) / "flower", nodes=nodes) as started,
        ThreadPoolExecutor(1) as pool,
    ):
        results = Path(directory) / "results.jsonl"
        results.touch()
        config = {"turns": repeats + 1, "nodes": nodes, "results": str(results)}
        run = pool.submit(started.run, APP, config=config, timeout=600)
        done: list[Turn] = []
        while not run.done():
            time.sleep(0.5)
            for turn in read(results)[len(done) :]:
                print(f"{place} {progress(turn)}{'' if done else ' (warm-up)'}", flush=True)
                done.append(turn)
        run.result()
        return done[1:]


def read(results: Path) -> list[Turn]:
    return [
        json.loads(line)
        for line in results.read_text().splitlines(keepends=True)
        if line[-1] == "\n"
    ]


def progress(turn: Turn) -> str:
    return ", ".join(f"{name} {result['seconds']:.2f} s" for name, result in turn.items())


def table(place: str, found: list[Turn]) -> Iterator[str]:
    for name in ("flower", *OURS):
        seconds, train, down, up = (
            statistics.median(turn[name][key] for turn in found)
            for key in ("seconds", "train", "down", "up")
        )
        yield (
            f"{place:10} {name:8} {seconds:6.2f} s per round, of which training {train:.2f};"
            f" per client {down / 1e3:.0f} kB down, {up / 1e3:.0f} kB up"
        )
    longer = statistics.median(more(turn, "seconds") for turn in found)
    steps = statistics.median(more(turn, "train") for turn in found)
    yield (
        f"{place:10} fedlada takes {longer:+.2f} s against fedavg (median of pairs), its local"
        f" steps {steps:+.2f}; the rest is its three extra vectors, and noise"
    )


def more(turn: Turn, key: str) -> float:
    return turn["fedlada"][key] - turn["fedavg"][key]


def main() -> None:
    options = measure.arguments(__doc__.splitlines()[0])
    print(measure.machine())
    figures, lines = {}, []
    for place in PLACES:
        found = turns(place)
        lines += table(place, found)
        flower = [turn["flower"]["seconds"] for turn in found]
        for name in OURS:
            seconds = [turn[name]["seconds"] for turn in found]
            figures[f"{place} {name}"] = measure.paired(seconds, flower)
    print("\n".join(lines))
    goals = {f"{place} fedavg": goal for place, goal in GOALS.items()}
    measure.finish(options, figures, goal=goals, what="round time over Flower's FedAvg")


if __name__ == "__main__":
    main()
