"""Scores that are better if lower: each law is that of a higher score, seen in a mirror."""

import re
from io import StringIO

import pytest
from rich.console import Console

from fedlada.errors import ExperimentError, FedladaError
from fedlada.experiment.config.reading import experiment
from fedlada.experiment.report.compare import compared, on_terminal
from fedlada.experiment.report.figures import Series, y_limits
from fedlada.experiment.report.report import MARKDOWN, report
from fedlada.experiment.report.runs import Runs
from fedlada.experiment.results.frames import frame, summary
from fedlada.experiment.results.tuning import choose
from fedlada.experiment.run.directory import RunDirectory
from fedlada.experiment.run.progress import score
from fedlada.training import Metric, Objective, Scale
from fedlada.training.objective import BITS, PERCENT, quotient
from reports import write

ACCURACY = {
    "fedavg": {0: [0.2, 0.5, 0.7], 1: [0.3, 0.6, 0.65], 2: [0.25, 0.45, 0.6]},
    "fedlada": {0: [0.5, 0.8, 0.75], 1: [0.4, 0.7, 0.9], 2: [0.4, 0.7, 0.8]},
    "localadam": {0: [0.1, 0.15, 0.3], 1: [0.1, 0.2, 0.2], 2: [0.1, 0.2, 0.25]},
}
TARGETS = [0.5, 0.7]


def mirrored(share):
    """A number of bits that is the lower, the higher the share is; exact, so 1/8 and the like."""
    return round(4 - share, 6)


@pytest.fixture(scope="module")
def rising(tmp_path_factory):
    return runs_in(tmp_path_factory.mktemp("rising"), "accuracy", lambda share: share)


@pytest.fixture(scope="module")
def falling(tmp_path_factory):
    return runs_in(tmp_path_factory.mktemp("falling"), "bits", mirrored)


def runs_in(directory, name, of, split="test"):
    keys = {"evaluate.targets": [of(target) for target in TARGETS]}
    keys |= {"data.task": "text"} if name == "bits" else {}
    for algorithm, seeds in ACCURACY.items():
        for seed, shares in seeds.items():
            values = list(map(of, shares))
            write(directory / f"{algorithm}{seed}", algorithm, seed, values, score=name, **keys)
    return directory


def test_best_and_the_cost_of_targets_are_those_of_the_mirror(rising, falling):
    up = summary(frame([rising]), TARGETS)
    down = summary(frame([falling]), [mirrored(target) for target in TARGETS])
    assert down["best"].to_list() == pytest.approx([mirrored(best) for best in up["best"]])
    for target in TARGETS:
        for cost in ("rounds", "bytes", "seconds"):
            there = up[f"{cost}_to_{target:g}"].to_list()
            assert down[f"{cost}_to_{mirrored(target):g}"].to_list() == there


def test_the_order_of_algorithms_and_of_targets_is_that_of_the_mirror(rising, falling):
    up, down = (Runs.read([directory], None) for directory in (rising, falling))
    assert down.by_score == up.by_score
    assert down.targets == tuple(mirrored(target) for target in up.targets)


def test_a_report_says_lower_where_the_mirror_says_higher(rising, falling):
    up, down = ((report([d]) / MARKDOWN).read_text() for d in (rising, falling))
    assert "is above localadam" in up
    assert "is below localadam" in down
    assert "Best is the highest" in up
    assert "Best is the lowest" in down
    assert "at or above the target" in up
    assert "at or below the target" in down
    results = down.partition("## Partition")[0]
    assert "%" not in re.sub(r"\d+ % (interval|of)", "", results)
    assert "points" not in results


def test_a_comparison_has_the_unit_of_the_score(falling):
    console = Console(file=StringIO(), width=200)
    console.print(on_terminal(compared([falling])))
    text = console.file.getvalue()
    assert "Bits per byte on the test split" in text
    assert "3.5 bits" in text
    assert "%" not in text


def test_settings_are_chosen_by_the_lowest_score(tmp_path):
    for lr, bits in ((0.1, 3.0), (0.3, 2.0), (1.0, 4.0)):
        directory = tmp_path / f"lr{lr}"
        keys = {"data.task": "text", "evaluate.targets": [], "settings.lr": lr}
        write(directory, "fedavg", 0, [bits] * 3, score="bits", **keys)
        for file in (directory / "config.toml", directory / "records.jsonl"):
            text = file.read_text().replace("test_bits", "validation_bits")
            file.write_text(text.replace('split = "test"', 'split = "validation"'))
    choose(tmp_path)
    assert "settings.lr = 0.3" in (tmp_path / "best.toml").read_text()


def test_progress_shows_bits_as_bits(falling):
    run = falling / "fedavg0"
    line = {"metrics": {"test_bits": 2.5}}
    assert score(run, RunDirectory(run).config, line) == "test bits per byte 2.500"


def test_the_axis_of_a_falling_score_is_that_of_the_mirror():
    line = Series("a", 0, (1, 2, 3, 4), (10, 50, 70, 80), (9, 49, 69, 79), (11, 51, 71, 81))
    upside = Series(
        "a", 0, line.x, *(tuple(-y for y in ys) for ys in (line.mean, line.high, line.low))
    )
    (low, high, _), (mirrored_low, mirrored_high, _) = y_limits([line]), y_limits([upside])
    assert (mirrored_low, mirrored_high) == (-high, -low)


def test_a_target_must_be_a_score_that_can_be_reached(rising):
    PERCENT.check_target(1.0, "target")
    BITS.check_target(2.5, "target")
    with pytest.raises(FedladaError, match=r"target is 60; .* at most 1, as 0.6 for 60 %"):
        PERCENT.check_target(60, "target")
    with pytest.raises(FedladaError, match="target is -1; it must be a score above 0"):
        BITS.check_target(-1, "target")
    with pytest.raises(FedladaError, match="--target is 60"):
        compared([rising], targets=[60])
    with pytest.raises(ExperimentError, match=r"evaluate\.targets is 3\.5"):
        experiment({"evaluate.targets": [3.5]}, source="test")


def test_the_scale_of_an_objective_of_a_module_is_noted_for_readers(tmp_path):
    days = Scale(higher=False, unit="days", factor=1.0, difference="days", most=None, digits=1)
    metric = Metric(lambda outputs, labels: (outputs, labels), quotient, "error in days", days)
    objective = Objective(name="stay", loss=metric.sums, metrics={"off": metric}, score="off")
    directory = RunDirectory(tmp_path)
    directory.note(objective)
    config = experiment({"data.dataset": "digits"}, source="test")
    foreign = config.model_copy(update={"data": config.data.model_copy(update={"task": "a:B"})})
    assert directory.objective(foreign, ()).scale == days
