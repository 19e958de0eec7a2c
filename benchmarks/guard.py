"""What the guard and a checkpoint per round cost, of the time of a round.

The same federation, `fedlada` in process, with a guard and a checkpoint on disk after every round
and with neither: rounds take turns, so that noise meets both alike.  What is reported is the
median over pairs of the ratio of CPU times, less one, in percent of a round; and, beside it, the
time measured inside the guard and the checkpoint alone.  LeNet trains ten clients for 50 steps,
ResNet-18-GN two clients for 50 (its cost per reply and per checkpoint are what matter).

Run: python benchmarks/guard.py --check
"""

import statistics
import tempfile
import time

import torch

import measure
from fedlada import Checkpoints, LocalTraining, simulate
from fedlada.data import ClientData
from fedlada.models import LeNet, ResNet18
from fedlada.server import FixedSize, Guard

GOAL = 3.0


class Clock:
    """CPU seconds spent inside the functions it is put around."""

    def __init__(self):
        self.seconds = 0.0

    def around(self, owner, name):
        original = getattr(owner, name)

        def timed(*arguments, **named):
            began = time.process_time()
            try:
                return original(*arguments, **named)
            finally:
                self.seconds += time.process_time() - began

        setattr(owner, name, timed)
        return lambda: setattr(owner, name, original)


def clients(count: int, shape: tuple[int, ...]) -> list[ClientData]:
    generator = torch.Generator().manual_seed(0)
    return [
        ClientData(
            torch.randn(500, *shape, generator=generator),
            torch.randint(10, (500,), generator=generator),
        )
        for _ in range(count)
    ]


def compare(model: torch.nn.Module, *, cohort: int, pairs: int) -> tuple[float, float]:
    """Percent of a round: from pairs of rounds, and from inside."""
    from fedlada.server.guard import admission
    from fedlada.server.saving import checkpoint

    data = clients(cohort, (3, 32, 32))
    with tempfile.TemporaryDirectory() as directory:
        settings = {
            "algorithm": "fedlada",
            "rounds": pairs + 1,
            "cohort": FixedSize(cohort),
            "train": LocalTraining(steps=50, batch_size=50),
        }
        bare = iter(simulate(model, data, guard=None, **settings))
        safe = iter(
            simulate(model, data, guard=Guard(), checkpoints=Checkpoints(directory), **settings)
        )
        inside = Clock()
        undo = [
            inside.around(admission.Admission, "measure"),
            inside.around(admission.Admission, "admit"),
            inside.around(admission.Admission, "__init__"),
            inside.around(checkpoint.Checkpoints, "save"),
        ]
        next(bare), next(safe)
        inside.seconds, ratios, total = 0.0, [], 0.0
        for pair in range(pairs):
            seconds = {}
            for name, run in sorted({"bare": bare, "safe": safe}.items(), reverse=pair % 2):
                began = time.process_time()
                next(run)
                seconds[name] = time.process_time() - began
            ratios.append(seconds["safe"] / seconds["bare"])
            total += seconds["safe"]
            print(f"  pair {pair + 1}/{pairs}: {seconds['bare']:.2f} s, {seconds['safe']:.2f} s")
        for each in undo:
            each()
    return 100 * (statistics.median(ratios) - 1), 100 * inside.seconds / total


def main() -> None:
    torch.set_num_threads(1)
    parser = measure.parser(__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, nargs=2, default=[16, 6], metavar="N")
    options = parser.parse_args()
    figures, beside = {}, {}
    for (name, model, cohort), pairs in zip(
        (("LeNet", LeNet(), 10), ("ResNet-18-GN", ResNet18(), 2)), options.pairs, strict=True
    ):
        print(f"{name}: {cohort} clients of 50 steps")
        beside[name], figures[name] = compare(model, cohort=cohort, pairs=pairs)
        print(f"{name}: inside {figures[name]:.2f} %, of pairs of rounds {beside[name]:+.2f} %")
    measure.finish(options, figures, goal=GOAL, what="guard and checkpoint, percent of a round")


if __name__ == "__main__":
    main()
