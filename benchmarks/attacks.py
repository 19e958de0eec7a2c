"""What attacks cost `fedlada` on CIFAR-10 with LeNet under the recommended defence.

The same runs as `fedlada attack experiments/attacks/lenet.toml --defences NAME`, which also makes
tables and a figure of them. A figure is the points that an attack costs beyond leaving the
colluders out, the mean over seeds. A stopped program goes on where it was.

Run: python benchmarks/attacks.py --check
"""

from pathlib import Path

import measure
from fedlada.engines.attacks import ATTACKS
from fedlada.experiment.config.reading import read
from fedlada.experiment.results.damage import damages, worst
from fedlada.experiment.run.attack import BASELINES, target_of
from fedlada.experiment.run.attack_directory import AttackDirectory, wanted
from fedlada.experiment.run.defences import DEFENCES

FILE = Path(__file__).parent.parent / "experiments/attacks/lenet.toml"
RECOMMENDED = "strict" if "strict" in DEFENCES else "centered-clipping"
GOAL = 5.0


def main() -> None:
    parser = measure.parser(__doc__.splitlines()[0])
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--defence", choices=DEFENCES, default=RECOMMENDED)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/attack-lenet"))
    options = parser.parse_args()
    config = read(options.file, [f"federation.rounds={options.rounds}"] if options.rounds else [])
    found = wanted(
        config,
        target_of(config),
        attacks=list(ATTACKS),
        defences=[options.defence],
        shares=[options.share],
        seeds=options.seeds,
    )
    directory = AttackDirectory(options.out)
    with directory.held():
        directory.prepare(config)
        lines = directory.finish(
            found.cells, jobs=options.jobs, watch=lambda cell, line: print(cell, flush=True)
        )
    costs = worst(damages({cell: lines[cell] for cell in found.cells}, last=5))
    figures = {one.attack: one.damage.mean for one in costs if one.attack not in BASELINES}
    measure.finish(options, figures, goal=GOAL, what=f"attacks, {options.defence}: points lost")


if __name__ == "__main__":
    main()
