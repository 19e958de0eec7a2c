"""A run that was stopped anywhere goes on as if it was not, or says why it cannot."""

import copy
import dataclasses
import json
from importlib.metadata import version

import pytest
import torch
from torch import nn

import fedlada
from federations import KINDS
from fedlada import Checkpoints, LocalTraining, simulate
from fedlada.data import ClientData
from fedlada.engines import DiskStore
from fedlada.server import FixedSize

ROUNDS, CLIENTS = 8, 6


def clients() -> list[ClientData]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(CLIENTS, 30, 8, generator=generator)
    return [ClientData(x, (x[:, :3] + i / CLIENTS).argmax(1)) for i, x in enumerate(inputs)]


def start(directory, *, rounds=ROUNDS, algorithm="fedlada", model=None, **settings):
    torch.manual_seed(0)
    return simulate(
        model if model is not None else nn.Linear(8, 3),
        clients(),
        algorithm=algorithm,
        rounds=rounds,
        train=LocalTraining(steps=3, batch_size=10),
        cohort=FixedSize(3),
        checkpoints=directory,
        **settings,
    )


def untimed(record):
    return dataclasses.replace(record, seconds=0.0, local_seconds=0.0, server_seconds=0.0)


def same(a, b) -> bool:
    one, two = a.state, b.state
    return (
        set(one.vectors) == set(two.vectors)
        and all(one.vectors[name].equal(two.vectors[name]) for name in one.vectors)
        and (one.round, one.updates, one.last_accepted, one.history)
        == (two.round, two.updates, two.last_accepted, two.history)
    )


@pytest.mark.parametrize("name", KINDS)
def test_a_run_resumed_after_any_round_is_the_run_undisturbed(tmp_path, name):
    whole = start(tmp_path / "whole", algorithm=name)
    records = [untimed(record) for record in whole]
    for every in (1, 3):
        place = Checkpoints(tmp_path / f"every {every}", every=every)
        seen = {}
        for stop in (1, 3, 4, 7, None):
            run = start(place, algorithm=name)
            for record in run:
                seen[record.round] = untimed(record)
                if record.round == stop:
                    break  # the generator is dropped: nothing of it goes on
        assert same(run, whole)
        assert list(seen.values()) == records
        assert [untimed(record) for record in run.records] == records
        if fedlada.ALGORITHMS[name].client_state:
            one, two = (
                DiskStore(path / "clients") for path in (tmp_path / "whole", place.directory)
            )
            for client, last in whole.state.last_accepted.items():
                kept = one.load(client, (whole.state.run, last))
                again = two.load(client, (run.state.run, last))
                assert all(kept[n].equal(again[n]) for n in kept)


@pytest.mark.parametrize("name", ["fedavg", "fednova"])
@pytest.mark.filterwarnings("ignore:the guard stepped in")
def test_what_deltas_are_clipped_around_is_resumed(tmp_path, name):
    settings = {"algorithm": name, "guard": "strict"}
    whole = start(tmp_path / "whole", **settings)
    whole.run()
    for record in start(tmp_path / "parts", **settings):
        if record.round == 3:
            break
    again = start(tmp_path / "parts", **settings)
    again.run()
    assert same(again, whole)


def test_a_finished_run_does_nothing_more_and_more_rounds_go_on_from_it(tmp_path):
    start(tmp_path, rounds=5).run()
    again = start(tmp_path, rounds=5)
    assert again.run() == []
    assert again.resumed.round == 5
    longer = start(tmp_path, rounds=8)
    assert [record.round for record in longer] == [6, 7, 8]
    assert same(longer, (whole := start(tmp_path / "whole")).run() and whole)


def test_the_history_of_a_run_survives_resumes(tmp_path):
    whole = start(tmp_path / "whole").run()
    for stop in (3, 5, ROUNDS):
        run = start(Checkpoints(tmp_path / "parts", every=2))
        for record in run:
            if record.round == stop:
                break
    expected = [untimed(record) for record in whole]
    assert [untimed(record) for record in run.records] == expected
    assert [untimed(record) for record in Checkpoints(tmp_path / "parts").records()] == expected
    assert fedlada.frame(run)["round"].to_list() == list(range(1, ROUNDS + 1))
    (line,) = run.plot("loss").axes[0].lines
    assert line.get_xdata().tolist() == list(range(1, ROUNDS + 1))


def test_a_directory_without_records_resumes_and_says_that_they_are_unknown(tmp_path):
    start(tmp_path, rounds=3).run()
    (tmp_path / "round-records.jsonl").unlink()
    with pytest.warns(UserWarning, match="records of the rounds up to 3 are unknown"):
        start(tmp_path, rounds=5).run()
    again = start(tmp_path, rounds=6)
    again.run()
    assert [record.round for record in again.records] == [4, 5, 6]


@pytest.mark.parametrize("damage", ["a round is missing", "a line is cut short"])
def test_damaged_records_are_refused_and_the_advice_works(tmp_path, damage):
    start(tmp_path, rounds=4).run()
    file = tmp_path / "round-records.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    lines[1] = "" if damage == "a round is missing" else lines[1][:50] + "\n"
    file.write_text("".join(lines))
    with pytest.raises(fedlada.FedladaError, match=r"rounds 1 to 4 .*delete it, and"):
        start(tmp_path)
    file.unlink()
    with pytest.warns(UserWarning, match="unknown"):
        start(tmp_path).run()


def test_buffers_and_what_batch_norm_keeps_are_resumed(tmp_path):
    for policy in ("average", "local"):
        settings = {"buffers": policy}

        def model():
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(8, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))

        whole = start(tmp_path / policy, model=model(), **settings)
        whole.run()
        for stop in (2, 5, 8):
            part = start(tmp_path / f"{policy}-parts", model=model(), **settings)
            for record in part:
                if record.round == stop:
                    break
        assert same(part, whole)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"algorithm": fedlada.algorithm("fedlada", lr=0.5)}, "algorithm.lr is 0.5 and was 0.02"),
        ({"algorithm": "fedcm"}, 'algorithm.local is "sgd" and was'),
        ({"seed": 3}, "seed is 3 and was 0"),
        ({"lr_decay": 0.9}, "lr_decay is 0.9 and was 0.998"),
        ({"weighting": "examples"}, 'weighting is "examples" and was "uniform"'),
        ({"guard": fedlada.server.Guard(slack=9)}, "guard.slack is 9 and was 2.0"),
        ({"guard": None}, "guard is null and was not there"),
        ({"config": {"split": 2}}, "split is 2 and was not there"),
        ({"model": nn.Linear(8, 3, bias=False)}, "parameters.bias is not there and was"),
    ],
)
def test_another_configuration_is_refused_with_the_keys_that_differ(tmp_path, change, said):
    start(tmp_path, rounds=2).run()
    with pytest.raises(fedlada.CheckpointError, match=said):
        start(tmp_path, **change)


def test_a_directory_is_one_processes_own(tmp_path):
    import subprocess
    import sys

    program = f"from fedlada import Checkpoints; Checkpoints({str(tmp_path)!r}).open()"

    def other_process() -> str:
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        return ended.stderr

    with start(tmp_path, rounds=2) as run:
        next(iter(run))
        assert "another process is running in" in other_process()
    assert other_process() == ""


def test_of_two_runs_in_one_process_the_newer_has_the_directory(tmp_path):
    first = iter(start(tmp_path, rounds=4))
    next(first)
    second = start(tmp_path, rounds=4)
    with pytest.raises(fedlada.CheckpointError, match="another run of this process has taken"):
        next(first)
    assert [record.round for record in second] == [2, 3, 4]
    assert Checkpoints(tmp_path).latest().state.round == 4


def test_old_checkpoints_are_pruned(tmp_path):
    start(Checkpoints(tmp_path, keep=3)).run()
    names = sorted(path.name for path in tmp_path.iterdir() if path.name != "round-records.jsonl")
    stems = [f"round-{number:08}" for number in (6, 7, 8)]
    assert names == ["lock", *(f"{s}.{e}" for s in stems for e in ("json", "safetensors"))]


def test_a_checkpoint_says_what_wrote_it(tmp_path):
    start(tmp_path, rounds=2, config={"split": "even"}).run()
    manifest = json.loads((tmp_path / "round-00000002.json").read_text())["manifest"]
    assert manifest["round"] == 2
    assert manifest["config"]["split"] == "even"
    assert manifest["versions"]["torch"] == version("torch")
    assert manifest["record"]["accepted"] == 3


def test_other_versions_are_a_warning(tmp_path, monkeypatch):
    start(tmp_path, rounds=2).run()
    monkeypatch.setattr("fedlada.server.saving.checkpoint.version", lambda package: "0.0")
    with pytest.warns(UserWarning, match=r"torch .* then, 0.0 now.*may differ in some bits"):
        start(tmp_path)


def test_another_number_of_threads_is_a_warning(tmp_path, monkeypatch):
    start(tmp_path, rounds=2).run()
    start(tmp_path)  # one thread, as workers have
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with pytest.warns(UserWarning, match=r"threads 1 then, 2 now.*may differ in some bits"):
        start(tmp_path)


def test_another_kind_of_processor_is_a_warning(tmp_path, monkeypatch):
    start(tmp_path, rounds=2).run()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "OTHER")
    with pytest.warns(UserWarning, match=r"processor \w+ then, OTHER now.*may differ in some bits"):
        start(tmp_path)


def test_the_model_is_exported_as_a_plain_state_dict(tmp_path):
    from safetensors.torch import load_file

    run = start(tmp_path / "run", rounds=2)
    run.run()
    fedlada.export(tmp_path / "run", tmp_path / "model.safetensors")
    other = nn.Linear(8, 3)
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(other.weight, run.model.weight)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.inner = nn.Linear(8, 3)
        self.outer = nn.Linear(8, 3)
        self.outer.weight = self.inner.weight

    def forward(self, x):
        return self.outer(self.frozen(x)) + self.inner(x)


def test_frozen_and_tied_parameters_are_exported_with_the_model(tmp_path):
    from safetensors.torch import load_file

    torch.manual_seed(0)
    run = start(tmp_path / "run", rounds=2, model=(model := Tied()))
    run.run()
    fedlada.export(Checkpoints(tmp_path / "run"), tmp_path / "m.safetensors", model=model)
    other = Tied()
    other.load_state_dict(load_file(tmp_path / "m.safetensors"))
    x = torch.randn(4, 8)
    assert torch.equal(other(x), run.model(x))


def test_export_without_a_checkpoint_says_so(tmp_path):
    with pytest.raises(ValueError, match="there is no checkpoint in"):
        fedlada.export(tmp_path, tmp_path / "m.safetensors")


def test_a_state_and_checkpoints_together_are_refused(tmp_path):
    run = start(tmp_path / "a", rounds=1)
    with pytest.raises(ValueError, match="a checkpoint holds a state"):
        start(tmp_path / "b", state=run.state)


def test_without_safetensors_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "safetensors", None)
    monkeypatch.setitem(__import__("sys").modules, "safetensors.torch", None)
    with pytest.raises(fedlada.FedladaError, match=r'pip install "fedlada\[checkpoint\]"'):
        start(tmp_path).run()


def test_saving_leaves_the_state_as_it_is(tmp_path):
    run = start(tmp_path, rounds=3)
    records = iter(run)
    next(records), next(records)
    state = copy.deepcopy(run.state)
    state.resumable_from = 0
    saving = Checkpoints(tmp_path / "other")
    saving.open()
    names = {"parameters": ["weight", "bias"], "buffers": []}
    record = Checkpoints(tmp_path).latest().record
    assert saving.save(state, record, config={}, names=names) == 2
    assert state.resumable_from == 0
