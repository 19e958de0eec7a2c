"""Late replies: a round closes with the first replies, and the others count in later rounds."""

import dataclasses
import itertools
import os
from collections import Counter
from pathlib import Path

import pytest
import torch

import fedlada
from federations import Federation, Point, kept, local_steps, optimum, quadratics, same_bits
from fedlada import ALGORITHMS, LocalTraining, Plan, simulate
from fedlada.data import STATISTICS, Augment, Clients, load, partition
from fedlada.engines import DiskStore, MemoryStore, ServerState
from fedlada.engines.devices import Device, Devices, Work
from fedlada.engines.replay import replay
from fedlada.engines.schedule import schedule
from fedlada.engines.timed import Timed, Timetable
from fedlada.errors import FedladaError
from fedlada.redteam.faulty import BEYOND, EXAGGERATED, FAULTS, REJECTED, REPEATED, Faulty

CLIENTS, ROUNDS = 24, 12
PLAN = {"cohort": 9, "close_after": 3, "staleness": 6, "rounds": ROUNDS}
DEVICES = Devices(steps=2, step=1.0, latency=0.0)
HARD = Devices(steps=2, step=0.5, drop_out=0.2, present=0.7, notice=3.0, day=20.0)
UNIT = Work(0, 0, lambda client: 1)
BAD = (2, 5)

pytestmark = [
    pytest.mark.programs(seconds=90),
    pytest.mark.filterwarnings("ignore:.* with staleness", "ignore:the guard stepped in"),
]


def late(algorithm="scaffold", devices=DEVICES, **settings):
    """A simulation of quadratics in which most replies are late, run to its end."""
    run = simulate(
        Point(),
        quadratics(CLIENTS),
        algorithm=fedlada.algorithm(algorithm),
        train=local_steps(2, noise=0.1),
        devices=devices,
        quiet=True,
        **{**PLAN, **settings},
    )
    run.run()
    return run


def seen(run) -> list:
    """What records say about time and replies."""
    records = [dataclasses.replace(r, seconds=0, local_seconds=0, server_seconds=0) for r in run]
    return [dataclasses.replace(record, incidents={}) for record in records]


def again(run, records=None, *, algorithm="scaffold", **settings) -> ServerState:
    """Replay a run from its records in another process's place: other stores, no devices."""
    chosen = fedlada.algorithm(algorithm)
    fed = Federation(chosen, Point(), quadratics(CLIENTS), local_steps(2, noise=0.1))
    fed.state.run = run.state.run
    plan = Plan(algorithm=chosen, **{**PLAN, **settings})
    list(replay(plan, fed.engine, fed.state, run.records if records is None else records))
    return fed.state


# A run is its journal.


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_records_of_a_run_decide_all_of_its_bits(name):
    """Whatever the order of arrival inside a round was, and with the guard on."""
    run = late(name, lr=None, rounds=8)
    backwards = [dataclasses.replace(r, members=r.members[::-1]) for r in run.records]
    for records in (run.records, backwards):
        assert same_bits(again(run, records, algorithm=name, rounds=8).vectors, run.state.vectors)
    ages = [record.round - 1 - version for record in run.records for _, version in record.members]
    assert max(ages) > 2  # or nothing was late


@pytest.mark.parametrize(
    "settings",
    [
        {"guard": "off"},
        {"guard": "strict"},
        {"guard": "calibration = 2"},
        {"aging": "none"},
        {"codec": "small"},
        {"codec": "safe"},
        {"weighting": "examples"},
        {"aggregator": "coordinate-median", "aging": "none"},
    ],
    ids=str,
)
def test_so_they_do_with_every_kind_of_plan(settings):
    run = late("fedlada", **settings)
    assert same_bits(again(run, algorithm="fedlada", **settings).vectors, run.state.vectors)


def test_a_replay_needs_all_records():
    run = late()
    with pytest.raises(FedladaError, match="the records lack round 1; give all of them"):
        again(run, run.records[4:])
    # Those of the first rounds are there, and one of them is of another run.
    other = [run.records[0], late("fedavg", seed=1).records[1], *run.records[2:]]
    with pytest.raises(FedladaError, match="of the run, from the first on, as they were written"):
        again(run, other)
    with pytest.raises(FedladaError, match="staleness is 0"):
        again(run, staleness=0)


# What a round with late replies is.


@pytest.mark.parametrize("devices", [DEVICES, HARD], ids=["plain", "hard"])
@pytest.mark.parametrize("staleness", [1, 4, 30])
def test_a_client_has_one_task_at_a_time_and_each_task_counts_once_at_most(devices, staleness):
    run = late(devices=devices, staleness=staleness, rounds=40)
    asked, counted = Counter(), Counter()
    for record in run.records:
        asked.update((client, record.round - 1) for client in record.cohort)
        counted.update(record.members)
        ages = [record.round - 1 - version for _, version in record.members]
        assert all(0 <= age <= staleness for age in ages)
        assert record.oldest == max(ages, default=None)
        assert record.accepted == 3 or (devices == HARD and record.accepted < 3)
    assert max(asked.values()) == max(counted.values()) == 1
    assert counted.keys() <= asked.keys()
    # Whoever is asked again has answered, has failed or was forgotten before.
    by_client = {c: sorted(v for client, v in asked if client == c) for c in range(CLIENTS)}
    done = {c: sorted(v for client, v in counted if client == c) for c in range(CLIENTS)}
    ended = {(c, v): r.round - 1 for r in run.records for c, v in r.members}
    for client, versions in by_client.items():
        for first, second in itertools.pairwise(versions):
            assert first not in done[client] or ended[client, first] < second


def test_as_many_train_at_any_time_as_the_cohort_says():
    run = late(devices=DEVICES, staleness=1000)
    assert [len(record.cohort) for record in run.records] == [9] + [3] * (ROUNDS - 1)


def test_what_is_forgotten_is_counted_as_too_late():
    run = late(devices=Devices(steps=2, speeds=2.0, latency=0.0), staleness=1, rounds=40)
    late_ones = sum(record.failures.get("too late", 0) for record in run.records)
    asked = sum(len(record.cohort) for record in run.records)
    judged = sum(len(record.members) for record in run.records)
    assert late_ones
    assert asked - judged - late_ones == len(run.state.flights)


@pytest.mark.parametrize("sigma", [0.5, 1.0])
def test_the_mean_age_follows_from_the_number_under_way(sigma):
    """Each reply sees as many updates as there are rounds between its task and its use."""
    plan = Plan(cohort=40, close_after=10, staleness=10**6, rounds=900)
    devices = Devices(speeds=sigma, latency=0.0, links=0.0, step=1.0)
    rounds = list(schedule(plan, Timetable(devices, UNIT), clients=1000))[200:]
    ages = [age for expected in rounds for age in expected.ages]
    assert sum(ages) / len(ages) == pytest.approx(40 / 10 - 1, rel=0.05)


@pytest.mark.parametrize("devices", [DEVICES, HARD], ids=["plain", "hard"])
def test_a_schedule_is_the_run_without_its_training(devices):
    run = late(devices=devices, guard="off")
    timetable = Timetable(devices, Work(0, 0, lambda client: 2))
    bare = late(devices=dataclasses.replace(devices, down=1e12, up=1e12, links=0.0), guard="off")
    expected = list(schedule(run.plan, timetable, clients=CLIENTS))
    assert [e.time for e in expected] == pytest.approx([r.time for r in bare.records])
    assert [sorted(e.cohort) for e in expected] == [sorted(r.cohort) for r in bare.records]


# Weights.


def test_a_late_reply_weighs_less_and_the_step_is_damped():
    """Two clients with constant deltas: the mean is weighted, and then multiplied by the mean
    weight, so that a round moves x by the sum of weight times delta over the number of replies."""

    def train(model, data, optimizer):
        optimizer.zero_grad()
        (model.flat() * data.b).sum().backward()
        optimizer.step()

    data = quadratics(4)
    devices = Devices(table=tuple(Device(c, 1.0 + c, 1e9, 1e9) for c in range(4)), noise=0.0)
    moved = {}
    for aging in ("root", "none"):
        run = simulate(
            *(Point(), data),
            algorithm=fedlada.algorithm("fedavg", lr=1.0, weight_decay=0.0),
            lr_decay=1.0,
            train=train,
            devices=dataclasses.replace(devices, steps=1, latency=0.0),
            cohort=4,
            close_after=2,
            staleness=9,
            aging=aging,
            rounds=6,
            guard="off",
            quiet=True,
        )
        before = Point().flat().detach()
        for record in run:
            now = run.model.flat().detach()
            weights = {
                c: 1.0 if aging == "none" else (record.round - v) ** -0.5 for c, v in record.members
            }
            expected = sum(weights[c] * data[c].b for c in weights) / len(weights)
            assert torch.allclose(before - now, expected)
            before = now
        moved[aging] = before
        assert max(record.oldest for record in run.records) > 0
    assert not torch.allclose(*moved.values())


def test_what_a_server_sums_up_stays_the_sum_over_its_clients():
    """SCAFFOLD's c is the mean of all c_i, however late the replies were."""
    store = MemoryStore()
    run = late("scaffold", store=store, guard="off", rounds=30)
    total = sum(
        torch.cat([t.flatten() for t in kept(store, run.state, c)["c_i"]])
        for c in run.state.last_accepted
    )
    c = torch.cat([t.flatten() for t in run.state.vectors.c])
    assert torch.allclose(c, total / CLIENTS, atol=1e-12)


# The same run after a kill.


class Killed(BaseException):
    """Ends a run at any point, as a kill would."""


@pytest.mark.parametrize(("name", "devices"), [("fedlada", DEVICES), ("scaffold", HARD)])
def test_a_run_that_is_killed_between_two_events_ends_as_the_whole_one(
    tmp_path, monkeypatch, name, devices
):
    """An event is a client's training, or a file that is written, renamed or deleted."""
    left = [10**9]

    def event() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed

    def watched(function):
        def call(*arguments, **more):
            event()
            return function(*arguments, **more)

        return call

    for function in ("replace", "unlink", "fsync"):
        monkeypatch.setattr(os, function, watched(getattr(os, function)))

    def train(model, data, optimizer):
        event()
        return local_steps(2, noise=0.1)(model, data, optimizer)

    def go(directory):
        run = simulate(
            *(Point(), quadratics(CLIENTS)),
            algorithm=fedlada.algorithm(name),
            train=train,
            devices=devices,
            checkpoints=directory,
            quiet=True,
            **PLAN | {"rounds": 6},
        )
        with run:
            run.run()
        return run

    whole = go(tmp_path / "whole")
    events = 10**9 - left[0]
    for at in range(0, events, max(1, events // 12)):
        left[0] = at
        directory = tmp_path / str(at)
        with pytest.raises(Killed):
            go(directory)
        left[0] = 10**9
        rest = go(directory)
        assert same_bits(rest.state.vectors, whole.state.vectors), at
        assert seen(rest.records) == seen(whole.records), at
        stores = [DiskStore(d / "clients") for d in (directory, tmp_path / "whole")]
        for client in whole.state.last_accepted if name == "scaffold" else ():
            pair = zip(stores, (rest, whole), strict=True)
            assert same_bits(*(kept(store, run.state, client) for store, run in pair))


def test_what_earlier_rounds_sent_stays_in_the_files_of_checkpoints(tmp_path):
    saved = late(checkpoints=tmp_path)
    saved.close()
    mapped = Path("/proc/self/maps").read_text()
    assert saved.state.versions
    assert all(f"version-{number:08}" in mapped for number in saved.state.versions)
    assert same_bits(saved.state.vectors, late().state.vectors)


# Clients that fail or lie.


def ages_of(records, client) -> list[int]:
    return [r.round - 1 - v for r in records for c, v in r.members if c == client]


def faulty(fault, *, outside: bool, name="fedlada", rounds=24, slow=5.0, **settings):
    """A federation with late replies in which two clients of one speed always have one fault."""
    fed = Federation(ALGORITHMS[name], Point(), quadratics(CLIENTS), local_steps(2, noise=0.1))
    table = [Device(c, slow if c in BAD else 1.0 + c / CLIENTS, 1e9, 1e9) for c in range(CLIENTS)]
    devices = Devices(table=tuple(table), latency=0.0)
    timetable = Timetable(devices, Work(1, 1, lambda client: 1))
    plan = lambda round, client: fault if client in BAD else None  # noqa: E731
    if outside:
        engine = Faulty(Timed(fed.engine, timetable, fed.state), plan)
    else:
        engine = Timed(Faulty(fed.engine, plan), timetable, fed.state)
    fed.engine = engine
    records = fed.run(rounds, cohort=9, close_after=3, staleness=20, **settings)
    return fed, records


@pytest.mark.parametrize(
    ("fault", "outside"), [*((f, False) for f in FAULTS), ("nan", True), ("twice", True)]
)
def test_a_fault_of_any_kind_and_age_is_rejected_or_limited(fault, outside):
    fed, records = faulty(fault, outside=outside, weighting="examples")
    trouble = [r.incidents.get(str(c), "") for r in records for c in BAD]
    answers = [(r, v) for r in records for c, v in r.members if c in BAD]
    refused = sum((Counter(r.rejected) for r in records), Counter())
    limited = sum((Counter(r.limited) for r in records), Counter())
    assert same_sign(fed.state)
    if fault in REJECTED:
        assert refused.total() >= 2
        assert not any(fed.state.last_accepted.get(c) for c in BAD)
    elif fault in BEYOND:
        assert refused.total() + limited.total() >= len(answers) / 2
    elif fault in EXAGGERATED and fault not in ("steps x 10", "lr_sum / 10"):
        assert limited.total() + refused.total()
    elif fault in REPEATED:
        assert 1 <= refused["second reply"] <= len(answers)
        assert max(Counter(m for r in records for m in r.members).values()) == 1
    else:
        assert sum((Counter(r.failures) for r in records), Counter())["dropped out"] or trouble
    never = (*REJECTED, "drop out", "extreme numbers")  # in float64 their norm is not finite
    assert any(r.round - 1 > v for r, v in answers) or fault in never


def same_sign(state: ServerState) -> bool:
    return all(bool(torch.isfinite(t).all()) for v in state.vectors.values() for t in v)


@pytest.mark.parametrize("name", [n for n, a in ALGORITHMS.items() if a.moments])
def test_an_honest_reply_is_not_rejected_for_being_late(name):
    """Not even one to the first task, which begins with second moments of almost 0."""
    data = load("digits", split="train")
    parts = partition(data.labels, "client-prior", clients=50, concentration=0.1)
    prepare = Augment(*STATISTICS["digits"], crop=0)
    run = simulate(
        lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)),
        Clients(data, parts),
        algorithm=fedlada.algorithm(name, lr=0.02),
        train=LocalTraining(steps=10, batch_size=20, prepare=prepare),
        devices={},
        quiet=True,
        **{**PLAN, "cohort": 20, "close_after": 5, "staleness": 20},
    )
    run.run()
    assert sum(r.round - 1 - v >= 2 for r in run.records for _, v in r.members) > 10
    assert not any(r.rejected for r in run.records)


@pytest.mark.parametrize("lie", ["delta x 10", "delta x -10"])
def test_a_liar_gains_nothing_by_being_late(lie):
    """Its reply weighs less, and it takes part less often; an honest run ends within 0.3."""
    honest = [i for i in range(CLIENTS) if i not in BAD]
    best = optimum([quadratics(CLIENTS)[i] for i in honest])

    def damage(seconds: float) -> float:
        fed, _ = faulty(lie, outside=False, name="fedavg", rounds=40, slow=seconds)
        return float((fed.x - best).norm())

    fresh = damage(0.1)
    assert all(damage(seconds) <= 1.2 * fresh for seconds in (1.5, 4.0, 10.0))


# Several processes.


@pytest.mark.parametrize(
    ("name", "devices", "settings"),
    [
        ("fedlada", HARD, {"codec": "small"}),
        ("scaffold", DEVICES, {"guard": "calibration = 2"}),
        ("feddyn", HARD, {"guard": "off"}),
    ],
    ids=str,
)
def test_workers_train_late_clients_with_the_bits_and_seconds_of_one_process(
    tmp_path, name, devices, settings
):
    one = late(name, devices, **settings)
    many = late(name, devices, workers=3, **settings)
    assert seen(one.records) == seen(many.records)
    assert same_bits(one.state.vectors, many.state.vectors)
    # A run may go on with another number of workers.
    late(name, devices, workers=2, rounds=5, checkpoints=tmp_path, **settings)
    rest = late(name, devices, checkpoints=tmp_path, **settings)
    assert seen(rest.records) == seen(one.records)
    assert same_bits(one.state.vectors, rest.state.vectors)
