r"""Secure aggregation: the server opens the sum of a group of clients, and no single reply.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", 2017.
Client u of a group sends its whole numbers x under masks,

.. math:: y_u = x_u + p_u + \sum_{v > u} p_{uv} - \sum_{v < u} p_{uv} \mod 2^{32}.

u and v alone know the stream :math:`p_{uv}`, which cancels in the sum; u alone knows
:math:`p_u`.  Before that, each client gives each other one share of the secret behind its pair
masks and one of the seed of its own mask, sealed so that the server cannot read them.  Afterwards
t clients give the server, for a client that was lost, shares of the first, to subtract the masks
that nobody cancels; for one that arrived, shares of the second.  A client never gives both for the
same client: who has both can read its reply.

The threshold t is above two thirds of the group.  So a server that tells clients unlike stories of
who was lost gets too few of both shares, unless a third of the group helps it.  All keys are of one
round: the secret of a client that was lost opens nothing else.  Keys of pairs follow from all the
keys of the group, so clients that were shown unlike groups cannot open each other's shares.

A server that invents clients reads the reply of the only real one in their group.  Clients with an
:class:`Identity` sign their keys, and send nothing to a group with a key that no known client has
signed for this round.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from ..errors import FedladaError, missing_extra, require
from ..protocol.codecs import MalformedReply
from ..protocol.messages import Task
from .identity import NOBODY, SIGNED, Identity
from .masks import LEAST, MOST

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import CTR
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ModuleNotFoundError as error:
    raise missing_extra(error, "secure aggregation", "fedlada[masks]") from None

__all__ = ["Group", "Masker", "TooFew", "checked_keys", "context_of", "threshold"]

FIELD = 2**521 - 1
"""Shares are points of polynomials over this prime field, which is above every secret."""
KEY, SHARE, BOX = 32, 66, 2 * 66 + 16
"""Bytes of a key or a secret, of a share, and of two sealed shares."""
KEYS = 2 * KEY + SIGNED
"""Bytes of a client's two keys and its signature of them."""
BLOCK = 2**18
"""Numbers that stay in the cache while all masks are added to them."""


def threshold(count: int) -> int:
    """Return how many clients of a group must answer at the end."""
    return 2 * count // 3 + 1


def context_of(task: Task) -> str:
    """Return the name of a round, on which all of its keys depend."""
    return f"{task.run} {task.round} {task.nonce}"


class TooFew(FedladaError):
    """Fewer clients than the threshold are left, so the sum stays closed."""


class Masker:
    """A client in one round: it answers each question once, and in this order alone."""

    def __init__(self, context: str, identity: Identity | None = None) -> None:
        """Make new keys; ``context`` names the run and the round."""
        self.context, self._identity, self._done = context, identity, 0
        self._talk, self._pair = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self._own = os.urandom(KEY)
        self._me, self._all = 0, b""
        self._held: dict[int, bytes] = {}

    def saved(self) -> bytes:
        """Return all that :meth:`restored` needs to answer the next step; it is secret."""
        secret = (self._talk.private_bytes_raw(), self._pair.private_bytes_raw(), self._own)
        held = {v: shares.hex() for v, shares in self._held.items()}
        plain = [self.context, self._done, self._me, *(b.hex() for b in (*secret, self._all)), held]
        return json.dumps(plain).encode()

    @classmethod
    def restored(cls, saved: bytes, identity: Identity | None = None) -> Masker:
        """Return the client that was saved."""
        context, done, me, *secret, held = json.loads(saved)
        masker = cls(context, identity)
        talk, pair, masker._own, everyone = map(bytes.fromhex, secret)
        masker._talk, masker._pair = map(X25519PrivateKey.from_private_bytes, (talk, pair))
        masker._done, masker._me = done, me
        masker._held = {int(v): bytes.fromhex(shares) for v, shares in held.items()}
        masker._meet(everyone)
        return masker

    def answer(self, step: str, message: bytes) -> bytes:
        """Answer one of the steps ``keys``, ``shares`` and ``unmask``."""
        steps = {"keys": (0, self._keys), "shares": (1, self._shares), "unmask": (3, self._unmask)}
        require(step in steps, f"there is no step {step!r} of masks; both must run the same code")
        number, answer = steps[step]
        with self._turn(number):
            return answer(message)

    def mask(self, whole: Tensor, sealed: bytes) -> Tensor:
        """Return a vector of int32 under masks, for the group whose ``sealed`` shares came."""
        with self._turn(2):
            return self._mask(whole, sealed)

    def _mask(self, whole: Tensor, sealed: bytes) -> Tensor:
        parts = _cut(sealed, 1 + BOX)
        boxes = {part[0]: part[1:] for part in parts}
        fits = len(boxes) == len(parts) and self._me not in boxes
        require(
            fits and all(v < len(self._keys_of) for v in boxes),
            "the server sent shares of nobody, or twice; this client sends nothing",
        )
        self._enough(len(boxes) + 1)
        for v, box in boxes.items():
            self._held[v] = self._opened(v, box)
        return _masked(whole.clone(), [(_derive(self._own, "own"), 1), *map(self._with, boxes)])

    def _keys(self, message: bytes) -> bytes:
        keys = self._mine()
        return keys + (self._identity.sign(self._to_sign(keys)) if self._identity else NOBODY)

    def _mine(self) -> bytes:
        return _public(self._talk) + _public(self._pair)

    def _to_sign(self, keys: bytes) -> bytes:
        return self.context.encode() + keys

    def _meet(self, everyone: bytes) -> None:
        """Note the keys of a group, of which all keys of its pairs follow."""
        self._all, keys = everyone, _cut(everyone, KEYS)
        self._keys_of = [(each[:KEY], each[KEY : 2 * KEY]) for each in keys]
        self._group = hashlib.sha256(self.context.encode() + everyone).digest()

    def _shares(self, message: bytes) -> bytes:
        """Return two shares for each other client of the group, sealed for it."""
        require(len(message) > 0, "the server shows no group; this client sends nothing")
        self._me = message[0]
        self._meet(message[1:])
        keys = _cut(self._all, KEYS)
        distinct = {key for pair in self._keys_of for key in pair}
        require(
            LEAST <= len(keys) <= MOST and len(distinct) == 2 * len(keys),
            f"the server shows a group of {len(keys)} clients, or a key twice; this client sends"
            " nothing",
        )
        require(
            self._me < len(keys) and keys[self._me].startswith(self._mine()),
            "the server shows other clients a key that is not this client's; it sends nothing",
        )
        if self._identity is not None:
            signed = [(self._to_sign(each[: 2 * KEY]), each[2 * KEY :]) for each in keys]
            self._identity.check(signed)
        secret, count = self._pair.private_bytes_raw(), len(keys)
        both = zip(_split(self._own, count), _split(secret, count), strict=True)
        shares = [own + pair for own, pair in both]
        self._held = {self._me: shares[self._me]}
        others = (v for v in range(count) if v != self._me)
        return b"".join(
            self._seal(v, self._me, v).encrypt(bytes(12), shares[v], None) for v in others
        )

    def _unmask(self, message: bytes) -> bytes:
        """Return one share of each client: of its own mask if it arrived, else of its pair key."""
        arrived = set(message)
        require(
            self._me in arrived and arrived <= self._held.keys() and len(arrived) == len(message),
            "the server asks for shares of others than took part; this client gives none",
        )
        self._enough(len(arrived))
        either = {v: (both[:SHARE], both[SHARE:]) for v, both in sorted(self._held.items())}
        return b"".join(either[v][v not in arrived] for v in either)

    @contextmanager
    def _turn(self, step: int) -> Iterator[None]:
        """Refuse a step that is not the next, and every step after one that failed."""
        require(
            self._done == step,
            "the server asks a client twice, or out of order, about the masks of one round; two"
            " answers would open its reply, so it gives none",
        )
        self._done = -1
        yield
        self._done = step + 1

    def _enough(self, count: int) -> None:
        least = threshold(len(self._keys_of))
        if count < least:
            raise TooFew(
                f"{count} of {len(self._keys_of)} clients of a group are left and {least} are"
                " needed, so the sum of their replies stays closed"
            )

    def _seal(self, v: int, sender: int, receiver: int) -> ChaCha20Poly1305:
        secret = self._talk.exchange(X25519PublicKey.from_public_bytes(self._keys_of[v][0]))
        return ChaCha20Poly1305(_derive(secret, "seal", self._group, sender, receiver))

    def _opened(self, v: int, box: bytes) -> bytes:
        try:
            return self._seal(v, v, self._me).decrypt(bytes(12), box, None)
        except InvalidTag:
            raise FedladaError(
                "another client's shares cannot be opened: it was shown another group, or the"
                " server has changed them; this client sends nothing"
            ) from None

    def _with(self, v: int) -> tuple[bytes, int]:
        return _pair_key(self._pair, self._keys_of[v][1], self._me, v, self._group)


class Group:
    """The server's side of one group in one round: from its clients' keys to their sum."""

    def __init__(self, context: str, keys: Mapping[int, bytes]) -> None:
        """Begin with the checked ``keys`` of the clients, in the order of their places."""
        self.clients, self._keys = list(keys), list(keys.values())
        self._place = {client: place for place, client in enumerate(self.clients)}
        self._group = hashlib.sha256(context.encode() + b"".join(self._keys)).digest()
        self._boxes: dict[int, list[bytes]] = {}
        self._answers: dict[int, list[int]] = {}
        self._sum: Tensor | None = None
        self.threshold = threshold(len(self.clients))
        self.arrived: list[int] = []
        """The clients whose masked vectors are in the sum."""

    def ask_shares(self, client: int) -> bytes:
        """Return the message that asks a client for shares: its place and all keys."""
        return bytes([self._place[client]]) + b"".join(self._keys)

    def take_shares(self, client: int, message: bytes) -> None:
        """Keep a client's sealed shares, which are for the others."""
        boxes = _cut(message, BOX)
        if len(boxes) != len(self.clients) - 1:
            raise MalformedReply("wrong shares of masks")
        place = self._place[client]
        self._boxes[client] = [*boxes[:place], b"", *boxes[place:]]

    @property
    def ready(self) -> list[int]:
        """The clients to ask for replies; none if too few have given shares."""
        return list(self._boxes) if len(self._boxes) >= self.threshold else []

    def sealed(self, client: int) -> bytes:
        """Return the shares that others have sealed for a client."""
        place = self._place[client]
        others = ((self._place[v], boxes) for v, boxes in self._boxes.items() if v != client)
        return b"".join(bytes([v]) + boxes[place] for v, boxes in others)

    @property
    def left(self) -> list[int]:
        """The clients to ask for the shares that open the sum; none if too few have arrived."""
        return self.arrived if len(self.arrived) >= self.threshold else []

    def add(self, client: int, masked: Tensor) -> None:
        """Add a client's masked vector of int32."""
        if self._sum is None:
            self._sum = torch.zeros_like(masked)
        self._sum.add_(masked)
        self.arrived.append(client)

    def ask_unmask(self) -> bytes:
        """Return the message that asks clients to unmask: the places of those that arrived."""
        return bytes(sorted(self._place[client] for client in self.arrived))

    def take_unmask(self, client: int, message: bytes) -> None:
        """Keep a client's shares of all that gave shares, in the order of their places."""
        shares = [int.from_bytes(share, "big") for share in _cut(message, SHARE)]
        if len(shares) != len(self._boxes) or not all(share < FIELD for share in shares):
            raise MalformedReply("wrong shares of masks")
        self._answers[client] = shares

    def opened(self) -> Tensor:
        """Return the sum of the vectors of the clients that arrived, modulo 2**32."""
        if self._sum is None or len(self._answers) < self.threshold:
            raise TooFew(f"{len(self._answers)} clients answered, and {self.threshold} are needed")
        chosen = dict(list(self._answers.items())[: self.threshold])
        weights = _weights([self._place[client] + 1 for client in chosen])
        places = {self._place[client] for client in self.arrived}
        taken = list[tuple[bytes, int]]()
        for i, v in enumerate(sorted(self._place[client] for client in self._boxes)):
            secret = _joined(weights, [shares[i] for shares in chosen.values()])
            if v in places:
                taken.append((_derive(secret, "own"), -1))
            else:  # the key of v gives, with the sign of v, what the others have added
                private = X25519PrivateKey.from_private_bytes(secret)
                if _public(private) != self._keys[v][KEY : 2 * KEY]:
                    raise MalformedReply("wrong shares of masks")
                others = [(u, self._keys[u][KEY : 2 * KEY]) for u in places]
                taken += [_pair_key(private, key, v, u, self._group) for u, key in others]
        return _masked(self._sum, taken)


def checked_keys(message: bytes, seen: set[bytes]) -> bytes:
    """Return a client's keys if others can use them, and add them to those of others, ``seen``."""
    if len(message) != KEYS:
        raise MalformedReply("wrong keys of masks")
    keys = {message[:KEY], message[KEY : 2 * KEY]}
    if len(keys) != 2 or not keys.isdisjoint(seen):
        raise MalformedReply("wrong keys of masks")
    try:
        for key in keys:
            X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError as wrong:  # a point of small order
        raise MalformedReply("wrong keys of masks") from wrong
    seen |= keys
    return message


def _masked(whole: Tensor, streams: Iterable[tuple[bytes, int]]) -> Tensor:
    """Add to a vector of int32, in place, the stream of each key with its sign."""
    ciphers = [(Cipher(AES(key), CTR(bytes(16))).encryptor(), sign) for key, sign in streams]
    zeros, room = memoryview(bytes(4 * BLOCK)), bytearray(4 * BLOCK + 15)
    mask = torch.frombuffer(room, dtype=torch.int32, count=BLOCK)
    for part in torch.split(whole, BLOCK):
        count = len(part)
        for cipher, sign in ciphers:
            cipher.update_into(zeros[: 4 * count], room)
            part.add_(mask[:count]) if sign > 0 else part.sub_(mask[:count])
    return whole


def _pair_key(
    private: X25519PrivateKey, public: bytes, me: int, other: int, group: bytes
) -> tuple[bytes, int]:
    """Return the key of a pair's mask, and the sign with which ``me`` adds it."""
    secret = private.exchange(X25519PublicKey.from_public_bytes(public))
    return _derive(secret, "pair", group, min(me, other), max(me, other)), 1 if me < other else -1


def _split(secret: bytes, count: int) -> list[bytes]:
    """Return shares of a secret, one for each place; ``threshold(count)`` of them restore it."""
    rest = (secrets.randbelow(FIELD) for _ in range(threshold(count) - 1))
    polynomial = [int.from_bytes(secret, "big"), *rest]

    def at(point: int) -> int:
        value = 0
        for coefficient in reversed(polynomial):
            value = (value * point + coefficient) % FIELD
        return value

    return [at(place + 1).to_bytes(SHARE, "big") for place in range(count)]


def _weights(points: Sequence[int]) -> list[int]:
    """Return what to multiply values at these points by, to add up the value at 0."""
    weights = []
    for i in points:
        over = under = 1
        for j in points:
            if j != i:
                over, under = over * j % FIELD, under * (j - i) % FIELD
        weights.append(over * pow(under, -1, FIELD) % FIELD)
    return weights


def _joined(weights: Sequence[int], shares: Sequence[int]) -> bytes:
    total = sum(weight * share for weight, share in zip(weights, shares, strict=True)) % FIELD
    if total >= 2 ** (8 * KEY):
        raise MalformedReply("wrong shares of masks")
    return total.to_bytes(KEY, "big")


def _derive(secret: bytes, *label: object) -> bytes:
    return HKDF(SHA256(), KEY, None, repr(label).encode()).derive(secret)


def _public(private: X25519PrivateKey) -> bytes:
    return private.public_key().public_bytes_raw()


def _cut(message: bytes, size: int) -> list[bytes]:
    """Return the parts of a message, all of one size."""
    if len(message) % size:
        raise MalformedReply("wrong length of a message about masks")
    return [message[i : i + size] for i in range(0, len(message), size)]
