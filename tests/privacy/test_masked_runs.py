"""Runs under masks: they end in the bits of plain ones, whoever is lost between the messages."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import nn

import fedlada
from federations import same_bits
from fedlada import FedladaError, LocalTraining, Plan
from fedlada.algorithms import Vector, Vectors
from fedlada.engines.around import Around
from fedlada.engines.in_process import InProcess
from fedlada.protocol.messages import Answer, Failure, Reply, Task

CLIENTS, ROUNDS = 14, 3
train = LocalTraining(steps=2, batch_size=4)
NAMES = ["fedavg", "fedcm", "scaffold", "feddyn", "fedlada-rows", "fedlion", "fednova", "fedadam"]
EXACT = {"noise": 0.0, "delta": 1e-3, "clip": 0.3, "steps": 2, "seeded": True}
SMALL = {"least": 3, "group": 6}

Losses = Mapping[str, Collection[int]]
"""The clients that are lost at each step: ``keys``, ``shares``, ``reply`` or ``unmask``."""


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def data(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(client)
    inputs = torch.randn(8 + client % 5, 4, generator=generator) + client % 3
    return inputs, inputs[:, :3].argmax(1)


class Lossy(Around):
    """An engine some of whose clients are lost in the second round; it keeps all replies."""

    def __init__(self, engine: InProcess, losses: Losses) -> None:
        super().__init__(engine)
        self._losses, self.replies = losses, list[Reply]()

    def exchange(self, task: Task, cohort: Sequence[int]) -> Iterator[Reply | Failure]:
        for reply in self._engine.exchange(task, cohort):
            if task.round == 1 and reply.client in self._losses.get("reply", ()):
                yield Failure(client=reply.client, reason="deadline")
            else:
                self.replies.append(reply)
                yield reply

    def ask(
        self, task: Task, step: str, messages: Mapping[int, bytes]
    ) -> Iterator[Answer | Failure]:
        for answer in super().ask(task, step, messages):
            if task.round == 1 and answer.client in self._losses.get(step, ()):
                yield Failure(client=answer.client, reason="deadline")
            else:
                yield answer


def ended(name="fedavg", masks=None, *, losses: Losses | None = None, lossy=Lossy, **more):
    privacy, clients = more.pop("privacy", EXACT), [data(i) for i in range(CLIENTS)]
    if losses is not None:
        more["engine"] = lossy(InProcess(fedlada.algorithm(name), model(), clients, train), losses)
    run = fedlada.simulate(
        model(),
        clients,
        algorithm=name,
        cohort=0.8,
        train=train,
        privacy=privacy,
        masks=masks,
        quiet=True,
        **{"rounds": ROUNDS, **more},
    )
    return run, run.run()


def equal(one, other) -> bool:
    """Whether two runs have the same bits, and the same records."""
    return same_bits(one[0].state.vectors, other[0].state.vectors) and one[1] == other[1]


@pytest.mark.filterwarnings("ignore:.* has as many numbers as the model")
@pytest.mark.parametrize("name", NAMES)
def test_a_masked_run_has_the_bits_of_a_plain_one(name):
    """In groups of at most six, with clips that follow the masked bits."""
    plain, masked = ended(name), ended(name, SMALL)
    assert equal(masked, plain)
    assert masked[1][0].clips != masked[1][-1].clips


def test_so_it_has_with_noise_and_clients_trained_at_once():
    privacy = {"noise": 0.5, "delta": 1e-3, "clip": 0.3, "steps": 2, "quantile": 0, "seeded": True}
    more = {"privacy": privacy, "at_once": 4}
    assert equal(ended(masks=SMALL, **more), ended(**more))


@pytest.mark.parametrize("step", ["keys", "shares", "reply"])
def test_a_client_that_is_lost_before_its_reply_is_as_in_a_plain_run(step):
    plain = ended("scaffold", losses={"reply": (2, 9)})
    masked = ended("scaffold", {"least": 3, "group": 20}, losses={step: (2, 9)})
    assert equal(masked, plain)
    assert not equal(masked, ended("scaffold"))


def test_a_client_that_is_lost_after_its_reply_is_in_the_sum():
    masks = {"least": 3, "group": 20}
    assert equal(ended("scaffold", masks, losses={"unmask": (2, 9)}), ended("scaffold"))


@pytest.mark.parametrize("step", ["keys", "shares", "reply", "unmask"])
def test_a_round_with_too_few_clients_is_released_as_noise_alone(step):
    """Here there is no noise, so the model stays as it was; the budget is spent all the same."""
    run, records = ended(masks={"least": 8, "group": 20}, losses={step: range(8)})
    before, _ = ended(masks={"least": 8, "group": 20}, losses={}, rounds=1)
    after, _ = ended(masks={"least": 8, "group": 20}, losses={step: range(8)}, rounds=2)
    assert same_bits(after.state.vectors.only(["x"]), before.state.vectors.only(["x"]))
    assert [record.applied for record in records] == [True] * ROUNDS
    assert run.state.account.releases == ROUNDS


def test_a_masked_run_that_is_resumed_has_the_bits_of_a_plain_one(tmp_path):
    ended("scaffold", SMALL, rounds=2, checkpoints=tmp_path)
    resumed, records = ended("scaffold", SMALL, checkpoints=tmp_path)
    assert len(records) == ROUNDS - 2
    assert same_bits(resumed.state.vectors, ended("scaffold")[0].state.vectors)


def test_the_server_sees_whole_numbers_that_are_other_ones_every_time():
    seen = []
    for _ in range(2):
        run, _ = ended(masks=SMALL, losses={}, rounds=1)
        seen.append({reply.client: reply for reply in run._engine.replies})
    assert seen[0].keys() == seen[1].keys()
    for client, reply in seen[0].items():
        again = seen[1][client]
        assert {t.dtype for t in reply.vectors.delta} == {torch.int32}
        assert not same_bits(reply.vectors, again.vectors)
        assert reply.metrics != again.metrics
        assert (reply.steps, reply.examples, reply.seconds) == (2, 1, 0.0)


class Copied(Lossy):
    """In the second round the second client gives the keys of the first as its own."""

    def ask(
        self, task: Task, step: str, messages: Mapping[int, bytes]
    ) -> Iterator[Answer | Failure]:
        first = None
        for number, answer in enumerate(super().ask(task, step, messages)):
            first = answer if number == 0 else first
            if (task.round, step, number) == (1, "keys", 1):
                self.copier = answer.client
                answer = replace(answer, message=first.message)
            yield answer


@pytest.mark.filterwarnings("ignore:the guard stepped in")
def test_a_client_that_copies_the_keys_of_another_is_left_out_alone():
    masks = {"least": 3, "group": 20}
    copied = ended(masks=masks, losses={}, lossy=Copied)
    assert equal(copied, ended(losses={"reply": [copied[0]._engine.copier]}))


class Lying(Lossy):
    """The losses say what becomes of the first reply of the second round."""

    def exchange(self, task: Task, cohort: Sequence[int]) -> Iterator[Reply | Failure]:
        replies = self._engine.exchange(task, cohort)
        if task.round == 1:
            self.asked = cohort
            yield from self._losses["reply"](next(replies))
        yield from replies


LIES = {
    "other types": lambda reply: [replace(reply, vectors=reply.vectors.on(torch.float64))],
    "other shapes": lambda reply: [replace(reply, vectors=Vectors(delta=Vector([torch.ones(2)])))],
    "no bits": lambda reply: [replace(reply, metrics={})],
    "no whole number": lambda reply: [replace(reply, metrics={"below delta": 0.5})],
    "another task": lambda reply: [replace(reply, nonce="")],
    "a stranger": lambda reply: [replace(reply, client=99)],
}


@pytest.mark.filterwarnings("ignore:the guard stepped in")
@pytest.mark.parametrize("lie", LIES)
def test_a_reply_in_another_form_is_that_of_a_client_that_was_lost(lie):
    masks = {"least": 3, "group": 20}
    lied = ended(masks=masks, losses={"reply": LIES[lie]}, lossy=Lying)
    asked = lied[0]._engine.asked
    assert equal(lied, ended(masks=masks, losses={"reply": asked[:1]}))


@pytest.mark.filterwarnings("ignore:the guard stepped in")
def test_a_second_reply_changes_nothing():
    masks, twice = {"least": 3, "group": 20}, {"reply": lambda reply: [reply, reply]}
    assert equal(ended(masks=masks, losses=twice, lossy=Lying), ended())


@pytest.mark.filterwarnings("ignore:the guard stepped in")
def test_a_client_that_spoils_its_group_spoils_no_other():
    """Numbers that were not masked as agreed give a sum beyond its clips, which is not used."""

    def other(reply: Reply) -> list[Reply]:
        vectors = reply.vectors.delta.each(lambda t: t + 2**30)
        return [replace(reply, vectors=Vectors(delta=vectors))]

    spoilt, _ = ended(masks=SMALL, losses={"reply": other}, lossy=Lying, rounds=2)
    honest, _ = ended(rounds=2)
    before, _ = ended(rounds=1)
    assert not same_bits(spoilt.state.vectors, honest.state.vectors)
    assert not same_bits(spoilt.state.vectors, before.state.vectors)
    moved = (spoilt.state.vectors.x - honest.state.vectors.x).norm()
    assert moved < 0.3  # a clip, of which at most half of the cohort is missing


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"privacy": None}, "masks and no privacy"),
        ({"workers": 2}, "several processes or leaves share the cohort"),
        ({"masks": True}, "about 11.2 of 14 clients, and masks open no group below 20"),
        ({"masks": "leest = 3"}, "'leest' is no setting of masks"),
    ],
    ids=["privacy", "workers", "cohort", "name"],
)
def test_what_masks_cannot_have_is_refused(settings, match):
    with pytest.raises(FedladaError, match=match):
        ended(**{"masks": SMALL, **settings})


def test_an_engine_without_questions_is_refused():
    class Bare:
        clients, keeps = CLIENTS, False

        def exchange(self, task, cohort):
            yield from ()

        def commit(self, task, clients):
            pass

    with pytest.raises(FedladaError, match="this engine has no ask"):
        ended(masks=SMALL, engine=Bare())


def test_masks_are_read_like_other_settings():
    plan = {"cohort": 0.5, "privacy": EXACT}
    assert Plan(masks=True, **plan).masks == fedlada.privacy.Masks()
    assert Plan(masks="least = 5, group = 10", **plan).masks == fedlada.privacy.Masks(
        least=5, group=10
    )
    assert Plan(masks=False, **plan) == Plan(masks="", **plan) == Plan(**plan)
