"""What a user of torch tries first works, or ends in a sentence that says how it works."""

import dataclasses

import pytest
import torch
from torch import nn

import fedlada
from fedlada import Evaluation, FedladaError, LocalTraining, Plan, simulate
from fedlada.flower import ServerConfig, client_app, run_server
from fedlada.flower.memory_grid import MemoryGrid

X = torch.randn(12, 20, 4, generator=torch.Generator().manual_seed(0))
Y = X[:, :, :3].argmax(2)
CLIENTS = list(zip(X, Y, strict=True))


def started(**settings) -> fedlada.Simulation:
    return simulate(lambda: nn.Linear(4, 3), CLIENTS, **{"rounds": 1} | settings)


def weights(run: fedlada.Simulation) -> torch.Tensor:
    run.run()
    return run.model.weight.detach()


def test_lr_is_an_argument_of_simulate():
    spelled = fedlada.algorithm("fedcm", lr=0.7)
    assert started(algorithm="fedcm", lr=0.7).plan == started(algorithm=spelled).plan
    assert started(algorithm=spelled, lr=0.2).plan.algorithm.local.lr == 0.2


def test_a_run_prints_once_what_it_will_do(capsys):
    run = started(algorithm="fedavg", lr=0.25, rounds=2, cohort=3)
    assert capsys.readouterr().err == ""
    run.run()
    (line,) = capsys.readouterr().err.splitlines()
    said = ("fedavg", "lr 0.25", "0.998", "weight decay 0.001", "guard on", "3 of 12 clients")
    assert all(words in line for words in said), line
    down, up = 4 * 15 * 3, 4 * 15 * 3  # bytes of float32, of a layer of 15 numbers, of 3 clients
    assert f"{down / 1000:g} kB down and {up / 1000:g} kB up a round" in line
    started(quiet=True).run()
    assert capsys.readouterr().err == ""


def test_one_client_all_clients_and_a_share_cannot_be_confused():
    for cohort, size in ((1, 1), ("all", len(CLIENTS))):
        (record,) = started(cohort=cohort).run()
        assert len(record.cohort) == size
    with pytest.raises(FedladaError, match=r"cohort is 1\.0; .* share between 0 and 1"):
        started(cohort=1.0)


def test_by_default_a_small_federation_takes_all_its_clients():
    (record,) = simulate(nn.Linear(4, 3), CLIENTS[:4], rounds=1).run()
    assert record.cohort == (0, 1, 2, 3)


def test_epochs_need_no_word_about_steps():
    training = LocalTraining(epochs=5, batch_size=5)
    assert len(list(training.batches(20))) == 5 * 4
    assert LocalTraining() == LocalTraining(steps=50)
    assert dataclasses.replace(training, epochs=2).steps is None


def test_prepare_takes_a_batch_in_training_and_in_evaluation():
    def halved(inputs: torch.Tensor) -> torch.Tensor:
        return inputs / 2

    run = started(
        train=LocalTraining(steps=2, prepare=halved),
        evaluate=Evaluation(data=(X[0], Y[0]), prepare=halved),
    )
    data = [(x / 2, y) for x, y in CLIENTS]
    plain = simulate(lambda: nn.Linear(4, 3), data, rounds=1, train=LocalTraining(steps=2))
    assert torch.equal(weights(run), weights(plain))


def test_a_plan_reads_plain_values_and_refuses_what_it_is_not():
    assert Plan(algorithm="fedavg", cohort=10) == Plan(
        algorithm=fedlada.ALGORITHMS["fedavg"], cohort=fedlada.server.FixedSize(10)
    )
    with pytest.raises(FedladaError, match="did you mean 'cohort'"):
        Plan(cohorts=3)


def test_the_model_of_a_run_that_has_not_begun_comes_with_a_warning():
    run = started()
    assert "0 of 1 rounds done" in repr(run)
    with pytest.warns(UserWarning, match=r"no round has run yet.*call run\(\)"):
        first = run.model
    assert not torch.equal(weights(run), first.weight)
    assert "1 of 1 rounds done" in repr(run)


def test_a_function_that_makes_the_model_follows_the_seed_as_on_flower():
    torch.manual_seed(1)
    here = weights(started(cohort="all", seed=5))
    torch.manual_seed(2)
    assert torch.equal(here, weights(started(cohort="all", seed=5)))
    assert not torch.equal(here, weights(started(cohort="all", seed=6)))
    app = client_app(
        lambda: nn.Linear(4, 3),
        lambda context: CLIENTS[int(context.node_config["partition-id"])],
        LocalTraining(),
    )
    config = ServerConfig.read({"rounds": 1, "cohort": "all", "seed": 5})
    there = run_server(MemoryGrid(app, nodes=12), config, lambda: nn.Linear(4, 3))
    assert torch.equal(here, there.model.weight)
