"""What broke when it was attacked, and fits into no other file: it does not break again."""

import warnings

import pytest
import torch
from torch import nn

from fedlada import LocalTraining, simulate
from fedlada.data import ClientData
from fedlada.engines.faulty import Faulty
from fedlada.server.loop import NothingApplied

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
        sampling=settings.pop("sampling", 4),
        checkpoints=directory,
        **settings,
    )


def failing(fault: str, share: float = 1.0):
    """An engine of which the first clients misbehave in every round."""
    from fedlada import InProcess, algorithm

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


def test_on_flower_such_a_run_ends_with_the_same_error(tmp_path):
    from fedlada.flower import ServerConfig, client_app, run_server
    from fedlada.flower.memory_grid import MemoryGrid

    def broken(model, data, optimizer):
        raise RuntimeError("no memory")

    app = client_app(lambda: nn.Linear(8, 3), lambda context: clients()[0], broken)
    config = ServerConfig.read({"num-server-rounds": 2, "cohort": 2, "checkpoints": str(tmp_path)})
    for _ in range(2):  # it does not become a success when it is started again
        with pytest.raises(NothingApplied, match="none of 2 rounds changed the model"):
            run_server(MemoryGrid(app, nodes=2), config, lambda: nn.Linear(8, 3))
