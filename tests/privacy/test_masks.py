"""Secure aggregation, law by law: the server opens sums of groups, and no single reply."""

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from scipy.stats import chisquare

from fedlada import FedladaError
from fedlada.privacy import Masks
from fedlada.privacy.identity import Identity
from fedlada.privacy.masking import (
    BOX,
    KEY,
    KEYS,
    SHARE,
    Group,
    Masker,
    TooFew,
    checked_keys,
    threshold,
)
from fedlada.protocol.codecs import MalformedReply

CONTEXT = "a run, a round"


def inputs(count: int, size: int = 1001) -> dict[int, torch.Tensor]:
    """Numbers as the codec makes them, for clients 0, 10, 20 and so on."""
    generator = torch.Generator().manual_seed(count)
    return {
        10 * i: torch.randint(-(2**24), 2**24, (size,), generator=generator, dtype=torch.int32)
        for i in range(count)
    }


def shared(clients, silent=()) -> tuple[dict[int, Masker], Group]:
    """Run a group up to the shares; ``silent`` clients give keys and no shares."""
    maskers = {client: Masker(CONTEXT) for client in clients}
    group = Group(CONTEXT, {client: m.answer("keys", b"") for client, m in maskers.items()})
    for client, masker in maskers.items():
        if client not in silent:
            group.take_shares(client, masker.answer("shares", group.ask_shares(client)))
    return maskers, group


def added(maskers, group, values, lost=()) -> dict[int, torch.Tensor]:
    sent = {c: maskers[c].mask(values[c], group.sealed(c)) for c in group.ready if c not in lost}
    for client, masked in sent.items():
        group.add(client, masked)
    return sent


def opened(maskers, group, mute=()) -> torch.Tensor:
    for client in group.arrived:
        if client not in mute:
            group.take_unmask(client, maskers[client].answer("unmask", group.ask_unmask()))
    return group.opened()


@pytest.mark.parametrize(
    ("silent", "lost", "mute"),
    [((), (), ()), ((0,), (), ()), ((), (10, 70), ()), ((), (), (80, 20)), ((0,), (30,), (10,))],
)
def test_masks_cancel_exactly_whoever_is_lost_above_the_threshold(silent, lost, mute):
    values = inputs(12)
    maskers, group = shared(values, silent)
    added(maskers, group, values, lost)
    total = opened(maskers, group, mute)
    arrived = [values[c] for c in values if c not in {*silent, *lost}]
    assert group.arrived == [c for c in values if c not in {*silent, *lost}]
    assert torch.equal(total, torch.stack(arrived).sum(0).to(torch.int32))


def test_below_the_threshold_nothing_is_opened():
    """7 of 9 are needed: for shares, for replies, and for their masks."""
    values = inputs(9)
    assert threshold(9) == 7
    assert shared(values, silent=(0, 10, 20))[1].ready == []
    maskers, group = shared(values)
    added(maskers, group, values, lost=(0, 10, 20))
    with pytest.raises(TooFew, match="6 of 9 clients of a group are left and 7 are needed"):
        maskers[30].answer("unmask", group.ask_unmask())
    maskers, group = shared(values)
    added(maskers, group, values)
    with pytest.raises(TooFew):
        opened(maskers, group, mute=(0, 10, 20))


def test_a_masked_vector_shows_nothing_of_its_numbers():
    """All of its bytes are uniform, even if all numbers are 0."""
    zeros = dict.fromkeys(range(3), torch.zeros(100_000, dtype=torch.int32))
    maskers, group = shared(zeros)
    for masked in added(maskers, group, zeros).values():
        for place in masked.view(torch.uint8).view(-1, 4).T:
            assert chisquare(torch.bincount(place, minlength=256)).pvalue > 1e-6


def test_a_client_refuses_a_second_question_and_questions_out_of_order():
    values = inputs(3)
    maskers, group = shared(values)
    with pytest.raises(FedladaError, match="twice, or out of order"):
        maskers[0].answer("unmask", bytes(range(3)))
    maskers, group = shared(values)
    added(maskers, group, values)
    with pytest.raises(FedladaError, match="twice, or out of order"):
        maskers[0].mask(values[0] + 1, group.sealed(0))
    first = maskers[10].answer("unmask", group.ask_unmask())
    assert len(first) == 3 * SHARE
    with pytest.raises(FedladaError, match="twice, or out of order"):
        maskers[10].answer("unmask", group.ask_unmask())


def test_a_client_that_is_saved_between_the_steps_gives_the_same_answers():
    """Its keys, its shares and what it has answered are all that it needs."""
    values = inputs(5)
    maskers, group = shared(values)
    again = {client: Masker.restored(masker.saved()) for client, masker in maskers.items()}
    sent = added(again, group, values, lost=(30,))
    for client, masked in sent.items():
        assert torch.equal(masked, maskers[client].mask(values[client], group.sealed(client)))
    again = {client: Masker.restored(masker.saved()) for client, masker in again.items()}
    arrived = [values[client] for client in sent]
    assert torch.equal(opened(again, group), torch.stack(arrived).sum(0).to(torch.int32))
    once_more = Masker.restored(again[0].saved())
    with pytest.raises(FedladaError, match="twice, or out of order"):
        once_more.answer("unmask", group.ask_unmask())


def known(count: int) -> list[Identity]:
    keys = [Ed25519PrivateKey.generate() for _ in range(count)]
    public = [key.public_key().public_bytes_raw() for key in keys]
    return [Identity(key, public) for key in keys]


def meet(identities, context=CONTEXT) -> str:
    """Let clients see a group, and return what the first says to it."""
    maskers = [Masker(CONTEXT, identity) for identity in identities]
    others = [Masker(context, identity) for identity in identities[1:]]
    told = [m.answer("keys", b"") for m in (maskers[0], *others)]
    try:
        maskers[0].answer("shares", Group(CONTEXT, dict(enumerate(told))).ask_shares(0))
    except FedladaError as refused:
        return str(refused)
    return ""


def test_clients_that_know_each_other_refuse_invented_clients_and_keys_of_another_round():
    four = known(4)
    assert meet(four) == ""
    assert "1 of the 4" in meet([four[0], *known(3)])
    assert "3 of the 4" in meet([*four[:3], four[1]]), "the same client twice"
    assert "1 of the 4" in meet([four[0], None, None, None])
    assert "1 of the 4" in meet(four, context="another round")


@pytest.mark.parametrize("count", [3, 4, 20, 63, 64, 100])
def test_both_shares_of_a_client_need_a_third_of_its_group(count):
    """Each client gives one of both, once, and helpers of the server give both."""
    helpers = next((h for h in range(count) if count + h >= 2 * threshold(count)), count)
    assert helpers >= count / 3


def test_a_client_gives_no_share_of_both_kinds_and_none_of_strangers():
    values = inputs(5)
    maskers, group = shared(values)
    added(maskers, group, values)
    arrived = group.ask_unmask()
    for asked in (arrived + arrived[:1], bytes([*arrived, 5]), bytes([1, 2, 3, 4])):
        again, others = shared(values)
        added(again, others, values)
        with pytest.raises(FedladaError, match="others than took part"):
            again[0].answer("unmask", asked)
    told = [maskers[0].answer("unmask", arrived), maskers[10].answer("unmask", bytes([0, 1, 2, 3]))]
    assert [len(answer) for answer in told] == [5 * SHARE] * 2


def test_a_changed_key_or_group_is_noticed():
    """A client sends nothing if its own key is another, a key is there twice, or shares do not open
    since another client was shown another group."""
    values = inputs(4)
    maskers = {client: Masker(CONTEXT) for client in values}
    keys = {client: masker.answer("keys", b"") for client, masker in maskers.items()}
    other = Masker(CONTEXT).answer("keys", b"")
    changed = Group(CONTEXT, keys | {0: other})
    with pytest.raises(FedladaError, match="not this client's"):
        maskers[0].answer("shares", changed.ask_shares(0))
    with pytest.raises(FedladaError, match="a key twice"):
        maskers[10].answer("shares", Group(CONTEXT, keys | {0: keys[20]}).ask_shares(10))
    whole, partly = Group(CONTEXT, keys), Group(CONTEXT, keys | {10: other})
    for client, shown in ((20, partly), (30, whole)):
        whole.take_shares(client, maskers[client].answer("shares", shown.ask_shares(client)))
    whole.take_shares(0, bytes(3 * BOX))
    with pytest.raises(FedladaError, match="shown another group"):
        maskers[30].mask(values[30], whole.sealed(30))


def test_a_group_of_two_is_refused_by_its_clients():
    maskers = {client: Masker(CONTEXT) for client in range(2)}
    group = Group(CONTEXT, {client: m.answer("keys", b"") for client, m in maskers.items()})
    with pytest.raises(FedladaError, match="a group of 2 clients"):
        maskers[0].answer("shares", group.ask_shares(0))


@pytest.mark.parametrize(
    "message", [b"", bytes(1), bytes(KEYS), bytes(range(KEY)) + bytes(KEYS - KEY), bytes(KEYS + 1)]
)
def test_keys_that_nobody_can_use_are_refused(message):
    with pytest.raises(MalformedReply):
        checked_keys(message, set())


def test_shares_that_do_not_fit_are_refused_and_wrong_ones_do_not_open():
    values = inputs(4)
    maskers, group = shared(values)
    for take, message in ((group.take_shares, bytes(BOX)), (group.take_unmask, b"\xff" * SHARE)):
        with pytest.raises(MalformedReply):
            take(0, message)
    added(maskers, group, values, lost=(30,))
    for client in (0, 10, 20):
        group.take_unmask(client, bytes([0, client]) + bytes(4 * SHARE - 2))
    with pytest.raises(MalformedReply):
        group.opened()


@pytest.mark.parametrize("count", [20, 64, 65, 127, 128, 129, 1000])
def test_groups_share_the_cohort_almost_equally_and_none_is_too_small(count):
    groups = Masks().groups(range(count))
    sizes = [len(group) for group in groups]
    assert sorted(c for group in groups for c in group) == list(range(count))
    assert 20 <= min(sizes) <= max(sizes) <= min(64, min(sizes) + 1)


def test_too_few_clients_make_no_group():
    assert Masks().groups(range(19)) == []
    for wrong in ({"least": 2}, {"group": 39}, {"group": 101}):
        with pytest.raises(FedladaError, match="least is"):
            Masks(**wrong)
