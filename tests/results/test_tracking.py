"""Callbacks and trackers of a run in Python: each record once, also after a resume."""

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

import fedlada
from fedlada import Evaluation, LocalTraining, simulate
from fedlada.results.tracking import TensorBoard, scalars

X = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
CLIENTS = [(X[i::3], X[i::3, :3].argmax(1)) for i in range(3)]


def start(**settings) -> fedlada.Simulation:
    torch.manual_seed(0)
    return simulate(
        nn.Linear(4, 3),
        CLIENTS,
        train=LocalTraining(steps=2),
        evaluate=Evaluation(data=(X, X[:, :3].argmax(1))),
        **{"rounds": 3} | settings,
    )


def test_callbacks_are_called_with_each_record_once_it_is_saved(tmp_path):
    seen = []

    def note(record):
        saved = fedlada.Checkpoints(tmp_path).latest()
        seen.append((record.round, saved.record.round))

    rounds = []
    run = start(checkpoints=tmp_path, callbacks=[note, lambda record: rounds.append(record.round)])
    run.run()
    assert seen == [(1, 1), (2, 2), (3, 3)]
    assert rounds == [1, 2, 3]
    start(checkpoints=tmp_path, rounds=4, callbacks=[note]).run()
    assert seen[3:] == [(4, 4)]


def test_an_error_in_a_callback_ends_the_run_which_can_be_resumed(tmp_path):
    def fail(record):
        raise RuntimeError("the tracker is gone")

    with pytest.raises(RuntimeError, match="the tracker is gone"):
        start(checkpoints=tmp_path, callbacks=[fail]).run()
    assert [record.round for record in start(checkpoints=tmp_path)] == [2, 3]


@pytest.mark.parametrize(
    ("callbacks", "said"),
    [
        (print, "callbacks is .*give a list of functions"),
        ([3], "a callback is 3; give a function of a record"),
        ([TensorBoard], "a callback is .*TensorBoard.*; give"),
    ],
)
def test_what_is_no_callback_is_refused(callbacks, said):
    with pytest.raises(fedlada.FedladaError, match=said):
        start(callbacks=callbacks)


def test_tensorboard_has_each_round_once_with_the_values_of_the_records(tmp_path):
    events, saved = tmp_path / "events", tmp_path / "saved"
    start(rounds=2, checkpoints=saved, callbacks=[TensorBoard(events)]).run()
    run = start(rounds=3, checkpoints=saved, callbacks=[TensorBoard(events)])
    run.run()
    read = EventAccumulator(str(events)).Reload()
    for name in ("test_accuracy", "client_loss", "bytes_up", "loss_spread"):
        scalars_read = read.Scalars(name)
        assert [scalar.step for scalar in scalars_read] == [1, 2, 3], name
        values = [scalars(record)[name] for record in run.records]
        assert [scalar.value for scalar in scalars_read] == pytest.approx(values, rel=1e-6)


def test_tracked_names_are_columns_of_the_frame():
    run = start()
    run.run()
    counted = {"deadline_failures", "cohort"}
    assert scalars(run.records[0]).keys() - counted <= set(fedlada.frame(run).columns)
