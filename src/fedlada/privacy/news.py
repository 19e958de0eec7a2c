"""News: what a private client sends, measured from what a client without data would send.

The server knows that part and adds it once, so neither the clip nor the noise grows with it.  A
second moment is sent by its root, whose tails are light.  Each part is divided by its clip, so
that it is at most 1 long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from ..algorithms import Algorithm, Round, Vector, Vectors
from ..errors import warn_here
from ..protocol.codecs.fixed import length_of
from ..protocol.messages import Reply, Task

__all__ = ["BELOW", "known_of", "nominal", "plain_reply", "private_reply", "roots_of"]

BELOW = "below "
"""The beginning of the name of a bit: whether a part was shorter than its clip."""
LONGEST = 1e30
"""No news is as long as this; float32 holds one over it with all its bits."""


def nominal(algorithm: Algorithm, steps: int, lr: float) -> Round:
    """Return the counts that the server assumes of every client."""
    return Round(steps=steps, lr_sum=lr * steps)


def roots_of(algorithm: Algorithm) -> Mapping[str, str]:
    """Return the ``up`` vectors that are sent by their roots, and what each starts from."""
    return {moment.up: moment.of for moment in algorithm.moments}


def known_of(algorithm: Algorithm, down: Vectors, r: Round) -> Vectors:
    """Return what a client without data would send, by name; a missing vector is zero."""
    known = algorithm.part.known(down, replace(r, lr_sum=algorithm.span(r.lr_sum)))
    for name, of in roots_of(algorithm).items():
        known[name] = known.get(name, down[of]).sqrt()
    return known


@dataclass(frozen=True)
class _Part:
    sent: Vector
    lost: Vector | None
    """What of the vector is beyond its clip, if that is not zero."""


def private_reply(
    algorithm: Algorithm, task: Task, reply: Reply, kept: Vectors, r: Round
) -> tuple[Reply, Vectors]:
    """Return a client's reply with its news alone, and what it keeps so that both agree.

    ``r`` has the steps that the client took, which it does not send.  A reply with a number that
    is not finite becomes zero: whether it is accepted may not depend on it.
    """
    clips = task.clips
    assert clips is not None
    assumed = nominal(algorithm, clips.steps, task.lr)
    known, roots = known_of(algorithm, task.vectors, assumed), roots_of(algorithm)
    sent, lost = Vectors(), Vectors()
    for name, vector in reply.vectors.items():
        news = vector.clamp_min(0.0).sqrt() if name in roots else vector
        if name in known:
            news = news - known[name].to(news)
        part = _clipped(news, clips.lengths[name])
        sent[name] = part.sent
        if part.lost is not None and name not in roots:
            lost[name] = part.lost
    kept = Vectors((name, _finite(v)) for name, v in _without(algorithm, kept, lost, r).items())
    bare = replace(
        reply,
        vectors=sent,
        examples=1,
        steps=clips.steps,
        lr_sum=assumed.lr_sum,
        seconds=0.0,
        metrics={},
    )
    return bare, kept


def plain_reply(algorithm: Algorithm, task: Task, reply: Reply) -> Reply:
    """Return what a private reply says in full: what a client without data would send, and it."""
    clips = task.clips
    assert clips is not None
    known = known_of(algorithm, task.vectors, nominal(algorithm, clips.steps, task.lr))
    roots, vectors = roots_of(algorithm), Vectors()
    for name, news in reply.vectors.items():
        vector = news * clips.lengths[name]
        if name in known:
            vector = vector + known[name].to(vector)
        vectors[name] = vector * vector if name in roots else vector
    return replace(reply, vectors=vectors)


def _without(algorithm: Algorithm, kept: Vectors, lost: Vectors, r: Round) -> Vectors:
    """Return what a client keeps: what the server sums up stays the sum of what clients keep."""
    kept = Vectors(kept)
    for part in algorithm.part.chain():
        for total in part.sums:
            if total.kept and total.up in lost:
                factor = getattr(part, total.times) if total.times else 1.0
                if total.up == "delta" and algorithm.unit_delta:
                    factor *= r.lr_sum
                kept[total.kept] = kept[total.kept].add(lost[total.up], alpha=-factor)
    return kept


def _clipped(news: Vector, clip: float) -> _Part:
    """Return a part in units of its clip, at most 1 long, and what was cut off."""
    length = length_of(news)
    if not length < LONGEST:  # also if it is NaN
        warn_here(
            "its training ended in numbers that are not finite or close to that, so its reply"
            " counts as nothing; lower lr or clip gradients"
        )
        return _Part(news.zeros_like(), None)
    if length <= clip:
        return _Part(news * (1 / clip), None)
    return _Part(news * (1 / length), news * (1 - clip / length))


def _finite(vector: Vector) -> Vector:
    """Return a kept vector; where it is not finite, the client starts over with zeros."""
    if all(bool(t.isfinite().all()) for t in vector):
        return vector
    return vector.each(lambda t: torch.nan_to_num(t, nan=0.0, posinf=0.0, neginf=0.0))
