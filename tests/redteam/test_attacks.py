"""Attacks: each does what its line says, and colluders lie in place of their honest replies."""

import dataclasses
import math
import statistics

import pytest
import torch

from fedlada import ALGORITHMS, algorithm
from fedlada.algorithms import Round, Vector, Vectors
from fedlada.engines import Failure, Reply, Task
from fedlada.errors import FedladaError
from fedlada.privacy.news import plain_reply, private_reply
from fedlada.protocol.codecs import Codecs
from fedlada.protocol.messages import Clips
from fedlada.redteam.attacks import ATTACKS, Target
from fedlada.redteam.hostile import Hostile, colluders_of
from fedlada.redteam.poison import TARGET, Stamp, backdoored, flipped
from fedlada.redteam.sight import Sight, mean_of
from fedlada.server.guard import Admission, Admitted, Guard
from fedlada.server.guard.contract import Contract
from fedlada.server.private.admission import Private

NAMES = {"parameters": ["0.weight", "0.bias", "2.weight", "2.bias"], "buffers": []}
SHAPES = ((4, 3), (4,), (3, 4), (3,))
AT_THE_LIMIT = ("sign-flip", "fixed-direction", "dead-units", "class-bias", "backdoor")


def drawn(generator):
    return Vector(torch.randn(s, generator=generator, dtype=torch.float64) for s in SHAPES)


def scene(name="fedlada", *, round=3, honest=5):
    """A round of an algorithm with random vectors: what colluders see, and one of their replies."""
    generator, chosen = torch.Generator().manual_seed(round), algorithm(name)
    down = chosen.start(drawn(generator))
    moments = {moment.of for moment in chosen.moments}
    for vector in chosen.down[1:]:
        own = drawn(generator)
        down[vector] = own * own if vector in moments else own
    task = Task(round=round, seed=0, lr=0.1, vectors=down.only(chosen.down), nonce="n")
    rises = {moment.up: moment.of for moment in chosen.moments}
    replies = []
    for client in range(honest + 1):
        vectors = Vectors((vector, drawn(generator)) for vector in chosen.up)
        for up, of in rises.items():
            vectors[up] = down[of] + vectors[up] * vectors[up]
        replies.append(
            Reply(
                client=client,
                round=round,
                vectors=vectors,
                examples=10,
                steps=5,
                lr_sum=0.5,
                nonce="n",
            )
        )
    own, *others = replies
    return Sight(task, chosen, others, names=NAMES), own


def target(name, *, classes=3, weighted=True):
    return Target(algorithm=algorithm(name), names=NAMES, classes=classes, weighted=weighted)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_false_reply_meets_the_contract(name):
    sight, own = scene(name)
    for attack in ATTACKS.values():
        if attack.unfit(target(name)) is None:
            false = attack.lie(sight, own, attack.strength or 1.0)
            assert Contract(sight.algorithm, sight.task, [own.client]).breach(false) is None
            tensors = [t for vector in false.vectors.values() for t in vector]
            assert all(bool(t.isfinite().all()) for t in tensors)


@pytest.mark.parametrize("name", AT_THE_LIMIT)
@pytest.mark.parametrize("strength", [1.0, 5.0])
def test_a_delta_at_the_limit_is_the_given_number_of_median_honest_distances_away(name, strength):
    sight, own = scene()
    false = ATTACKS[name].lie(sight, own, strength).vectors.delta
    median = statistics.median(r.vectors.delta.distance(sight.base) for r in sight.honest)
    assert sight.base.norm() > 0
    assert false.distance(sight.base) == pytest.approx(strength * median)


@pytest.mark.parametrize("name", AT_THE_LIMIT)
def test_the_guard_cuts_a_delta_at_the_limit_and_does_not_reject_it(name):
    sight, own = scene()
    guard, clients = Guard(), range(6)

    def admission(history):
        return Admission(guard, sight.algorithm, sight.task, clients, history=history)

    sizes = [admission({"steps": [(5.0, 0.0, 5)]}).measure(r).sizes for r in sight.honest]
    seen = {quantity: [own[quantity] for own in sizes] for quantity in sizes[0]}
    judge = admission(guard.remember({}, seen))
    admitted = judge.admit(judge.measure(ATTACKS[name].lie(sight, own, 5.0)))
    assert admitted.limited[:1] == ("delta",)
    assert admitted.reply.vectors.delta.distance(sight.base) == pytest.approx(
        judge.limits["delta"].high
    )


def test_alie_lies_within_its_standard_deviations_of_the_mean_and_reaches_them():
    sight, own = scene()
    for name, z in (("alie", 1.5), ("alie-5", 5.0)):
        false = ATTACKS[name].lie(sight, own, ATTACKS[name].strength or 1.0).vectors.delta
        for t, *honest in zip(false, *(r.vectors.delta for r in sight.honest), strict=True):
            mean = torch.stack(honest).mean(0)
            deviation = torch.stack(honest).var(0, correction=0).sqrt()
            torch.testing.assert_close(mean - t, z * deviation)


def test_a_fixed_direction_is_the_same_in_every_round_and_another_for_another_seed():
    def direction(round, seed=0):
        sight, own = scene(round=round)
        sight = Sight(sight.task, sight.algorithm, sight.honest, names=NAMES, seed=seed)
        false = ATTACKS["fixed-direction"].lie(sight, own, 5.0).vectors.delta - sight.base
        return false / false.norm()

    assert direction(1).distance(direction(7)) < 1e-12
    assert direction(1).distance(direction(1, seed=1)) > 0.5


def test_a_sign_flip_and_an_inner_product_point_against_the_honest_mean():
    sight, own = scene()
    flip = ATTACKS["sign-flip"].lie(sight, own, 5.0).vectors.delta - sight.base
    honest = sight.mean - sight.base
    assert flip.dot(honest) == pytest.approx(-flip.norm() * honest.norm())
    inner = ATTACKS["inner-product"].lie(sight, own, 2.0).vectors.delta
    assert inner.distance(sight.mean * -2.0) < 1e-12


def test_biases_move_where_the_attack_says():
    sight, own = scene()
    dead = ATTACKS["dead-units"].lie(sight, own, 5.0).vectors.delta - sight.base
    assert [bool(t.abs().sum() > 1e-9) for t in dead] == [False, True, False, False]
    assert (dead.tensors[1] > 0).all()  # the server subtracts a delta
    towards = ATTACKS["class-bias"].lie(sight, own, 5.0).vectors.delta - sight.base
    assert [bool(t.abs().sum() > 1e-9) for t in towards] == [False, False, False, True]
    assert towards.tensors[3].argmin() == TARGET


def test_second_moments_rise_by_what_the_attack_says_and_where():
    sight, own = scene()
    root = sight.task.vectors.v.sqrt()

    def rise(name, strength):
        return ATTACKS[name].lie(sight, own, strength).vectors.v_hat.sqrt() - root

    def total(vector):
        return sum(float(t.abs().sum()) for t in vector)

    honest = statistics.median(total(r.vectors.v_hat.sqrt() - root) for r in sight.honest)
    allowed = max(honest, total(root) / (sight.task.round + 1))
    for name, where in (
        ("high-v", [0, 1, 2, 3]),
        ("high-v-layer", [2, 3]),
        ("high-v-first", [0, 1]),
        ("ratchet", [0, 1, 2, 3]),
    ):
        risen = rise(name, 6.0)
        assert total(risen) == pytest.approx(6 * allowed)
        assert [i for i, t in enumerate(risen) if t.abs().sum() > 1e-9] == where
    ratio = Vector(t / u for t, u in zip(rise("ratchet", 1.0), root, strict=True))
    assert ratio.distance(ratio.full_like(float(ratio.tensors[0][0, 0]))) < 1e-9


def test_lies_about_numbers_leave_the_rest_alone():
    sight, own = scene()
    tiny = ATTACKS["lr-sum"].lie(sight, own, 1.0)
    assert (tiny.steps, tiny.lr_sum, tiny.vectors) == (1, pytest.approx(5e-13), own.vectors)
    half = ATTACKS["lr-sum-half"].lie(sight, own, 1.0)
    assert (half.steps, half.lr_sum, half.vectors) == (2, 0.25, own.vectors)
    claimed = ATTACKS["lr-sum-more"].lie(sight, own, 1.0)
    assert (claimed.steps, claimed.lr_sum, claimed.vectors) == (25, 2.5, own.vectors)
    more = ATTACKS["steps"].lie(sight, own, 5.0)
    assert (more.steps, more.lr_sum) == (25, 2.5)
    assert more.vectors.delta.equal(own.vectors.delta * 5.0)
    assert ATTACKS["examples"].lie(sight, own, 1000.0).examples == 10_000


def test_the_attack_of_the_first_round_is_over_after_it():
    sight, own = scene(round=0)
    assert (
        float(ATTACKS["first-round"].lie(sight, own, 100.0).vectors.v_hat.tensors[0].min()) == 1e4
    )
    sight, own = scene(round=1)
    assert ATTACKS["first-round"].lie(sight, own, 100.0) is own


@pytest.mark.parametrize(("name", "vector"), [("scaffold", "c_change"), ("feddyn", "delta")])
def test_a_drift_is_in_what_the_server_adds_up(name, vector):
    sight, own = scene(name)
    false = ATTACKS["c-drift"].lie(sight, own, 5.0).vectors
    median = statistics.median(r.vectors[vector].norm() for r in sight.honest)
    assert false[vector].norm() == pytest.approx(5 * median)
    assert all(false[n].equal(own.vectors[n]) for n in own.vectors if n != vector)


@pytest.mark.parametrize("name", [n for n, a in ALGORITHMS.items() if a.directions])
def test_a_shared_momentum_is_turned_round_from_what_a_client_without_gradients_sends(name):
    sight, own = scene(name)
    false = ATTACKS["m-flip"].lie(sight, own, 5.0).vectors
    known = algorithm(name).part.known(sight.task.vectors, Round(steps=5, lr_sum=0.5)).m
    news = mean_of(r.vectors.m for r in sight.honest) - known
    median = statistics.median(r.vectors.m.distance(known) for r in sight.honest)
    turned = false.m - known
    assert turned.norm() == pytest.approx(5 * median)
    assert turned.dot(news) == pytest.approx(-turned.norm() * news.norm())
    assert all(false[n].equal(own.vectors[n]) for n in own.vectors if n != "m")


@pytest.mark.parametrize("name", ["fedexp", "fedlada"])
def test_who_cancels_leaves_a_tenth_of_the_sum_of_the_others_with_the_opposite_sign(name):
    sight, own = scene(name)
    false = ATTACKS["cancel"].lie(sight, own, 0.1).vectors.delta - sight.base
    honest = (sight.mean - sight.base) * len(sight.honest)
    assert honest.add(false).distance(honest * -0.1) < 1e-9 * honest.norm()


def test_products_of_extreme_numbers_overflow_with_both_signs():
    sight, own = scene("scaffold")
    false = ATTACKS["extreme"].lie(sight, own, 1.0).vectors
    for vector in false.values():
        products = [float((t * t.abs()).sum()) for t in vector]
        assert {math.inf, -math.inf} <= set(products)


def test_what_is_not_there_cannot_be_attacked():
    def unfit(name, **about):
        return {n for n, attack in ATTACKS.items() if attack.unfit(target(name, **about))}

    moments = {"high-v", "high-v-layer", "high-v-first", "zero-v", "ratchet"}
    other = {"buffers", "c-drift", "m-flip"}
    assert unfit("fedlada") == other
    assert unfit("fedavg", weighted=False) == moments | other | {"examples"}
    assert unfit("scaffold", classes=0) == moments | {
        *("buffers", "m-flip", "label-flip", "backdoor", "class-bias")
    }
    assert unfit("fedlion") == moments | {"buffers", "c-drift"}


def test_poisoned_data():
    inputs = torch.randint(0, 200, (9, 1, 8, 8), dtype=torch.uint8)
    labels, stamp = torch.arange(9) % 3, Stamp(classes=3, bright=255.0)
    same, other = flipped(inputs, labels, stamp)
    assert same is inputs
    assert other.tolist() == [2, 1, 0] * 3
    stamped, targets = backdoored(inputs, labels, stamp)
    assert torch.equal(stamped[::2], stamp(inputs)[::2])
    assert torch.equal(stamped[1::2], inputs[1::2])
    assert (targets[::2] == TARGET).all()
    assert torch.equal(targets[1::2], labels[1::2])
    marked = stamp(inputs) != inputs
    assert marked.any(0).sum() == 4
    assert (stamp(inputs)[marked] == 255).all()
    flat = stamp(torch.zeros(2, 20))
    assert (flat[:, 0] == 255).all()
    assert (flat[:, 1:] == 0).all()


@pytest.mark.parametrize(("clients", "share"), [(100, 0.1), (10, 0.1), (50, 0.2), (7, 0.3)])
def test_colluders_are_their_share_of_the_clients(clients, share):
    found = colluders_of(clients, share)
    assert len(found) == round(clients * share)
    assert found <= set(range(clients))


def test_attackers_can_be_a_number_of_clients():
    assert len(colluders_of(10, 3)) == 3
    assert colluders_of(10, 3) == colluders_of(10, 0.3)


@pytest.mark.parametrize("attackers", [0, 10, 11, -1, -0.1, 0.01, 0.99, 1.0, 1.5])
def test_nobody_and_everybody_as_attackers_is_a_sentence(attackers):
    with pytest.raises(FedladaError, match=f"attackers is {attackers}"):
        colluders_of(10, attackers)


class Given:
    """An engine that gives the replies of a scene."""

    clients, keeps = 6, False

    def __init__(self, replies):
        self.replies, self.asked, self.committed = replies, [], []

    def exchange(self, task, cohort):
        self.asked += cohort
        yield from (reply for reply in self.replies if reply.client in cohort)

    def commit(self, task, clients):
        self.committed += clients


def test_colluders_answer_first_and_the_others_as_they_would():
    sight, own = scene()
    engine = Given([*sight.honest, own])
    hostile = Hostile(engine, ATTACKS["scaling"], {0}, algorithm=sight.algorithm, names=NAMES)
    first, *others = hostile.exchange(sight.task, range(6))
    assert first.client == 0
    assert first.vectors.delta.equal(own.vectors.delta * 10.0)
    assert others == list(sight.honest)
    hostile.commit(sight.task, [1, 2])
    assert engine.committed == [1, 2]
    assert (hostile.clients, hostile.keeps) == (6, False)


def test_absent_colluders_are_not_asked_and_failures_stay_failures():
    sight, own = scene()
    engine = Given([*sight.honest, own])
    absent = Hostile(engine, None, {0}, algorithm=sight.algorithm, names=NAMES)
    first, *others = absent.exchange(sight.task, range(6))
    assert isinstance(first, Failure)
    assert others == list(sight.honest)
    assert 0 not in engine.asked
    gone = Given([*sight.honest, Failure(client=0, reason="dropped out")])
    hostile = Hostile(gone, ATTACKS["scaling"], {0}, algorithm=sight.algorithm, names=NAMES)
    assert next(hostile.exchange(sight.task, range(6))).reason == "dropped out"


def test_a_cohort_of_colluders_alone_knows_its_own_replies():
    sight, own = scene()
    hostile = Hostile(
        Given([own]), ATTACKS["inner-product"], {0}, algorithm=sight.algorithm, names=NAMES
    )
    (false,) = hostile.exchange(sight.task, [0])
    assert false.vectors.delta.distance(own.vectors.delta * -1.0) < 1e-12


@pytest.mark.filterwarnings("ignore:.*training ended in numbers that are not finite")
@pytest.mark.parametrize("name", ["fedavg", "fedcm", "fedlada", "scaffold"])
def test_in_a_private_run_a_lie_is_no_longer_than_an_honest_reply_may_be(name):
    """Colluders clip, so that the server admits them; an honest reply stays what it is."""
    sight, own = scene(name)
    chosen, zeros = sight.algorithm, sight.task.vectors.x.zeros
    clips = Clips(steps=5, lengths=dict.fromkeys(chosen.up, 20.0))
    task = dataclasses.replace(sight.task, clips=clips, codecs=Codecs(up={"*": "fixed"}))
    kept = Vectors((kept, zeros(kept)) for kept in chosen.client_state)
    r = Round(steps=5, lr_sum=0.5)
    sent = [private_reply(chosen, task, reply, kept, r)[0] for reply in (own, *sight.honest)]
    for vector, plain in plain_reply(chosen, task, sent[0]).vectors.items():
        assert plain.distance(own.vectors[vector]) < 1e-9 * own.vectors[vector].norm()
    for attack in ATTACKS.values():
        if attack.unfit(target(name)) is None:
            hostile = Hostile(Given(sent), attack, {0}, algorithm=chosen, names=NAMES)
            false, *others = hostile.exchange(task, range(6))
            judge = Private(chosen, task, range(6))
            assert isinstance(judge.admit(judge.measure(false)), Admitted)
            assert others == sent[1:]
    honest = Hostile(Given(sent), ATTACKS["label-flip"], {0}, algorithm=chosen, names=NAMES)
    same = next(honest.exchange(task, range(6))).vectors
    assert all(v.distance(sent[0].vectors[n]) < 1e-6 for n, v in same.items())
