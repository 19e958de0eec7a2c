"""Privacy of whole clients, law by law: what one client can change, and what anybody learns."""

import dataclasses
import json
import math
import re
import socket
import urllib.request
import warnings
from collections.abc import Sequence

import dp_accounting as dp
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings, strategies as st
from scipy.stats import binom
from torch import nn

import fedlada
from federations import compositions
from fedlada import ALGORITHMS, Algorithm, FedladaError, LocalTraining, Plan, simulate
from fedlada.algorithms import Round, Vector, Vectors
from fedlada.client.store import MemoryStore
from fedlada.engines.around import Around
from fedlada.engines.in_process import InProcess
from fedlada.privacy import Privacy, Sampled
from fedlada.privacy.account import Event, composed, most_within
from fedlada.privacy.news import private_reply
from fedlada.protocol.codecs import Codecs
from fedlada.protocol.codecs.fixed import length_of
from fedlada.protocol.manifest import Manifest
from fedlada.protocol.messages import Clips, Rejection, Reply, Task, reply_parcel
from fedlada.protocol.wire import receive
from fedlada.server.collect.collect import new_tally
from fedlada.server.collect.form import read, written
from fedlada.server.guard.contract import up_like
from fedlada.server.loop import federate, next_task
from fedlada.server.private.account import ACCOUNT, SECRET, Account
from fedlada.server.private.admission import Private
from fedlada.server.record import RoundRecord, plain_record
from fedlada.server.state import ServerState
from fedlada.server.watch import LOG_FORMAT, METRICS
from fedlada.server.watch.metrics import Metrics
from fedlada.server.watch.progress import progress

pytestmark = [
    pytest.mark.filterwarnings("ignore:.* has as many numbers as the model"),
    pytest.mark.filterwarnings("ignore:.*training ended in numbers that are not finite"),
]

PRIVATE = {name: a for name, a in ALGORITHMS.items() if not a.server.leaks}
TRAIN = LocalTraining(steps=3, batch_size=5)
EXACT = {"noise": 0.0, "quantile": None, "clip": 4.0, "seeded": True}
NOISED = {"noise": 0.8, "clip": 0.2, "seeded": True}


def clients(count: int = 60) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 20, 4, generator=generator)
    return [(x, (x[:, :3] + i % 3).argmax(1)) for i, x in enumerate(inputs)]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def started(algorithm: str = "fedavg", *, data=None, rounds=3, cohort=0.3, privacy=NOISED, **more):
    privacy = None if privacy is None else {"delta": 1e-3, "steps": 3, **privacy}
    return simulate(
        network(),
        clients() if data is None else data,
        algorithm=algorithm,
        rounds=rounds,
        cohort=cohort,
        train=TRAIN,
        privacy=privacy,
        quiet=True,
        **more,
    )


def ended(*args, **more):
    run = started(*args, **more)
    run.run()
    return run


def x(run) -> torch.Tensor:
    return torch.cat([t.flatten() for t in run.state.vectors.x])


# ---------------------------------------------------------------------------- the account


@pytest.mark.parametrize(
    ("rounds", "noises"),
    [(50, (0.803, 1.750)), (60, (0.834, 1.861)), (100, (0.936, 2.249)), (200, (1.130, 3.005))],
)
def test_these_noises_have_budgets_of_8_and_2_at_a_tenth_of_the_clients(rounds, noises):
    spent = [Sampled(rate=0.1, count=rounds).epsilon(noise, 1e-5) for noise in noises]
    assert spent == pytest.approx([8, 2], rel=2e-3)


@pytest.mark.parametrize(
    ("sums", "delta", "stated"),
    [
        (Sampled(rate=0.1, count=100), 1e-5, ["31.4", "7.05", "2.34", "0.98"]),
        (Sampled(rate=1e-3, count=1000), 1e-7, ["5.17", "0.231", "0.071", "0.032"]),
    ],
    ids=["a tenth of a thousand clients", "a thousand of a million"],
)
def test_noises_of_a_half_to_4_have_these_budgets(sums, delta, stated):
    for noise, digits in zip((0.5, 1.0, 2.0, 4.0), stated, strict=True):
        places = len(digits.partition(".")[2])
        assert f"{sums.epsilon(noise, delta):.{places}f}" == digits


def test_the_epsilon_of_unlike_events_is_that_of_dp_accounting():
    relation = dp.NeighboringRelation.REPLACE_SPECIAL
    theirs = PLDAccountant(relation, value_discretization_interval=1e-3)
    for rate, noise, count in ((0.1, 1.0, 30), (0.05, 2.0, 40)):
        once = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise))
        theirs.compose(dp.SelfComposedDpEvent(once, count))
    ours = composed({Event(0.1, 1.0): 30, Event(0.05, 2.0): 40}, 1e-5)
    assert ours == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-9)


def test_the_budget_is_used_up_and_not_exceeded():
    event, spent = Event(0.3, 1.0), {Event(0.3, 1.0): 2}
    most = most_within(4.0, 1e-3, spent, event, 1000)
    assert composed({event: 2 + most}, 1e-3) <= 4 < composed({event: 3 + most}, 1e-3)
    assert most_within(4.0, 1e-3, spent, event, most - 1) == most - 1


def test_the_noise_of_clips_is_part_of_the_event():
    """1/z² of the parts and of the bits, which are counted from ½, add up to that of the event."""
    noise, counting = Privacy(noise=1.5, delta=1e-5).noises(3, expected=80)
    assert noise**-2 + 3 / (2 * counting) ** 2 == pytest.approx(1.5**-2)
    assert Privacy(noise=1.5, delta=1e-5, quantile=None).noises(3, expected=80) == (1.5, 0.0)


@pytest.mark.parametrize("name", PRIVATE)
def test_the_shares_of_all_vectors_are_the_whole_budget(name):
    shares = Privacy(noise=1.0, delta=1e-5).shares_of(PRIVATE[name])
    assert list(shares) == list(PRIVATE[name].up)
    assert math.fsum(shares.values()) == pytest.approx(1)
    assert min(shares.values()) > 0


def test_the_run_ends_at_its_budget_also_after_a_resume_with_more_rounds(tmp_path):
    budget = {"noise": 0.9, "epsilon": 4.0}
    with pytest.warns(UserWarning, match=r"ends after \d of 9 rounds: one more would exceed"):
        run = ended(privacy=budget, rounds=9, checkpoints=tmp_path)
    spent = [record.epsilon for record in run.records]
    assert spent == sorted(spent)
    assert spent[-1] <= 4 < composed({Event(0.3, 0.9): len(spent) + 1}, 1e-3)
    with pytest.warns(UserWarning, match=r"ends after \d of 20 rounds"):
        again = ended(privacy=budget, rounds=20, checkpoints=tmp_path)
    assert len(again.records) == len(spent)


def test_a_budget_below_one_round_is_refused():
    with pytest.raises(FedladaError, match=r"one round has epsilon .* and the budget is 0\.1"):
        ended(privacy={"noise": 0.9, "epsilon": 0.1})


# ------------------------------------------------------------------------- the sensitivity


LAYOUT = [p.detach() for p in network().parameters()]


def a_task(chosen: Algorithm, clip: float = 0.3) -> Task:
    down = chosen.start(Vector(p.clone() for p in LAYOUT)).only(chosen.down)
    clips = Clips(steps=3, lengths=dict.fromkeys(chosen.up, clip))
    codecs = Codecs(up={"*": "fixed"})
    return Task(round=0, seed=0, lr=0.1, vectors=down, nonce="n", clips=clips, codecs=codecs)


def a_reply(chosen: Algorithm, task: Task, client: int, fill) -> Reply:
    vectors = Vectors((n, Vector(map(fill, v))) for n, v in up_like(chosen, task).items())
    return Reply(
        client=client, round=0, vectors=vectors, examples=1, steps=3, lr_sum=0.3, nonce="n"
    )


def small(t: torch.Tensor) -> torch.Tensor:
    return torch.randn(t.shape, generator=torch.Generator().manual_seed(t.numel())) * 0.01


def one(t: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(t).index_fill_(0, torch.tensor([0]), 3e38)


HOSTILE = {
    "huge": lambda t: torch.full_like(t, 1e30),
    "largest": lambda t: torch.full_like(t, 3e38),
    "nan": lambda t: torch.full_like(t, math.nan),
    "infinite": lambda t: torch.full_like(t, -math.inf),
    "one coordinate": one,
    "long": lambda t: small(t) * 1e6,
}


def sums_of(chosen: Algorithm, task: Task, replies: list[Reply], *, leaves: bool) -> Vectors:
    """The sums at the root, of one collector or of a leaf for each half of the cohort."""
    plan = Plan(algorithm=chosen, cohort="all", privacy={"noise": 1.0, "delta": 1e-3, "steps": 3})
    state, cohort = ServerState(task.vectors), [reply.client for reply in replies]
    root = new_tally(plan, task, cohort, state)
    manifest = Manifest.of(network(), "refuse")
    for half in (replies[::2], replies[1::2]) if leaves else (replies,):
        tally = new_tally(plan, task, cohort, state)
        for reply in half:
            parcel = reply_parcel(reply, task)
            seen = Vectors(
                (
                    name,
                    receive(name, parcel.payload(name), manifest.layout(name), task.codecs, "up"),
                )
                for name in reply.vectors
            )
            tally.add(dataclasses.replace(reply, vectors=seen, received=parcel.nbytes))
        if leaves:
            header, tensors = written(tally)
            share, form = [reply.client for reply in half], json.loads(json.dumps(header))
            empty = new_tally(plan, task, cohort, state)
            tally = read(form, tensors, empty, like=up_like(chosen, task), share=share)
        root.merge(tally)
    assert len(root.accepted) == len(replies)
    return root.total.sums()


def sensitive(chosen: Algorithm, hostile: str, *, trees: Sequence[bool] = (False, True)) -> None:
    """Whatever one client's training ends in, the joint sum changes by no more than 1."""
    task = a_task(chosen)
    r = Round(steps=5, lr_sum=0.5)
    shares = Privacy(noise=1.0, delta=1e-3).shares_of(chosen)

    def sent(client: int, fill) -> Reply:
        kept = Vectors((name, task.vectors.x.zeros(name)) for name in chosen.client_state)
        return private_reply(chosen, task, a_reply(chosen, task, client, fill), kept, r)[0]

    honest = [sent(client, small) for client in range(3)]
    for leaves in trees:
        nothing = dataclasses.replace(
            honest[0], vectors=Vectors((n, v.zeros_like()) for n, v in honest[0].vectors.items())
        )
        without = sums_of(chosen, task, [nothing, *honest[1:]], leaves=leaves)
        with_it = sums_of(chosen, task, [sent(0, HOSTILE[hostile]), *honest[1:]], leaves=leaves)
        parts = {
            name: Vector(a - b for a, b in zip(with_it[name], without[name], strict=True)).norm()
            for name in chosen.up
        }
        assert math.hypot(*(math.sqrt(shares[n]) * part for n, part in parts.items())) <= 1 + 1e-6


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("name", PRIVATE)
def test_one_client_changes_the_sum_by_no_more_than_the_joint_clip(name, hostile):
    sensitive(PRIVATE[name], hostile)


@settings(max_examples=200, deadline=None)
@given(
    chosen=compositions.filter(lambda c: not c.server.leaks),
    hostile=st.sampled_from(sorted(HOSTILE)),
)
def test_so_it_is_for_any_composition(chosen, hostile):
    sensitive(chosen, hostile, trees=[True])


@pytest.mark.parametrize("name", ["fedavg", "fedlada", "scaffold"])
def test_a_reply_beyond_its_clip_counts_as_nothing(name):
    """A client that does not clip: the server does not trust it."""
    chosen = PRIVATE[name]
    task = a_task(chosen)
    for hostile in ("huge", "nan", "infinite", "one coordinate", "long"):
        admission = Private(chosen, task, [0])
        measured = admission.measure(a_reply(chosen, task, 0, HOSTILE[hostile]))
        outcome = admission.admit(measured)
        assert isinstance(outcome, Rejection)
        assert outcome.reason == "delta beyond its clip"


def test_a_client_keeps_what_it_has_sent():
    """SCAFFOLD's c is the mean of the c_i, also where their changes were clipped."""
    for name, kept, summed in (
        ("scaffold", "c_i", "c"),
        ("fedmuon-corrected", "m", "m_mean"),
        ("feddyn", "h_i", "h"),
    ):
        store, data = MemoryStore(), clients(12)
        privacy = {**EXACT, "clip": 0.01, "steps": 3, "delta": 1e-3}
        plan = Plan(algorithm=name, cohort=0.5, rounds=4, privacy=privacy)
        engine = InProcess(plan.algorithm, network(), data, TRAIN, store=store)
        state = ServerState.new(plan.algorithm, Vector(p.clone() for p in LAYOUT))
        list(federate(plan, engine, state))
        last = state.last_accepted
        every = [store.load(c, (state.run, last[c]))[kept] for c in last]
        mean = Vector(sum(ts) / len(data) for ts in zip(*every, strict=True))
        assert mean.norm() > 0
        assert mean.distance(state.vectors[summed]) <= 1e-5 * (1 + mean.norm()), name


# ----------------------------------------------------------------------------- the one rule


class Changed(Around):
    """Keeps what each client sends in the first run, and changes one client in the second."""

    def __init__(self, engine, victim: int) -> None:
        super().__init__(engine)
        self.victim, self.tasks = victim, []

    def exchange(self, task, cohort):
        self.tasks.append((task, [*cohort], list(self._engine.exchange(task, cohort))))
        yield from self.tasks[-1][2]


def test_a_reply_changes_what_happens_to_no_other():
    """In each of ten rounds the sum changes by the difference of the two replies, to the bit."""
    privacy = {**NOISED, "steps": 3, "delta": 1e-3}
    plan = Plan(algorithm="fedlada-rows", cohort=0.3, rounds=10, privacy=privacy)
    engine = Changed(InProcess(plan.algorithm, network(), clients(), TRAIN), 0)
    state = ServerState.new(plan.algorithm, Vector(p.clone() for p in LAYOUT))
    list(federate(plan, engine, state))
    for task, cohort, replies in engine.tasks:
        other = dataclasses.replace(replies[0], vectors=replies[-1].vectors)

        def tally(first, task=task, cohort=cohort, rest=replies[1:]):
            found = new_tally(plan, task, cohort, state)
            for reply in (first, *rest):
                found.add(reply)
            return found

        before, after = tally(replies[0]), tally(other)
        assert before.accepted == after.accepted
        for name, vector in before.total.sums().items():
            changed = zip(
                vector,
                after.total.sums()[name],
                replies[0].vectors[name],
                other.vectors[name],
                strict=True,
            )
            assert all(torch.equal(b - a, v.double() - u.double()) for a, b, u, v in changed)


# ----------------------------------------------------------------- what a release is made of


@pytest.mark.parametrize("name", [n for n, a in PRIVATE.items() if not a.moments])
def test_without_noise_and_with_large_clips_it_is_the_plain_run(name):
    settings = {"cohort": "all", "data": clients(8)}
    plain = ended(name, privacy=None, guard=None, **settings)
    private = ended(name, privacy=EXACT, **settings)
    torch.testing.assert_close(x(private), x(plain), rtol=1e-5, atol=1e-5)


def test_the_noise_has_the_stated_size():
    """Of clients that send nothing: what is released is noise alone."""

    def still(model, data, optimizer):
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        for _ in range(3):
            optimizer.step()

    chosen = fedlada.algorithm("fedavg", weight_decay=0.0)
    privacy = Privacy(noise=1.5, delta=1e-3, clip=0.3, quantile=None, steps=3, cohort=7.0)
    run = simulate(
        nn.Linear(100, 99),
        clients(),
        algorithm=chosen,
        train=still,
        rounds=1,
        cohort=0.3,
        privacy=privacy,
        quiet=True,
    )
    before = x(run).clone()
    run.run()
    moved = x(run) - before
    stated = 1.5 * 0.3 / 7
    assert abs(moved.std() / stated - 1) < 4 / math.sqrt(2 * len(moved))
    assert abs(moved.mean()) < 4 * stated / math.sqrt(len(moved))


def test_missing_replies_count_as_zero():
    """Half of the clients: half of the mean, which is divided by the same number."""

    class Half(Around):
        def exchange(self, task, cohort):
            yield from self._engine.exchange(task, cohort[::2])

    def moved(engine):
        plan = Plan(
            algorithm="fedavg",
            cohort="all",
            rounds=1,
            privacy={**EXACT, "steps": 3, "delta": 1e-3},
        )
        state = ServerState.new(plan.algorithm, Vector(p.clone() for p in LAYOUT))
        list(federate(plan, engine, state))
        return torch.cat([(a - b).flatten() for a, b in zip(state.vectors.x, LAYOUT, strict=True)])

    same = [clients(1)[0]] * 10
    whole, half = (
        InProcess(PRIVATE["fedavg"], network(), same, LocalTraining(steps=3, batch_size=20))
        for _ in range(2)
    )
    torch.testing.assert_close(moved(Half(half)), moved(whole) / 2)


def test_clips_go_to_the_quantile_of_the_lengths():
    """Half of the clients send less than the clip, wherever it began."""
    for first in (0.3, 0.06):
        privacy = {"noise": 0.5, "clip": first, "seeded": True}
        run = ended(rounds=12, data=clients(30), cohort=0.9, privacy=privacy, lr_decay=1.0)
        plan, state = run.plan, run.state
        assert (state.clips["delta"] < first) == (first == 0.3)
        task, _ = next_task(plan, state, 30)
        engine = InProcess(plan.algorithm, network(), clients(30), TRAIN)
        lengths = [length_of(r.vectors.delta) for r in engine.exchange(task, range(30))]
        assert 0.2 < sum(length < 0.999 for length in lengths) / 30 < 0.8


def test_an_empty_cohort_is_released_as_noise_and_one_that_fails_is_not():
    class Dead(Around):
        def exchange(self, task, cohort):
            yield from ()

    engine = InProcess(PRIVATE["fedavg"], network(), clients(4), TRAIN)
    plan = Plan(
        algorithm="fedavg",
        cohort=0.05,
        rounds=5,
        privacy={"noise": 1.0, "delta": 1e-3, "quantile": 0, "steps": 3},
    )
    state = ServerState.new(plan.algorithm, Vector(p.clone() for p in LAYOUT))
    records = list(federate(plan, engine, state))
    assert all(record.applied for record in records)
    assert state.account.releases == 5
    every = dataclasses.replace(plan, cohort=0.999)
    state = ServerState.new(plan.algorithm, Vector(p.clone() for p in LAYOUT))
    with pytest.raises(FedladaError, match="none of 5 rounds changed the model"):
        list(federate(every, Dead(engine), state))
    assert state.account.releases == 0


# -------------------------------------------------------------------------- nothing leaks


CLOCKS = r"\w+_(created|timestamp)"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def page(port: int) -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return answer.read().decode().splitlines()


@pytest.mark.parametrize("seeded", [False, True])
def test_epsilon_is_shown_and_served_and_of_a_seeded_run_not_as_a_promise(seeded):
    (record,) = ended(privacy={"noise": 1.0, "seeded": seeded}, rounds=1).records
    spent = composed({Event(0.3, 1.0): 1}, 1e-3)
    assert record.epsilon == pytest.approx(spent)
    kind = "seeded, so not private" if seeded else "delta 0.001"
    assert f": epsilon {spent:.3g} ({kind})," in progress(record, 1, 0.0)
    port = free_port()
    metrics = Metrics(str(port))
    metrics.record(record, saved=False)
    served = [line for line in page(port) if line.startswith("fedlada_epsilon ")]
    metrics.close()
    assert served == ([] if seeded else [f"fedlada_epsilon {spent!r}"])


def test_a_client_without_data_changes_nothing_but_vectors(tmp_path, capsys, monkeypatch):
    """All that is written, logged or sent, of a run and of one in which a client has other data."""
    port = free_port()
    monkeypatch.setenv(LOG_FORMAT, "json")
    monkeypatch.setenv(METRICS, str(port))
    data = clients()
    other = [(torch.zeros_like(a), torch.zeros_like(b)) if not i else (a, b) for i, (a, b) in
             enumerate(data)]  # fmt: skip

    def told(name: str, data) -> object:
        pages = []
        run = started("scaffold", data=data, privacy=EXACT, checkpoints=tmp_path / name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in run:
                pages.append([line for line in page(port) if not re.match(CLOCKS, line)])
        logged = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
        for line in logged:
            for key in ("time", "run"):
                line.pop(key)
        directory = tmp_path / name
        manifests = [json.loads(p.read_text()) for p in sorted(directory.glob("round-0*.json"))]
        for manifest in manifests:
            for key in ("blake2b", "run"):
                manifest["manifest"].pop(key)
            manifest.pop("sha256")
        task, _ = next_task(run.plan, run.state, len(data))
        return (
            run.records,
            pages,
            logged,
            dataclasses.replace(task, vectors=Vectors(), parcel=None, nonce="", run=""),
            (directory / "round-records.jsonl").read_text(),
            (directory / ACCOUNT).read_text(),
            manifests,
            run.state.history,
            run.state.contributed,
        )

    found = told("with", data)
    assert found == told("without", other)
    assert len(found[1]) == 3
    assert [line["event"] for line in found[2]] == ["begin", "round", "round", "round", "end"]


def test_a_record_says_nothing_of_who_took_part():
    for record in ended(privacy={"noise": 1.0}).records:
        usual = RoundRecord(
            round=record.round,
            lr=record.lr,
            cohort=(),
            accepted=None,
            applied=True,
            steps=3.0,
            bytes_down=18 * 172,
            bytes_up=18 * 172,
            seconds=0.0,
            local_seconds=0.0,
            server_seconds=0.0,
            epsilon=record.epsilon,
            delta=1e-3,
            noise=1.0,
            clips=record.clips,
        )
        assert record == usual
        json.dumps(plain_record(record), allow_nan=False)


def test_neither_cohort_nor_noise_follows_from_what_clients_know():
    """Two runs with the same seed and so with the same tasks: others take part, other noise."""
    cohorts = []
    for _ in range(2):
        engine = Changed(InProcess(PRIVATE["fedavg"], network(), clients(), TRAIN), 0)
        state = ServerState.new(PRIVATE["fedavg"], Vector(p.clone() for p in LAYOUT))
        plan = Plan(
            algorithm="fedavg",
            cohort=0.3,
            rounds=2,
            privacy={"noise": 1.0, "delta": 1e-3, "steps": 3},
        )
        list(federate(plan, engine, state))
        cohorts.append([cohort for _, cohort, _ in engine.tasks])
        task = engine.tasks[0][0]
        assert "secret" not in repr(dataclasses.replace(task, vectors=Vectors(), parcel=None))
    assert cohorts[0] != cohorts[1]
    assert not torch.equal(x(ended(privacy={"noise": 1.0})), x(ended(privacy={"noise": 1.0})))
    assert torch.equal(x(ended()), x(ended())), "seeded runs can be repeated"


def test_a_private_client_sends_no_counts_times_or_metrics():
    engine = InProcess(PRIVATE["fedavg"], network(), clients(), TRAIN)
    replies = list(engine.exchange(a_task(PRIVATE["fedavg"]), [0, 1]))
    for reply in replies:
        assert (reply.examples, reply.steps, reply.seconds, reply.metrics) == (1, 3, 0.0, {})
        assert reply.lr_sum == pytest.approx(0.3)


def test_cohorts_are_drawn_client_by_client():
    account = Account()
    sizes = torch.tensor([float(len(account.cohort(r, 200, 0.25))) for r in range(400)])
    variance = 200 * 0.25 * 0.75  # of a binomial distribution
    assert abs(sizes.mean() - 50) < 4 * math.sqrt(variance / 400)
    assert abs(sizes.var() / variance - 1) < 4 * math.sqrt(2 / 400)


# ------------------------------------------------------------------------- files and kills


def test_the_secret_is_the_owners_alone_and_in_no_other_file(tmp_path):
    ended(privacy={"noise": 1.0}, checkpoints=tmp_path)
    secret = tmp_path / SECRET
    assert secret.stat().st_mode & 0o777 == 0o600
    key = secret.read_bytes()
    for path in tmp_path.rglob("*"):
        if path.is_file() and path != secret:
            assert key not in path.read_bytes()
            assert key.hex().encode() not in path.read_bytes()


def test_a_release_is_on_the_disk_before_it_is_used(tmp_path, monkeypatch):
    """Whatever happens after the line, the next release has other noise, and both are paid for."""
    run = started(privacy={"noise": 1.0}, checkpoints=tmp_path)
    rounds = iter(run)
    next(rounds)
    monkeypatch.setattr(Algorithm, "serve", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        next(rounds)
    monkeypatch.undo()
    assert len((tmp_path / ACCOUNT).read_text().splitlines()) == 2
    again = ended(privacy={"noise": 1.0}, checkpoints=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / ACCOUNT).read_text().splitlines()]
    assert [(line["release"], line["round"]) for line in lines] == [(1, 1), (2, 2), (3, 2), (4, 3)]
    assert again.records[-1].epsilon == pytest.approx(composed({Event(0.3, 1.0): 4}, 1e-3))
    account = Account(directory=tmp_path)
    drawn = {account.source("noise", r)(8) for r in range(3)}
    account.spend(Event(0.3, 1.0), 1, {})
    assert account.source("noise", 1)(8) not in drawn


def test_an_account_that_lacks_releases_ends_the_run(tmp_path):
    ended(privacy={"noise": 1.0}, checkpoints=tmp_path)
    lines = (tmp_path / ACCOUNT).read_bytes().splitlines(keepends=True)
    (tmp_path / ACCOUNT).write_bytes(b"".join(lines[:-1]))
    with pytest.raises(FedladaError, match="has 2 releases, and the run has made 3"):
        started(privacy={"noise": 1.0}, checkpoints=tmp_path, rounds=5)
    (tmp_path / ACCOUNT).write_bytes(b"".join(lines) + b'{"release": 4, "ro')
    assert ended(privacy={"noise": 1.0}, checkpoints=tmp_path, rounds=4).state.account.releases == 4


# ------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cohort": 10}, "cohort is 10 and there is privacy, whose account needs clients that"),
        ({"guard": "strict"}, "a guard's limits follow the median of all replies"),
        ({"aggregator": "coordinate-median"}, "noise hides what a reply adds to a mean"),
        ({"weighting": "examples"}, "weighting is 'examples' and there is privacy"),
        ({"close_after": 3}, "close_after is 3 and there is privacy: who answers first"),
        ({"minimum": 3}, "minimum is 3 and there is privacy: a round that is left out"),
        ({"buffers": "average"}, "the means of buffers have no noise"),
        ({"codec": "bf16"}, "codec sends bf16 up and there is privacy"),
        ({"algorithm": "fedexp"}, "the server rule of fedexp cannot be private"),
        ({"devices": {}}, "the time at which a round ends tells which clients took part"),
        ({"evaluate_clients": clients()}, "clients are to evaluate the model and there is privacy"),
        ({"privacy": {"noise": 0.0}}, "without noise nothing is private"),
        ({"privacy": {"noise": 1.0, "delta": 0.1}}, "choose less than 1/60"),
        ({"privacy": {"noise": 1.0, "delta": 2.0}}, "below one over the number N of clients"),
        ({"privacy": {"noise": 1.0, "clip": 0.0}}, "clip of all is 0.0; it must be positive"),
        ({"privacy": {"noise": 1.0, "shares": {"delta": 0.5}}}, "with a sum of 1"),
        ({"privacy": {"noise": 1.0, "shares": {"m": 0.5}}}, "'m', which is not sent"),
        ({"privacy": {"noise": 1.0, "clip": {"m": 0.5}}}, "'m', which is not sent"),
        ({"privacy": {"noise": 1.0, "steps": 50}}, "clients take 3 local steps, and privacy"),
        ({"privacy": {"noise": 0.5, "cohort": 2.0}}, "too few to let clips follow them"),
        ({"privacy": {"noise": 1.0, "budget": 8}}, "'budget' is no setting of privacy"),
    ],
)
def test_what_would_leak_or_make_no_sense_is_refused(given, said):
    with pytest.raises(FedladaError, match=said):
        ended(**{"privacy": {"noise": 1.0}, **given})


def test_without_a_noise_or_a_delta_it_says_where_to_get_them():
    for text in ("delta = 1e-5", "noise = 1.0"):
        with pytest.raises(FedladaError, match="fedlada privacy says which noise"):
            Plan(cohort=0.5, privacy=text)


def test_whole_second_moments_are_mentioned():
    with pytest.warns(UserWarning, match="v_hat has as many numbers as the model"):
        ended("fedlada", privacy=NOISED, rounds=1)


# ------------------------------------------------------------------------------- the audit


def audited(noise: float) -> tuple[float, float]:
    """A lower bound on epsilon at 95 % from one run with canaries, and the epsilon claimed.

    Half of the canaries are left out, by coins that the auditor guesses from the model (Steinke,
    Nasr and Jagielski, "Privacy Auditing with One (1) Training Run", 2023).
    """
    canaries, rounds, delta = 500, 8, 1e-5
    coins = torch.rand(canaries, generator=torch.Generator().manual_seed(5)) < 0.5

    class Own:
        def __init__(self, place: int) -> None:
            self.place = place

        def __len__(self) -> int:
            return 1

    def train(model, data, optimizer):
        p = model.weight
        p.grad = torch.zeros_like(p)
        if coins[data.place]:
            p.grad.view(-1)[data.place] = 1e6
        optimizer.step()

    run = simulate(
        nn.Linear(canaries, 1, bias=False),
        [Own(i) for i in range(canaries)],
        algorithm=fedlada.algorithm("fedavg", weight_decay=0.0),
        train=train,
        rounds=rounds,
        cohort=0.2,
        lr_decay=1.0,
        privacy=Privacy(noise=noise, delta=delta, quantile=None, steps=1),
        quiet=True,
    )
    before = x(run).clone()
    run.run()
    score = before - x(run)
    order, guesses = score.argsort(), canaries // 8
    right = int((~coins[order[:guesses]]).sum() + coins[order[-guesses:]].sum())
    return bound(right, 2 * guesses, canaries, delta), run.records[-1].epsilon


def bound(right: int, guesses: int, canaries: int, delta: float) -> float:
    """The least epsilon that gives this number of right guesses a chance of 5 % (theorem 5.2)."""

    def chance(epsilon: float) -> float:
        q = 1 / (1 + math.exp(-epsilon))
        tail = [float(binom.sf(k - 1, guesses, q)) for k in range(right + 1)]
        worst = max(((tail[right - i] - tail[right]) / i for i in range(1, right + 1)), default=0)
        return tail[right] + 2 * canaries * delta * max(worst, 0.0)

    low, high = 0.0, 20.0
    if chance(0.0) > 0.05:
        return 0.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if chance(middle) > 0.05 else (middle, high)
    return low


def test_an_audit_with_canaries_stays_below_the_claim_and_works():
    found, claimed = audited(1.0)
    assert found <= claimed
    found, claimed = audited(0.3)
    assert 1 < found <= claimed
