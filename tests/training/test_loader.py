"""A DataLoader is a client's data, or those of an evaluation: its batches are used as they are."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedlada import Evaluation, LocalTraining, simulate

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(25, 4, generator=GENERATOR)
Y = X[:, :3].argmax(1)


def loader(**settings):
    return DataLoader(TensorDataset(X, Y), **{"batch_size": 10, "shuffle": True} | settings)


def outcome(data, **settings):
    usual = {"rounds": 3, "quiet": True, "algorithm": "scaffold", "lr": 0.1}
    train = settings.pop("train", LocalTraining(epochs=2))
    torch.manual_seed(5)
    run = simulate(lambda: nn.Linear(4, 3), data, train=train, **usual | settings)
    records = run.run()
    return run.state.vectors.x, records


def test_its_batches_are_the_steps():
    sizes = []

    def prepare(inputs):
        sizes.append(len(inputs))
        return inputs

    _, records = outcome([loader()], rounds=1, train=LocalTraining(epochs=2, prepare=prepare))
    assert sizes == [10, 10, 5] * 2
    assert records[0].steps == 6
    _, records = outcome([loader()], rounds=1, train=LocalTraining(steps=7))
    assert records[0].steps == 7


def test_in_order_it_is_the_data_themselves():
    whole = {"batch_size": 25, "shuffle": False}
    train = LocalTraining(epochs=2, batch_size=25)
    found, _ = outcome([loader(**whole)], train=train)
    wanted, _ = outcome([(X, Y)], train=train)
    torch.testing.assert_close(list(found), list(wanted), rtol=1e-5, atol=1e-6)


def test_a_run_is_repeatable_in_workers_and_after_a_kill(tmp_path):
    wanted, _ = outcome([loader()] * 3)
    assert outcome([loader()] * 3)[0].equal(wanted)
    assert outcome([loader()] * 3, workers=2)[0].equal(wanted)
    outcome([loader()] * 3, rounds=1, checkpoints=tmp_path)
    assert outcome([loader()] * 3, checkpoints=tmp_path)[0].equal(wanted)


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_evaluation_of_it_is_that_of_its_dataset(shuffle):
    model = nn.Linear(4, 3)
    data = Evaluation(data=loader(shuffle=shuffle))
    before = torch.get_rng_state()
    assert data.score == "test_accuracy"
    assert torch.get_rng_state().equal(before)
    assert data(model) == pytest.approx(Evaluation(data=(X, Y))(model), rel=1e-6)


def test_an_empty_one_is_a_sentence():
    empty = DataLoader(TensorDataset(X[:0], Y[:0]))
    with pytest.raises(ValueError, match=r"client 0, round 1: .*DataLoader has no batch"):
        outcome([empty])
    with pytest.raises(ValueError, match="no examples to evaluate on"):
        Evaluation(data=empty)(nn.Linear(4, 3))
