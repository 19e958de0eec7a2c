"""A run may be killed at any moment and run again: no round is lost, none is repeated."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedlada.cli import main
from fedlada.errors import ExperimentError, FedladaError
from fedlada.experiment.config.reading import experiment, parse
from fedlada.experiment.run import execute
from fedlada.experiment.run.directory import RunDirectory
from fedlada.server.saving.checkpoint import versions

DIGITS = ("data.dataset=digits", "data.clients=10", "federation.cohort=3", "train.batch_size=5")
WORDS = (*DIGITS, "train.steps=3", "federation.rounds=30", "algorithm=scaffold")


def configured(*words):
    return experiment(dict(map(parse, (*WORDS, *words))), source="words")


def run(directory, *words):
    RunDirectory(directory).prepare(configured(*words))
    return list(execute.run(directory))


def lines(directory):
    """The records without what a clock had to say."""
    found = [json.loads(line) for line in (directory / "records.jsonl").read_text().splitlines()]
    return [{k: v for k, v in record.items() if "seconds" not in k} for record in found]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "undisturbed"
    run(directory)
    return lines(directory)


def test_a_run_leaves_its_configuration_its_records_and_its_circumstances(tmp_path, undisturbed):
    records = run(tmp_path / "run")
    assert lines(tmp_path / "run") == undisturbed
    assert [line["round"] for line in undisturbed] == [record.round for record in records]
    done = json.loads((tmp_path / "run" / "done.json").read_text())
    assert done["rounds"] == 30
    assert done["versions"] == versions()
    assert done["machine"].keys() >= {"processor", "cores", "torch_threads"}
    assert done["command"] == [Path(sys.argv[0]).name, *sys.argv[1:]]
    assert done["seconds"] == pytest.approx(sum(record.seconds for record in records))
    assert RunDirectory(tmp_path / "run").last_record()["round"] == 30


@pytest.mark.programs(seconds=20)
def test_a_killed_run_ends_as_an_undisturbed_one(tmp_path, undisturbed):
    directory, file = tmp_path / "run", tmp_path / "file.toml"
    file.touch()
    command = [sys.executable, "-m", "fedlada.cli", "run", str(file), *WORDS, "--out"]
    process = subprocess.Popen(
        [*command, str(directory)], env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    while RunDirectory(directory).last_record().get("round", 0) < 5:
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = (directory / "records.jsonl").read_text().splitlines()
    assert not RunDirectory(directory).finished()
    records = run(directory)
    # At most the round in flight is done again; its line is there before its checkpoint.
    assert len(before) + len(records) in (30, 31)
    assert lines(directory) == undisturbed
    assert (directory / "records.jsonl").read_text().startswith("\n".join(before[:-1]) + "\n")
    assert RunDirectory(directory).finished()


@pytest.mark.parametrize("damage", ["half a line", "a missing line", "a line too many"])
def test_records_with_a_line_too_few_or_too_many_are_mended(tmp_path, undisturbed, damage):
    RunDirectory(tmp_path).prepare(configured())
    for record in execute.run(tmp_path):
        if record.round == 7:
            break
    path = tmp_path / "records.jsonl"
    whole = path.read_text()
    last = whole.splitlines(keepends=True)[-1]
    path.write_text(
        {
            "half a line": whole + last[:40],
            "a missing line": whole.removesuffix(last),
            "a line too many": whole + last.replace('"round": 7', '"round": 8'),
        }[damage]
    )
    list(execute.run(tmp_path))
    assert lines(tmp_path) == undisturbed


def test_records_that_do_not_fit_the_checkpoint_are_refused(tmp_path):
    RunDirectory(tmp_path).prepare(configured())
    for record in execute.run(tmp_path):
        if record.round == 7:
            break
    (tmp_path / "records.jsonl").unlink()
    with pytest.raises(FedladaError, match="does not hold rounds 1 to 7"):
        list(execute.run(tmp_path))


def test_a_finished_run_does_nothing_and_more_rounds_go_on(tmp_path):
    assert len(run(tmp_path, "federation.rounds=3")) == 3
    assert run(tmp_path, "federation.rounds=3") == []
    assert [record.round for record in run(tmp_path, "federation.rounds=5")] == [4, 5]
    assert run(tmp_path, "federation.rounds=4") == []


def test_a_directory_refuses_another_run_and_names_the_key(tmp_path):
    run(tmp_path, "federation.rounds=1")
    with pytest.raises(ExperimentError, match=r"settings\.lr is 0\.1, not 0\.2"):
        run(tmp_path, "settings.lr=0.2")
    RunDirectory(tmp_path).prepare(configured("name=other", "evaluate.targets=[0.5]"))


def test_a_tracker_that_is_not_installed_is_a_sentence(tmp_path):
    for name in ("mlflow", "wandb"):
        with pytest.raises(FedladaError, match=rf'pip install "{name}"'):
            run(tmp_path / name, f"track=['{name}']")


def test_errors_end_the_command_with_one_sentence(tmp_path, capsys):
    file = tmp_path / "file.toml"
    file.write_text("[train]\nstepz = 3\n")
    with pytest.raises(SystemExit, match=r"^fedlada: .*'train\.steps'"):
        main(["run", str(file)])


@pytest.mark.parametrize("content", ["", "# to be written\n"])
def test_an_empty_file_starts_no_run(tmp_path, content):
    """Empty means the paper's experiment: hours that nobody asked for."""
    file = tmp_path / "empty.toml"
    file.write_text(content)
    where = ["--out", str(tmp_path / "here")]
    with pytest.raises(SystemExit, match=r"empty\.toml is empty.*100 rounds.*name = "):
        main(["run", str(file), *where])
    assert not (tmp_path / "here").exists()


def test_the_hint_after_a_run_can_be_pasted_into_a_shell(tmp_path, capsys):
    file, where = tmp_path / "e.toml", tmp_path / "a run; really"
    words = [*DIGITS, "federation.rounds=1", "--out", str(where)]
    file.write_text('name = "quoted"\n')
    with pytest.raises(SystemExit):
        main(["run", str(file), *words])
    hint = " ".join(capsys.readouterr().out.split())
    assert f"fedlada report {shlex.quote(str(where))} writes" in hint


def test_a_run_whose_checkpoints_are_all_damaged_ends_in_a_sentence(tmp_path):
    file = tmp_path / "e.toml"
    file.write_text(
        '[data]\ndataset = "digits"\nclients = 4\n[federation]\ncohort = 2\nrounds = 1\n'
    )
    where = ["--out", str(tmp_path / "here")]
    with pytest.raises(SystemExit) as ended:
        main(["run", str(file), *where])
    assert not ended.value.code
    for path in (tmp_path / "here" / "checkpoints").glob("*.safetensors"):
        path.write_bytes(b"")
    sentence = "Restore its files from a backup"
    with pytest.warns(UserWarning, match="is damaged"), pytest.raises(SystemExit, match=sentence):
        main(["run", str(file), "federation.rounds=2", *where])
