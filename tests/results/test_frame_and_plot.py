"""What a notebook needs: records as a table and as a figure; and the command's version."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import fedlada
from fedlada import Evaluation, LocalTraining, simulate
from fedlada.cli import main
from places import TESTS

X = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
CLIENTS = [(X[i::3], X[i::3, :3].argmax(1)) for i in range(3)]
TEST = (X, X[:, :3].argmax(1))


def ran(name: str = "fedlada", rounds: int = 3, **settings) -> fedlada.Simulation:
    torch.manual_seed(0)
    run = simulate(
        nn.Linear(4, 3),
        CLIENTS,
        algorithm=name,
        rounds=rounds,
        train=LocalTraining(steps=2),
        **{"evaluate": Evaluation(data=TEST)} | settings,
    )
    run.run()
    return run


def drawn(figure) -> list[list[tuple[float, float]]]:
    (axes,) = figure.axes
    return [[tuple(point) for point in line.get_xydata().tolist()] for line in axes.lines]


def test_a_simulation_keeps_its_records_and_plots_its_score():
    run = ran()
    assert [record.round for record in run.records] == [1, 2, 3]
    points = [(record.round, record.metrics["test_accuracy"]) for record in run.records]
    assert drawn(run.plot()) == [points]
    losses = [(record.round, record.client_metrics["loss"]) for record in run.records]
    assert drawn(run.plot("loss")) == [losses]


def test_several_runs_are_one_figure_with_their_names(tmp_path):
    runs = {"fedavg": ran("fedavg"), "mine": ran("fedlada", rounds=2).records}
    figure = fedlada.plot(runs, metric="test_loss")
    assert [len(line) for line in drawn(figure)] == [3, 2]
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == list(runs)
    assert figure._repr_png_().startswith(b"\x89PNG")
    figure.savefig(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_runs_of_several_seeds_are_one_line_with_a_band():
    seeds = [ran("fedavg", seed=seed) for seed in (0, 1)]
    seeds.append(ran("fedavg", rounds=2, seed=2).records)
    figure = fedlada.plot({"fedavg": seeds, "fedcm": ran("fedcm")}, metric="loss")
    mean, alone = drawn(figure)
    records = [getattr(run, "records", run) for run in seeds]
    losses = [
        [r.client_metrics["loss"] for run in records for r in run if r.round == round]
        for round in (1, 2, 3)
    ]
    assert [round for round, _ in mean] == [1, 2, 3]
    assert [y for _, y in mean] == pytest.approx([sum(ys) / len(ys) for ys in losses])
    assert len(alone) == 3
    (band,) = figure.axes[0].collections  # a single run has none
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices.tolist()}
    for round, values in enumerate(losses, 1):
        assert {(round, min(values)), (round, max(values))} <= corners
    assert (
        figure.axes[0].get_title(loc="left")
        == "loss: mean of 1 to 3 runs, and the smallest and the largest"
    )
    assert len(drawn(fedlada.plot(seeds[:2], metric="loss"))) == 1


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([], "no run and no record in the run, an empty list"),
        ({"fedavg": []}, "no run and no record in run 'fedavg', an empty list"),
        ({"fedavg": [[], []]}, "no record in run 'fedavg'"),
        ({}, "runs are {}"),
        (["runs/a"], "a run to plot is 'runs/a'; give a Simulation"),
    ],
)
def test_a_plot_of_nothing_says_what_to_give(runs, said):
    with pytest.raises(fedlada.FedladaError, match=said):
        fedlada.plot(runs)


def test_without_an_evaluation_the_clients_loss_is_drawn():
    run = ran(evaluate=None)
    assert run.score is None
    assert drawn(run.plot()) == [[(r.round, r.client_metrics["loss"]) for r in run.records]]


def test_a_simulation_its_records_and_several_by_name_are_frames():
    run = ran()
    one = fedlada.frame(run)
    assert one["algorithm"].to_list() == ["fedlada"] * 3
    assert one["score"].to_list() == [r.metrics["test_accuracy"] for r in run.records]
    assert one["total_bytes"].to_list()[-1] == sum(r.bytes_down + r.bytes_up for r in run.records)
    assert fedlada.frame(run.records)["round"].to_list() == [1, 2, 3]
    both = fedlada.frame({"a": run, "b": ran("fedcm")}, rounds=2)
    assert both.select("run", "algorithm", "round").rows() == [
        *(("a", "fedlada", 1), ("a", "fedlada", 2), ("b", "fedcm", 1), ("b", "fedcm", 2))
    ]
    tuned = ran(fedlada.algorithm("fedlada", alpha=0.5, lr=0.02))
    assert set(fedlada.frame([run, tuned])["algorithm"]) == {"fedlada"}


def test_checkpoints_are_frames_with_the_rounds_before_a_resume(tmp_path):
    next(iter(ran(rounds=1, checkpoints=tmp_path / "one")), None)
    run = ran(rounds=3, checkpoints=tmp_path / "one")
    ran("fedcm", rounds=2, checkpoints=tmp_path / "two")
    one = fedlada.frame(tmp_path / "one")
    assert one["round"].to_list() == [1, 2, 3]
    assert one.drop("score").equals(fedlada.frame(run).drop("score"))
    places = [fedlada.Checkpoints(tmp_path / "one"), str(tmp_path / "two")]
    both = fedlada.frame({"a": places[0], "b": places[1]})
    assert both.select("run", "algorithm").unique(maintain_order=True).rows() == [
        ("a", "fedlada"),
        ("b", "fedcm"),
    ]
    assert fedlada.frame(places).height == 5


def test_directories_are_frames_by_word_and_by_path(tmp_path):
    file = tmp_path / "e.toml"
    file.write_text(
        'algorithm = "fedcm"\nlabel = "mine"\n[data]\ndataset = "digits"\nclients = 5\n'
        "[federation]\ncohort = 2\nrounds = 2\n[train]\nsteps = 1\n"
    )
    where = tmp_path / "run"
    with pytest.raises(SystemExit):
        main(["run", str(file), "--out", str(where)])
    frames = [fedlada.frame(given) for given in (where, str(where), [where], [str(where)])]
    assert all(frame.equals(frames[0]) for frame in frames)
    assert set(frames[0]["algorithm"]) == {"fedcm"}
    assert set(frames[0]["title"]) == {"mine"}


def test_the_version_is_printed_by_the_command_and_by_the_module(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    printed = capsys.readouterr().out
    assert printed.split()[:2] == ["fedlada", fedlada.__version__]
    done = subprocess.run(
        [sys.executable, "-m", "fedlada", "--version"],
        check=True,
        capture_output=True,
        text=True,
        cwd=TESTS,
    )
    assert done.stdout == printed
