"""Runs of the app beside this file on one of Flower's engines, and the same runs in process."""

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import fedlada
from fedlada.flower.loopback import Deployment
from fedlada.protocol.seeds import seed_of

APP = Path(__file__).parent / "app"
ROUNDS, SEED = 2, 5


@dataclass(frozen=True)
class Runs:
    """Runs that Flower has ended, each by its algorithm, its codec and what is personal in it."""

    ended: Sequence[tuple[str, ...]]
    nodes: int
    cohort: int
    saved: Path

    def differences(self, name: str, codec: str, personal: str = "") -> Iterator[str]:
        """Where one of them differs from the same run in process; nothing if it does not.

        What clients keep decides the gradients of the next round, so it shows in x.
        """
        run = in_process(name, codec, personal, nodes=self.nodes, cohort=self.cohort)
        run.run()
        found = torch.load(self.saved / f"{name}-{codec}{personal}.pt", weights_only=True)
        if found.keys() != run.state.vectors.keys():
            yield f"{name} in {codec} has the vectors {list(found)}"
        for key, vector in run.state.vectors.items():
            if not vector.equal(type(vector)(found[key])):
                yield f"{key} of {name} in {codec}"


def run_on(
    engine: Deployment, runs: Sequence[tuple[str, ...]], saved: Path, *, cohort: int
) -> Runs:
    """Run the app once, which runs them all."""
    saved.mkdir()
    config = {
        "runs": " ".join(map(":".join, runs)),
        "rounds": ROUNDS,
        "cohort": cohort,
        "nodes": engine.nodes,
        "seed": SEED,
        "save": str(saved),
    }
    engine.run(APP, config=config)
    return Runs(runs, engine.nodes, cohort, saved)


def in_process(
    name: str, codec: str, personal: str = "", *, nodes: int, cohort: int
) -> fedlada.Simulation:
    """The same run, to be run; the app's package must be there to import."""
    task = importlib.import_module("coded.task")
    torch.manual_seed(seed_of(SEED, "model"))
    return fedlada.simulate(
        task.model(),
        [task.data(client) for client in range(nodes)],
        algorithm=name,
        personal=personal,
        rounds=ROUNDS,
        seed=SEED,
        train=task.train,
        **task.settings(codec, cohort),
    )
