"""What every algorithm owes its engines, for all named ones and for random compositions."""

import copy
import dataclasses
import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from federations import (
    KINDS,
    Federation,
    Point,
    compositions,
    kept,
    local_steps,
    quadratics,
    same_bits,
)
from fedlada import ALGORITHMS, Algorithm
from fedlada.algorithms import (
    LOCAL_RULES,
    Correction,
    Part,
    Round,
    Vector,
    Vectors,
)
from fedlada.algorithms.corrections import Amend
from fedlada.algorithms.local import SGD
from fedlada.algorithms.server_rules import Averaging
from fedlada.algorithms.vectors import EACH, is_small, shape_in
from fedlada.engines import DiskStore, LocalRound
from fedlada.protocol.codecs import Codecs
from fedlada.protocol.messages import Task, reply_parcel
from fedlada.protocol.wire import Parcel, send

named = pytest.mark.parametrize("chosen", ALGORITHMS.values(), ids=ALGORITHMS.keys())


def federation(chosen: Algorithm) -> Federation:
    return Federation(
        chosen, Point(), quadratics(6), local_steps(3, noise=0.5), cohort=3, lr_decay=0.9
    )


def random_like(vector: Vector, seed: int = 0, *, positive: bool = False) -> Vector:
    """Numbers of both signs, far from 0, so that a step that looks at signs alone sees them."""
    generator = torch.Generator().manual_seed(seed)

    def draw(t: Tensor) -> Tensor:
        size = torch.rand(t.shape, generator=generator, dtype=t.dtype) + 0.5
        sign = torch.randint(2, t.shape, generator=generator, dtype=t.dtype) * 2 - 1
        return size if positive else size * sign

    return Vector(map(draw, vector))


def one_client(chosen: Algorithm, down: Vectors, kept: Vectors) -> LocalRound:
    """A client's round from given vectors, its training done."""
    model = Point()
    local = LocalRound(
        chosen,
        model,
        Task(round=0, seed=0, lr=chosen.lr(0), vectors=down),
        client=0,
        client_state=kept,
    )
    local_steps(3)(model, quadratics(1)[0], local.optimizer())
    return local


def outcome(chosen: Algorithm, down: Vectors, kept: Vectors) -> Vectors:
    """All that leaves a client: what it sends and what it keeps."""
    local = one_client(chosen, down, kept)
    reply = local.finish(examples=1)
    assert set(reply.vectors) == set(chosen.up)
    assert set(local.client_state) == set(chosen.client_state)
    return Vectors(**reply.vectors, **local.client_state)


def contract(chosen: Algorithm) -> None:
    """Declared vectors are exactly those produced and consumed, on both sides."""
    squares = {name for moment in chosen.moments for name in (moment.up, moment.of)}
    squares |= {name for name in chosen.client_state if name.startswith("v_")}

    def drawn(name: str, seed: int) -> Vector:
        like = Vector(t.new_empty(shape_in(name, t.shape)) for t in x)
        return random_like(like, seed, positive=name in squares or name.endswith(EACH))

    x = random_like(Vector(p.detach() for p in Point().parameters()))
    down = Vectors((name, drawn(name, i)) for i, name in enumerate(chosen.down))
    kept = Vectors((name, drawn(name, 9 + i)) for i, name in enumerate(chosen.client_state))
    usual = outcome(chosen, down, kept)
    for given_, name in [(down, n) for n in chosen.down] + [(kept, n) for n in chosen.client_state]:
        changed = Vectors(given_, **{name: drawn(name, 99)})
        new = outcome(chosen, *((changed, kept) if given_ is down else (down, changed)))
        assert not same_bits(new, usual), f"{name} is declared but makes no difference"
    for name in chosen.down:
        fewer = Vectors({n: vector for n, vector in down.items() if n != name})
        with pytest.raises(AttributeError, match=name):
            outcome(chosen, fewer, kept)

    def served(mean: Vectors) -> Vectors:
        s = chosen.start(x)
        assert set(s) == {*chosen.down, *chosen.server_state}
        before = Vectors(s)
        r = Round(steps=3, lr_sum=0.3, accepted=3, clients=6, delta_square=99.0)
        chosen.serve(s, mean, r)
        assert set(s) == set(before)
        assert all(not s[name].equal(before[name]) for name in s), "the server renews them all"
        return s

    mean = usual.only(chosen.up)
    for name in chosen.up:
        changed = Vectors(mean, **{name: drawn(name, 99)})
        assert not same_bits(served(changed), served(mean)), f"{name} is sent for nothing"


@named
def test_declared_vectors_are_those_produced_and_consumed(chosen):
    contract(chosen)


@dataclass(frozen=True, kw_only=True)
class SignMomentum(Correction):
    """Steps of one size, along the sign of a momentum that the server keeps."""

    down = ("m",)
    beta: float = 0.9

    def step(self, client: Vectors, g: Vector, lr: float) -> None:
        mixed = (g * (1 - self.beta)).add_(client.m, alpha=self.beta)
        self.inner.step(client, mixed.sign(), lr)

    def serve(self, server: Vectors, mean: Vectors, r: Round) -> None:
        super().serve(server, mean, r)
        server.m = mean.delta / r.lr_sum


class Forgetful(SignMomentum):
    """The same, but it forgets the momentum."""

    def step(self, client: Vectors, g: Vector, lr: float) -> None:
        self.inner.step(client, g.sign(), lr)


def test_an_algorithm_that_looks_at_signs_alone_keeps_the_contract():
    contract(Algorithm(SignMomentum(SGD())))
    repeatable(Algorithm(SignMomentum(SGD())))


def test_a_vector_that_is_declared_and_not_used_breaks_the_contract():
    with pytest.raises(AssertionError, match="m is declared but makes no difference"):
        contract(Algorithm(Forgetful(SGD())))


@dataclass(frozen=True, kw_only=True)
class UnitLength(Correction):
    """Steps along the gradient over its length, a number over all tensors."""

    def begin(self, client: Vectors) -> None:
        super().begin(client)
        client.over_each = client.y.zeros("over_each")

    def probe(self, client: Vectors, g: Vector) -> None:
        for t in client.over_each:
            t.fill_(1 / g.norm())

    def step(self, client: Vectors, g: Vector, lr: float) -> None:
        self.inner.step(client, g * client.over_each, lr)


def begun(chosen: Algorithm, model: Point) -> LocalRound:
    """The first round of a client, with what the server starts from."""
    x = Vector(p.detach().clone() for p in model.parameters())
    task = Task(round=0, seed=0, lr=0.1, vectors=chosen.start(x).only(chosen.down))
    return LocalRound(chosen, model, task, client=0)


@pytest.mark.parametrize("grouped", [False, True])
def test_a_number_over_all_tensors_is_the_same_for_any_groups_of_parameters(grouped):
    chosen, model = Algorithm(UnitLength(SGD(weight_decay=0.0))), Point(at=1.0)
    contract(chosen)
    local = begun(chosen, model)
    groups = [{"params": [p]} for p in model.parameters()] if grouped else None
    local_steps(1)(model, quadratics(1)[0], local.optimizer(groups))
    assert local.finish(examples=1).vectors.delta.norm() == pytest.approx(0.1)


@dataclass(frozen=True, kw_only=True)
class OnlyVectors(Correction):
    """A rule for each tensor by its name and dimensions: w alone moves, and it is a vector."""

    def step(self, client: Vectors, g: Vector, lr: float) -> None:
        facts = zip(client.y.names, client.y, g, strict=True)
        moving = [t * (name == "w" and y.dim() == 1) for name, y, t in facts]
        self.inner.step(client, Vector(moving), lr)


@pytest.mark.parametrize("grouped", [False, True])
def test_a_step_knows_the_names_and_dimensions_of_its_parameters(grouped):
    chosen, model = Algorithm(OnlyVectors(SGD(weight_decay=0.0))), Point()
    local = begun(chosen, model)
    groups = [{"params": [model.b]}, {"params": [model.w]}] if grouped else None
    local_steps(2)(model, quadratics(1)[0], local.optimizer(groups))
    w, b = local.finish(examples=1).vectors.delta
    assert w.abs().min() > 0
    assert not b.any()


@dataclass(frozen=True, kw_only=True)
class Ahead(Correction):
    """A client starts beyond x, seen from where it last ended; that starts at x."""

    client_state = ("y_last", "rounds_each")
    beta: float = 0.1

    def join(self, client: Vectors) -> None:
        super().join(client)
        client.y_last = client.x.clone()

    def begin(self, client: Vectors) -> None:
        super().begin(client)
        ahead = (client.x - client.y_last) * client.rounds_each
        client.y.add_(ahead, alpha=self.beta)

    def end(self, client: Vectors, r: Round) -> None:
        super().end(client, r)
        client.y_last, client.rounds_each = client.y.clone(), client.rounds_each + 1.0


def test_kept_vectors_may_start_elsewhere_and_kept_numbers_count():
    chosen = Algorithm(Ahead(SGD()))
    contract(chosen)
    counted(chosen)
    repeatable(chosen)
    first, plain = federation(chosen), federation(Algorithm(SGD()))
    assert untimed(first.run(1)) == untimed(plain.run(1)), "y_last starts at x"
    assert first.state.last_accepted
    for client in first.state.last_accepted:
        assert {float(t) for t in first.kept(client).rounds_each} == {1.0}


@dataclass(frozen=True, kw_only=True)
class Halved(Correction):
    """Sends half of delta, and the server doubles it again."""

    def end(self, client: Vectors, r: Round) -> None:
        super().end(client, r)
        client.delta = client.delta * 0.5

    def serve(self, server: Vectors, mean: Vectors, r: Round) -> None:
        mean.delta = mean.delta * 2.0
        super().serve(server, mean, r)


@pytest.mark.parametrize("wrap", [lambda p: Halved(Amend(p)), lambda p: Amend(Halved(p))])
def test_what_end_does_to_delta_is_undone_for_all_parts(wrap):
    halved, plain = (federation(Algorithm(part(SGD()))) for part in (wrap, Amend))
    halved.run(4)
    plain.run(4)
    assert same_bits(halved.vectors, plain.vectors)


def test_the_server_knows_the_mean_square_of_the_deltas():
    seen = []

    class Watching(Averaging):
        def apply(self, server: Vectors, d: Vector, r: Round) -> None:
            seen.append(r.delta_square - d.norm() ** 2)
            super().apply(server, d, r)

    records = federation(Algorithm(SGD(), server=Watching())).run(3)
    assert seen == pytest.approx([record.drift for record in records])


@given(compositions)
@settings(max_examples=60, deadline=None)
def test_any_composition_keeps_the_contract(chosen):
    contract(chosen)


def counted(chosen: Algorithm) -> None:
    """Traffic derived from the definition equals the bytes that the wire makes of vectors."""
    fed = federation(chosen)
    passed = {"down": 0, "up": 0}

    class Wire:
        clients, keeps = fed.engine.clients, fed.engine.keeps
        commit = fed.engine.commit

        def exchange(self, task, cohort):
            for reply in fed.engine.exchange(task, cohort):
                passed["down"] += encoded(task.parcel)
                passed["up"] += encoded(reply_parcel(reply, task))
                yield reply

    wired = copy.copy(fed)
    wired.engine = Wire()
    (record,) = wired.run(1)
    declared = chosen.traffic.bytes(8 * 6)  # six float64 numbers
    rows = {way: 3 * small(getattr(chosen, way)) for way in passed}
    assert passed["down"] == record.bytes_down == 3 * declared.down + rows["down"]
    assert passed["up"] == record.bytes_up == 3 * declared.up + rows["up"]
    stored = sum(
        encoded(send(fed.kept(client), Codecs(), "up", seed=0)) for client in record.cohort
    )
    assert stored == 3 * (declared.client_state + small(chosen.client_state))


def small(names) -> int:
    """The bytes of vectors with one float64 number per tensor, or per row."""
    shapes = [shape_in(name, p.shape) for name in names if is_small(name)
              for p in Point().parameters()]  # fmt: skip
    return 8 * sum(map(math.prod, shapes))


def encoded(parcel: Parcel) -> int:
    """The length of what would travel, byte for byte."""
    return sum(len(bytes(parcel.payload(name).numpy())) for name in parcel.vectors)


@named
def test_traffic_is_the_bytes_counted(chosen):
    counted(chosen)


@given(compositions)
@settings(max_examples=20, deadline=None)
def test_traffic_of_any_composition_is_the_bytes_counted(chosen):
    counted(chosen)


def repeatable(chosen: Algorithm) -> None:
    whole, again, split = federation(chosen), federation(chosen), federation(chosen)
    records = whole.run(4)
    assert untimed(again.run(4)) == untimed(records)
    assert untimed(split.run(1) + split.run(3)) == untimed(records)
    assert same_bits(whole.vectors, again.vectors)
    assert same_bits(whole.vectors, split.vectors)


def untimed(records):
    return [
        dataclasses.replace(record, seconds=0.0, local_seconds=0.0, server_seconds=0.0)
        for record in records
    ]


@named
def test_two_runs_and_a_run_split_in_two_are_bit_equal(chosen):
    repeatable(chosen)


@given(compositions)
@settings(max_examples=10, deadline=None)
def test_any_composition_repeats_bit_for_bit(chosen):
    repeatable(chosen)


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_client_vectors_on_disk_survive_a_new_process_bit_for_bit(tmp_path, name):
    whole = federation(ALGORITHMS[name])
    whole.run(6)
    state = None
    for rounds in (2, 5, 6):
        part = federation(ALGORITHMS[name])
        part.engine._store = DiskStore(tmp_path)  # opened anew, as a new process would
        part.state = state or part.state
        part.run(rounds - part.state.round)
        state = part.state
    assert same_bits(whole.vectors, state.vectors)
    for client in range(6):
        assert same_bits(whole.kept(client), kept(DiskStore(tmp_path), state, client))


@pytest.mark.parametrize("name", ["scaffold", "fedlada"])
def test_the_result_does_not_depend_on_the_order_of_replies(name):
    forward, backward = federation(ALGORITHMS[name]), federation(ALGORITHMS[name])
    inner = backward.engine

    class Backward:
        clients, keeps = inner.clients, inner.keeps
        commit = inner.commit

        def exchange(self, task, cohort):
            return inner.exchange(task, cohort[::-1])

    backward.engine = Backward()
    forward.run(5)
    backward.run(5)
    assert same_bits(forward.vectors, backward.vectors)


def declared(chosen: Algorithm) -> set[str]:
    """The kinds of declaration of an algorithm."""
    kinds = {"rising moment" if moment.rising else "moment" for moment in chosen.moments}
    kinds |= {"sum of deltas" if total.up == "delta" else "sum" for total in chosen.sums}
    for place in ("down", "up", "client_state", "server_state"):
        names = [name for name in getattr(chosen, place) if name not in ("x", "delta")]
        kinds |= {f"{place} of shape {shape_in(name, [2, 3])}" for name in names}
    passes_on = (Part.probe, Correction.probe)
    flags = {
        "unit delta": chosen.unit_delta,
        "direction": bool(chosen.directions),
        "probe": any(type(part).probe not in passes_on for part in chosen.part.chain()),
    }
    return kinds | {name for name, declares in flags.items() if declares}


def test_engines_are_tested_with_every_kind_of_declaration():
    of = {name: declared(chosen) for name, chosen in ALGORITHMS.items()}
    assert set().union(*of.values()) == set().union(*(of[name] for name in KINDS))


@named
def test_a_new_client_without_gradients_sends_what_the_server_knows(chosen):
    """Except for the delta of a rule that moves along a shared momentum."""
    chosen = chosen.replace(weight_decay=0.0)
    fed = federation(chosen)
    fed.run(2)
    down = fed.vectors.only(chosen.down)
    if "c" in down:  # SCAFFOLD adds it to the gradient, which would not be zero
        down.c = down.c.zeros_like()
    task = Task(round=2, seed=0, lr=0.01, vectors=down)
    model = Point(at=1.0)
    local = LocalRound(chosen, model, task, client=0)
    optimizer = local.optimizer()

    def no_gradient() -> float:
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        return 0.0

    for _ in range(5):
        no_gradient()
        optimizer.step(no_gradient)
    reply = local.finish(examples=1).vectors
    known = chosen.part.known(task.vectors, Round(steps=5, lr_sum=chosen.span(0.05)))
    assert set(known) <= set(chosen.up)
    for name in chosen.up:
        if name == "delta" and "m_mean" in chosen.down:
            continue
        expected = known.get(name, reply[name].zeros_like())
        assert reply[name].distance(expected) <= 1e-9 * (1e-3 + expected.norm()), name
    assert ("delta" in known) == ("g_a" in chosen.down)


@named
def test_an_up_vector_that_is_never_negative_is_declared_a_second_moment(chosen):
    """Whatever the signs of gradients and kept vectors; forgetting the declaration fails here."""
    never = set(chosen.up)
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)

        def signed(like: Vector, generator=generator) -> Vector:
            return Vector(torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in like)

        fed = Federation(chosen, Point(), quadratics(1, seed=seed), local_steps(1))
        x = fed.vectors.x
        squares = {moment.of for moment in chosen.moments}
        down = Vectors(
            (name, fed.vectors[name] if is_small(name) or name in squares else signed(x))
            for name in chosen.down
        )
        kept = Vectors(
            (name, x.zeros(name) if is_small(name) else signed(x)) for name in chosen.client_state
        )
        task = Task(round=0, seed=0, lr=chosen.lr(0), vectors=down)
        model = Point()
        local = LocalRound(chosen, model, task, client=0, client_state=kept)
        local_steps(3, noise=5.0)(model, quadratics(1, seed=seed)[0], local.optimizer())
        reply = local.finish(examples=1).vectors
        never = {name for name in never if all(bool((t >= 0).all()) for t in reply[name])}
    assert never == {moment.up for moment in chosen.moments}


@pytest.mark.parametrize("name", LOCAL_RULES)
def test_a_group_with_twice_the_rate_takes_the_steps_of_twice_the_lr(name):
    """Every local rule, by itself and amended: `lr_scale` acts on its steps alone."""
    rule = LOCAL_RULES[name]()
    ends = []
    for scale, lr in ((2.0, 0.01), (1.0, 0.02)):
        part = dataclasses.replace(rule, lr_scale=scale)
        x = Vector(p.detach().clone() for p in Point(at=0.3).parameters())
        vectors = Algorithm(part).start(x)
        vectors.y = x.clone()
        part.join(vectors)
        part.begin(vectors)
        for seed in range(3):
            part.step(vectors, random_like(x, seed), lr)
        ends.append(vectors.y)
    assert ends[0].equal(ends[1])
    assert not ends[0].equal(x)
