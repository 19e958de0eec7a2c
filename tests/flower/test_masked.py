"""Masks on Flower: the bits of a plain run in process, whatever becomes of nodes between messages.

Nodes live on a grid in memory; ``test_loopback.py`` has real ones.
"""

import functools
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from flwr.app import ConfigRecord, Message
from torch import nn

import fedlada
from federations import same_bits
from fedlada import FedladaError, LocalTraining
from fedlada.engines.around import Around
from fedlada.engines.in_process import InProcess
from fedlada.flower import (
    Finished,
    ServerConfig,
    client_app,
    leaf_app,
    masks as node_masks,
    run_server,
)
from fedlada.flower.memory_grid import MemoryGrid
from fedlada.flower.warm import keeping, worker as warm_worker
from fedlada.flower.warm.local_socket import listen
from fedlada.flower.wire.header import HEADER
from fedlada.protocol.messages import Failure, Reply, Task
from fedlada.protocol.seeds import seed_of
from fedlada.server.loop import NothingApplied

CLIENTS, ROUNDS = 6, 2
PRIVACY = "noise = 0.0, delta = 1e-3, clip = 0.3, steps = 2, seeded = true"
MASKS = "least = 3, group = 6"
train = LocalTraining(steps=2, batch_size=4)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def data(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(client)
    inputs = torch.randn(8 + client % 5, 4, generator=generator) + client % 3
    return inputs, inputs[:, :3].argmax(1)


def node_data(context) -> tuple[torch.Tensor, torch.Tensor]:
    return data(int(context.node_config["partition-id"]))


class Lost(Around):
    """Clients in process, one of which is lost in the second round."""

    def __init__(self, engine: InProcess, lost: int) -> None:
        super().__init__(engine)
        self._lost = lost

    def exchange(self, task: Task, cohort: Sequence[int]) -> Iterator[Reply | Failure]:
        for reply in self._engine.exchange(task, cohort):
            gone = task.round == 1 and reply.client == self._lost
            yield Failure(client=reply.client, reason="deadline") if gone else reply


@functools.cache
def in_process(name: str = "scaffold", lost: int = CLIENTS, rounds: int = ROUNDS) -> Finished:
    """The run without masks and without Flower."""
    torch.manual_seed(seed_of(0, "model"))
    network, clients = model(), [data(client) for client in range(CLIENTS)]
    run = fedlada.simulate(
        network,
        clients,
        algorithm=name,
        rounds=rounds,
        cohort="all",
        privacy=PRIVACY,
        train=train,
        quiet=True,
        engine=Lost(InProcess(fedlada.algorithm(name), network, clients, train), lost),
    )
    records = run.run()
    return Finished(model=run.model, state=run.state, history=records)


def grid(kind: type[MemoryGrid] = MemoryGrid, **settings) -> MemoryGrid:
    return kind(client_app(model, node_data, train), nodes=CLIENTS, **settings)


def on(there: MemoryGrid, name: str = "scaffold", **more) -> Finished:
    usual = {"algorithm": name, "rounds": ROUNDS, "cohort": "all", "privacy": PRIVACY}
    usual |= {"masks": MASKS, "num-partitions": CLIENTS, "nodes": CLIENTS, "deadline": 20.0}
    return run_server(there, ServerConfig.read(usual | more), model)


def equal(one: Finished, other: Finished) -> bool:
    return same_bits(one.state.vectors, other.state.vectors)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where cold nodes keep secrets between messages."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    return tmp_path / node_masks.DIRECTORY


@pytest.mark.parametrize("name", ["scaffold", "fedlada-rows", "fedcm"])
def test_on_nodes_it_has_the_bits_of_the_plain_run_in_process(name, home):
    there, alone = on(grid(), name), in_process(name)
    assert equal(there, alone)
    assert not equal(alone, in_process(name, lost=2))
    assert there.history == alone.history
    assert list(home.iterdir()) == [], "secrets outlive their round"


def test_warm_nodes_keep_their_secrets_in_memory_and_drop_them(home, monkeypatch):
    monkeypatch.setattr(node_masks, "in_worker", lambda: True)
    assert equal(on(grid()), in_process())
    assert not home.exists()
    assert not node_masks.under_way()


def test_a_worker_does_not_end_while_it_holds_secrets_of_a_round(monkeypatch, tmp_path):
    """Another client may train for longer than a worker waits for messages."""
    monkeypatch.setattr(keeping, "_in_worker", False)  # main() sets it, and it is put back
    with listen(tmp_path / "socket") as listener:
        settings = {"node": os.getpid(), "reference": "no:app", "idle": 0.05}
        settings["listener"] = listener.detach()
        node_masks._memory.put("client", b"secret")
        worker = threading.Thread(target=warm_worker.main, args=[settings])
        worker.start()
        worker.join(0.5)
        assert worker.is_alive()
        assert node_masks._memory.take("client") == b"secret"
        worker.join(10)
        assert not worker.is_alive()


def step_of(message: Message) -> str:
    """The step of the masks that a message asks for, or nothing."""
    header = message.content.get(HEADER, {})
    if message.metadata.message_type == "train":
        return "reply"
    return str(header.get("step", ""))


class Faulty(MemoryGrid):
    """In the second round something becomes of a message to node 2, or of the answer."""

    step = ""

    def reply(self, message: Message) -> Message | None:
        second = message.metadata.group_id == "2" and message.metadata.dst_node_id == 1002
        if second and step_of(message) == self.step:
            return self.fault(message)
        return super().reply(message)

    def honest(self, message: Message) -> Message | None:
        return super().reply(message)

    def fault(self, message: Message) -> Message | None:
        raise NotImplementedError


class Silent(Faulty):
    def fault(self, message: Message) -> None:
        return None


class Forgetful(Faulty):
    """The node was started again: its secrets are gone."""

    def fault(self, message: Message) -> Message | None:
        node_masks._place().forget(node_masks._client(2, self.contexts[1002]))
        return self.honest(message)


class Late(Faulty):
    """The node trains for so long that the next round has begun when it is done."""

    def fault(self, message: Message) -> None:
        self.old = message

    def reply(self, message: Message) -> Message | None:
        old, self.old = getattr(self, "old", None), None
        if message.metadata.group_id == "2" and message.metadata.dst_node_id == 1002:
            return self.fault(message) if step_of(message) == "reply" else self.honest(message)
        if old is None or message.metadata.dst_node_id != 1002 or step_of(message) != "shares":
            self.old = old
            return self.honest(message)
        assert self.honest(old).has_error()
        self.late = True
        return self.honest(message)


class Senseless(Faulty):
    def fault(self, message: Message) -> Message | None:
        answer = self.honest(message)
        assert answer is not None
        answer.content[HEADER] = ConfigRecord({"client": 2, "message": b"\0\1\2"})
        return answer


class Wordless(Faulty):
    def fault(self, message: Message) -> Message | None:
        answer = self.honest(message)
        assert answer is not None
        answer.content.clear()
        return answer


@pytest.mark.filterwarnings("ignore:the guard stepped in")
@pytest.mark.parametrize(
    ("kind", "step"),
    [
        *((Silent, step) for step in ("shares", "unmask")),
        *((Forgetful, step) for step in ("shares", "reply", "unmask")),
        *((Senseless, step) for step in ("keys", "shares", "reply", "unmask")),
        (Wordless, "keys"),
    ],
)
def test_a_node_that_is_lost_or_answers_nonsense_counts_as_in_a_plain_run(kind, step):
    """Before its reply it is left out; after it, it is in the sum."""
    nodes = grid(kind)
    nodes.step = step
    there = on(nodes, deadline=3.0)
    assert equal(there, in_process(lost=CLIENTS if step == "unmask" else 2))


def test_a_node_that_is_late_in_one_round_takes_part_in_the_next():
    nodes = grid(Late)
    there = on(nodes, rounds=3, deadline=3.0)
    assert nodes.late
    assert equal(there, in_process(lost=2, rounds=3))


class Lying(Faulty):
    """A server that changes what it asks of node 2, or asks again; it notes what nodes refuse."""

    def __init__(self, *arguments, **settings) -> None:
        super().__init__(*arguments, **settings)
        self.refused: list[str] = []
        self.lie: Callable[[Message], Message] = lambda message: message
        self.again = False
        self.seen: dict[str, Message] = {}

    def reply(self, message: Message) -> Message | None:
        answer = super().reply(message)
        if answer is not None and answer.has_error():
            self.refused.append(answer.error.reason)
        return answer

    def fault(self, message: Message) -> Message | None:
        answer = self.honest(self.lie(message))
        if self.again:
            second = self.honest(message)
            assert second is not None
            self.refused.append(second.error.reason if second.has_error() else "")
        return answer


def changed(**values: Callable[[bytes], bytes]) -> Callable[[Message], Message]:
    """Change values in the header of a message."""

    def lie(message: Message) -> Message:
        header = dict(message.content[HEADER])
        new = {key: change(header[key]) for key, change in values.items()}
        message.content[HEADER] = ConfigRecord(header | new)
        return message

    return lie


@pytest.mark.parametrize("step", ["shares", "reply", "unmask"])
def test_a_message_that_is_repeated_gets_no_second_answer(step):
    nodes = grid(Lying)
    nodes.step, nodes.again = step, True
    assert equal(on(nodes), in_process(lost=CLIENTS if step in ("reply", "unmask") else 2))
    assert "out of order" in nodes.refused[0]


@pytest.mark.parametrize(
    ("step", "lie", "match"),
    [
        ("shares", changed(message=lambda m: m[:1] + m[161:] + m[1:161]), "not this client's"),
        ("shares", changed(message=lambda m: m[:1] + m[1:161] + m[1:]), "a key twice"),
        ("shares", changed(message=lambda m: m[:-1] + bytes([m[-1] ^ 1])), "cannot be opened"),
        ("reply", changed(sealed=lambda m: m[:-1] + bytes([m[-1] ^ 1])), "cannot be opened"),
        ("unmask", changed(message=lambda m: m[:-1]), "others than took part|are left"),
        ("unmask", changed(message=lambda m: m + b"\x09"), "others than took part"),
        ("unmask", changed(context=lambda c: c + "0"), "asks twice, or out of order"),
    ],
)
def test_nodes_notice_what_the_server_changes(step, lie, match):
    nodes = grid(Lying)
    nodes.step, nodes.lie = step, lie
    run = on(nodes)
    assert len(run.history) == ROUNDS
    assert any(re.search(match, reason) for reason in nodes.refused), nodes.refused


def test_below_the_threshold_a_group_stays_closed_and_the_run_goes_on():
    """5 of 6 are needed.  The second round is released as noise alone, and here there is none."""

    class Two(Silent):
        def reply(self, message: Message) -> Message | None:
            twin = message.metadata.group_id == "2" and message.metadata.dst_node_id == 1003
            if twin and step_of(message) == self.step:
                return None
            return super().reply(message)

    nodes = grid(Two)
    nodes.step = "reply"
    run = on(nodes, "fedavg", deadline=3.0)
    assert len(run.history) == ROUNDS
    assert run.state.account.releases == ROUNDS
    first = on(grid(), "fedavg", rounds=1)
    assert same_bits(run.state.vectors.only(["x"]), first.state.vectors.only(["x"]))


def test_of_several_who_want_a_secret_one_gets_it_and_no_other_user_can_read_it(home):
    place = node_masks._place()
    place.put("a", b"secret")
    (path,) = home.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert [place.take("a"), place.take("a")] == [b"secret", None]
    for name in ("a.1", "b.1", "b.1.taken", "c.1"):
        place.put(name, b"secret")
    os.utime(home / "c.1", (0, 0))
    place.forget("b")
    assert {path.name for path in home.iterdir()} == {"a.1", "b.1.taken"}


def keys(directory: Path, count: int = CLIENTS) -> list[Path]:
    """Make the keys of sites as ssh-keygen does, and the file of all public ones."""
    made = [Ed25519PrivateKey.generate() for _ in range(count)]
    for number, key in enumerate(made):
        form = (Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        (directory / f"key-{number}").write_bytes(key.private_bytes(*form))
    public = (key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) for key in made)
    (directory / "known").write_bytes(b"".join(line + b" a site\n" for line in public))
    return [directory / f"key-{number}" for number in range(count)]


def known(directory: Path, **more) -> MemoryGrid:
    """Nodes that know each other's keys."""
    nodes = grid(Lying)
    for context, key in zip(nodes.contexts.values(), keys(directory), strict=True):
        context.node_config |= {"masks-key": str(key), "masks-known": str(directory / "known")}
        context.node_config |= more
    return nodes


def test_nodes_that_know_each_other_end_in_the_same_bits(tmp_path):
    assert equal(on(known(tmp_path)), in_process())


def test_they_send_nothing_to_a_group_with_a_stranger(tmp_path):
    """It has no key: the server may have made it up."""
    nodes = known(tmp_path)
    for name in ("masks-key", "masks-known"):
        del nodes.contexts[1004].node_config[name]
    run = on(nodes)
    assert len(run.history) == ROUNDS
    assert any("5 of the 6 clients of a group are known" in reason for reason in nodes.refused)
    assert {reason for reason in nodes.refused if "known" not in reason} == set()


def test_they_answer_nothing_without_masks_and_no_small_group(tmp_path):
    nodes = known(tmp_path)
    with pytest.raises(NothingApplied):
        on(nodes, masks="", privacy="")
    assert len(nodes.refused) == CLIENTS * ROUNDS
    assert all("an answer without masks" in reason for reason in nodes.refused)
    nodes = known(tmp_path, **{"masks-least": CLIENTS + 1})
    with pytest.raises(NothingApplied):
        on(nodes)
    assert all("fewer than 7" in reason for reason in nodes.refused)


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda node, d: node.pop("masks-known"), "needs both"),
        (lambda node, d: node.update({"masks-key": str(d / "none")}), "cannot be read"),
        (lambda node, d: node.update({"masks-key": str(d / "known")}), "that is no key"),
        (lambda node, d: node.update({"masks-known": os.devnull}), "not among those of all"),
    ],
)
def test_a_node_without_sound_keys_says_so(tmp_path, spoil, match):
    nodes = known(tmp_path)
    spoil(nodes.contexts[1001].node_config, tmp_path)
    on(nodes, rounds=1)
    assert any(match in reason for reason in nodes.refused)


def test_leaves_are_refused():
    leaves = MemoryGrid(leaf_app(model, lambda context: [node_data(context)], train), nodes=3)
    with pytest.raises(FedladaError, match="several processes or leaves share the cohort"):
        on(leaves, clients=3, nodes=3, **{"num-partitions": 0})
