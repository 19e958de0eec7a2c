"""Devices in an experiment file: simulated seconds in its records, tables and figures."""

import json
import re

import pytest

from fedlada.cli import main
from fedlada.errors import ExperimentError
from fedlada.experiment.config.reading import experiment, parse, read
from fedlada.experiment.report.compare import compared, on_terminal
from fedlada.experiment.report.report import HTML, report
from fedlada.experiment.run import execute
from fedlada.experiment.run.directory import RunDirectory
from places import ROOT
from reports import Page

SMALL = ("data.dataset=digits", "data.clients=12", "federation.cohort=4", "federation.rounds=3")
WORDS = (*SMALL, "train.steps=2", "train.batch_size=5", "algorithm=fedavg", "settings.lr=0.1")
FILE = ROOT / "experiments" / "time" / "digits.toml"


def configured(*words):
    return experiment(dict(map(parse, (*WORDS, *words))), source="words")


def run(directory, *words):
    RunDirectory(directory).prepare(configured(*words))
    return list(execute.run(directory))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs with devices, and one without."""
    where = tmp_path_factory.mktemp("time")
    run(where / "wait", "devices.speeds=1.0", "label=wait")
    early = ("federation.cohort=6", "federation.close_after=4", "label=early")
    run(where / "early", "devices.speeds=1.0", *early)
    run(where / "plain")
    return where


def text(block, *, width: int = 200) -> str:
    """What ``compare`` prints."""
    from rich.console import Console

    console = Console(width=width)
    with console.capture() as captured:
        console.print(block)
    return captured.get()


def test_compare_and_report_show_simulated_time_if_all_runs_have_it(runs, tmp_path):
    timed, mixed = [runs / "wait", runs / "early"], [runs / "wait", runs / "plain"]
    printed = text(on_terminal(compared(timed, targets=[0.05])))
    assert "simulated seconds" in printed
    assert re.search(r"Simulated\s+seconds", printed)  # to each target
    assert "simulated" in text(on_terminal(compared(timed)), width=76)
    times = {path.name: RunDirectory(path).last_record()["time"] for path in timed}
    (early,) = re.findall(r"^ *early .*", printed, re.MULTILINE)[:1]
    assert f"{times['early']:.1f}" in early
    assert early.split()[-1] == "18"  # tasks
    assert "imulated" not in text(on_terminal(compared(mixed)))
    page = Page((report(timed, out=tmp_path / "page", targets=[0.05]) / HTML).read_text())
    assert any("simulated" in caption.lower() for caption in page.tables)


def test_a_run_without_devices_has_neither_time_nor_a_key_for_it(runs):
    config = (runs / "plain" / "config.toml").read_text()
    assert "devices" not in config
    assert {record["time"] for record in RunDirectory(runs / "plain").records()} == {None}
    assert not any(key.startswith("devices") for key in configured("devices.step=2.0").identity())


def test_an_empty_table_means_the_default_devices(tmp_path):
    path = tmp_path / "file.toml"
    path.write_text('[data]\ndataset = "digits"\n[devices]\n')
    assert read(path).devices == configured("devices.speeds=1.0").devices
    assert read(path, ["devices.speeds=0.5"]).devices.speeds == 0.5


def test_a_table_of_devices_lies_beside_the_file(tmp_path):
    (tmp_path / "phones.csv").write_text("client,step,down,up\n0,1,1,1\n")
    path = tmp_path / "file.toml"
    path.write_text('[data]\ndataset = "digits"\n[devices]\ntable = "phones.csv"\n')
    assert read(path).devices.table == str(tmp_path / "phones.csv")


@pytest.mark.parametrize(
    ("word", "help"),
    [
        ("devices.sped=1.0", "'devices.speeds'"),
        ("devices.drop_out=true", "devices.drop_out is True"),
        ("federation.deadline=3.0", r"without \[devices\] nobody is late"),
        ("federation.deadline=-3.0", "it must be greater than 0"),
    ],
)
def test_a_wrong_key_is_explained(word, help):
    with pytest.raises(ExperimentError, match=help):
        configured(word)


def test_real_nodes_have_real_time():
    with pytest.raises(ExperimentError, match="real nodes take real time"):
        configured("devices.speeds=1.0", "engine.name=deployment")


def test_cost_predicts_the_seconds_of_a_run(runs, tmp_path, capsys):
    kept = json.loads(json.dumps(list(RunDirectory(runs / "wait").records())))
    with pytest.raises(SystemExit, match="0"):
        main(["cost", str(runs / "wait" / "config.toml")])
    (all_rounds,) = re.findall(r"^all 3 rounds +([\d,]+) s$", capsys.readouterr().out, re.MULTILINE)
    assert int(all_rounds.replace(",", "")) == round(kept[-1]["time"])


LATE = ("federation.cohort=6", "federation.close_after=2", "federation.staleness=4")


@pytest.mark.filterwarnings("ignore:the guard stepped in")
@pytest.mark.parametrize("name", ["fedlada", "scaffold"])
def test_a_run_with_late_replies_is_replayed_from_its_records(tmp_path, capsys, name):
    more = (*LATE, "devices.speeds=1.0", f"algorithm={name}", "federation.rounds=5")
    done = run(tmp_path / "late", *more)
    assert max(record.oldest for record in done) > 0
    with pytest.raises(SystemExit, match="0"):
        main(["replay", str(tmp_path / "late")])
    assert "again gives the same bits" in " ".join(capsys.readouterr().out.split())
    records = RunDirectory(tmp_path / "late").records_file
    *before, last = records.read_text().splitlines()
    changed = json.loads(last)
    changed["members"].pop()
    records.write_text("\n".join([*before, json.dumps(changed)]) + "\n")
    with pytest.raises(SystemExit, match=r"gives other bits in .*x"):
        main(["replay", str(tmp_path / "late")])


def test_a_run_in_which_nothing_is_late_needs_no_replay(runs):
    with pytest.raises(SystemExit, match="staleness is 0, so the run is repeated"):
        main(["replay", str(runs / "plain")])


def test_the_study_of_stragglers_is_short():
    lines = [line for line in FILE.read_text().splitlines() if line and line[0] != "#"]
    assert len(lines) <= 21
