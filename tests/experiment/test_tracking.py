"""Every tracker takes every round, and a run that goes on is the same run to it."""

import sys
from types import SimpleNamespace

import pytest

from fedlada.experiment import runs
from fedlada.experiment.reading import experiment, parse

WORDS = ("data.dataset=digits", "data.clients=10", "federation.cohort=2", "train.steps=1")


class Fake:
    """Stands for the three libraries, of which it has what the adapters call."""

    def __init__(self):
        self.steps, self.opened, self.closed = [], [], 0
        self.info = SimpleNamespace(run_id="run 7")

    def SummaryWriter(self, directory, purge_step):
        self.opened.append(purge_step)
        return self

    def add_scalar(self, name, value, step):
        if name == "test_accuracy":
            self.steps.append(step)

    def set_experiment(self, name):
        pass

    def start_run(self, run_id, run_name):
        self.opened.append(run_id)
        return self

    def log_params(self, values):
        assert values["settings.lr"]

    def log_metrics(self, values, step):
        assert {"loss", "test_accuracy", "bytes_up"} <= values.keys()
        self.steps.append(step)

    def init(self, *, id, **_):
        self.opened.append(id)
        return self

    def log(self, values, step):
        self.log_metrics(values, step)

    def close(self):
        self.closed += 1

    end_run = finish = close


@pytest.mark.parametrize(
    ("name", "module", "opened"),
    [
        ("tensorboard", "torch.utils.tensorboard", [1, 2]),
        ("mlflow", "mlflow", [None, "run 7"]),
        ("wandb", "wandb", ["digits-run", "digits-run"]),
    ],
)
def test_a_run_that_goes_on_is_the_same_run(tmp_path, monkeypatch, name, module, opened):
    fake = Fake()
    monkeypatch.setitem(sys.modules, module, fake)
    for rounds in (2, 3):
        words = (*WORDS, f"track=['{name}']", "name=digits", f"federation.rounds={rounds}")
        runs.prepare(tmp_path / "run", experiment(dict(map(parse, words)), source="words"))
        list(runs.run(tmp_path / "run"))
    # The round it goes on from is given once more, in case it was lost.
    assert fake.steps == [1, 2, 2, 3]
    assert fake.opened == opened
    assert fake.closed == 2
