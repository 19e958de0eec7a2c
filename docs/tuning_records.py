"""What the committed records say about learning rates, for the pages that the site generates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from fedlada.algorithms import ALGORITHMS
from fedlada.experiment.run.directory import RunDirectory, runs_in

__all__ = ["Tuning", "tunings"]

ROOT = Path(__file__).resolve().parent.parent
SWEEPS = (
    *sorted((ROOT / "experiments/tournament/results").glob("*.jsonl")),
    *sorted((ROOT / "experiments/tournament/results").glob("*/*.jsonl")),
    *sorted((ROOT / "experiments/desk/results").glob("tune*.jsonl")),
)
"""The sweeps over lr that were judged on validation data."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """An algorithm's tries of lr on one problem, with all other settings equal."""

    algorithm: str
    problem: str
    settings: str
    scores: Mapping[float, float]
    """By lr: the mean of the last evaluations on validation data, of the tries that ran longest."""
    tried: tuple[float, ...]
    bits: bool
    source: str

    @property
    def best(self) -> float:
        """The lr with the best score."""
        return (min if self.bits else max)(self.scores, key=self.scores.__getitem__)

    def better_than(self, other: Tuning) -> bool:
        """Return whether this search ended in a better score than another on the same problem."""
        mine, theirs = self.scores[self.best], other.scores[other.best]
        return mine < theirs if self.bits else mine > theirs

    @property
    def edge(self) -> str:
        """Where the best lr lies at the edge of those tried."""
        if self.best == min(self.tried):
            return "smallest tried"
        return "largest tried" if self.best == max(self.tried) else ""

    @property
    def marked(self) -> str:
        """The best lr, with an arrow if it lies at an edge of those tried."""
        arrow = {"": "", "smallest tried": " ↓", "largest tried": " ↑"}[self.edge]
        return f"{self.best:g}{arrow}"

    @property
    def lrs(self) -> str:
        """The learning rates that were tried, the best in bold."""
        return ", ".join(f"**{lr:g}**" if lr == self.best else f"{lr:g}" for lr in self.tried)

    @property
    def score(self) -> str:
        """The validation score of the best lr, with its unit."""
        score = self.scores[self.best]
        return f"{score:.3f} bits" if self.bits else f"{100 * score:.1f} %"


def tunings() -> Iterator[Tuning]:
    """Yield what the committed records say about lr, by problem and algorithm."""
    for source in SWEEPS:
        groups: dict[tuple[str, str, str, bool], dict[float, list[float]]] = {}
        for config, kind, scores in _runs(source):
            key = (config["algorithm"], _problem(config), _changed(config), kind == "bits")
            groups.setdefault(key, {})[config["settings"]["lr"]] = scores
        for (algorithm, problem, settings, bits), tries in groups.items():
            longest = max(map(len, tries.values()))
            last = 3 if "tournament" in source.parts else 5
            yield Tuning(
                algorithm=algorithm,
                problem=problem,
                settings=settings,
                scores={lr: mean(s[-last:]) for lr, s in tries.items() if len(s) == longest},
                tried=tuple(sorted(tries)),
                bits=bits,
                source=source.relative_to(ROOT).as_posix(),
            )


def _runs(source: Path) -> Iterator[tuple[dict[str, Any], str, list[float]]]:
    """Yield a sweep's runs on validation data: configuration, kind of score, the scores."""
    for run in map(RunDirectory, runs_in(source)):
        # Not as an Experiment: a setting of that time may be gone.
        config = run.table()
        if config["algorithm"] not in ALGORITHMS:  # an outside one
            continue
        metrics = [record["metrics"] for record in run.records()]
        for kind in ("accuracy", "bits"):
            if scores := [m[f"validation_{kind}"] for m in metrics if f"validation_{kind}" in m]:
                yield config, kind, scores


def _changed(config: Mapping[str, Any]) -> str:
    """Return the settings other than lr that differ from the algorithm's defaults."""
    default = ALGORITHMS[config["algorithm"]].spec()
    # A setting that no longer exists had its default in every run.
    changed = {k: v for k, v in config["settings"].items() if v != default.get(k, v)}
    changed.pop("lr", None)
    return ", ".join(f"`{key}` {value}" for key, value in changed.items()) or "defaults"


def _problem(config: Mapping[str, Any]) -> str:
    data, train = config["data"], config["train"]
    names = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "shakespeare": "Shakespeare"}
    models = {"lenet": "LeNet", "vit": "ViT", "resnet18": "ResNet-18", "mlp": "perceptron"}
    dataset, model = data["dataset"], config["model"]["name"]
    divisions = {"iid": ", equal clients", "class-prior": ", unequal clients"}
    division = divisions.get(data.get("partition", ""), f", Dirichlet {data.get('concentration')}")
    return (
        f"{models.get(model, model)} on {names.get(dataset, dataset)},"
        f" {train['steps']} × {train['batch_size']}, {config['federation']['cohort']} clients"
        f"{division if dataset == 'digits' else ''}"
    )
