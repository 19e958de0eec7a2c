"""CPU time that privacy of whole clients adds to a reply and to a round, with 11M parameters.

Replies of `fedavg` on ResNet-18-GN, as random vectors.  In turns: the server folds a plain reply
without a guard; a client clips its reply; the reply is coded and decoded (`fixed`); the server
checks its length and folds it.  The release of a round is the noise, the division and the new
model.  `fedlada privacy` is a program with its imports.

Run: python benchmarks/private_cost.py --check
"""

import resource
import statistics
import subprocess
import sys
import time
import warnings
from dataclasses import replace

import torch

import measure
from fedlada import Plan
from fedlada.algorithms import Round, Vector, Vectors
from fedlada.engines import ServerState
from fedlada.models import ResNet18
from fedlada.privacy.news import private_reply
from fedlada.processes import keep_memory
from fedlada.protocol.messages import Reply, Task, reply_parcel
from fedlada.server.collect.collect import new_tally
from fedlada.server.collect.tally import Tally
from fedlada.server.loop import next_task
from fedlada.server.private.release import allowed, release

REPLY, NOISE, COMMAND = (
    "a reply, clipped and admitted, over a plain one, s",
    "the noise of a round, s",
    "fedlada privacy, s",
)
GOAL = {REPLY: 0.15, NOISE: 1.0, COMMAND: 5.0}
CLIENTS, REPEATS, WARMUP = 1000, 10, 2
WORDS = ["--clients", "1000", "--rate", "0.1", "--rounds", "100", "--parameters", "11000000"]


def begun(plan: Plan, x: Vector) -> tuple[ServerState, Task, Tally]:
    state = ServerState.new(plan.algorithm, x)
    assert allowed(plan, state, CLIENTS)
    task, _ = next_task(plan, state, CLIENTS)
    return state, task, new_tally(plan, task, range(CLIENTS), state)


def command() -> float:
    """CPU seconds of the program."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "fedlada", "privacy", *WORDS], check=True, stdout=subprocess.DEVNULL
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    options = measure.arguments(__doc__.splitlines()[0])
    torch.set_num_threads(1)
    keep_memory()
    warnings.simplefilter("ignore")
    print(measure.machine())
    torch.manual_seed(0)
    x = Vector(p.detach().clone() for p in ResNet18(10).parameters())
    privacy = {"noise": 1.0, "delta": 1e-4, "steps": 10}
    private = Plan(algorithm="fedavg", cohort=0.1, privacy=privacy)
    _, plain_task, plain_tally = begun(Plan(algorithm="fedavg", cohort=100, guard="off"), x.clone())
    state, task, tally = begun(private, x.clone())
    delta = Vector(0.01 * torch.randn_like(t) for t in x)
    own = Reply(
        client=0, round=0, vectors=Vectors(delta=delta), examples=50, steps=10, lr_sum=1.0, nonce=""
    )
    turns, sent = {"plain": 0, "private": 0}, []

    def numbered(side: str, reply: Reply, of: Task) -> Reply:
        turns[side] += 1
        return replace(reply, client=turns[side] - 1, nonce=of.nonce)

    def plain() -> None:
        plain_tally.add(numbered("plain", own, plain_task))

    def clip() -> None:
        r = Round(steps=10, lr_sum=1.0)
        sent[:] = [private_reply(private.algorithm, task, own, Vectors(), r)[0]]

    def code() -> None:
        parcel = reply_parcel(sent[0], task)
        sent[:] = [replace(sent[0], vectors=parcel.vectors, received=parcel.nbytes)]

    def admit() -> None:
        tally.add(numbered("private", sent[0], task))

    seconds = measure.alternate(
        {"plain": plain, "clip": clip, "code": code, "admit": admit},
        repeats=REPEATS,
        warmup=WARMUP,
        clock=time.process_time,
    )
    for accepted in (plain_tally.accepted, tally.accepted):
        assert len(accepted) == REPEATS + WARMUP
    tally.close()
    began = time.process_time()
    release(private, state, tally, CLIENTS)
    noise = time.process_time() - began
    middle = {side: statistics.median(each) for side, each in seconds.items()}
    figures = {
        REPLY: middle["clip"] + middle["admit"] - middle["plain"],
        "the codec fixed, both ways, s": middle["code"],
        NOISE: noise,
        COMMAND: command(),
    }
    what = f"CPU seconds of privacy, {x.numel():,} parameters"
    measure.finish(options, figures, goal=GOAL, what=what)


if __name__ == "__main__":
    main()
