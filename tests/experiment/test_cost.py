"""``fedlada cost``: its bytes are those of records, its formula is one, its errors are help."""

import dataclasses
import re
from pathlib import Path

import pytest

from fedlada import FixedSize, simulate
from fedlada.cli import main
from fedlada.experiment import cost_command
from fedlada.experiment.config.reading import experiment
from fedlada.experiment.cost.checking import check
from fedlada.experiment.cost.constants import DEPLOYED, REFERENCE, Constants, Deployed
from fedlada.experiment.cost.formula import TALLY, Setting, Workload, predict
from fedlada.experiment.cost.measuring import MORE, fit
from fedlada.experiment.cost.table import amount, duration
from fedlada.experiment.cost.trials import Sample, Trial
from fedlada.experiment.cost.workload import workload
from fedlada.experiment.run.problem import build

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
KEYS = {"data.dataset": "digits", "data.clients": 10, "train.batch_size": 10, "train.steps": 2}


def made(**keys):
    config = experiment(KEYS | {key.replace("__", "."): v for key, v in keys.items()}, source="-")
    return config, build(config)


WORK = Workload(
    parameters=10,
    down=20,
    up=10,
    state=30,
    bytes_down=80,
    bytes_up=40,
    bytes_state=120,
    bytes_kept=40,
    flops=100.0,
    steps=5.0,
    holds=3,
)
ONES = Constants(
    source="a sheet of paper",
    **dict.fromkeys([f.name for f in dataclasses.fields(Constants) if f.name != "source"], 1.0),
)
FLOWER = Deployed(message=10.0, byte=1.0, node_minute=6.0)


def setting(**given):
    return Setting(**({"clients": 100, "cohort": 10, "rounds": 4} | given))


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedlada", "localadam"])
def test_predicted_bytes_are_those_of_the_records(algorithm):
    config, problem = made(algorithm=algorithm)
    found = predict(workload(config, problem), setting(cohort=3), REFERENCE, DEPLOYED)
    plan = config.plan().settings() | {"rounds": 2, "sampling": FixedSize(3)}
    for record in simulate(problem.model, problem.clients, train=problem.train, **plan):
        assert (found.bytes_down, found.bytes_up) == (record.bytes_down, record.bytes_up)


def test_what_clients_keep_and_the_server_saves_follows_from_the_algorithm():
    def bytes_of(name):
        work = workload(*made(algorithm=name))
        return work.bytes_kept / work.bytes_up, work.bytes_state / (4 * work.parameters)

    assert bytes_of("fedavg") == (0, 1)
    assert bytes_of("scaffold") == (0.5, 2)  # c_i of delta and c_i's change; x and c
    assert bytes_of("fedlada") == (0, 3)  # x, g_a and v


def test_steps_of_epochs_are_the_mean_number_of_batches():
    config, problem = made(train__steps=None, train__epochs=2)
    sizes = [len(problem.clients[i]) for i in range(10)]
    assert workload(config, problem).steps == 2 * sum(-(-size // 10) for size in sizes) / 10


def test_the_formula_of_a_simulated_round_by_hand():
    """A client 1 + 30 + 5 (1 + 100), a reply 1 + 10, the rest 1 + 30, a checkpoint 1 + 120."""
    alone = predict(WORK, setting(), ONES, FLOWER)
    assert alone.client_seconds == 536
    assert alone.seconds == 10 * (536 + 11) + 31
    assert alone.server_seconds == 10 * 11 + 31
    assert alone.run_seconds == 4 * (alone.seconds + 121)
    four = predict(WORK, setting(workers=4), ONES, FLOWER)
    assert four.seconds == 3 * (536 + 11) + 3 * 11 + 31


def test_the_formula_of_a_deployed_round_by_hand():
    """Connections of 1 B/s for a client and 12 B/s for a server: 120 s for both."""
    slow = {"up": 8e-6, "down": 8e-6, "link": 96e-6, "price_hour": 0.0, "price_gb": 1e9}
    flat = predict(WORK, setting(deployment="flower", speed=2.0, **slow), ONES, FLOWER)
    assert flat.transfer_seconds == pytest.approx(120)
    assert flat.seconds == pytest.approx(10 + 536 / 2 + 120 + 10 * (11 + 120) + 31)
    assert flat.run_money == pytest.approx(4 * 10 * 80)
    assert flat.polling == pytest.approx(100 * 6 / 60)
    tree = predict(WORK, setting(deployment="flower", leaves=5, **slow), ONES, FLOWER)
    tally = TALLY * 10 + 80
    assert (tree.bytes_down, tree.bytes_up) == (flat.bytes_down, flat.bytes_up)
    assert tree.bytes_root == 5 * tally
    root = 10 + 5 * (11 + tally) + 5 * tally / 12
    assert tree.seconds == pytest.approx(10 + 536 + 120 + 2 * (11 + 120) + root + 31)
    assert tree.polling == pytest.approx(flat.polling / 5)


def test_registered_clients_cost_no_time_and_held_replies_cost_memory():
    few, many = (predict(WORK, setting(clients=n), ONES, FLOWER) for n in (10, 10**7))
    assert (few.seconds, few.bytes_down) == (many.seconds, many.bytes_down)
    memory = [
        predict(dataclasses.replace(WORK, holds=holds), setting(), ONES, FLOWER).server_memory
        for holds in (1, 3, float("inf"))
    ]
    assert [m - memory[0] for m in memory] == [0, 2 * 40, 9 * 40]


def test_measuring_with_a_clock_that_counts_steps_finds_a_step_and_nothing_else():
    config, problem = made(algorithm="scaffold")
    count = 0

    def prepare(inputs, generator):
        nonlocal count
        count += 1
        return problem.train.prepare(inputs, generator)

    counted = dataclasses.replace(
        problem, train=dataclasses.replace(problem.train, prepare=prepare)
    )
    work = workload(config, problem)
    trial = Trial.of(config, counted, cohort=4, steps=3)
    constants, (samples,) = fit(
        config, counted, work, [trial], seconds=0.0, clock=lambda: float(count)
    )
    assert constants.step + constants.flop * work.flops == pytest.approx(1)
    assert constants.client_seconds(work.down, work.up, 0, work.flops) == pytest.approx(0)
    assert constants.reply_seconds(work.up) == constants.update_seconds(work.state) == 0
    found = check(work, constants, trial, samples)
    assert (found.predicted, found.measured) == (pytest.approx(12), 12)
    assert found.bytes_error == 0


def test_a_round_of_a_trial_takes_what_its_clients_and_its_server_take():
    sample = Sample(client=3.0, server=1.0, save=5.0, record=None)
    assert sample.round == 4


def test_the_command_prints_what_people_read(capsys, monkeypatch):
    monkeypatch.setattr(cost_command, "SECONDS", 0.0)
    words = f"cost {EXPERIMENTS}/digits.toml --clients 100000 --cohort 1000 --deployment flower"
    with pytest.raises(SystemExit) as ended:
        main([*words.split(), "--leaves", "100", "--up", "10", "--measure"])
    assert not ended.value.code
    printed = capsys.readouterr().out
    for row in ("bytes up, all clients", "memory of a server", "money", "time"):
        assert re.search(rf"^ +{row} +.*\d", printed, re.MULTILINE), row
    assert "100,000 clients, 1,000 a round of 20 steps" in printed
    assert len(re.findall(r"6 clients of (?:5|10) steps .*\+0\.0%", printed)) == 2


@pytest.mark.parametrize(
    ("words", "help"),
    [
        ("--deployment flwr", "did you mean 'flower'"),
        ("--leaves 3", "need --deployment flower"),
        ("--deployment flower --workers 2", "need --deployment process"),
        ("--cohort 11", "there are 10; give a smaller --cohort, or more --clients"),
        (f"data.clients={MORE} federation.cohort=1 --measure", "measuring needs 3"),
    ],
)
def test_a_wrong_option_is_explained(words, help):
    with pytest.raises(SystemExit) as ended:
        main(["cost", str(EXPERIMENTS / "attacks" / "digits.toml"), *words.split()])
    assert help in str(ended.value.code)


def test_amounts_and_durations_have_units():
    assert [amount(n) for n in (12, 1.5e3, 44.7e6, 2e12)] == ["12 B", "1.5 kB", "44.7 MB", "2 TB"]
    assert [duration(s) for s in (0.002, 3, 180, 7200, 4e5)] == [
        "2 ms",
        "3 s",
        "3 min",
        "2 h",
        "4.63 days",
    ]
