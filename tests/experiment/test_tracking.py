"""Every tracker takes every round, and a run that goes on is the same run to it."""

import sys
from types import SimpleNamespace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedlada.experiment.config.reading import experiment, parse
from fedlada.experiment.run.directory import RunDirectory
from fedlada.experiment.run.execute import run as run_rounds

WORDS = ("data.dataset=digits", "data.clients=10", "federation.cohort=2", "train.steps=1")


def run_twice(directory, tracker):
    """Two rounds, and then a third by another call."""
    for rounds in (2, 3):
        words = (*WORDS, f"track=['{tracker}']", "name=digits", f"federation.rounds={rounds}")
        RunDirectory(directory).prepare(experiment(dict(map(parse, words)), source="words"))
        list(run_rounds(directory))


def test_tensorboard_reads_every_round_once_with_the_values_of_the_records(tmp_path):
    directory = tmp_path / "run"
    run_twice(directory, "tensorboard")
    events = EventAccumulator(str(directory)).Reload()
    records = RunDirectory(directory).checkpoints().records()
    expected = {
        "test_accuracy": [record.metrics["test_accuracy"] for record in records],
        "client_loss": [record.client_metrics["loss"] for record in records],
        "bytes_up": [record.bytes_up for record in records],
        "accepted": [record.accepted for record in records],
    }
    for name, values in expected.items():
        scalars = events.Scalars(name)
        # The round it goes on from is written once more, and the first time is then forgotten.
        assert [scalar.step for scalar in scalars] == [1, 2, 3], name
        # An event holds float32.
        assert [scalar.value for scalar in scalars] == pytest.approx(values, rel=1e-6), name


class Fake:
    """Stands for MLflow and W&B, of which it has what the trackers call."""

    def __init__(self):
        self.steps, self.opened, self.closed, self.known = [], [], 0, {}

    def set_experiment(self, name):
        assert name == "digits"

    def search_runs(self, *, experiment_names, filter_string, output_format):
        assert (experiment_names, output_format) == (["digits"], "list")
        return [run for tag, run in self.known.items() if filter_string == tag]

    def start_run(self, *, run_id=None, run_name=None, tags=None):
        if tags:
            ((name, value),) = tags.items()
            info = SimpleNamespace(run_id=f"run of {value}")
            self.known[f"tags.`{name}` = '{value}'"] = SimpleNamespace(info=info)
        self.opened.append(run_id or f"run of {value}")
        assert run_name == (None if run_id else "run")

    def log_params(self, values):
        assert values["settings.lr"]

    def log_metrics(self, values, *, step):
        assert {"client_loss", "test_accuracy", "bytes_up"} <= values.keys()
        assert all(isinstance(value, float) for value in values.values())
        self.steps.append(step)

    def init(self, *, project, name, id, config, dir, resume):
        assert (project, name, resume) == ("digits", "run", "allow")
        assert config["data"]["clients"] == 10
        self.opened.append(id)
        return self

    def log(self, values, *, step):
        self.log_metrics(values, step=step)

    def close(self):
        self.closed += 1

    end_run = finish = close


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_run_that_goes_on_is_the_same_run(tmp_path, monkeypatch, name):
    fake = Fake()
    monkeypatch.setitem(sys.modules, name, fake)
    run_twice(tmp_path / "run", name)
    # The round it goes on from is given once more, in case it was lost.
    assert fake.steps == [1, 2, 2, 3]
    first, second = fake.opened
    assert first == second
    assert fake.closed == 2
