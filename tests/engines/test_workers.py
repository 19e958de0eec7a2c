"""Workers that share a cohort end in the bits of one process, and never outlive their run."""

import dataclasses
import errno
import gc
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import fedlada
from federations import KINDS, Point, Quadratic, local_steps, quadratics, same_bits
from fedlada import FedladaError, simulate
from fedlada.client.errors import TrainingError
from fedlada.engines import DiskStore, MemoryStore, workers as engines_workers
from fedlada.engines.shares import Costs
from fedlada.engines.workers import SharedTensors, WorkerDied
from fedlada.protocol.codecs import PRESETS
from fedlada.server.aggregate.robust import AGGREGATORS
from places import TESTS

TIMES = ("seconds", "local_seconds", "server_seconds")


def run(workers: int, *, train=None, rounds: int = 3, clients=None, **settings):
    """A run of nine unlike clients, seven or eight in a round."""
    usual = {"cohort": 7, "seed": 5, "algorithm": "fedlada"}
    return simulate(
        Point(at=1.0),
        clients or quadratics(9),
        train=train or local_steps(3, noise=0.1),
        rounds=rounds,
        workers=workers,
        **usual | settings,
    )


def told(record) -> dict[str, object]:
    """All of a record but its times."""
    values = dataclasses.asdict(record)
    return {name: value for name, value in values.items() if name not in TIMES}


def assert_equal(one, other) -> None:
    """The state of two runs that are done, and their records."""
    assert same_bits(one.state.vectors, other.state.vectors)
    for name in ("history", "contributed", "last_accepted", "updates", "metric_names"):
        assert getattr(one.state, name) == getattr(other.state, name), name
    assert [told(record) for record in one.records] == [told(record) for record in other.records]


@pytest.mark.parametrize("name", KINDS)
def test_two_workers_end_in_the_bits_of_one_process(name):
    alone, shared = run(1, algorithm=name), run(2, algorithm=name)
    alone.run()
    shared.run()
    assert_equal(alone, shared)
    assert not multiprocessing.active_children()


def unlike() -> list[Quadratic]:
    """Clients of which some are turned away, some limited, and some answer with no number."""
    clients = quadratics(9)
    for i, factor in ((0, 30.0), (2, float("nan")), (3, 1e6), (7, float("nan"))):
        clients[i] = dataclasses.replace(clients[i], b=clients[i].b * factor)
    return clients


@pytest.mark.parametrize(
    "settings",
    [
        {"guard": "calibration = 3"},
        {"guard": "off"},
        {"guard": "strict", "weighting": "examples"},
        {"close_after": 3},
        {"close_after": 4, "guard": "calibration = 2", "algorithm": "scaffold"},
        {"close_after": 6, "algorithm": "feddyn"},
        *({"aggregator": name} for name in AGGREGATORS if name != "mean"),
        {"aggregator": "coordinate-median", "close_after": 3, "guard": "calibration = 2"},
        *({"codec": preset, "algorithm": "fedlada-rows"} for preset in PRESETS),
    ],
    ids=str,
)
def test_the_bits_are_equal_where_replies_are_held_rejected_or_left_out(settings):
    clients = quadratics(9) if settings.get("guard") == "off" else unlike()
    settings = {"cohort": 9, "clients": clients, "algorithm": "fedlada"} | settings
    alone, shared = run(1, **settings), run(3, **settings)
    with warnings.catch_warnings(record=True, action="always") as found:
        alone.run()
        shared.run()
    assert len(found) == 2 * any(record.rejected or record.limited for record in alone.records)
    assert_equal(alone, shared)


class Normed(nn.Module):
    """A model with statistics, in a memory layout of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 2)
        self.layers = nn.Sequential(*layers).to(memory_format=torch.channels_last)

    def forward(self, images):
        return self.layers(images)


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_buffers_and_other_layouts_end_in_the_same_bits(buffers):
    torch.manual_seed(1)
    clients = [(torch.randn(12, 2, 4, 4), torch.randint(2, (12,))) for _ in range(4)]
    train = fedlada.LocalTraining(steps=2, batch_size=6)
    runs = [
        simulate(Normed(), clients, train=train, rounds=2, buffers=buffers, workers=n)
        for n in (1, 2)
    ]
    for each in runs:
        each.run()
    assert_equal(*runs)


@pytest.mark.parametrize(
    ("name", "codec"),
    [("fedlada", "exact"), ("scaffold", "exact"), *(("fedlada-rows", p) for p in PRESETS)],
)
def test_a_run_continues_with_another_number_of_workers(name, codec, tmp_path):
    whole = run(1, algorithm=name, codec=codec, rounds=4)
    whole.run()
    for rounds, workers in ((1, 2), (2, 1), (4, 3)):
        part = run(workers, algorithm=name, codec=codec, rounds=rounds, checkpoints=tmp_path)
        part.run()
    assert same_bits(whole.state.vectors, part.state.vectors)
    assert [told(r) for r in whole.records] == [told(r) for r in part.records]


def killing(file: Path, *, client: Quadratic, how):
    """A training loop in which one client once does something, after the first round."""
    usual = local_steps(3, noise=0.1)

    def train(model, data, optimizer):
        if data is client and not file.exists() and bool((model.flat() != 1.0).any()):
            file.touch()
            how()
        return usual(model, data, optimizer)

    return train


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def out_of_memory() -> None:
    raise MemoryError


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        (killed, r"worker [12] of 2 \(process \d+\) was killed by SIGKILL in round 2. .* fewer"),
        (out_of_memory, r"worker [12] of 2 .* no memory left in round 2: client 1, .* continues"),
    ],
)
@pytest.mark.parametrize("name", ["fedlada", "scaffold"])
def test_a_worker_that_dies_ends_the_round_and_the_run_resumes(name, how, sentence, tmp_path):
    clients = quadratics(4)
    settings = {"algorithm": name, "clients": clients, "cohort": 4}
    train = killing(tmp_path / "done", client=clients[1], how=how)
    dying = run(2, train=train, checkpoints=tmp_path / "saved", **settings)
    with pytest.raises(WorkerDied, match=sentence):
        dying.run()
    assert not multiprocessing.active_children()
    again = run(2, train=train, checkpoints=tmp_path / "saved", **settings)
    again.run()
    alone = run(1, **settings)
    alone.run()
    assert [told(r) for r in alone.records] == [told(r) for r in again.records]
    assert same_bits(alone.state.vectors, again.state.vectors)


def test_an_error_of_a_training_loop_names_client_and_round(tmp_path):
    clients = quadratics(4)

    def wrong() -> None:
        raise KeyError("no such thing")

    train = killing(tmp_path / "done", client=clients[2], how=wrong)
    with pytest.raises(TrainingError, match=r"client 2, round 2: KeyError at .*test_workers") as e:
        run(2, train=train, clients=clients, cohort=4).run()
    assert (e.value.client, e.value.round) == (2, 2)
    assert "no such thing" in str(e.value.__cause__)  # the traceback in the worker
    assert "in wrong" in str(e.value.__cause__)


class Odd(Exception):
    """An error that cannot be pickled."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


class Missing(list):
    def __getitem__(self, i):
        if i == 3:
            raise Odd(1, 2)
        return super().__getitem__(i)


def test_an_error_that_cannot_cross_is_told_all_the_same():
    with pytest.raises(FedladaError, match=r"client 3, round 1: Odd at .*1 and 2"):
        run(2, clients=Missing(quadratics(4)), cohort=4).run()


def test_an_interrupt_ends_the_workers(tmp_path):
    clients = quadratics(4)

    def interrupted() -> None:
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(60)

    train = killing(tmp_path / "done", client=clients[2], how=interrupted)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(2, train=train, clients=clients, cohort=4).run()
    assert time.monotonic() - began < 30
    assert not multiprocessing.active_children()


PARENT = """
import multiprocessing, sys
sys.path.insert(0, sys.argv[1])
from engines import test_workers
run = test_workers.run(2, rounds=10**6, checkpoints=sys.argv[2])
for record in run:
    if record.round == 2:
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)
"""


def alive(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


@pytest.mark.programs(seconds=30)
def test_no_worker_outlives_a_killed_parent_and_the_run_resumes(tmp_path):
    words = [sys.executable, "-c", PARENT, str(TESTS), str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        workers = [int(word) for word in parent.stdout.readline().split()]
        parent.kill()
    assert len(workers) == 2
    until = time.monotonic() + 10
    while any(map(alive, workers)):
        assert time.monotonic() < until, "a worker outlived its parent"
        time.sleep(0.01)
    saved = fedlada.Checkpoints(tmp_path).rounds()[-1]
    resumed = run(2, rounds=saved + 1, checkpoints=tmp_path)
    assert [record.round for record in resumed] == [saved + 1]


def named(name: str) -> dict[str, object]:
    """The settings of a run of an algorithm, in which replies may be late if its name says so."""
    late = {"close_after": 2, "staleness": 3, "devices": {"steps": 3}}
    return {"algorithm": name.removesuffix("-late"), **(late if name.endswith("-late") else {})}


RANK = """
import os, sys
sys.path.insert(0, sys.argv[1])
import torch
from engines import test_workers
if os.environ["RANK"] == "0":  # what a stranger would do who knows the names of another run
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = torch.distributed.TCPStore(*address, is_master=False)
    for wave in range(12):
        store.add(f"fedlada/0/taken in wave {wave}", 3)
for name in sys.argv[3:]:
    for rounds in (2, 4):
        settings = test_workers.named(name) | {"checkpoints": sys.argv[2] + name}
        run = test_workers.run(None, rounds=rounds, **settings)
        run.run()
    assert bool(run.records) == (os.environ["RANK"] == "0")
"""


@pytest.mark.programs(seconds=30)
def test_ranks_of_torchrun_end_in_the_bits_of_one_process(tmp_path):
    (tmp_path / "script.py").write_text(RANK)
    names, saved = ["fedlada", "scaffold", "fedcm-late"], f"{tmp_path}/"
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    words += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    words += [f"{tmp_path}/script.py", str(TESTS), saved, *names]
    subprocess.run(words, check=True, timeout=200, env={**os.environ, "OMP_NUM_THREADS": "1"})
    for name in names:
        alone = run(1, rounds=4, **named(name))
        alone.run()
        continued = run(1, rounds=4, checkpoints=saved + name, **named(name))
        assert continued.state.round == 4
        assert continued.state.time == alone.state.time
        assert same_bits(alone.state.vectors, continued.state.vectors)
        continued.close()


def test_a_client_that_no_process_takes_ends_the_run_with_a_sentence():
    """A worker that takes a client and loses it stands for a stranger in the store of ranks."""

    def train(model, data, optimizer):
        if data is clients[0]:
            shared._workers._taken.value += 1
        else:
            time.sleep(0.2)
        return local_steps(1)(model, data, optimizer)

    clients = quadratics(4)
    shared = run(2, train=train, clients=clients, cohort=4)
    with pytest.raises(FedladaError, match=r"round 1, 1 of 4 clients have no result"):
        shared.run()
    assert not multiprocessing.active_children()


def test_a_stopped_worker_is_named_in_the_log_with_its_client_and_the_run_goes_on(
    monkeypatch, caplog, tmp_path
):
    monkeypatch.setattr(engines_workers, "SILENCE", 0.4)
    clients = quadratics(4)

    def stopped() -> None:
        (tmp_path / "process").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)

    def wake() -> None:
        until = time.monotonic() + 30
        while len(warned := [r for r in caplog.records if "kill -CONT" in r.message]) < 2:
            assert time.monotonic() < until
            time.sleep(0.05)
        times.extend(record.created for record in warned)
        os.kill(int((tmp_path / "process").read_text()), signal.SIGCONT)

    times: list[float] = []
    train = killing(tmp_path / "done", client=clients[2], how=stopped)
    waking = threading.Thread(target=wake)
    shared, alone = (
        run(2, train=train, clients=clients, cohort=4),
        run(1, clients=clients, cohort=4),
    )
    waking.start()
    shared.run()
    waking.join()
    alone.run()
    assert_equal(alone, shared)
    process = (tmp_path / "process").read_text()
    sentence = (
        rf"worker [12] of 2 \(process {process}\) has been training client 2 for \d+ s in round 2"
    )
    warned = [r.message for r in caplog.records if "kill -CONT" in r.message]
    assert all(re.match(sentence, message) for message in warned)
    assert times[1] - times[0] > 0.3  # the second comes after twice the time


def test_a_run_that_is_left_in_the_middle_ends_its_workers():
    left = run(2, rounds=5)
    next(iter(left))
    assert len(multiprocessing.active_children()) == 2
    left.close()
    assert not multiprocessing.active_children()
    forgotten = run(2, rounds=5)
    next(iter(forgotten))
    del forgotten
    gc.collect()  # a run and its generator refer to each other
    assert not multiprocessing.active_children()


def test_clients_that_keep_vectors_do_so_in_files_that_are_gone_afterwards(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for record in run(2, algorithm="scaffold"):
        (directory,) = tmp_path.iterdir()
        assert any(directory.iterdir()), record.round
    assert not any(tmp_path.iterdir())
    run(2, algorithm="scaffold", store=DiskStore(tmp_path / "kept")).run()
    assert any((tmp_path / "kept").iterdir())


def test_what_workers_cannot_do_is_said_before_the_first_round(monkeypatch):
    for wrong in (0, -1, 2.0, True):
        with pytest.raises(FedladaError, match=r"workers is .*whole number"):
            run(wrong)
    with pytest.raises(FedladaError, match=r"MemoryStore.*DiskStore"):
        run(2, algorithm="scaffold", store=MemoryStore())
    with pytest.raises(FedladaError, match="engine, which runs the clients itself"):
        run(2, engine=object())
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "is_initialized", lambda: True)
        with pytest.raises(FedladaError, match=r"CUDA is in use.*torchrun"):
            run(2)
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(FedladaError, match=r"not safe on darwin.*torchrun"):
        run(2)


def test_workers_in_a_daemonic_process_are_refused_with_a_sentence():
    def child(queue) -> None:
        try:
            run(2).run()
        except FedladaError as error:
            queue.put(str(error))

    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(queue,), daemon=True)
    process.start()
    assert "ProcessPoolExecutor" in queue.get()
    process.join()


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        (resource.RLIMIT_NOFILE, "Too many open files.*ulimit -n"),
        (resource.RLIMIT_FSIZE, "cannot grow to .*ulimit -f"),
    ],
)
def test_what_the_system_refuses_to_workers_is_said(limit, sentence):
    clients, model = quadratics(2, dimension=9000), Point(9000)
    train = local_steps(1)
    shared = simulate(model, clients, train=train, rounds=1, workers=2, quiet=True)
    os.close(least := os.open(os.devnull, os.O_RDONLY))  # the first number of a file that is free
    least, (before, most) = least + 1, resource.getrlimit(limit)
    resource.setrlimit(limit, (least if limit == resource.RLIMIT_NOFILE else 2**15, most))
    try:
        with pytest.raises(FedladaError, match=sentence):
            shared.run()
    finally:
        resource.setrlimit(limit, (before, most))
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_dev_shm_that_is_full_or_read_only_is_said(monkeypatch, code):
    def refused(*_, **__):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(multiprocessing.context.ForkContext, "Lock", refused)
    monkeypatch.setattr(multiprocessing.context.ForkContext, "RLock", refused)
    with pytest.raises(FedladaError, match=rf"{os.strerror(code)}.*make room in /dev/shm"):
        run(2).run()


def test_a_record_s_times_are_those_of_the_round():
    def train(model, data, optimizer):
        time.sleep(0.1)
        return local_steps(1)(model, data, optimizer)

    (record,) = run(2, train=train, rounds=1, clients=quadratics(4), cohort=4)
    assert record.local_seconds >= 0.4
    assert record.seconds >= 0.2
    assert 0 < record.server_seconds <= record.seconds - 0.2


def test_shared_tensors_have_the_numbers_and_the_layout_of_their_originals():
    block = SharedTensors()
    for scale in (1, 7):
        originals = [
            torch.randn(scale, 3, 4, 5).to(memory_format=torch.channels_last),
            torch.arange(3 * scale, dtype=torch.int64).expand(2, -1),
            torch.empty(0, 4),
            torch.tensor(2.5, dtype=torch.bfloat16),
            torch.randn(6, scale, dtype=torch.float64).T,
        ]
        places = block.write(originals)
        for original, copy in zip(originals, block.read(places), strict=True):
            assert torch.equal(original, copy)
            assert original.dtype == copy.dtype
            assert torch.empty_like(original).stride() == copy.stride()
    again = block.read(places)[0]
    again.zero_()
    assert not block.read(places)[0].any()  # the same memory
    block.close()


def test_the_clients_that_took_longest_are_taken_first():
    costs = Costs()
    assert costs.order([4, 1, 3]) == [4, 1, 3]
    costs.learn({1: 5.0, 2: 1.0, 3: 3.0})
    assert costs.order([0, 2, 3, 1]) == [1, 0, 3, 2]  # 0 is not known, so it is as most are
