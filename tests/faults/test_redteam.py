"""What broke when it was attacked, and fits into no other file: it does not break again."""

import json
import shutil
import warnings
from dataclasses import asdict, replace
from hashlib import blake2b, sha256
from math import isfinite
from pathlib import Path

import pytest
import torch
from torch import nn

from fedlada import CheckpointError, Checkpoints, FedladaError, Guard, LocalTraining, simulate
from fedlada.data import ClientData
from fedlada.engines.faulty import Faulty
from fedlada.experiment.config.keys import flatten
from fedlada.experiment.run.tracking import parsed
from fedlada.server.loop import NothingApplied
from fedlada.server.record import NAMES_PER_ROUND, NAMES_PER_RUN
from fedlada.server.upgrade import FORMAT

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


class Via:
    """An engine whose replies pass through a function."""

    def __init__(self, change, *, algorithm="fedavg"):
        from fedlada import InProcess, algorithm as named

        train = LocalTraining(steps=2, batch_size=10)
        self._engine = InProcess(named(algorithm), nn.Linear(8, 3), clients(), train)
        self._change, self.clients = change, self._engine.clients
        self.keeps, self.commit = self._engine.keeps, self._engine.commit

    def exchange(self, task, cohort):
        for reply in self._engine.exchange(task, cohort):
            yield self._change(task, reply)


def told(**metrics):
    """Every client says this, beside what it says honestly."""
    return Via(lambda task, reply: replace(reply, metrics={**reply.metrics, **metrics}))


def through(engine, **settings):
    return silently(start(engine=engine, algorithm="fedavg", **settings))


def test_a_client_cannot_put_an_accuracy_of_the_server_on_record(tmp_path):
    records = through(
        told(test_accuracy=9.0),
        rounds=6,
        evaluate=lambda model: {"test_accuracy": 0.5},
        evaluate_every=3,
        directory=tmp_path,
    )
    assert [record.metrics.get("test_accuracy") for record in records] == [None, None, 0.5] * 2
    assert {record.client_metrics["test_accuracy"] for record in records} == {9.0}
    saved = Checkpoints(tmp_path).latest().record
    assert saved == records[-1]


def test_no_column_and_no_tracked_name_of_the_server_can_be_taken_by_a_client():
    from fedlada.experiment.results.frames import _numbers
    from fedlada.experiment.run.adapters import _scalars

    (record, *_) = through(told(test_accuracy=9.0, score=9.0), evaluate=lambda _: {"test_loss": 1})
    for names in (_scalars(record), _numbers(flatten(asdict(record)))):
        assert {"test_loss", "client_loss", "client_test_accuracy", "client_score"} <= names.keys()
        assert not {"test_accuracy", "score", "loss"} & names.keys()


def test_seconds_that_clients_claim_stay_finite():
    engine = Via(lambda task, reply: replace(reply, seconds=1e308))
    for guard in (Guard(), None):
        assert all(isfinite(r.local_seconds) for r in through(engine, guard=guard))


def test_names_of_metrics_are_bounded_in_a_round_and_in_a_run_and_common_ones_stay():
    def babble(task, reply):
        new = {f"{task.round} {reply.client} {i}": 1.0 for i in range(90)}
        return replace(reply, metrics={**reply.metrics, **new})

    run = start(engine=Via(babble), algorithm="fedavg", rounds=30, sampling=6)
    records = silently(run)
    for record in records:
        assert len(record.client_metrics) <= NAMES_PER_ROUND
        assert record.client_metrics.keys() == record.spread.keys()
        assert "loss" in record.client_metrics
        assert record.limited["number of metrics"] > 0
    names = {name for record in records for name in record.client_metrics}
    assert names == set(run.state.metric_names)
    assert len(names) <= NAMES_PER_RUN


def test_the_names_on_record_are_those_of_the_run_undisturbed_after_it_is_resumed(tmp_path):
    def babble(task, reply):
        return replace(reply, metrics={f"{task.round} {reply.client} {i}": 1.0 for i in range(90)})

    def run(directory, rounds):
        made = start(directory, engine=Via(babble), algorithm="fedavg", rounds=rounds, sampling=6)
        return [record.client_metrics for record in silently(made)]

    whole = run(tmp_path / "whole", 12)
    assert run(tmp_path / "parts", 7) + run(tmp_path / "parts", 12) == whole


@pytest.mark.parametrize("name", ["loss\nround 7: accuracy", "\x1b[2J", "n" * 101])
def test_a_name_that_would_leave_its_line_is_refused_in_process_too(name):
    with pytest.raises(NothingApplied, match="wrong name of a metric 12x"):
        through(told(**{name: 1.0}))

    def train(model, data, optimizer):
        LocalTraining(steps=1)(model, data, optimizer)
        return {name: 1.0}

    with pytest.raises(FedladaError, match=r"calls a metric .* that can be printed"):
        simulate(nn.Linear(8, 3), clients(), train=train, rounds=1, sampling=2).run()


def test_records_of_0_2_0_have_their_metrics_in_two_tables():
    old = Path(__file__).parents[1] / "fixtures/v0_2_0/run-scaffold.jsonl"
    for line in old.read_text().splitlines():
        before, after = json.loads(line)["metrics"], parsed(line)
        assert after.metrics.keys() == {"test_loss", "test_accuracy"}
        assert after.client_metrics.keys() == {"loss"} == after.spread.keys()
        assert {**after.metrics, **after.client_metrics} == before


def manifest_of(directory: Path, round: int) -> Path:
    return directory / f"round-{round:08}.json"


def resealed(path: Path, change) -> None:
    """Change a manifest and give it the hash that fits."""
    from fedlada.server.checkpoint import _sealed

    manifest = json.loads(path.read_text())["manifest"]
    change(manifest)
    path.write_bytes(_sealed(manifest))


def test_a_checkpoint_of_a_newer_version_is_not_called_damaged(tmp_path):
    start(tmp_path).run()
    resealed(manifest_of(tmp_path, 3), lambda manifest: manifest.update(format=FORMAT + 1))
    with pytest.raises(CheckpointError, match=r"written by a newer fedlada .*update") as error:
        start(tmp_path, rounds=4)
    assert "delete" not in str(error.value)


def test_files_of_somebody_else_in_the_directory_are_left_alone(tmp_path):
    start(tmp_path, algorithm="scaffold").run()
    names = ["round-00000002 (copy).json", "round-x.json", "notes.json", "mine.part"]
    names += ["round-00000002 (copy).safetensors", "ledger-old.bin", "round-.safetensors"]
    for name in names:
        (tmp_path / name).write_text("mine")
    assert Checkpoints(tmp_path).rounds() == [2, 3]
    start(tmp_path, rounds=6, algorithm="scaffold").run()
    assert Checkpoints(tmp_path).rounds() == [5, 6]
    assert all((tmp_path / name).read_text() == "mine" for name in names)


DAMAGE = {
    "deep": lambda path: manifest_of(path, 3).write_text("[" * 200_000),
    "a list": lambda path: manifest_of(path, 3).write_text("[]"),
    "text": lambda path: manifest_of(path, 3).write_text('"manifest"'),
    "not utf-8": lambda path: manifest_of(path, 3).write_bytes(b"\xff\xfe\xfa"),
    "lists for tables": lambda path: resealed(manifest_of(path, 3), lambda m: m.update(history=[])),
    "no names": lambda path: resealed(manifest_of(path, 3), lambda m: m.pop("names")),
    "no vectors": lambda path: resealed(
        manifest_of(path, 3), lambda m: m.update(vectors=["x", "unheard of"])
    ),
}


def header(path: Path) -> None:
    """A vectors file that is no safetensors file, with a hash that fits."""
    content = b"\xff" * 100
    (path / "round-00000003.safetensors").write_bytes(content)
    resealed(manifest_of(path, 3), lambda m: m.update(blake2b=blake2b(content).hexdigest()))


@pytest.mark.parametrize("how", [*DAMAGE.values(), header], ids=[*DAMAGE, "header"])
def test_whatever_is_wrong_with_a_checkpoint_the_one_before_is_tried(tmp_path, how):
    start(tmp_path).run()
    how(tmp_path)
    with pytest.warns(UserWarning, match="the checkpoint of round 3 .* is damaged"):
        again = start(tmp_path)
    assert again.resumed.round == 2


def test_a_checkpoint_whose_vectors_have_a_sha256_as_until_format_3_is_read(tmp_path):
    start(tmp_path).run()
    content = (tmp_path / "round-00000003.safetensors").read_bytes()
    old = {"format": 3, "sha256": sha256(content).hexdigest(), "blake2b": None}
    resealed(manifest_of(tmp_path, 3), lambda m: m.update(old))
    assert start(tmp_path).resumed.round == 3


def test_damage_to_the_only_checkpoint_says_what_to_do_and_does_not_say_delete(tmp_path):
    start(tmp_path, rounds=1).run()
    manifest_of(tmp_path, 1).write_text("{")
    with (
        pytest.warns(UserWarning, match="is damaged"),
        pytest.raises(CheckpointError, match=r"Restore its files .*another directory") as error,
    ):
        start(tmp_path)
    assert "delete" not in str(error.value)


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_a_directory_deleted_under_a_run_is_said_to_be_gone(tmp_path, algorithm):
    run = iter(start(tmp_path / "run", algorithm=algorithm, sampling=6))
    next(run)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(FedladaError, match=r"is gone: it was\s+deleted or moved"):
        next(run)
