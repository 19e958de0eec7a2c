"""The attacks, one line each: what colluding clients send in place of their honest replies.

An attack maps what the colluders see in a round, a colluder's own honest reply and a strength to
its false reply.  Strengths are in the attack's own unit: a factor, a number of standard
deviations, or honest distances (see ``Sight.away``).  Two attacks poison a client's data instead:
its own reply is then already hostile.

Sources: alie is Baruch et al. 2019 ("A Little Is Enough"), inner-product is Xie et al. 2019
("Fall of Empires"), backdoor is Bagdasaryan et al. 2018.  The others are our own red team's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ..algorithms import Algorithm, Vector, Vectors
from ..protocol.federated import BUFFERS
from ..protocol.messages import Reply
from .poison import TARGET, Poison, backdoored, flipped
from .sight import Sight, changed, mean_of, scaled

__all__ = ["ATTACKS", "Attack", "Target"]

Lie = Callable[[Sight, Reply, float], Reply]


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is attacked, as far as it decides which attacks apply."""

    algorithm: Algorithm
    names: Mapping[str, Sequence[str]]
    """The names of the model's ``parameters`` and of its averaged ``buffers``."""
    classes: int
    """0 if the task is not a classification."""
    weighted: bool
    """Whether replies are weighted by their examples."""


@dataclass(frozen=True)
class Attack:
    """One attack: what it does in words, and what it does."""

    about: str
    lie: Lie
    strength: float | None = None
    """The strength unless another is asked for; None if the attack has none."""
    needs: str = ""
    """What must be there to be attacked: a key of ``NEEDS``."""
    poison: Poison | None = None
    """What becomes of the data of a colluder before it trains."""

    def unfit(self, target: Target) -> str | None:
        """Return why the attack does not apply to a federation, or None if it does."""
        if not self.needs:
            return None
        there, sentence = NEEDS[self.needs]
        return None if there(target) else sentence


def _biases(names: Mapping[str, Sequence[str]]) -> list[int]:
    return [i for i, name in enumerate(names["parameters"]) if name.endswith("bias")]


def _ends_in_bias(target: Target) -> bool:
    return target.classes > 0 and target.names["parameters"][-1].endswith("bias")


NEEDS: dict[str, tuple[Callable[[Target], bool], str]] = {
    "moment": (lambda t: bool(t.algorithm.moments), "the algorithm sends no second moment"),
    "buffers": (lambda t: bool(t.names["buffers"]), "no buffers are averaged"),
    "classes": (lambda t: t.classes > 0, "the task is not a classification"),
    "output bias": (_ends_in_bias, "the model does not end in one bias per class"),
    "hidden biases": (lambda t: len(_biases(t.names)) > 1, "the model has no hidden biases"),
    "sum": (lambda t: bool(t.algorithm.sums), "the server adds up no vector over all rounds"),
    "direction": (lambda t: bool(t.algorithm.directions), "clients share no momentum"),
    "weighted": (lambda t: t.weighted, "replies are not weighted by their examples"),
}
"""What an attack may need: whether it is there, and the sentence if it is not."""


def _delta(make: Callable[[Sight, Reply, float], Vector]) -> Lie:
    """Return the lie that replaces the delta alone."""
    return lambda s, own, strength: replace(own, vectors=changed(own, delta=make(s, own, strength)))


def _away(direction: Callable[[Sight, Reply], Vector]) -> Lie:
    """Return the lie that sends a delta at the limit, in a direction."""
    return _delta(lambda s, own, strength: s.away(direction(s, own), strength))


def _only(like: Vector, positions: Sequence[int], value: float) -> Vector:
    """Return zeros, but for the tensors at some positions, which hold a value."""
    zeros = like.zeros_like()
    for position in positions:
        zeros.tensors[position].fill_(value)
    return zeros


def _dead_units(s: Sight, own: Reply) -> Vector:
    return _only(s.base, _biases(s.names)[:-1], 1.0)


def _class_bias(s: Sight, own: Reply) -> Vector:
    direction = _only(s.base, [-1], 1.0)
    bias = direction.tensors[-1].view(-1)
    bias /= max(1, bias.numel() - 1)
    bias[TARGET] = -1.0
    return direction


def _moments(change: Callable[[Sight, str, float], Vector]) -> Lie:
    """Return the lie that replaces the second moments."""
    return lambda s, own, strength: replace(
        own,
        vectors=changed(own, **{m.up: change(s, m.up, strength) for m in s.algorithm.moments}),
    )


def _everywhere(s: Sight, name: str, strength: float) -> Vector:
    return s.raised(name, s.sent(name).full_like(1.0), strength)


def _layer(s: Sight, name: str, strength: float, *, last: bool) -> Vector:
    """Raise the tensors of the first or the last layer, which share a name up to a dot."""
    names = [parameter.rpartition(".")[0] for parameter in s.names["parameters"]]
    layer = names[-1 if last else 0]
    own = [i for i, found in enumerate(names) if found == layer]
    return s.raised(name, _only(s.sent(name), own, 1.0), strength)


def _in_proportion(s: Sight, name: str, strength: float) -> Vector:
    return s.raised(name, s.sent(name).sqrt(), strength)


def _said(share: float) -> Lie:
    """Return the lie about the number of steps alone."""
    return lambda s, own, strength: replace(
        own, lr_sum=own.lr_sum * share, steps=max(1, int(own.steps * share))
    )


def _said_more(s: Sight, own: Reply, strength: float) -> Reply:
    return replace(
        own,
        steps=round(own.steps * strength),
        lr_sum=own.lr_sum * strength,
        vectors=changed(own, delta=own.vectors.delta * strength),
    )


def _examples(s: Sight, own: Reply, strength: float) -> Reply:
    vectors = changed(own, delta=own.vectors.delta * -2.0)
    return replace(own, examples=round(own.examples * strength), vectors=vectors)


def _first_round(s: Sight, own: Reply, strength: float) -> Reply:
    if s.task.round:
        return own
    huge = {m.up: own.vectors[m.up].full_like(1e4) for m in s.algorithm.moments}
    return replace(own, vectors=changed(own, delta=own.vectors.delta * strength, **huge))


def _buffers(s: Sight, own: Reply, strength: float) -> Reply:
    """Drive the least variance below 0; without variances, go in a fixed direction."""
    sent = s.task.vectors.buffers
    names = s.names["buffers"]
    variances = [i for i, name in enumerate(names) if name.endswith("running_var")]
    if variances:
        direction = sent.zeros_like()
        least = min(variances, key=lambda i: float(sent.tensors[i].min()))
        direction.tensors[least].view(-1)[int(sent.tensors[least].argmin())] = -1.0
    else:
        direction = s.fixed(sent, "buffers")
    moved = sent.add(scaled(direction, strength * s.sizes(BUFFERS, sent)))
    return replace(own, vectors=Vectors(own.vectors | {BUFFERS: moved}))


def _drift(s: Sight, own: Reply, strength: float) -> Reply:
    """Go in a fixed direction in what the server adds up: a change of c, or the delta for h."""
    false = {}
    for name in (total.up for total in s.algorithm.sums):
        away = scaled(s.fixed(s.base, "drift"), strength * s.sizes(name, s.known(name)))
        false[name] = s.known(name).add(away)
    return replace(own, vectors=changed(own, **false))


def _turned(s: Sight, own: Reply, strength: float) -> Reply:
    """Send the opposite of what the shared momenta gained in this round."""
    false = {}
    for name in s.algorithm.directions:
        known = s.known(name)
        news = mean_of(reply.vectors[name] for reply in s.honest) - known
        false[name] = known.add(scaled(news, -strength * s.sizes(name, known)))
    return replace(own, vectors=changed(own, **false))


def _cancelled(s: Sight, own: Reply, strength: float) -> Vector:
    """Cancel the sum of the others, and leave a little of it with the opposite sign."""
    return s.base.add(s.mean - s.base, alpha=-(1 + strength) * len(s.honest))


def _extreme(s: Sight, own: Reply, strength: float) -> Reply:
    """Send the largest finite numbers, whose products are infinities of both signs."""
    vectors = {
        name: Vector(
            torch.full_like(t, (-1.0) ** i * 0.9 * torch.finfo(t.dtype).max)
            for i, t in enumerate(vector)
        )
        for name, vector in own.vectors.items()
    }
    return replace(own, vectors=changed(own, **vectors))


def _alie(s: Sight, own: Reply, strength: float) -> Vector:
    return s.mean.add(s.deviation, alpha=-strength)


def _as_it_is(s: Sight, own: Reply, strength: float) -> Reply:
    return own


def _zero(s: Sight, name: str, strength: float) -> Vector:
    return s.sent(name).zeros_like()


ATTACKS: dict[str, Attack] = {
    "scaling": Attack(
        "the honest delta times 10", _delta(lambda s, own, k: own.vectors.delta * k), 10.0
    ),
    "sign-flip": Attack(
        "the opposite of the honest mean deviation, at the limit",
        _away(lambda s, own: (s.mean - s.base) * -1.0),
        5.0,
    ),
    "inner-product": Attack("the negative honest mean", _delta(lambda s, own, k: s.mean * -k), 1.0),
    "alie": Attack(
        "1.5 standard deviations below the honest mean in every coordinate", _delta(_alie), 1.5
    ),
    "alie-5": Attack(
        "the same with 5 standard deviations", _delta(lambda s, own, k: _alie(s, own, 5.0))
    ),
    "fixed-direction": Attack(
        "one random direction in all rounds, at the limit",
        _away(lambda s, own: s.fixed(s.base, "direction")),
        5.0,
    ),
    "dead-units": Attack(
        "hidden biases decrease until no unit is active, at the limit",
        _away(_dead_units),
        5.0,
        "hidden biases",
    ),
    "class-bias": Attack(
        "output biases change in favour of the first class, at the limit",
        _away(_class_bias),
        5.0,
        "output bias",
    ),
    "high-v": Attack(
        "larger second moments everywhere, at the limit", _moments(_everywhere), 6.0, "moment"
    ),
    "high-v-layer": Attack(
        "larger second moments in the last layer, at the limit",
        _moments(lambda s, name, k: _layer(s, name, k, last=True)),
        6.0,
        "moment",
    ),
    "high-v-first": Attack(
        "larger second moments in the first layer, at the limit",
        _moments(lambda s, name, k: _layer(s, name, k, last=False)),
        6.0,
        "moment",
    ),
    "zero-v": Attack("second moments of zero", _moments(_zero), None, "moment"),
    "ratchet": Attack(
        "larger second moments within the limit, in every round",
        _moments(_in_proportion),
        0.99,
        "moment",
    ),
    "lr-sum": Attack(
        "an honest delta with a claimed lr_sum of 1e-12 times the true one", _said(1e-12)
    ),
    "lr-sum-half": Attack("an honest delta with half the steps and half the lr_sum", _said(0.5)),
    "lr-sum-more": Attack(
        "an honest delta with 5 times the steps and 5 times the lr_sum", _said(5.0)
    ),
    "steps": Attack("delta, steps and the sum of learning rates times 5", _said_more, 5.0),
    "examples": Attack(
        "delta times -2 with 1,000 times as many examples",
        _examples,
        1000.0,
        "weighted",
    ),
    "first-round": Attack(
        "delta times 100 and second moments of 10,000, in the first round only",
        _first_round,
        100.0,
    ),
    "buffers": Attack(
        "averaged buffers with a variance below zero, at the limit",
        _buffers,
        5.0,
        "buffers",
    ),
    "c-drift": Attack(
        "a fixed direction in what the server adds up (c, h), at the limit", _drift, 5.0, "sum"
    ),
    "m-flip": Attack(
        "the opposite of what a shared momentum gained, at the limit", _turned, 5.0, "direction"
    ),
    "cancel": Attack(
        "the opposite of the sum of all others, and a tenth of it more", _delta(_cancelled), 0.1
    ),
    "extreme": Attack("the largest finite numbers in every vector", _extreme),
    "label-flip": Attack(
        "honest training on labels in reverse order", _as_it_is, None, "classes", flipped
    ),
    "backdoor": Attack(
        "training on stamped inputs labelled with the first class, at the limit",
        _away(lambda s, own: own.vectors.delta - s.base),
        5.0,
        "classes",
        backdoored,
    ),
}
"""All attacks by name."""
