"""Seconds per round through this library against Flower's own FedAvg, on Flower.

The same LeNet, data, loop and nodes: two SuperNodes over TLS with keys, and ten virtual nodes on
Ray.  One ServerApp gives Flower's strategy, `fedavg` and `fedlada` a round in turn, and `fedlada`
on warm nodes another.  What a round of `fedlada` takes longer is its local steps and its vectors:
it sends x, g_a and v for x, and delta and v_hat for delta.

Run: python benchmarks/flower_round.py --check
"""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import measure
from fedlada.flower.loopback import Deployment, RaySimulation

APP = Path(__file__).parent / "apps" / "round"
PLACES = {"deployment": (Deployment, 2, 6), "Ray": (RaySimulation, 10, 15)}
WARM = "fedlada warm"
GOALS = {"deployment fedavg": 0.75, "Ray fedavg": 1.0, f"deployment {WARM}": 0.4}
GOALS |= {"warm, seconds": 5.0, "warm, CPU seconds per message": 1.2, "warm, other bits": 0.0}
OURS = ("fedavg", "fedlada")

Turn = dict[str, dict[str, float]]


def turns(place: str) -> tuple[list[Turn], list[dict]]:
    """What every turn and every process took, without the first turn, in which all is started."""
    engine, nodes, repeats = PLACES[place]
    with (
        tempfile.TemporaryDirectory() as directory,
        engine(Path(directory) / "flower", nodes=nodes) as started,
        ThreadPoolExecutor(1) as pool,
    ):
        results = Path(directory) / "results.jsonl"
        results.touch()
        warm = place == "deployment"
        config = {"turns": repeats + 1, "nodes": nodes, "results": str(results), "warm": warm}
        run = pool.submit(started.run, APP, config=config, timeout=600)
        done: list[Turn] = []
        while not run.done():
            time.sleep(0.5)
            for turn in read(results)[len(done) :]:
                print(f"{place} {progress(turn)}{'' if done else ' (warm-up)'}", flush=True)
                done.append(turn)
        run.result()
        return done[1:], processes(results, turns=len(done), nodes=nodes)


def processes(results: Path, *, turns: int, nodes: int) -> list[dict]:
    """What each message's process cost, without those of the first turn."""
    costs = results.with_suffix(".cost")
    lines = costs.read_text().splitlines() if costs.exists() else []
    found = [json.loads(line) for line in lines]
    return [
        cost
        for name in (*OURS, "flower", WARM)
        for cost in [each for each in found if each["turn"] == name][nodes : nodes * turns]
    ]


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


def split(found: list[Turn], costs: list[dict]) -> Iterator[str]:
    """Where the seconds of a round go, and the CPU seconds of a message."""
    for name in ("flower", *OURS, WARM):
        seconds = statistics.median(turn[name]["seconds"] for turn in found)
        start, inside = (
            statistics.median(cost[key] for cost in costs if cost["turn"] == name)
            for key in ("start", "inside")
        )
        yield (
            f"{name:12} {seconds:6.2f} s per round: {start:.2f} until a process of Flower's calls"
            f" the app, {inside:.2f} from there to its end, {seconds - start - inside:.2f} in"
            f" Flower's sleeps and transport; {per_message(name, found, costs):.2f} CPU seconds per"
            " message"
        )


def per_message(name: str, found: list[Turn], costs: list[dict]) -> float:
    """CPU seconds of the process that Flower starts and, if there is one, of the worker."""
    process = statistics.median(cost["cpu"] for cost in costs if cost["turn"] == name)
    worker = statistics.median(turn[WARM]["cpu"] for turn in found) if name == WARM else 0.0
    return process + worker


def own_start(repeats: int = 3) -> float:
    """CPU seconds of the program that Flower starts for a message, before it does anything."""
    program, seconds = Path(sys.executable).with_name("flwr-clientapp"), []
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([program, "--help"], stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(seconds)


def main() -> None:
    options = measure.arguments(__doc__.splitlines()[0])
    print(measure.machine())
    figures, lines = {}, []
    for place in PLACES:
        found, costs = turns(place)
        lines += table(place, found)
        flower = [turn["flower"]["seconds"] for turn in found]
        for name in (*OURS, *([WARM] if WARM in found[0] else [])):
            seconds = [turn[name]["seconds"] for turn in found]
            figures[f"{place} {name}"] = measure.paired(seconds, flower)
        if WARM in found[0]:
            lines += split(found, costs)
            lines.append(f"flwr-clientapp --help alone takes {own_start():.2f} CPU seconds")
            warm = [turn[WARM] for turn in found]
            figures["warm, seconds"] = statistics.median(turn["seconds"] for turn in warm)
            figures["warm, CPU seconds per message"] = per_message(WARM, found, costs)
            figures["warm, other bits"] = sum(not turn["equal"] for turn in warm)
    print("\n".join(lines))
    measure.finish(options, figures, goal=GOALS, what="round time over Flower's FedAvg")


if __name__ == "__main__":
    main()
