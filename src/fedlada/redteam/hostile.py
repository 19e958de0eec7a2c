"""Colluding clients for testing a federation: they know all replies of a round before they lie.

``Hostile`` wraps any engine.  It lets the engine train the whole cohort, also the colluders, and
then replaces the replies of the colluders by false ones.  :mod:`.attacks` has the attacks.

>>> engine = Hostile(engine, ATTACKS["sign-flip"], {0, 10}, algorithm=algorithm, names=names)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from ..algorithms import Algorithm, Round, Vectors
from ..engines.around import Around
from ..errors import require
from ..privacy.news import plain_reply, private_reply
from ..protocol.engine import Engine
from ..protocol.messages import Failure, Reply, Task, reply_parcel
from .attacks import Attack
from .sight import Sight

__all__ = ["Hostile", "colluders_of"]


def colluders_of(clients: int, attackers: float) -> frozenset[int]:
    """Return which clients collude: a share or a number of them, evenly spaced, with client 0."""
    number = type(attackers) is int
    require(
        number or 0 < attackers < 1,
        f"attackers is {attackers}; it must be a number of clients, or a share above 0 and below 1",
    )
    count = int(attackers) if number else round(attackers * clients)
    require(
        0 < count < clients,
        f"attackers is {attackers}, which is {count} of {clients} clients; at least one must attack"
        f" and one must not: give 1 to {clients - 1}, or a share",
    )
    return frozenset(i * clients // count for i in range(count))


class Hostile(Around):
    """An engine some of whose clients collude; all replies of a round are held in memory.

    In a private run the colluders clip their lies as honest clients clip their replies: the server
    counts a longer one as nothing.
    """

    def __init__(
        self,
        engine: Engine,
        attack: Attack | None,
        colluders: Collection[int],
        *,
        algorithm: Algorithm,
        names: Mapping[str, Sequence[str]],
        strength: float | None = None,
        seed: int = 0,
    ) -> None:
        """Let ``colluders`` attack with ``strength``, or send nothing if ``attack`` is None.

        ``names`` are those of the model's ``parameters`` and ``buffers``, as ``federated_names``
        gives them; ``seed`` is that of the colluders' own random choices.
        """
        super().__init__(engine)
        self._attack, self._colluders = attack, frozenset(colluders)
        self._algorithm, self._names, self._seed = algorithm, names, seed
        default = None if attack is None else attack.strength
        self._strength = (default or 1.0) if strength is None else strength

    def exchange(self, task: Task, cohort: Sequence[int]) -> Iterator[Reply | Failure]:
        """Yield the replies of the colluders, which need no time to train, then all others."""
        if self._attack is None:
            for client in (c for c in cohort if c in self._colluders):
                yield Failure(client=client, reason="left out", reached=False)
            yield from self._engine.exchange(task, [c for c in cohort if c not in self._colluders])
            return
        require(
            task.sealed is None,
            "there are masks, under which colluders see no reply of others; attack the run without"
            " masks, whose results have the same bits",
        )
        replies = list(self._engine.exchange(task, cohort))
        seen = [self._plain(task, r) for r in replies if isinstance(r, Reply)]
        false = [r for r in seen if r.client in self._colluders]
        honest = [r for r in seen if r.client not in self._colluders]
        others = [r for r in replies if r.client not in self._colluders]
        sight = Sight(task, self._algorithm, honest or false, names=self._names, seed=self._seed)
        for reply in false:
            yield self._sent(task, self._attack.lie(sight, reply, self._strength))
        yield from (r for r in replies if isinstance(r, Failure) and r.client in self._colluders)
        yield from others

    def _plain(self, task: Task, reply: Reply) -> Reply:
        return reply if task.clips is None else plain_reply(self._algorithm, task, reply)

    def _sent(self, task: Task, lie: Reply) -> Reply:
        if task.clips is None:
            return lie
        x, r = task.vectors.x, Round(steps=lie.steps, lr_sum=lie.lr_sum)
        kept = Vectors((name, x.zeros(name)) for name in self._algorithm.client_state)
        bare, _ = private_reply(self._algorithm, task, lie, kept, r)
        parcel = reply_parcel(bare, task)
        return replace(bare, vectors=parcel.vectors, received=parcel.nbytes)
