"""The table of clients says what the records say of them, and is not there if they say nothing."""

from fedlada.experiment.report.report import HTML, report
from fedlada.experiment.report.runs import Runs
from fedlada.experiment.report.tables import clients
from reports import Page, write


def evaluated(worst: float) -> dict:
    return {
        "evaluation": {"accuracy": 0.75, "accuracy_tuned": 0.8, "loss": 1.0},
        "evaluation_median": {"accuracy": 0.7},
        "evaluation_worst": {"accuracy": worst, "accuracy_tuned": 0.5},
        "evaluation_clients": {"Sankt Pölten.1": {"accuracy": worst}},
    }


def test_it_has_the_mean_the_median_and_the_worst_tenth_before_and_after_tuning(tmp_path):
    for seed, worst in ((0, 0.25), (1, 0.35)):
        write(tmp_path / f"a{seed}", "fedavg", seed, [0.5, 0.6, 0.7], always=evaluated(worst))
    write(tmp_path / "b0", "fedlada", 0, [0.5, 0.6, 0.7])
    page = Page((report([tmp_path]) / HTML).read_text())
    head, *rows = page.tables["Accuracy on the clients' own held-out examples, %"]
    tuned = ["fine-tuned: mean", "fine-tuned: worst tenth"]
    assert head == ["algorithm", "mean", "median", "worst tenth", *tuned]
    cells = {row[0]: row[1:] for row in rows}
    assert cells["fedavg"] == ["75.00", "70.00", "30.00 ± 7.07", "80.00", "50.00"]
    assert len(set(cells["fedlada"])) == 1


def test_without_evaluating_clients_there_is_no_table(tmp_path):
    write(tmp_path / "a0", "fedavg", 0, [0.5])
    assert clients(Runs.read([tmp_path], None)) == []
