"""Seconds per round of ``simulate`` with two workers against a bare PyTorch loop in two processes.

The two take turns, round by round, beside ``simulate`` in one process: 10 clients, 10 steps of
batch 50 each, one thread per process.  The bare loop is what somebody would write for this one
algorithm: two processes forked once, each with half of the cohort, the model and the sums in shared
memory.  All three must end in the same parameters, bit for bit.  Memory is the largest sum of the
parent's and its two processes' proportional set sizes in one more round.

Run: python benchmarks/parallel.py --check
"""

import multiprocessing
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import measure
from fedlada import LocalTraining, simulate
from fedlada.processes import keep_memory
from fedlada.server import FixedSize
from overhead import BATCH, CLIENTS, MODELS, STEPS, Bare, generated_clients

GOAL, START = 1.05, 5.0
COHORT, PROCESSES = 10, 2
ROUNDS = {"LeNet": 10, "ResNet-18-GN": 3}
CASES = [("fedlada", "LeNet"), ("fedavg", "LeNet"), ("fedlada", "ResNet-18-GN")]


class BareProcesses:
    """The bare loop over two processes; everything large is in shared memory."""

    def __init__(self, name: str, model: nn.Module, clients: list) -> None:
        self.bare = Bare(name, model, clients, COHORT)
        for t in (*self.bare.x, *self.bare.v, *self.bare.g_a):
            t.share_memory_()
        self.sums = [(self.bare.sums(), self.bare.sums()) for _ in range(PROCESSES)]
        context = multiprocessing.get_context("fork")
        self.pipes, self.processes = [], []
        for both in self.sums:
            for t in (*both[0], *both[1]):
                t.share_memory_()
            here, there = context.Pipe()
            process = context.Process(target=self.work, args=(there, both), daemon=True)
            process.start()
            self.pipes.append(here)
            self.processes.append(process)

    def work(self, pipe, both) -> None:
        torch.set_num_threads(1)
        while True:
            t, clients = pipe.recv()
            torch._foreach_zero_([*both[0], *both[1]])
            self.bare.collect(t, clients, *both)
            pipe.send(None)

    def round(self) -> None:
        bare = self.bare
        cohort = FixedSize(COHORT).cohort(0, bare.t, CLIENTS)
        before = [*bare.x, *bare.v, *bare.g_a]
        for i, pipe in enumerate(self.pipes):
            pipe.send((bare.t, cohort[i::PROCESSES]))
        for pipe in self.pipes:
            pipe.recv()
        (delta, v_sum), *others = self.sums
        for other in others:
            torch._foreach_add_(delta, other[0])
            torch._foreach_add_(v_sum, other[1])
        bare.serve(delta, v_sum)
        after = [*bare.x, *bare.v, *bare.g_a]
        torch._foreach_copy_(before, after)  # serve made new tensors: back into shared memory
        n = len(bare.x)
        bare.x, bare.v, bare.g_a = before[:n], before[n : 2 * n], before[2 * n :]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


class Started:
    """The usual training, which notes when the first client of all begins."""

    def __init__(self) -> None:
        self.usual = LocalTraining(steps=STEPS, batch_size=BATCH)
        self.at = multiprocessing.Value("d", 0.0)

    def __call__(self, model, data, optimizer):
        if not self.at.value:
            self.at.value = time.perf_counter()
        return self.usual(model, data, optimizer)


def pss(process: int) -> int:
    """Kilobytes of a process, with its share of what it has in common with others."""
    text = Path(f"/proc/{process}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))


def most_memory(function: Callable[[], object], processes: list[int]) -> float:
    """The largest sum of their megabytes while the function runs."""
    done, most = threading.Event(), 0

    def sample() -> None:
        nonlocal most
        while not done.wait(0.02):
            most = max(most, sum(pss(process) for process in processes))

    thread = threading.Thread(target=sample)
    thread.start()
    function()
    done.set()
    thread.join()
    return most / 1000


def side_by_side(name: str, model: str, clients: list, rounds: int) -> tuple[float, float]:
    """The ratio of seconds, and the seconds until the first worker trains."""
    train = Started()
    torch.manual_seed(0)
    made = MODELS[model](10)
    settings = {"algorithm": name, "rounds": rounds + 2, "cohort": FixedSize(COHORT)}
    alone = simulate(made, clients, train=LocalTraining(steps=STEPS, batch_size=BATCH), **settings)
    shared = simulate(made, clients, train=train, workers=PROCESSES, **settings)
    bare, here = BareProcesses(name, made, clients), multiprocessing.current_process().pid
    records, of_one = iter(shared), iter(alone)
    sides = {
        "two workers": lambda: next(records),
        "bare, two processes": bare.round,
        "one process": lambda: next(of_one),
    }
    began = time.perf_counter()
    next(records)
    start = train.at.value - began
    bare.round()
    next(of_one)
    seconds = measure.alternate(sides, repeats=rounds, warmup=0)
    for ours, one, theirs in zip(
        shared.state.vectors.x, alone.state.vectors.x, bare.bare.x, strict=True
    ):
        assert torch.equal(ours, one), "two workers and one process end in other bits"
        assert torch.equal(ours, theirs), "the bare loop ends in other bits"
    theirs = [process.pid for process in bare.processes]
    own = [p.pid for p in multiprocessing.active_children() if p.pid not in theirs]
    memory = most_memory(sides["two workers"], [here, *own])
    memory_bare = most_memory(bare.round, [here, *theirs])
    bare.close()
    means = {side: sum(s) / len(s) for side, s in seconds.items()}
    shown = ", ".join(f"{side} {mean:.3f}" for side, mean in means.items())
    print(f"{name:8} {model:12} seconds per round: {shown}; final parameters bit-equal")
    ratio = measure.paired(seconds["two workers"], seconds["bare, two processes"])
    faster = measure.paired(seconds["one process"], seconds["two workers"])
    print(
        f"{name:8} {model:12} over the bare loop {ratio:.3f}, {faster:.2f} times as fast as one"
        f" process; memory {memory:.0f} MB, bare {memory_bare:.0f} MB; start {start:.2f} s",
        flush=True,
    )
    return ratio, start


def main() -> None:
    parser = measure.parser(__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, help="only this one")
    parser.add_argument("--rounds", type=int, help="measured rounds, else 10 and 3")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    print(measure.machine())
    clients = generated_clients()
    figures, starts = {}, []
    for name, model in CASES:
        if options.model not in (None, model):
            continue
        rounds = options.rounds or ROUNDS[model]
        figures[f"{name} {model}"], start = side_by_side(name, model, clients, rounds)
        starts.append(start)
    goals = dict.fromkeys(figures, GOAL) | {"start of workers, s": START}
    figures["start of workers, s"] = max(starts)
    measure.finish(
        options, figures, goal=goals, what="seconds over a bare loop in two processes, median"
    )


if __name__ == "__main__":
    main()
