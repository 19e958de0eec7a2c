"""Simulated time: a function of the devices, the same with every engine and after a resume."""

import dataclasses
import math
import statistics

import pytest
import torch
from hypothesis import given, settings, strategies as st

import fedlada
from federations import Federation, Point, local_steps, quadratics, same_bits
from fedlada import LocalTraining, Plan, simulate
from fedlada.cost import time_of
from fedlada.engines.devices import Device, Devices, Work
from fedlada.engines.schedule import schedule
from fedlada.engines.timed import Timed, Timetable, work_of
from fedlada.errors import FedladaError
from fedlada.redteam.faulty import Faulty, at_random

UNIT = Work(0, 0, lambda client: 1)
PLAIN = {"latency": 0.0, "links": 0.0, "step": 1.0}
CLIENTS = 24


def timed(devices=None, *, workers=None, rounds=5, cohort=8, algorithm="scaffold", **more):
    """A simulation of quadratics with devices, run to its end."""
    run = simulate(
        Point(),
        quadratics(CLIENTS),
        algorithm=fedlada.algorithm(algorithm, lr=0.1),
        rounds=rounds,
        cohort=cohort,
        train=local_steps(2, noise=0.1),
        devices=Devices(steps=2) if devices is None else devices,
        workers=workers,
        quiet=True,
        **more,
    )
    run.run()
    return run


def seen(run) -> list:
    """What records say about time and replies."""
    return [(r.time, r.cohort, r.accepted, r.failures, r.bytes_up) for r in run.records]


RULES = {
    "all": {},
    "early": {"close_after": 5},
    "deadline": {"deadline": 2.0},
    "both": {"close_after": 5, "deadline": 2.0},
}
HARD = Devices(steps=2, step=0.5, drop_out=0.2, present=0.7, notice=3.0, day=20.0)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("guard", [{}, {"guard": "off"}, {"guard": "calibration = 3"}])
def test_seconds_and_bits_are_the_same_with_any_number_of_workers(rule, guard):
    one = timed(HARD, **RULES[rule], **guard)
    many = timed(HARD, workers=3, **RULES[rule], **guard)
    assert seen(one) == seen(many)
    assert same_bits(one.state.vectors, many.state.vectors)
    assert {reason for r in one.records for reason in r.failures}


@pytest.mark.parametrize("rule", RULES)
def test_a_run_that_is_resumed_has_the_same_seconds_and_bits(tmp_path, rule):
    whole = timed(HARD, **RULES[rule])
    timed(HARD, rounds=2, checkpoints=tmp_path, **RULES[rule])
    rest = timed(HARD, checkpoints=tmp_path, **RULES[rule])
    assert seen(rest) == seen(whole)
    assert same_bits(rest.state.vectors, whole.state.vectors)


@pytest.mark.parametrize("name", ["fedavg", "fedlada", "scaffold"])
def test_devices_that_nobody_waits_for_change_no_bit(name):
    plain = {"algorithm": fedlada.algorithm(name), "rounds": 3, "cohort": 8, "quiet": True}
    plain |= {"train": local_steps(2, noise=0.1)}
    without, slow = simulate(Point(), quadratics(CLIENTS), **plain), timed(algorithm=name, rounds=3)
    with_devices = simulate(Point(), quadratics(CLIENTS), devices={"steps": 2}, **plain)
    assert [r.time for r in without.run()] == [None] * 3
    assert [r.time for r in with_devices.run()] == [r.time for r in slow.records]
    assert same_bits(without.state.vectors, with_devices.state.vectors)


def test_a_run_with_other_devices_is_another_run(tmp_path):
    timed(rounds=1, checkpoints=tmp_path)
    with pytest.raises(FedladaError, match=r"devices\.speeds is 0\.0 and was 1\.0"):
        timed(Devices(steps=2, speeds=0.0), checkpoints=tmp_path)


@pytest.mark.parametrize("rule", RULES)
def test_a_schedule_is_the_time_of_a_run_and_who_is_heard(rule):
    run = timed(HARD, **RULES[rule], guard="off")
    timetable = Timetable(HARD, work_of(run.plan, Point(), HARD, None, ()), run.plan.deadline)
    expected = list(schedule(run.plan, timetable, clients=CLIENTS))
    assert [e.time for e in expected] == [r.time for r in run.records]
    assert [len(e.accepted) for e in expected] == [r.accepted for r in run.records]
    assert [dict(e.failures) for e in expected] == [r.failures for r in run.records]
    cost = time_of(run.plan, timetable, clients=CLIENTS)
    assert cost.seconds == pytest.approx(run.records[-1].time)


@pytest.mark.parametrize(
    ("plan", "devices"),
    [
        ({"cohort": 20, "rounds": 200}, Devices(drop_out=0.1)),
        ({"cohort": 26, "close_after": 20, "rounds": 200}, Devices(speeds=0.5)),
        ({"cohort": 20, "close_after": 5, "staleness": 20, "rounds": 400}, Devices(speeds=1.5)),
    ],
    ids=["all", "early", "late"],
)
def test_cost_predicts_the_seconds_of_runs_with_other_seeds(plan, devices):
    timetable = Timetable(devices, Work(1e5, 1e5, lambda client: 50))
    predicted = time_of(Plan(**plan), timetable, clients=100).seconds
    *_, last = schedule(Plan(seed=1, **plan), timetable, clients=100)
    assert predicted == pytest.approx(last.time, rel=0.1)


def test_a_round_ends_with_its_last_reply_or_at_its_deadline():
    devices = Devices(steps=2)
    run = timed(devices, rounds=1)
    work = work_of(run.plan, Point(), devices, None, ())
    ends = [devices.outcome(c, 0, start=0.0, work=work).time for c in run.records[0].cohort]
    assert run.records[0].time == max(ends)
    assert timed(devices, rounds=1, close_after=3).records[0].time == sorted(ends)[2]
    middle = statistics.median(ends)
    (late,) = timed(devices, rounds=1, deadline=middle).records
    assert late.time == middle
    assert late.failures == {"deadline": sum(end > middle for end in ends)}


def test_only_the_clients_whose_replies_are_used_are_trained():
    trained = []

    def train(model, data, optimizer, client):
        trained.append(client)
        return local_steps(1)(model, data, optimizer)

    simulate(
        Point(),
        quadratics(CLIENTS),
        algorithm="fedavg",
        rounds=4,
        cohort=12,
        close_after=4,
        train=train,
        devices=Devices(steps=1),
        quiet=True,
    ).run()
    assert len(trained) == 16


def test_slow_clients_are_heard_less_if_rounds_close_early():
    devices = Devices(speeds=1.5, **PLAIN)
    plan = Plan(cohort=13, close_after=10, rounds=100)
    timetable = Timetable(devices, UNIT)
    early, whole = (time_of(p, timetable, clients=100) for p in (plan, Plan(cohort=10, rounds=100)))
    assert early.slowest < 0.02 < 0.07 < whole.slowest < 0.13
    assert early.seconds < whole.seconds / 4
    assert early.wasted == pytest.approx(3 / 13)


@pytest.mark.filterwarnings("ignore:the guard stepped in")
def test_faults_may_be_of_slow_clients_or_of_those_that_arrived():
    plan = at_random(seed=1, rates={"nan": 0.3, "drop out": 0.2, "twice": 0.3})
    found = []
    for around in (
        lambda engine, *time: Timed(Faulty(engine, plan), *time),
        lambda engine, *time: Faulty(Timed(engine, *time), plan),
    ):
        f = Federation(fedlada.algorithm("fedavg"), Point(), quadratics(9), local_steps(2))
        timetable = Timetable(Devices(steps=2, drop_out=0.1), UNIT)
        f.engine = around(f.engine, timetable, f.state)
        found.append([(r.time, r.accepted, r.failures, r.rejected) for r in f.run(4)])
    assert found[0] == found[1]
    times = [time for time, *_ in found[0]]
    assert times == sorted(times)
    assert times[0] > 0


# What devices are.


def many(devices: Devices, count: int = 4000, **more) -> list:
    return [devices.outcome(c, 0, start=0.0, work=UNIT, **more) for c in range(count)]


@pytest.mark.parametrize("speeds", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("noise", [0.0, 0.25])
def test_seconds_have_the_median_and_the_spread_that_are_given(speeds, noise):
    logs = [math.log(o.time) for o in many(Devices(speeds=speeds, noise=noise, **PLAIN))]
    assert statistics.median(logs) == pytest.approx(0, abs=0.06)
    assert statistics.pstdev(logs) == pytest.approx(math.hypot(speeds, noise), rel=0.05)


def test_seconds_are_latency_and_bytes_and_steps():
    devices = Devices(speeds=0, noise=0, links=0, latency=2.0, step=0.5, down=8.0, up=4.0)
    work = Work(3e6, 1e6, lambda client: 10)
    assert devices.seconds(0, work) == pytest.approx(2.0 + 3.0 + 2.0 + 5.0)


def test_a_task_fails_as_often_as_drop_out_says_and_is_noticed_later():
    outcomes = many(Devices(drop_out=0.2, notice=7.0, speeds=0, noise=0, **PLAIN))
    lost = [o for o in outcomes if o.reason == "dropped out"]
    assert len(lost) / len(outcomes) == pytest.approx(0.2, abs=0.02)
    assert all(7.0 <= o.time <= 8.0 for o in lost)
    assert {o.reason for o in many(Devices(drop_out=0.2), deadline=0.5)} == {"deadline"}


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_clients_are_there_for_their_share_of_a_day_and_more_at_some_hours(share):
    devices = Devices(present=share, day=24.0)
    hours = [sum(devices.present_at(c, 48.0 + h) for c in range(500)) / 500 for h in range(24)]
    assert statistics.mean(hours) == pytest.approx(share, rel=0.1)
    if share == 0.1:
        assert 2 < max(hours) / min(hours) < 8


@settings(deadline=None, max_examples=60)
@given(
    share=st.floats(0.05, 1.0),
    client=st.integers(0, 999),
    start=st.floats(0, 100),
    task=st.floats(0.1, 30),
)
def test_who_goes_away_was_there_and_is_noticed_after_its_time(share, client, start, task):
    devices = Devices(
        present=share, day=24.0, notice=1.0, latency=0.0, speeds=0, noise=0, step=task
    )
    outcome = devices.outcome(client, 3, start=start, work=UNIT)
    assert outcome.time >= start
    if outcome.reason == "not there":
        assert not devices.present_at(client, start)
        assert not outcome.reached
    elif outcome.reason == "went away":
        assert devices.present_at(client, start)
        assert outcome.time - 1.0 < start + task
    else:
        assert outcome.time == pytest.approx(start + task)
        assert devices.present_at(client, start)


def test_a_round_that_nobody_answers_takes_time():
    devices = Devices(table=(Device(0, 1.0, 1.0, 1.0, ((5.0, 6.0),)),), day=10.0, steps=1)
    expected = list(schedule(Plan(cohort=1, rounds=9), Timetable(devices, UNIT), clients=1))
    assert [dict(e.failures) for e in expected[:5]] == [{"not there": 1}] * 5
    assert expected[4].time == 5.0


def test_a_table_says_what_each_client_is(tmp_path):
    path = tmp_path / "devices.csv"
    path.write_text("client,step,down,up,from,until\n0,2,8,8,,\n1,1,8,4,0,10\n1,1,8,4,20,24\n")
    devices = Devices(table=str(path), latency=1.0, noise=0.0, day=24.0)
    work = Work(1e6, 1e6, lambda client: 3)
    assert devices.seconds(0, work) == pytest.approx(1 + 1 + 1 + 6)
    assert devices.seconds(1, work) == pytest.approx(1 + 1 + 2 + 3)
    assert [devices.present_at(1, hour) for hour in (5, 15, 22, 29)] == [True, False, True, True]
    # The window of the evening touches that of the next morning.
    assert devices.outcome(1, 0, start=21.0, work=work).reason == ""
    with pytest.raises(FedladaError, match="no row for client 2"):
        devices.seconds(2, work)
    assert dataclasses.replace(devices) == devices


@pytest.mark.parametrize(
    ("text", "help"),
    [
        ("client,step,down\n0,1,1\n", "has no up; the columns are client, step"),
        ("client,step,down,up\n0,fast,1,1\n", "something else than numbers"),
        ("client,step,down,up\n0,0,1,1\n", "step is seconds"),
        ("client,step,down,up\n0,1,1,1\n0,1,1,1\n", "second row of client 0"),
        ("client,step,down,up,from,until\n0,1,1,1,5,\n", "until after from"),
        ("client,step,down,up\n", "has no rows"),
    ],
)
def test_a_wrong_table_is_explained(tmp_path, text, help):
    path = tmp_path / "devices.csv"
    path.write_text(text)
    with pytest.raises(FedladaError, match=help):
        Devices(table=str(path))


@pytest.mark.parametrize(
    ("given", "help"),
    [
        ({"step": 0}, "step of devices is 0; it must be a positive number"),
        ({"drop_out": 1.0}, "0 or more and below 1"),
        ({"present": 0.0}, "above 0 and at most 1"),
        ({"speeds": "fast"}, "0 or a positive number"),
        ({"sped": 1.0}, "did you mean 'speeds'"),
    ],
)
def test_a_wrong_setting_is_explained(given, help):
    with pytest.raises(FedladaError, match=help):
        Devices.read(given)


def test_what_nothing_can_be_late_for_is_explained():
    data = quadratics(4)
    with pytest.raises(FedladaError, match=r"deadline is 3\.0 and clients have no devices"):
        simulate(Point(), data, deadline=3.0)
    with pytest.raises(FedladaError, match="give devices the number, such as steps=50"):
        simulate(Point(), data, train=local_steps(1), devices={})
    simulate(Point(), data, train=local_steps(1), devices={"steps": 50}, quiet=True)


def test_steps_are_those_of_the_training_loop():
    plan, model = Plan(algorithm="fedavg"), torch.nn.Linear(2, 2)
    data = [(torch.zeros(n, 2), torch.zeros(n)) for n in (5, 12)]
    epochs = work_of(plan, model, Devices(), LocalTraining(epochs=2, batch_size=5), data)
    assert [epochs.steps(c) for c in (0, 1)] == [2, 6]
    steps = work_of(plan, model, Devices(), LocalTraining(steps=7), data)
    assert steps.steps(1) == 7
    assert (steps.down, steps.up) == (24, 24)
