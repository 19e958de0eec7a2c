"""What attacks cost `fedlada` on CIFAR-10 with LeNet under the recommended defence.

These are runs of `fedlada sweep experiments/attacks/lenet.toml`, by default of its first seed. A
figure is the points that an attack costs compared with attackers that send nothing, the mean over
seeds. A program that was stopped resumes.

Run: python benchmarks/attacks.py --check
"""

from pathlib import Path
from statistics import mean

import measure
from fedlada.experiment.config.cells import cells
from fedlada.experiment.results.damage import damages
from fedlada.experiment.results.frames import configurations, frame
from fedlada.experiment.run.directory import RunDirectory
from fedlada.experiment.run.sweep import finish
from fedlada.redteam.defences import DEFENCES
from fedlada.training.objective import PERCENT

FILE = Path(__file__).parent.parent / "experiments/attacks/lenet.toml"
GOAL = 5.0


def main() -> None:
    parser = measure.parser(__doc__.splitlines()[0])
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--defence", choices=DEFENCES, default="strict")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/attacks-lenet"))
    options = parser.parse_args()
    words = [f"federation.rounds={options.rounds}"] if options.rounds else []
    runs = []
    for name, config in cells(options.file, words).items():
        federation = config.federation
        if federation.defence == options.defence and federation.seed in options.seeds:
            runs.append(options.out / name)
            RunDirectory(runs[-1]).prepare(config)
    finish(runs, jobs=options.jobs)
    (found, *_) = damages(configurations(runs), frame(runs), PERCENT)
    figures = {attack: mean(lost.values()) for (attack, _), lost in found.lost.items()}
    measure.finish(options, figures, goal=GOAL, what=f"attacks, {options.defence}: points lost")


if __name__ == "__main__":
    main()
