"""A cohort split over several collectors ends in the bits of one collector, in any order."""

import copy
import dataclasses
import itertools
import json
import random

import pytest
import torch

import fedlada
from federations import KINDS, Federation, Point, local_steps, quadratics, same_bits
from fedlada import Plan
from fedlada.engines import Failure
from fedlada.protocol.codecs import PRESETS
from fedlada.protocol.messages import Reply
from fedlada.redteam.faulty import FAULTS
from fedlada.server.aggregate.robust import AGGREGATORS
from fedlada.server.collect.collect import collect, new_tally
from fedlada.server.collect.form import read, written
from fedlada.server.collect.tally import Tally
from fedlada.server.guard.contract import up_like
from fedlada.server.loop import advance, next_task
from fedlada.server.record import Clock

CLIENTS = 12
HOSTILE = {
    1: "delta x 10",
    2: "nan",
    4: "delta x -1000",
    5: "drop out",
    7: "huge v",
    8: "steps x 10",
    10: "stale",
    11: "twice",
}


class Replayed:
    """An engine whose clients send what was kept, in an order of its own."""

    clients, keeps = CLIENTS, True

    def __init__(self, replies: dict[int, list[Reply | Failure]], seed: int = 0) -> None:
        self._replies, self._seed = replies, seed

    def exchange(self, task, cohort):
        shuffled = random.Random(self._seed).sample(cohort, len(cohort))
        return (reply for client in shuffled for reply in self._replies[client])

    def commit(self, task, clients):
        pass


def sent(fed: Federation, plan: Plan):
    """A round's task, and what each client makes of it: some honestly, some not."""
    task, cohort = next_task(plan, fed.state, CLIENTS)
    replies = {}
    for honest in fed.engine.exchange(task, cohort):
        fault = HOSTILE.get(honest.client)
        replies[honest.client] = FAULTS[fault](honest, None) if fault else [honest]
    return task, cohort, replies


def after(plan: Plan, fed: Federation, tally: Tally):
    """The server's state once the tally was applied, and all that is put on record of it."""
    state = copy.deepcopy(fed.state)
    applied, distances = advance(plan, state, tally, Replayed({}))
    assert applied
    counts = (tally.failures, tally.rejected, tally.limited, sorted(tally.accepted))
    return state, (distances, counts, tally.metrics(), tally.bytes_up, tally.unreached)


def split(cohort: list[int], seed: int) -> list[list[int]]:
    """Three shares of unlike size; a share may be empty."""
    drawn = random.Random(seed)
    shares: list[list[int]] = [[], [], []]
    for client in cohort:
        shares[drawn.choice((0, 0, 1, 2))].append(client)
    return shares


def sent_on(tally: Tally, plan: Plan, fed: Federation, task, cohort, share) -> Tally:
    """The tally after it has crossed to another process as JSON and bytes."""
    header, tensors = written(tally)
    crossed = {
        name: [torch.frombuffer(bytearray(t.numpy().tobytes()), dtype=t.dtype).view(t.shape)
               if t.numel() else t for t in ts]
        for name, ts in tensors.items()
    }  # fmt: skip
    return read(
        json.loads(json.dumps(header)),
        crossed,
        new_tally(plan, task, cohort, fed.state),
        like=up_like(plan.algorithm, task),
        share=share,
    )


def assert_split_makes_no_difference(plan: Plan, fed: Federation) -> None:
    """Six splits, each merged in another order; in every second the tallies are sent on first."""
    task, cohort, replies = sent(fed, plan)
    whole = collect(plan, Replayed(replies), task, cohort, fed.state, clock=Clock())
    state, record = after(plan, fed, whole)
    assert state.history
    for seed, order in enumerate(itertools.permutations(range(3)), start=1):
        tallies = [
            collect(plan, Replayed(replies, seed), task, cohort, fed.state, share=share)
            for share in split(cohort, seed)
        ]
        if seed % 2:
            tallies = [
                sent_on(tally, plan, fed, task, cohort, share)
                for tally, share in zip(tallies, split(cohort, seed), strict=True)
            ]
        first, *rest = (tallies[i] for i in order)
        for other in rest:
            first.merge(other)
        merged, merged_record = after(plan, fed, first)
        assert same_bits(merged.vectors, state.vectors)
        assert merged.history == state.history
        assert merged.last_accepted == state.last_accepted
        assert merged.contributed == state.contributed
        assert merged_record == record


def federation(name: str) -> Federation:
    return Federation(
        fedlada.algorithm(name), Point(), quadratics(CLIENTS), local_steps(3, noise=0.5)
    )


@pytest.mark.parametrize("rounds", [0, 2], ids=["first round", "later"])
@pytest.mark.parametrize("name", KINDS)
def test_three_collectors_are_one(name, rounds):
    fed = federation(name)
    fed.run(rounds)
    assert_split_makes_no_difference(fed.plan(rounds=9), fed)


@pytest.mark.parametrize("rounds", [0, 2], ids=["first round", "later"])
@pytest.mark.parametrize("name", sorted(AGGREGATORS))
def test_three_collectors_are_one_under_every_aggregator(name, rounds):
    fed = federation("fedlada")
    fed.run(rounds)
    plan = fed.plan(rounds=9, aggregator=name)
    assert_split_makes_no_difference(plan, fed)


def test_three_collectors_are_one_with_weights():
    fed = federation("fedlada")
    fed.run(2)
    plan = fed.plan(rounds=9, weighting="examples")
    assert_split_makes_no_difference(plan, fed)


@pytest.mark.parametrize("name", ["fedavg", "fednova", "fedlion", "feddyn"])
def test_three_collectors_are_one_where_deltas_are_clipped_around_the_last_mean(name):
    fed = federation(name)
    with pytest.warns(UserWarning, match="limited delta"):
        fed.run(2, guard="strict")
    assert_split_makes_no_difference(fed.plan(rounds=9, guard="strict"), fed)


@pytest.mark.parametrize("preset", PRESETS)
def test_three_collectors_are_one_with_coded_replies(preset):
    fed = federation("fedlada-rows")
    fed.run(2)
    plan = fed.plan(rounds=9, codec=preset)
    assert_split_makes_no_difference(plan, fed)


@pytest.mark.parametrize("name", ["fedlada", "scaffold"])
@pytest.mark.parametrize("seed", range(5))
def test_in_the_first_round_too_the_order_of_arrival_does_not_matter(name, seed):
    fed = federation(name)
    plan = fed.plan(rounds=9)
    task, cohort, replies = sent(fed, plan)
    states = []
    for order in (0, seed + 1):
        tally = collect(plan, Replayed(replies, order), task, cohort, fed.state)
        states.append(after(plan, fed, tally)[0])
    assert same_bits(states[0].vectors, states[1].vectors)


def test_limits_of_the_first_round_follow_the_cohort_and_not_who_comes_first():
    """However early the liars reply, the first of the cohort decide."""
    fed = federation("fedavg")
    plan = fed.plan(rounds=9, guard=fedlada.server.Guard(widest=4.0))
    task, cohort = next_task(plan, fed.state, CLIENTS)
    honest = {reply.client: reply for reply in fed.engine.exchange(task, cohort)}
    liars = cohort[-3:]
    replies = {c: FAULTS["delta x 1000"](honest[c], None) if c in liars else [honest[c]]
               for c in cohort}  # fmt: skip

    class LiarsFirst(Replayed):
        def exchange(self, task, cohort):
            return (r for client in (*liars, *cohort[:-3]) for r in self._replies[client])

    tally = collect(plan, LiarsFirst(replies), task, cohort, fed.state)
    tally.close()
    assert tally.rejected == {"delta beyond its limit": 3}
    assert sorted(tally.accepted) == cohort[:-3]


def test_few_replies_are_held_in_the_first_round_and_none_later():
    """In the cohort's own order, as in process, no more than set the limits."""
    fed = federation("fedlada")
    plan = fed.plan(rounds=9)
    most = []

    class Watched(Tally):
        def add(self, reply):
            super().add(reply)
            most.append(len(self.held))

    for rounds in (0, 1):
        fed.run(rounds)
        task, cohort = next_task(plan, fed.state, CLIENTS)
        made = collect(plan, Replayed({}), task, [], fed.state)
        watched = Watched(made.total, cohort, new_tally(plan, task, cohort, fed.state).admission)
        most.clear()
        for reply in fed.engine.exchange(task, cohort):
            watched.add(reply)
        held = min(plan.guard.calibration, len(cohort)) - 1
        assert max(most) == (held if rounds == 0 else 0)


def test_an_aggregator_that_cannot_merge_is_refused_with_a_sentence():
    class Median:
        is_mean, count = False, 0

        def fold(self, vectors, *, weight=1, scalars=None):
            self.count += 1

    tallies = [Tally(Median(), [0], None) for _ in range(2)]
    with pytest.raises(ValueError, match=r"Median has no merge\(\), so several coll"):
        tallies[0].merge(tallies[1])


def test_a_client_may_be_in_one_share_only():
    fed = federation("fedavg")
    fed.run(1)
    plan = fed.plan(rounds=9)
    task, cohort, replies = sent(fed, plan)
    one, two = (collect(plan, Replayed(replies), task, cohort, fed.state) for _ in "ab")
    with pytest.raises(ValueError, match="is in two shares of one cohort"):
        one.merge(two)


def test_bytes_are_those_of_clients_reached_and_of_all_replies_that_came():
    fed = federation("fedlada")
    inner = fed.engine

    class Lossy:
        clients, keeps, commit = inner.clients, inner.keeps, inner.commit

        def exchange(self, task, cohort):
            for reply in inner.exchange(task, cohort):
                if reply.client == 0:
                    yield Failure(client=0, reason="not connected", reached=False)
                elif reply.client == 1:
                    yield Failure(client=1, reason="deadline")
                elif reply.client == 2:
                    yield dataclasses.replace(reply, nonce="of another task")
                else:
                    yield reply

    fed.engine = Lossy()
    with pytest.warns(UserWarning, match="reply to another task"):
        (record,) = fed.run(1)
    vector = 8 * 6  # six float64 numbers
    assert record.bytes_down == (CLIENTS - 1) * 3 * vector
    assert record.bytes_up == (CLIENTS - 2) * 2 * vector
    assert record.accepted == CLIENTS - 3


def test_drift_and_consistency_are_what_they_say():
    fed = federation("fedavg")
    plan = fed.plan(rounds=1)
    task, cohort = next_task(plan, fed.state, CLIENTS)
    deltas = [
        torch.cat([t.flatten() for t in reply.vectors.delta])
        for reply in fed.engine.exchange(task, cohort)
    ]
    fed = federation("fedavg")
    (record,) = fed.run(1)
    mean = torch.stack(deltas).mean(0)
    drift = sum(float((d - mean).square().sum()) for d in deltas) / len(deltas)
    assert record.drift == pytest.approx(drift)
