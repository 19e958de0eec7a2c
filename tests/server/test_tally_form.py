"""What is read of a tally is what was written, or it is refused; nothing else happens."""

import copy
import json
from collections.abc import Iterator

import pytest
import torch

import fedlada
from federations import Federation, Point, local_steps, quadratics
from fedlada.protocol.codecs import MalformedReply
from fedlada.server.collect.check import check_share
from fedlada.server.collect.collect import collect, new_tally
from fedlada.server.collect.form import read, written
from fedlada.server.collect.tally import NORM
from fedlada.server.guard import Accounts
from fedlada.server.guard.contract import up_like
from fedlada.server.loop import next_task

CLIENTS = 6
SHARE = (1, 3, 5)
WRONG = [None, True, -1, 0.5, "x", "-0", [], [None], {}, {"x": 1}, 2**80, float("nan"), 10**400]


class Sent:
    """The tally of a share as it crosses, and what its reader knows."""

    def __init__(self, name: str, rounds: int, **settings) -> None:
        self.fed = Federation(
            fedlada.algorithm(name), Point(), quadratics(CLIENTS), local_steps(2, noise=0.5)
        )
        self.fed.run(rounds)
        self.plan = self.fed.plan(rounds=9, **settings)
        self.task, self.cohort = next_task(self.plan, self.fed.state, CLIENTS)
        state = self.fed.state
        tally = collect(self.plan, self.fed.engine, self.task, self.cohort, state, share=SHARE)
        header, self.tensors = written(tally)
        self.header = json.loads(json.dumps(header))

    def read(self, header=None, tensors=None):
        """Read what was sent, or this in its place, as a root does."""
        empty = new_tally(self.plan, self.task, self.cohort, self.fed.state)
        calibrated = empty.admission.limits is not None
        tensors = self.tensors if tensors is None else tensors
        tally = read(
            self.header if header is None else header,
            tensors,
            empty,
            like=up_like(self.plan.algorithm, self.task),
            share=SHARE,
        )
        state = self.fed.state
        return check_share(
            tally,
            self.plan,
            SHARE,
            tensors,
            calibrated=calibrated,
            accounts=Accounts(self.plan.algorithm, state.vectors, state.contributed),
            nbytes=self.task.vectors.x.nbytes(),
        )


CASES = {
    "first round": ("scaffold", 0, {}),
    "later": ("scaffold", 2, {}),
    "second moments": ("fedlada", 0, {}),
    "robust": ("fedlada", 1, {"aggregator": "coordinate-median"}),
}


@pytest.fixture(params=CASES, scope="module")
def sent(request) -> Sent:
    name, rounds, settings = CASES[request.param]
    return Sent(name, rounds, **settings)


def places(value, path=()) -> Iterator[tuple]:
    """Every place in a JSON value."""
    yield path
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(each, (*path, key))


def put(value, path: tuple, new):
    """The value with something else in one place."""
    if not path:
        return new
    value = copy.deepcopy(value)
    target = value
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = new
    return value


def test_what_was_written_is_read(sent):
    header, tensors = written(sent.read())
    assert header == sent.header
    assert tensors.keys() == sent.tensors.keys()
    for name, ts in tensors.items():
        assert all(
            t.data_ptr() == u.data_ptr() for t, u in zip(ts, sent.tensors[name], strict=True)
        )


@pytest.mark.parametrize("name", ["fedexp", "fedcm", "fednova"])
def test_a_mean_square_that_no_limited_deltas_have_is_refused(name):
    """A server rule may step by it, so who collects a share cannot choose it."""
    sent = Sent(name, 2)
    path = ("total", "scalars", "sums", NORM, 0)
    total, _ = sent.header["total"]["scalars"]["sums"][NORM]
    larger = [f"{int(total[0], 16) * 10**9 | 1:x}", total[1]]
    with pytest.raises(MalformedReply, match="delta beyond its limit"):
        sent.read(put(sent.header, path, larger))
    assert sent.read().total.scalars()[NORM] > 0


def test_a_wrong_value_anywhere_is_refused_or_of_no_consequence_for_others(sent):
    """No other error, and never a client that is not of the share."""
    refused = 0
    for path in places(sent.header):
        for wrong in WRONG:
            try:
                tally = sent.read(put(sent.header, path, wrong))
            except MalformedReply:
                refused += 1
                continue
            assert set(tally.accepted) | set(tally.usable) | set(tally.contributed) <= set(SHARE)
            assert len(tally.accepted) + len(tally.held) <= len(SHARE)
    assert refused > 100


@pytest.mark.parametrize("what", ["missing", "another", "longer", "type", "more", "nan"])
def test_tensors_that_are_not_as_agreed_are_refused(sent, what):
    name, (first, *rest) = next(iter(sent.tensors.items()))
    others = {
        "missing": {n: ts for n, ts in sent.tensors.items() if n != name},
        "another": sent.tensors | {"total/x": [first]},
        "longer": sent.tensors | {name: [torch.zeros(first.numel() + 1, dtype=first.dtype), *rest]},
        "type": sent.tensors | {name: [first.half(), *rest]},
        "more": sent.tensors | {name: [first, first, *rest]},
        "nan": sent.tensors | {name: [torch.full_like(first, torch.nan), *rest]},
    }
    with pytest.raises(MalformedReply):
        sent.read(tensors=others[what])


def test_a_share_sets_no_limits_for_others():
    sent = Sent("fedavg", 0)
    alone = collect(sent.plan, sent.fed.engine, sent.task, SHARE, sent.fed.state)
    alone.close()
    header, tensors = written(alone)
    with pytest.raises(MalformedReply, match="limits that others must set"):
        sent.read(json.loads(json.dumps(header)), tensors)
