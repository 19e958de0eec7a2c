"""A packed file holds all that its runs recorded, and is read wherever their directory is."""

import json
import math

import pytest
import tomli_w
from hypothesis import given, settings, strategies as st

import fedlada
from fedlada.algorithms.registry import FORMER
from fedlada.cli import main
from fedlada.errors import ExperimentError
from fedlada.experiment.config.reading import read
from fedlada.experiment.packed import pack, packed_runs, unpack
from fedlada.experiment.results.frames import frame
from fedlada.experiment.run.directory import RunDirectory, runs_in
from reports import write

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
RECORDS = st.lists(st.dictionaries(st.sampled_from(["round", "x", "metrics"]), VALUES))
ALIKE = st.lists(
    st.fixed_dictionaries(
        {"round": st.integers(), "applied": st.just(True), "metrics": st.just({}), "x": PLAIN}
    )
)


@pytest.fixture
def sweep(tmp_path):
    for algorithm in ("fedavg", "fedlada"):
        for seed in range(2):
            write(tmp_path / "sweep" / f"{algorithm}-seed{seed}", algorithm, seed, [0.4, 0.6, 0.8])
    return tmp_path / "sweep"


@pytest.fixture
def file(sweep, tmp_path):
    pack(sweep, tmp_path / "sweep.jsonl")
    return tmp_path / "sweep.jsonl"


def printed(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert not ended.value.code, ended.value.code
    return capsys.readouterr().out


@given(records=RECORDS | ALIKE, done=st.dictionaries(st.text(), VALUES), config=st.text())
@settings(max_examples=50, deadline=None)
def test_what_was_packed_is_read_as_it_was(records, done, config, tmp_path_factory):
    base = tmp_path_factory.mktemp("any")
    run, file = base / "sweep/part/run", base / "any.jsonl"
    run.mkdir(parents=True)
    (run / "config.toml").write_text(config, encoding="utf-8", newline="")
    (run / "done.json").write_text(json.dumps(done, indent=2))
    (run / "records.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    pack(base / "sweep", file)
    assert packed_runs(file) == [file / "part/run"]
    unpack(file, base / "again")
    for before in run.iterdir():
        assert (base / "again/part/run" / before.name).read_text() == before.read_text()


def test_a_value_that_never_changes_stands_once(file):
    (line, *_) = map(json.loads, file.read_text().splitlines())
    columns = line["records.jsonl"]["records"]
    assert columns["seconds"] == 2.5
    assert columns["metrics"]["test_accuracy"] == [0.4, 0.6, 0.8]


def test_a_packed_sweep_is_read_as_its_directory(sweep, file):
    assert [run.name for run in runs_in(file)] == [run.name for run in runs_in(sweep)]
    assert frame([file]).drop("directory").equals(frame([sweep]).drop("directory"))
    for packed, run in zip(runs_in(file), runs_in(sweep), strict=True):
        assert runs_in(packed) == [packed]
        a, b = RunDirectory(packed), RunDirectory(run)
        assert (a.config, a.done(), a.finished()) == (b.config, b.done(), b.finished())
        assert a.last_record() == b.last_record()
        assert read(a.config_file) == read(b.config_file)


def test_the_commands_read_a_packed_file(sweep, file, tmp_path, capsys):
    assert printed(capsys, "compare", file) == printed(capsys, "compare", sweep)
    printed(capsys, "report", file)
    assert (tmp_path / "sweep/report/report.html").exists()


def test_settings_are_chosen_from_a_packed_file(tmp_path, capsys):
    for lr in (0.1, 0.2):
        run = tmp_path / "tune" / f"lr{lr}"
        split = {"evaluate.split": "validation", "settings.lr": lr}
        always = {"metrics": {"validation_accuracy": lr}}
        write(run, "fedavg", 0, [0.0] * 3, always=always, **split)
    printed(capsys, "pack", tmp_path / "tune", tmp_path / "packed.jsonl")
    printed(capsys, "best", tmp_path / "packed.jsonl")
    assert "settings.lr = 0.2" in (tmp_path / "packed/best.toml").read_text()


def test_packing_again_adds_new_runs_and_replaces_old_ones(sweep, file, capsys):
    before = frame([file])
    write(sweep / "fedavg-seed0", "fedavg", 0, [0.1, 0.2, 0.3])
    write(sweep / "localadam-seed0", "localadam", 0, [0.1, 0.2, 0.3])
    write(sweep / "localadam-seed1", "localadam", 1, [0.1])  # still running
    assert "5 runs packed" in printed(capsys, "pack", sweep, file)
    after = frame([file])
    assert set(after["run"]) - set(before["run"]) == {"localadam-seed0"}
    assert math.isclose(after.filter(run="fedavg-seed0")["accuracy"].max(), 0.3)


def test_paths_below_the_working_directory_become_relative(sweep, tmp_path, monkeypatch):
    ended = sweep / "fedavg-seed0/done.json"
    ended.write_text(json.dumps({"rounds": 3, "command": ["fedlada", f"{tmp_path}/file.toml"]}))
    monkeypatch.chdir(tmp_path)
    pack(sweep, tmp_path / "packed.jsonl")
    packed = RunDirectory(tmp_path / "packed.jsonl/fedavg-seed0")
    assert packed.done()["command"] == ["fedlada", "file.toml"]


def test_errors_say_what_to_do(sweep, tmp_path):
    with pytest.raises(ExperimentError, match="no run that has ended"):
        pack(tmp_path / "empty", tmp_path / "packed.jsonl")
    with pytest.raises(ExperimentError, match=r"ending in \.jsonl"):
        pack(sweep, tmp_path / "packed.txt")
    with pytest.raises(ExperimentError, match="fedlada pack DIR"):
        runs_in(sweep / "fedavg-seed0/records.jsonl")


@pytest.mark.parametrize(
    ("label", "today"),
    [
        ("", {"localmuon": "sharedmuon", "localamsgrad": "localamsgrad"}),
        ("mine", {"localmuon": "mine", "localamsgrad": "mine"}),
    ],
)
def test_a_run_under_a_former_name_is_read_under_the_one_of_today(tmp_path, label, today):
    for former, now in today.items():
        run = RunDirectory(tmp_path / former)
        write(run.path, FORMER[former], 0, [0.5, 0.6], label=label)
        config = run.table() | {"algorithm": former}
        run.config_file.write_text(tomli_w.dumps(config))
        found = run.experiment()
        assert found.optimizer() == fedlada.algorithm(FORMER[former])
        assert found.title == now
    assert set(frame([tmp_path])["title"]) == set(today.values())
