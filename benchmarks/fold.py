"""CPU time of the server's own work on a reply against a bare float64 sum of its vectors.

The replies are those of `fedlada` on ResNet-18-GN: delta and v̂, 22 million numbers.  They come from
clients that trained, in a first round and in a second, since what they hold decides how many sums
are exact.  The server checks, measures and adds replies as in any round; the bare sum adds them,
tensor by tensor, to one float64 number per element.  Both take turns, as many replies at a time as
the server adds together.

Run: python benchmarks/fold.py --check
"""

import time
from dataclasses import replace

import torch

import measure
from fedlada import LocalTraining, Plan
from fedlada.algorithms import Vector
from fedlada.data import ClientData
from fedlada.engines import ServerState
from fedlada.engines.in_process import InProcess
from fedlada.models import ResNet18
from fedlada.processes import keep_memory
from fedlada.protocol.messages import Reply
from fedlada.server.aggregate.mean import TOGETHER
from fedlada.server.collect.collect import new_tally
from fedlada.server.collect.tally import Tally
from fedlada.server.loop import advance, next_task

GOAL = 3.0
CLIENTS, STEPS, BATCH = 5, 3, 20
REPEATS, WARMUP = 10, 2


def engine(plan: Plan) -> InProcess[ClientData]:
    torch.manual_seed(0)
    data = [
        ClientData(torch.randn(100, 3, 32, 32) * (1 + i), torch.randint(10, (100,)))
        for i in range(CLIENTS)
    ]
    train = LocalTraining(steps=STEPS, batch_size=BATCH)
    return InProcess(plan.algorithm, ResNet18(10), data, train)


def side_by_side(tally: Tally, replies: list[Reply]) -> dict[str, list[float]]:
    """CPU seconds of each turn; clients answer again and again, under new numbers."""
    sums = {
        name: [torch.zeros_like(t, dtype=torch.float64) for t in vector]
        for name, vector in replies[0].vectors.items()
    }
    turns = {"server": 0, "bare": 0}

    def following(side: str) -> list[Reply]:
        first = turns[side] * TOGETHER
        turns[side] += 1
        return [replace(replies[i % CLIENTS], client=i) for i in range(first, first + TOGETHER)]

    def server() -> None:
        for reply in following("server"):
            tally.add(reply)

    def bare() -> None:
        for reply in following("bare"):
            for name, vector in reply.vectors.items():
                for total, t in zip(sums[name], vector, strict=True):
                    total += t

    return measure.alternate(
        {"server": server, "bare": bare},
        repeats=REPEATS,
        warmup=WARMUP,
        clock=time.process_time,
    )


def main() -> None:
    options = measure.arguments(__doc__.splitlines()[0])
    torch.set_num_threads(1)
    keep_memory()
    print(measure.machine())
    plan = Plan(algorithm="fedlada", cohort=CLIENTS, guard={"calibration": CLIENTS})
    clients = engine(plan)
    x = Vector(p.detach().clone() for p in clients._model.parameters())
    state, figures = ServerState.new(plan.algorithm, x), {}
    for name in ("first round", "second round"):
        task, _ = next_task(plan, state, clients.clients)
        cohort = range(TOGETHER * (WARMUP + REPEATS))
        tally = new_tally(plan, task, cohort, state)
        seconds = side_by_side(tally, list(clients.exchange(task, range(CLIENTS))))
        assert len(tally.accepted) == len(cohort), f"not all accepted: {tally.rejected}"
        advance(plan, state, tally, clients)
        middle = {
            side: 1e3 / TOGETHER * sorted(each)[REPEATS // 2] for side, each in seconds.items()
        }
        figures[name] = measure.paired(seconds["server"], seconds["bare"])
        print(
            f"{name}: {middle['server']:.0f} ms a reply, a bare sum {middle['bare']:.0f} ms;"
            f" over it {figures[name]:.2f}; limited {dict(tally.limited)}",
            flush=True,
        )
    measure.finish(options, figures, goal=GOAL, what="a reply's CPU time over a bare float64 sum")


if __name__ == "__main__":
    main()
