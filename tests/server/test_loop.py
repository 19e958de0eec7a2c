"""A run that changes nothing ends with an error; clients cannot write the server's records."""

import warnings
from dataclasses import asdict, replace
from math import isfinite

import pytest
import torch
from torch import nn

from fedlada import Checkpoints, FedladaError, LocalTraining, simulate
from fedlada.data import ClientData
from fedlada.experiment.config.keys import flatten
from fedlada.protocol.messages import MOST_METRICS
from fedlada.redteam.faulty import Faulty
from fedlada.server import Guard
from fedlada.server.loop import NothingApplied
from fedlada.server.record import NAMES_PER_RUN

CLIENTS = 6


def clients() -> list[ClientData]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(CLIENTS, 30, 8, generator=generator)
    return [ClientData(x, (x[:, :3] + i / CLIENTS).argmax(1)) for i, x in enumerate(inputs)]


def start(directory=None, *, rounds=3, **settings):
    torch.manual_seed(0)
    return simulate(
        nn.Linear(8, 3),
        clients(),
        rounds=rounds,
        train=LocalTraining(steps=2, batch_size=10),
        cohort=settings.pop("cohort", 4),
        checkpoints=directory,
        **settings,
    )


def failing(fault: str, share: float = 1.0):
    """An engine of which the first clients misbehave in every round."""
    from fedlada import algorithm
    from fedlada.engines import InProcess

    own = InProcess(algorithm("fedavg"), nn.Linear(8, 3), clients(), LocalTraining(steps=2))
    return Faulty(own, lambda round, client: fault if client < share * CLIENTS else None)


def silently(run):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run.run()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"minimum": 5}, "failed replies: none since the start"),
        ({"engine": "drop out"}, "failed replies: .* 12x"),
        ({"engine": "nan"}, "failed replies: .* 12x"),
    ],
)
def test_a_run_of_which_no_round_was_applied_ends_with_an_error(settings, said):
    if "engine" in settings:
        settings = {"engine": failing(settings["engine"]), "algorithm": "fedavg"}
    with pytest.raises(NothingApplied, match=f"none of 3 rounds changed the model.*{said}"):
        silently(start(**settings))


def test_the_error_comes_again_when_such_a_run_is_resumed_and_more_rounds_go_on(tmp_path):
    fedavg = {"algorithm": "fedavg"}
    for _ in range(2):
        with pytest.raises(NothingApplied, match="none of 3 rounds"):
            silently(start(tmp_path, engine=failing("drop out"), **fedavg))
    assert [record.round for record in start(tmp_path, rounds=5, **fedavg)] == [4, 5]


def test_one_round_that_was_applied_is_enough_and_no_round_at_all_is_no_error():
    assert len(silently(start(engine=failing("drop out", 0.5), algorithm="fedavg"))) == 3
    assert start(rounds=0).run() == []


class Via:
    """An engine whose replies pass through a function."""

    def __init__(self, change, *, algorithm="fedavg"):
        from fedlada import algorithm as named
        from fedlada.engines import InProcess

        train = LocalTraining(steps=2, batch_size=10)
        self._engine = InProcess(named(algorithm), nn.Linear(8, 3), clients(), train)
        self._change, self.clients = change, self._engine.clients
        self.keeps, self.commit = self._engine.keeps, self._engine.commit

    def exchange(self, task, cohort):
        for reply in self._engine.exchange(task, cohort):
            yield self._change(task, reply)


def told(**metrics):
    """Every client says this, beside what it says honestly."""
    return Via(lambda task, reply: replace(reply, metrics={**reply.metrics, **metrics}))


def through(engine, **settings):
    return silently(start(engine=engine, algorithm="fedavg", **settings))


def test_a_client_cannot_put_an_accuracy_of_the_server_on_record(tmp_path):
    records = through(
        told(test_accuracy=9.0),
        rounds=6,
        evaluate=lambda model: {"test_accuracy": 0.5},
        evaluate_every=3,
        directory=tmp_path,
    )
    assert [record.metrics.get("test_accuracy") for record in records] == [None, None, 0.5] * 2
    assert {record.client_metrics["test_accuracy"] for record in records} == {9.0}
    saved = Checkpoints(tmp_path).latest().record
    assert saved == records[-1]


def test_no_column_and_no_tracked_name_of_the_server_can_be_taken_by_a_client():
    from fedlada.experiment.results.frames import numbers
    from fedlada.results.tracking import scalars

    (record, *_) = through(told(test_accuracy=9.0, score=9.0), evaluate=lambda _: {"test_loss": 1})
    for names in (scalars(record), numbers(flatten(asdict(record)))):
        assert {"test_loss", "client_loss", "client_test_accuracy", "client_score"} <= names.keys()
        assert not {"test_accuracy", "score", "loss"} & names.keys()


def test_seconds_that_clients_claim_stay_finite():
    engine = Via(lambda task, reply: replace(reply, seconds=1e308))
    for guard in (Guard(), None):
        assert all(isfinite(r.local_seconds) for r in through(engine, guard=guard))


def test_names_of_metrics_are_bounded_in_a_round_and_in_a_run_and_common_ones_stay():
    def babble(task, reply):
        new = {f"{task.round} {reply.client} {i}": 1.0 for i in range(90)}
        return replace(reply, metrics={**reply.metrics, **new})

    run = start(engine=Via(babble), algorithm="fedavg", rounds=30, cohort=6)
    records = silently(run)
    for record in records:
        assert len(record.client_metrics) <= MOST_METRICS
        assert record.client_metrics.keys() == record.spread.keys()
        assert "loss" in record.client_metrics
        assert record.limited["number of metrics"] > 0
    names = {name for record in records for name in record.client_metrics}
    assert names == set(run.state.metric_names)
    assert len(names) <= NAMES_PER_RUN


def test_the_names_on_record_are_those_of_the_run_undisturbed_after_it_is_resumed(tmp_path):
    def babble(task, reply):
        return replace(reply, metrics={f"{task.round} {reply.client} {i}": 1.0 for i in range(90)})

    def run(directory, rounds):
        made = start(directory, engine=Via(babble), algorithm="fedavg", rounds=rounds, cohort=6)
        return [record.client_metrics for record in silently(made)]

    whole = run(tmp_path / "whole", 12)
    assert run(tmp_path / "parts", 7) + run(tmp_path / "parts", 12) == whole


@pytest.mark.parametrize("name", ["loss\nround 7: accuracy", "\x1b[2J", "n" * 101])
def test_a_name_that_would_leave_its_line_is_refused_in_process_too(name):
    with pytest.raises(NothingApplied, match="wrong name of a metric 12x"):
        through(told(**{name: 1.0}))

    def train(model, data, optimizer):
        LocalTraining(steps=1)(model, data, optimizer)
        return {name: 1.0}

    with pytest.raises(FedladaError, match=r"a metric with the name .* printable"):
        simulate(nn.Linear(8, 3), clients(), train=train, rounds=1, cohort=2).run()
