"""How well a model serves each client, as a table and as a figure."""

import pytest
import torch
from torch import nn

import fedlada
from fedlada import FedladaError, LocalTraining, simulate

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
Y = X[:, :3].argmax(1)


def ran(clients: int = 3, *, names: str = "", rounds: int = 3, **settings) -> fedlada.Simulation:
    data = [(X[i::clients], Y[i::clients]) for i in range(clients)]
    run = simulate(
        nn.Linear(4, 3),
        dict(zip(names, data, strict=True)) if names else data,
        algorithm="fedavg",
        rounds=rounds,
        train=LocalTraining(steps=2),
        evaluate_clients=data,
        quiet=True,
        **settings,
    )
    run.run()
    return run


def drawn(figure) -> dict[str, list[tuple[float, float]]]:
    (axes,) = figure.axes
    return {line.get_label(): [tuple(p) for p in line.get_xydata().tolist()] for line in axes.lines}


def test_a_frame_by_client_has_a_row_for_each_site_and_evaluation():
    run = ran(names="abc", evaluate_every=2)
    data = fedlada.frame(run, by="client")
    assert data.select("round", "client").rows() == [(r, c) for r in (2, 3) for c in "abc"]
    found = [one["accuracy"] for r in run.records for one in r.evaluation_clients.values()]
    assert data["accuracy"].to_list() == found
    both = fedlada.frame({"one": run, "two": ran()}, by="client", rounds=2)
    assert set(both["run"]) == {"one", "two"}
    assert set(both["round"]) == {1, 2}
    assert not any("clients" in name for name in fedlada.frame(run).columns)
    assert "accuracy_evaluation_worst" in fedlada.frame(run).columns


def test_few_clients_have_a_line_each_and_many_are_percentiles():
    run = ran(names="abc")
    lines = drawn(fedlada.plot_clients(run, metric="loss"))
    assert lines == {
        name: [(r.round, r.evaluation_clients[name]["loss"]) for r in run.records] for name in "abc"
    }
    many = ran(clients=11)
    lines = drawn(fedlada.plot_clients(many))
    assert list(lines) == [f"{p}th percentile of clients" for p in (90, 50, 10)]
    last = sorted(one["accuracy"] for one in many.records[-1].evaluation_clients.values())
    assert [line[-1][1] for line in lines.values()] == pytest.approx([last[9], last[5], last[1]])
    assert len(drawn(fedlada.plot_clients(many.records, by="client"))) == 11


def test_what_is_missing_is_said():
    bare = simulate(nn.Linear(4, 3), [(X, Y)], rounds=1, quiet=True)
    bare.run()
    with pytest.raises(FedladaError, match="give simulate evaluate_clients"):
        fedlada.plot_clients(bare)
    with pytest.raises(FedladaError, match="give simulate evaluate_clients"):
        fedlada.frame(bare, by="client")
    with pytest.raises(FedladaError, match="'accuracy'"):
        fedlada.plot_clients(ran(rounds=1), metric="acuracy")
    with pytest.raises(FedladaError, match="by is 'site'"):
        fedlada.frame(bare, by="site")
