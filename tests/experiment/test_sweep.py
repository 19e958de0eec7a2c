"""A sweep runs what is missing, reads back as one frame, and compares on targets."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from fedlada.cli import main
from fedlada.errors import ExperimentError
from fedlada.experiment.config.cells import cells
from fedlada.experiment.config.reading import experiment
from fedlada.experiment.results.frames import frame, summary, varied
from fedlada.experiment.results.scores import targets_of
from fedlada.experiment.run import execute
from fedlada.experiment.run.directory import RunDirectory, runs_in
from fedlada.experiment.run.sweep import CORES, at_a_time

pytestmark = pytest.mark.programs(seconds=60)

FILE = """
name = "small"
[data]
dataset = "digits"
clients = 10
[train]
steps = 5
batch_size = 10
[federation]
cohort = 3
rounds = 6
[evaluate]
split = "validation"
every = 2
targets = [0.3, 0.999]
[sweep]
federation.seed = [0, 1]
[[sweep.cell]]
algorithm = "fedavg"
settings.lr = [0.001, 0.2]
[[sweep.cell]]
algorithm = "fedlada"
settings.lr = 0.01
"""
NAMES = ["fedavg-lr0.001", "fedavg-lr0.2", "fedlada-lr0.01"]


def command(*words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert not ended.value.code, ended.value.code


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("sweep")
    (directory / "file.toml").write_text(FILE)
    command("sweep", f"{directory}/file.toml", "--out", f"{directory}/out", "--jobs", "2")
    return directory


def test_the_clients_of_a_sweep_are_trained_at_once_if_that_is_faster(swept):
    for run in map(RunDirectory, runs_in(swept / "out")):
        assert run.config.engine.at_once == run.done()["at_once"] == 100


@pytest.mark.parametrize(
    ("keys", "at_once"),
    [
        ({}, 100),
        ({"engine.workers": 2}, 100),
        ({"data.dataset": "cifar10"}, 1),
        ({"model.name": "decoder", "data.dataset": "shakespeare"}, 20),
        ({"federation.personal": "3.*"}, 1),
        ({"engine.at_once": 1}, 1),
        ({"engine.at_once": 4}, 4),
        ({"federation.attack": "sign-flip"}, 1),
        ({"engine.name": "ray"}, 1),
    ],
)
def test_a_file_may_say_how_many_clients_are_trained_at_once(keys, at_once):
    config = experiment({"data.dataset": "digits", **keys}, source="a file", beside=Path())
    assert config.at_once_where_faster().engine.at_once == at_once


def contents(directory: Path) -> dict[Path, tuple[int, bytes]]:
    return {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in directory.rglob("*") if p.is_file()}


def test_a_second_sweep_does_nothing(swept):
    out = swept / "out"
    assert {path.name for path in runs_in(out)} == {f"{n}-seed{s}" for n in NAMES for s in (0, 1)}
    assert all(RunDirectory(path).finished() for path in runs_in(out))
    before = {p: c for p, c in contents(out).items() if p.name != "config.toml"}
    command("sweep", f"{swept}/file.toml", "--out", str(out))
    command("resume", str(out))
    assert {p: c for p, c in contents(out).items() if p.name != "config.toml"} == before


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_that_was_stopped_ends_its_processes_and_goes_on(tmp_path, how):
    file, out = tmp_path / "file.toml", tmp_path / "out"
    file.write_text(FILE)
    words = ["sweep", str(file), "federation.rounds=4000", "--out", str(out), "--jobs", "1"]
    process = subprocess.Popen([sys.executable, "-m", "fedlada.cli", *words])
    first = out / "fedavg-lr0.001-seed0"
    while RunDirectory(first).last_record().get("round", 0) < 3:
        assert process.poll() is None
        time.sleep(0.01)
    child = int((first / "log.txt").read_text().split()[-1])
    process.send_signal(how)
    assert process.wait() == (130 if how == signal.SIGINT else -signal.SIGKILL)
    until = time.monotonic() + 30
    while (Path("/proc") / str(child)).exists():
        assert time.monotonic() < until, "the run went on without its sweep"
        time.sleep(0.01)
    done = RunDirectory(first).last_record()["round"]
    longer = cells(file, [f"federation.rounds={done + 2}"])[first.name]
    RunDirectory(first).prepare(longer.at_once_where_faster())
    # The records may be one round ahead of the checkpoint.
    rounds = [record.round for record in execute.run(first)]
    assert rounds in ([done + 1, done + 2], [done, done + 1, done + 2])
    lines = (first / "records.jsonl").read_text().splitlines()
    numbers = [json.loads(line)["round"] for line in lines]
    assert numbers == list(range(1, done + 3))


def test_jobs_and_workers_share_the_cores(tmp_path):
    file, out = tmp_path / "file.toml", tmp_path / "out"
    file.write_text(FILE)
    runs = []
    for workers in (1, 2):
        for name, config in cells(file, [f"engine.workers={workers}"]).items():
            runs.append(out / f"{name}-{workers}")
            RunDirectory(runs[-1]).prepare(config)
    few, many = runs[:6], runs[6:]
    for cores in (1, 2, 5, 8, 64):
        for of, workers in ((few, 1), (many, 2), (runs, 2)):
            jobs, sentence = at_a_time(of, None, cores=cores)
            assert jobs == 1 or jobs * workers <= cores < (jobs + 1) * workers
            assert bool(sentence) == (workers > cores)
    assert at_a_time(many, 2, cores=4) == (2, "")
    jobs, sentence = at_a_time(many, 3, cores=4)
    assert jobs == 3  # as asked for
    assert "3 at a time with engine.workers = 2 are 6 processes on 4 cores" in sentence
    assert at_a_time(many[:2], 3, cores=4) == (3, "")  # there are no more than two


def test_runs_of_a_sweep_may_have_workers(tmp_path, swept, capsys):
    words = ["--only", "fedlada-*-seed0", "--out", str(tmp_path), "--jobs", str(CORES)]
    command("sweep", f"{swept}/file.toml", "engine.workers=2", *words)
    assert ("processes on" in capsys.readouterr().out) == (CORES < 2)
    name = "fedlada-lr0.01-seed0"
    one, other = (frame([base]).filter(pl.col("run") == name) for base in (swept / "out", tmp_path))
    same = ["validation_accuracy", "drift", "consistency", "client_loss"]
    # Each process trains its share of a round's clients at once, so last bits may differ.
    assert_frame_equal(one[same], other[same], rel_tol=1e-4)


def test_a_run_that_fails_is_reported_and_stops_no_other(tmp_path):
    file, out = tmp_path / "file.toml", tmp_path / "out"
    file.write_text(FILE)
    words = ["federation.rounds=1", "--out", str(out), "--only", "*-seed0", "--jobs", "1"]
    # A file in the way of the checkpoints is a fault of one run.
    in_the_way = out / "fedavg-lr0.2-seed0" / "checkpoints"
    in_the_way.parent.mkdir(parents=True)
    in_the_way.touch()
    with pytest.raises(SystemExit, match="1 of 3 runs failed"):
        main(["sweep", str(file), *words])
    *_, last = (out / "fedavg-lr0.2-seed0" / "log.txt").read_text().splitlines()
    assert "checkpoints cannot be created or written (File exists)" in last
    assert RunDirectory(out / "fedlada-lr0.01-seed0").finished()
    in_the_way.unlink()
    command("resume", str(out))
    assert RunDirectory(out / "fedavg-lr0.2-seed0").finished()


def test_a_directory_of_runs_is_one_frame(swept):
    data = frame([swept / "out"])
    assert len(data) == len(runs_in(swept / "out")) * 6
    assert {"settings.lr", "federation.seed", "client_loss", "drift", "rejected"} <= set(
        data.columns
    )
    assert set(data["variant"]) == {"fedavg lr=0.001", "fedavg lr=0.2", "fedlada"}
    assert data["accuracy"].to_list() == data["validation_accuracy"].to_list()
    one = data.filter(pl.col("run") == "fedlada-lr0.01-seed1")
    assert one["round"].to_list() == [1, 2, 3, 4, 5, 6]
    assert one["accuracy"].is_null().to_list() == [True, False] * 3
    assert one["total_bytes"][-1] == (one["bytes_down"] + one["bytes_up"]).sum()
    assert one["total_seconds"][2] == pytest.approx(sum(one["seconds"][:3]))


def test_a_target_counts_from_its_first_round_and_may_not_be_reached(swept):
    data = frame([swept / "out"])
    assert targets_of([swept / "out"]) == [0.3, 0.999]
    for row in summary(data, [0.3, 0.999]).rows(named=True):
        own = data.filter((pl.col("run") == row["run"]) & (pl.col("accuracy") >= 0.3))
        first = own.rows(named=True)[0] if len(own) else {}
        assert row["rounds_to_0.3"] == first.get("round")
        assert row["bytes_to_0.3"] == first.get("total_bytes")
        assert row["rounds_to_0.999"] is row["seconds_to_0.999"] is None
        accuracies = data.filter(pl.col("run") == row["run"])["accuracy"].drop_nulls()
        assert (row["best"], row["final"]) == (accuracies.max(), accuracies[-1])


def test_a_codec_names_a_variant_and_what_is_only_looked_at_does_not():
    tried = [("exact", 0), ("default", 100)]
    configs = [{"federation.codec": codec, "evaluate.train_sample": n} for codec, n in tried]
    assert varied(configs) == ["federation.codec"]


def test_compare_has_a_row_for_every_variant_and_says_not_reached(swept, capsys):
    command("compare", str(swept / "out"))
    printed = capsys.readouterr().out
    for variant in ("fedavg lr=0.001", "fedavg lr=0.2", "fedlada"):
        assert len([line for line in printed.splitlines() if variant in line]) == 4
    assert printed.count("not reached") >= 9
    assert "±" in printed


def test_best_is_chosen_on_validation_and_can_be_swept(swept, capsys):
    command("best", str(swept / "out"))
    assert "edge" in capsys.readouterr().out
    file = swept / "main.toml"
    file.write_text("data.dataset = 'digits'\n" + (swept / "out/best.toml").read_text())
    assert set(cells(file)) == {"fedavg-lr0.2", "fedlada"}


def test_best_refuses_the_test_split_and_unequal_budgets(tmp_path, swept):
    from fedlada.experiment.results.tuning import choose

    some = cells(swept / "file.toml", ["federation.rounds=1"])["fedlada-lr0.01-seed0"]
    seen = some.model_copy(update={"evaluate": some.evaluate.model_copy(update={"split": "test"})})
    for name, config, sentence in (("test", seen, "validation"), ("one", some, "not finished")):
        RunDirectory(tmp_path / name / "run").prepare(config)
        with pytest.raises(ExperimentError, match=sentence):
            choose(tmp_path / name)
    more = cells(swept / "file.toml", ["federation.rounds=2"])["fedlada-lr0.01-seed0"]
    RunDirectory(tmp_path / "one" / "more").prepare(more)
    for run in runs_in(tmp_path / "one"):
        list(execute.run(run))
    with pytest.raises(ExperimentError, match="equal budgets"):
        choose(tmp_path / "one")


def test_partition_shows_who_holds_what(swept, capsys):
    command("partition", str(swept / "file.toml"), "--clients", "3")
    printed = capsys.readouterr().out
    assert "on 10 clients" in printed
    assert "and 7 more clients" in printed


def test_partition_draws_who_holds_what(swept, tmp_path):
    command("partition", str(swept / "file.toml"), "--draw", str(tmp_path / "who.svg"))
    assert ElementTree.parse(tmp_path / "who.svg").getroot().tag.endswith("svg")


def test_a_run_of_which_no_round_was_applied_fails_and_the_others_are_done(tmp_path, capsys):
    text = FILE.partition("[sweep]")[0] + "[sweep]\nfederation.minimum = [1, 4]\n"
    (tmp_path / "file.toml").write_text(text)
    with pytest.raises(SystemExit) as ended:
        main(("sweep", f"{tmp_path}/file.toml", "--out", f"{tmp_path}/out", "--jobs", "2"))
    assert "1 of 2 runs failed" in str(ended.value.code)
    good, bad = (RunDirectory(tmp_path / "out" / f"fedlada-minimum{n}") for n in (1, 4))
    assert (good.finished(), bad.finished()) == (True, False)
    printed = " ".join(capsys.readouterr().out.split())
    assert "none of 6 rounds changed the model" in printed
    with pytest.raises(SystemExit) as ended:
        main(("resume", str(bad.path)))
    assert "none of 6 rounds changed the model" in str(ended.value.code)
