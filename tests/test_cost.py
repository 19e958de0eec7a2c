"""``fedlada cost``: its bytes are those of the records, and its memory is what a run needs."""

import gc

import pytest
import torch

from fedlada import ALGORITHMS, Checkpoints, LocalTraining, algorithm, simulate
from fedlada.algorithms.vectors import is_small
from fedlada.cli import main
from fedlada.cost import amount, count
from fedlada.engines import Devices
from fedlada.protocol.codecs import PRESETS
from fedlada.server.aggregate.mean import Mean
from fedlada.server.plan import Plan
from places import ROOT

KINDS = ("fedavg", "scaffold", "fedlada", "fedlada-rows", "sharedmuon", "fedadamw", "diloco")
"""Algorithms that together declare every kind of vector."""
DIGITS = ROOT / "experiments" / "attacks" / "digits.toml"


def made(*, clients=4, outputs=40, norm=False, **settings):
    """The arguments of a run on random data, and its cost."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(100, outputs), *([torch.nn.BatchNorm1d(outputs)] if norm else [])]
    model = torch.nn.Sequential(*layers)
    data = [(torch.randn(8, 100), torch.randint(outputs, (8,))) for _ in range(clients)]
    plan = {"cohort": clients, "rounds": 3} | settings
    cost = count(Plan(**plan), model, cohort=clients)
    return (model, data), {"train": LocalTraining(steps=2, batch_size=8), **plan}, cost


@pytest.mark.parametrize("name", KINDS)
def test_the_bytes_are_those_of_every_record(name):
    run, settings, cost = made(algorithm=name)
    for record in simulate(*run, **settings):
        assert record.bytes_down == 4 * cost.nbytes("down")
        assert record.bytes_up == 4 * cost.nbytes("up")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_vectors_are_those_that_the_algorithm_declares(name):
    chosen = algorithm(name)
    _, _, cost = made(algorithm=name)
    for way, names in (("down", chosen.down), ("up", chosen.up)):
        sent = [sent for sent in cost.sent if sent.way == way]
        assert [one.vector for one in sent] == [*names]
        large = [one.nbytes for one in sent if not is_small(one.vector)]
        assert large == [4 * cost.parameters] * getattr(chosen.traffic, way)


@pytest.mark.parametrize("codec", [*PRESETS, "eden2", "bf16"])
def test_with_a_codec_a_record_has_about_the_bytes_or_fewer(codec):
    run, settings, cost = made(algorithm="fedcm", outputs=400, codec=codec)
    for record in simulate(*run, **settings):
        assert record.bytes_up <= 4.2 * cost.nbytes("up")
    assert record.bytes_down <= 4.2 * cost.nbytes("down")
    assert record.bytes_up + record.bytes_down >= 2 * cost.nbytes("up") + 2 * cost.nbytes("down")


@pytest.mark.parametrize("policy", ["average", "local"])
def test_buffers_count_where_they_are_sent_or_stored(policy):
    run, settings, cost = made(algorithm="fedavg", norm=True, buffers=policy)
    weights, buffers = 4 * cost.parameters, 4 * 2 * 40
    (record, *_) = simulate(*run, **settings)
    sent = weights + (buffers if policy == "average" else 0)
    assert (cost.nbytes("up"), cost.stored) == (sent, 0 if policy == "average" else buffers)
    assert record.bytes_up == 4 * sent


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedlada"])
def test_checkpoint_and_stored_vectors_are_the_files_of_a_run(name, tmp_path):
    run, settings, cost = made(algorithm=name, outputs=2000, rounds=1)
    simulate(*run, checkpoints=Checkpoints(tmp_path), **settings).run()
    (saved,) = tmp_path.glob("*.safetensors")
    assert 1 <= saved.stat().st_size / cost.checkpoint < 1.02
    stored = [path.stat().st_size for path in (tmp_path / "clients").glob("*/*.pt")]
    assert len(stored) == (4 if cost.stored else 0)
    assert all(1 <= size / cost.stored < 1.02 for size in stored)


def tensors() -> int:
    """The bytes of all tensors that are alive."""
    alive = [o for o in gc.get_objects() if type(o) in (torch.Tensor, torch.nn.Parameter)]
    return sum({t.data_ptr(): t.untyped_storage().nbytes() for t in alive}.values())


@pytest.mark.parametrize("name", ["fedavg", "fedlada"])
@pytest.mark.parametrize(("guard", "staleness"), [("off", 0), ("calibration = 8", 0), ("off", 4)])
@pytest.mark.filterwarnings("ignore:the guard stepped in")
def test_the_server_needs_the_memory_that_was_counted_in_every_round(
    name, guard, staleness, monkeypatch
):
    late = {"close_after": 2, "staleness": staleness, "rounds": 7} if staleness else {}
    run, settings, cost = made(algorithm=name, clients=12, outputs=2000, guard=guard, **late)
    before, add, seen = tensors(), Mean._add_held, []

    def measured(mean):
        if mean._totals:  # those of metrics have no vectors
            seen.append(tensors() - before)
        add(mean)

    monkeypatch.setattr(Mean, "_add_held", measured)
    client = cost.training
    for record in simulate(*run, devices=Devices() if late else None, **settings):
        counted = cost.first_round if record.round == 1 else cost.later_round
        if record.round > staleness:  # then there are as many earlier rounds as there ever are
            assert 0.7 * counted < max(seen)
        assert max(seen) < counted + client
        seen.clear()


def test_a_rule_that_holds_all_replies_needs_more_memory_than_the_mean():
    _, _, mean = made(clients=50, algorithm="fedavg")
    _, _, median = made(clients=50, algorithm="fedavg", aggregator="coordinate-median")
    assert median.later_round > 4 * mean.later_round
    assert median.nbytes("up") == mean.nbytes("up")


def rows(capsys, *words) -> list[list[str]]:
    """The lines that the command prints, as words."""
    with pytest.raises(SystemExit, match="0"):
        main(["cost", *map(str, words)])
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_the_command_prints_vectors_totals_and_memory(capsys):
    options = ("--algorithm", "fedcm", "--codec", "x=int8 | delta=eden2", "--rounds", 7)
    printed = rows(capsys, *options, "--cohort", 3)
    codecs = {line[1]: line[2] for line in printed if line[:1] in (["down"], ["up"])}
    assert codecs == {"x": "int8", "g_a": "exact", "delta": "eden2"}
    (g_a,) = (line for line in printed if "g_a" in line)
    assert g_a[-2:] == ["4.000", "1.000"]
    assert ["3", "clients", "7", "rounds"] in [line[-4:] for line in printed]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", ["fedavg", "fedcm", "fedlada-rows", "sharedmuon", "fedmuon"])
def test_a_preset_leaves_no_vector_of_the_models_size_exact(preset, name):
    _, _, cost = made(algorithm=name, codec=preset)
    assert "exact" not in [sent.codec for sent in cost.sent if not is_small(sent.vector)]


def test_a_number_of_parameters_stands_for_a_model_of_any_size(capsys):
    (x,) = (line for line in rows(capsys, "--parameters", 7 * 10**9) if "x" in line)
    assert x == ["down", "x", "exact", f"{28 * 10**9:,}", "4.000", "1.000"]


def test_the_command_reads_an_experiment(capsys):
    printed = rows(capsys, DIGITS, "algorithm=scaffold", "federation.rounds=9")
    assert printed[0][:3] == ["scaffold,", "mlp,", "digits:"]
    assert printed[0][3:] == ["2,410", "parameters"]
    assert ["9", "rounds"] in [line[-2:] for line in printed]


@pytest.mark.parametrize(
    ("words", "help"),
    [
        (["--algorithm", "fedavgg"], "did you mean 'fedavg'"),
        (["--model", "lenett"], "did you mean 'lenet'"),
        (["--codec", "in8"], "there is no codec 'in8'; did you mean 'int8'"),
        (["--parameters", "0"], "it must be 1 or more"),
        (["--parameters", "9", "--model", "mlp"], "give one"),
        (["--rounds", "-1"], "rounds is -1"),
        ([str(DIGITS), "--cohort", "3"], "federation.cohort=100"),
    ],
)
def test_a_wrong_option_is_explained(words, help):
    with pytest.raises(SystemExit) as ended:
        main(["cost", *words])
    assert help in str(ended.value.code)


def test_amounts_have_units():
    assert [amount(n) for n in (12, 1.5e3, 44.7e6, 2e12)] == ["12 B", "1.5 kB", "44.7 MB", "2 TB"]
