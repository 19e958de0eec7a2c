"""Clients that are trained at once end where they would end if trained one after the other."""

import dataclasses
import os

import pytest
import torch
from torch import nn

import fedlada
from digits import digits, perceptron, unequal
from federations import KINDS
from fedlada import FedladaError, LocalTraining, TrainingError, simulate
from fedlada.algorithms import ALGORITHMS, Algorithm, Vector, Vectors
from fedlada.algorithms.local import SGD
from fedlada.algorithms.stack import Member, Stack
from fedlada.engines.devices import Devices
from fedlada.engines.stacked import Choice, Stacked, unstackable
from fedlada.server.aggregate.mean import Mean
from fedlada.server.guard.moments import SecondMoment
from fedlada.training import BINARY, TEXT

EQUAL, UNEQUAL = digits("train", clients=8), unequal(8)
"""Clients of 180 examples each, and of 2 to 350."""

EVERY = bool(os.environ.get("FEDLADA_EVERY_ALGORITHM"))
"""Whether all algorithms are tried where some stand for their kinds."""


def some(*names):
    """These algorithms, or all."""
    return list(ALGORITHMS) if EVERY else names


def wide(clients):
    return [(client.inputs.double(), client.labels) for client in clients]


def ended(at_once, *, model=None, clients=EQUAL, train=None, rounds=3, **settings):
    """A run that is done, of four of eight clients in a round."""
    usual = {"algorithm": "fedavg", "cohort": 4, "quiet": True}
    run = simulate(
        perceptron() if model is None else model,
        clients,
        train=train or LocalTraining(steps=2, batch_size=10),
        rounds=rounds,
        at_once=at_once,
        **usual | settings,
    )
    run.run()
    return run


def gap(one, other, *names) -> float:
    """The largest difference between the server's vectors after two runs."""
    pairs = [
        (a, b)
        for name in names or one.state.vectors
        for a, b in zip(one.state.vectors[name], other.state.vectors[name], strict=True)
    ]
    return max(float((a - b).abs().max() / (1 + a.abs().max())) for a, b in pairs)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_at_once_is_one_by_one(name):
    double = {"model": perceptron().double(), "clients": wide(UNEQUAL), "algorithm": name}
    assert gap(ended(1, **double), ended(3, **double)) < 1e-12
    if name in KINDS:
        single = {"clients": UNEQUAL, "algorithm": name}
        assert gap(ended(1, **single), ended(4, **single), "x") < 1e-6


@pytest.mark.parametrize("name", ["fedavg", "fedcm", "scaffold", "fedprox", "fednova", "fedlion"])
def test_perceptrons_of_clients_of_one_size_end_in_the_same_bits(name):
    one, other = ended(1, algorithm=name), ended(4, algorithm=name)
    assert gap(one, other) == 0
    for a, b in zip(one.records, other.records, strict=True):
        assert a.client_metrics == pytest.approx(b.client_metrics, rel=1e-6)


@pytest.mark.filterwarnings("ignore:the guard stepped in")
@pytest.mark.parametrize(
    "name", some("fedavg", "fedlada", "localadam", "scaffold", "diloco", "sharedmuon", "fedlesam")
)
@pytest.mark.parametrize(
    "settings",
    [
        {"train": LocalTraining(epochs=1, batch_size=32)},
        {"train": LocalTraining(steps=3, batch_size=20, clip_norm=0.3), "guard": "strict"},
        {"weighting": "examples", "guard": "calibration = 2", "close_after": 3},
        {"codec": "small"},
    ],
    ids=["epochs", "clipped", "closed early", "coded"],
)
def test_unequal_clients_end_where_they_would_alone(name, settings):
    if "weighting" in settings and fedlada.algorithm(name).sums:
        settings = {n: value for n, value in settings.items() if n != "weighting"}
    double = {"model": perceptron().double(), "clients": wide(UNEQUAL), "algorithm": name}
    one, other = (ended(n, rounds=2, **double, **settings) for n in (1, 3))
    assert gap(one, other) < 1e-11
    for a, b in zip(one.records, other.records, strict=True):
        assert (a.cohort, a.accepted, a.steps) == (b.cohort, b.accepted, b.steps)
        assert (a.bytes_up, a.limited, a.rejected) == (b.bytes_up, b.limited, b.rejected)
        assert a.client_metrics == pytest.approx(b.client_metrics, rel=1e-9)


@pytest.mark.filterwarnings("ignore:the guard stepped in", "ignore:.* with staleness")
@pytest.mark.parametrize("name", some("fedlada", "scaffold", "diloco"))
@pytest.mark.parametrize(
    "settings",
    [{}, {"close_after": 3}, {"deadline": 5.0}, {"close_after": 2, "staleness": 2}],
    ids=["absent", "closed early", "too late", "late"],
)
def test_failures_and_late_replies_are_those_of_clients_alone(name, settings):
    settings = settings | {"devices": Devices(speeds=2.0, drop_out=0.3)}
    double = {"model": perceptron().double(), "clients": wide(UNEQUAL), "algorithm": name}
    one, other = (ended(n, rounds=6, **double, **settings) for n in (1, 3))
    assert gap(one, other) < 1e-11
    for a, b in zip(one.records, other.records, strict=True):
        assert (a.accepted, a.failures, a.time, a.members) == (
            *(b.accepted, b.failures, b.time, b.members),
        )
    assert any(record.failures for record in one.records)


def test_what_clients_keep_is_theirs_with_any_grouping(tmp_path):
    settings = {"algorithm": "diloco", "model": perceptron().double(), "clients": wide(UNEQUAL)}
    whole = ended(1, rounds=6, **settings)
    for rounds, at_once in ((2, 4), (4, 6), (6, 6)):
        if at_once == 6 and rounds == 4:
            with pytest.warns(UserWarning, match=r"at_once 4 then, 6 now.*differ in some bits"):
                part = ended(at_once, rounds=rounds, checkpoints=tmp_path, **settings)
        else:
            part = ended(at_once, rounds=rounds, checkpoints=tmp_path, **settings)
    assert gap(whole, part) < 1e-12


def test_two_workers_share_the_clients_of_a_stack():
    settings = {"algorithm": "scaffold", "model": perceptron().double(), "clients": wide(UNEQUAL)}
    assert gap(ended(1, **settings), ended(6, workers=2, **settings)) < 1e-12


class Shifted:
    """Adds noise to a batch, from torch's generator."""

    def __call__(self, inputs):
        return inputs + 0.1 * torch.randn_like(inputs)


def test_prepared_batches_have_the_numbers_of_each_client():
    train = LocalTraining(epochs=2, batch_size=16, prepare=Shifted())
    assert gap(*(ended(n, clients=UNEQUAL, train=train, rounds=2) for n in (1, 6))) < 1e-6


@pytest.mark.parametrize("loss", [nn.functional.mse_loss, nn.functional.cross_entropy, BINARY])
def test_other_objectives_are_computed_at_once(loss):
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(n, 5, generator=generator) for n in (20, 13, 9, 20)]
    clients = [(x, (x[:, 0] > 0).float() + (loss is not BINARY) * x[:, 1]) for x in rows]
    train = LocalTraining(steps=5, batch_size=6, loss=loss)
    torch.manual_seed(0)
    settings = {"clients": clients, "train": train, "model": nn.Linear(5, 1), "cohort": 4}
    assert gap(ended(1, **settings), ended(4, **settings)) < 1e-6


def test_a_text_decoder_is_trained_at_once():
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(20, (n, 9), generator=generator) for n in (6, 6, 4)]
    torch.manual_seed(0)
    settings = {
        "clients": [(text[:, :-1], text[:, 1:]) for text in texts],
        "model": fedlada.models.Decoder(20, context=8, width=12, layers=1, heads=2),
        "train": LocalTraining(steps=3, batch_size=3, loss=TEXT),
        "cohort": 3,
        "rounds": 2,
    }
    assert gap(ended(1, **settings), ended(3, **settings)) < 1e-6


@pytest.mark.parametrize("at_once", [1, 8])
def test_an_error_names_the_client(at_once):
    clients = list(EQUAL)
    clients[3] = (clients[3].inputs[:, :, :5], clients[3].labels)
    with pytest.raises(TrainingError, match=r"^client 3, round 1: inputs are .* of shape"):
        ended(at_once, clients=clients, cohort="all")
    clients[3] = (EQUAL[3].inputs * float("nan"), EQUAL[3].labels)
    with pytest.raises(TrainingError, match=r"^client 3, round 1: inputs have nan in row 0"):
        ended(at_once, clients=clients, cohort="all")


class Halved(SGD):
    """A rule of a user, which may look at whole tensors."""

    name = "halved"

    def move(self, client, g, lr):
        super().move(client, g * (1 / (1 + g.norm())), lr)


class Dropping(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Dropout(0.1), nn.Linear(64, 10))


def own_loop(model, data, optimizer):
    return LocalTraining(steps=1)(model, data, optimizer)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"train": own_loop}, "only LocalTraining trains many at once"),
        ({"algorithm": Algorithm(Halved())}, "Halved does not say that it serves many clients"),
        ({"personal": ("3.*",)}, "personal parts"),
        ({"model": Dropping()}, "torch.func.vmap does not compute their model.*random"),
        (
            {"model": nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))}
            | {"buffers": "average"},
            "buffers='average'",
        ),
    ],
)
def test_what_cannot_be_stacked_says_so_and_auto_does_without(settings, why):
    with pytest.raises(FedladaError, match=why):
        ended(4, **settings)
    assert gap(ended(1, **settings), ended("auto", **settings)) == 0


def test_auto_takes_the_faster_way_after_two_tries_of_each():
    for alone, many, best in ((3.0, 2.0, 1000), (2.0, 3.0, 1)):
        choice = Choice(nn.Linear(3, 2))
        for _ in range(4):
            assert choice.made is None
            size = choice.size
            choice.learn(size, 10, 10 * (alone if size == 1 else many))
        assert choice.made == choice.size == best
    assert Choice(nn.Linear(1000, 4000))._most == 4


def test_a_resumed_run_keeps_what_auto_has_chosen(tmp_path):
    first = ended("auto", rounds=5, checkpoints=tmp_path)
    assert first.at_once in (1, 1000)
    again = ended("auto", rounds=7, checkpoints=tmp_path)
    assert again.at_once == first.at_once
    assert not any(again._engine.choice._seconds.values())  # nothing was tried again
    whole = ended(first.at_once, rounds=7)
    if first.at_once == 1000:  # the first rounds tried both ways, which perceptrons cannot tell
        assert gap(whole, again) == 0


def test_auto_says_what_it_has_chosen(capsys):
    run = ended("auto", rounds=5, quiet=False)
    said = capsys.readouterr().err
    assert said.count("at_once='auto' trains") == 1
    assert run.records[-1].applied


def rows(count=4):
    """Small vectors with ordinary, huge and infinite numbers and with NaN; and one to compare."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(7, 9), (7,), (1,)]
    tensors = [torch.randn(count, *shape, generator=generator) for shape in shapes]
    return tensors, Vector(torch.randn(shape, generator=generator) for shape in shapes)


@pytest.mark.parametrize("spoiled", [None, 1e30, float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("rising", [True, False])
def test_members_of_a_stack_are_measured_with_the_bits_of_single_vectors(spoiled, rising):
    tensors, other = rows()
    if spoiled is not None:
        tensors[0][2, 3, 4] = spoiled
    moment = SecondMoment(other * other, rising=rising)
    members = Stack(tensors).split()
    assert all(isinstance(member, Member) for member in members)
    for member in members:
        alone = Vector(t.clone() for t in member)
        for measure in (
            lambda v: v.norm(),
            lambda v: v.distances(other, alpha=0.3),
            lambda v: v.distances(other, alpha=0.7),
            lambda v: moment.rise(v),
            lambda v: moment.rise(v * v),
        ):
            assert str(measure(member)) == str(measure(alone))


def test_members_of_a_stack_are_measured_again_after_a_change():
    members = Stack(rows()[0]).split()
    before = [member.norm() for member in members]
    members[1].tensors[0].zero_()
    assert members[1].norm() < before[1]
    assert [members[i].norm() for i in (0, 2, 3)] == [before[i] for i in (0, 2, 3)]


def test_members_of_a_stack_are_summed_with_the_bits_of_single_vectors():
    members = Stack(rows(9)[0]).split()
    mixed, alone = Mean(), Mean()
    for i, member in enumerate(members):
        single = Vector(t.clone() for t in member)
        mixed.fold(Vectors(delta=member if i % 3 else single), weight=i + 1)
        alone.fold(Vectors(delta=single), weight=i + 1)
    assert mixed.vectors().delta.equal(alone.vectors().delta)


@pytest.mark.parametrize(
    "tensors",
    [
        [torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.float64)],
        [torch.zeros(2, 4, 3, 5, 5).permute(0, 1, 3, 4, 2)],
        [torch.zeros(2, 200_000)],
    ],
    ids=["two types", "another order", "large"],
)
def test_other_vectors_of_a_stack_are_single_ones(tensors):
    assert {type(vector) for vector in Stack(tensors).split()} == {Vector}


def test_every_part_of_this_package_serves_many_clients():
    for algorithm in ALGORITHMS.values():
        assert unstackable(algorithm, perceptron(), LocalTraining(), "refuse", ()) is None
    assert Halved.stacks is False
    assert dataclasses.replace(SGD(), lr=1.0).stacks
    assert Stacked.__doc__


def test_a_wrong_number_is_explained():
    for wrong in (0, 2.5, "all", True):
        with pytest.raises(FedladaError, match="it must be a number of clients"):
            ended(wrong)
