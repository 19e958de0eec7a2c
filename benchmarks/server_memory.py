"""Peak memory of a ServerApp with 80 replies of an 11M-parameter model against 40.

One round over a grid in this process whose clients make up their replies, so that what grows is
what the server holds.  Both are more than the 30 replies that set the guard's first limits, which
are held until then.  Flower's own FedAvg, which gathers all replies before it adds them, stands
beside it without a goal.  Each case is a process of its own, so its peak RSS is its own.

Run: python benchmarks/server_memory.py --check
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import measure
from fedlada import Plan
from fedlada.algorithms import Vector, Vectors, algorithm
from fedlada.flower import ServerConfig, answer_query, run_server
from fedlada.flower.memory_grid import MemoryGrid
from fedlada.flower.wire.records import HEADER, reply_record
from fedlada.models import ResNet18
from fedlada.protocol.messages import Reply

GOAL = 1.10
FEW, MANY = 40, 80
FLOWER = "Flower's FedAvg"


def fabricator(fabricate: Callable[[Message, Context], RecordDict]) -> ClientApp:
    app = ClientApp()
    app.query()(answer_query)

    @app.train()
    def reply(message: Message, context: Context) -> Message:
        return Message(fabricate(message, context), reply_to=message)

    return app


def replies_of(name: str) -> Callable[[Message, Context], RecordDict]:
    """Replies of ResNet-18 that nobody trained."""
    like = Vector(p.detach() for p in ResNet18(10).parameters())
    vectors = Vectors((vector, like) for vector in algorithm(name).up)
    for moment in algorithm(name).moments:
        vectors[moment.up] = like * like + 1e-6

    def fabricate(message: Message, context: Context) -> RecordDict:
        return reply_record(
            Reply(
                client=int(context.node_config["partition-id"]),
                round=message.content[HEADER]["round"],
                nonce=message.content[HEADER]["nonce"],
                vectors=vectors,
                examples=1,
                steps=1,
                lr_sum=0.1,
            )
        )

    return fabricate


def ours(name: str, replies: int) -> None:
    grid = MemoryGrid(fabricator(replies_of(name)), nodes=replies)
    plan = Plan(algorithm=name, rounds=1, cohort=replies, minimum=replies)
    config = ServerConfig(plan=plan)
    if not run_server(grid, config, lambda: ResNet18(10)).state.updates:
        raise RuntimeError(f"the round of {name} was abandoned; not all replies were accepted")


def flowers(replies: int) -> None:
    model = ResNet18(10)

    def fabricate(message: Message, context: Context) -> RecordDict:
        arrays = ArrayRecord(model.state_dict())
        return RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})

    grid = MemoryGrid(fabricator(fabricate), nodes=replies)
    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=1)
    if not result.train_metrics_clientapp:
        raise RuntimeError("Flower's FedAvg aggregated nothing")


def case(name: str, replies: int) -> float:
    """Peak RSS in MB of one case, in a process of its own."""
    command = [sys.executable, __file__, "--case", name, str(replies)]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name} with {replies} replies failed:\n{done.stderr[-2000:]}")
    peak: float = json.loads(done.stdout.splitlines()[-1])
    elapsed = time.perf_counter() - began
    print(f"{name:16} {replies:3} replies: peak RSS {peak:6.0f} MB  ({elapsed:.0f} s)", flush=True)
    return peak


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--case"]:
        name, replies = sys.argv[2], int(sys.argv[3])
        if name == FLOWER:
            flowers(replies)
        else:
            ours(name, replies)
        print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))
        return
    options = measure.arguments(__doc__.splitlines()[0])
    print(measure.machine())
    growth = {}
    for name in ("fedavg", "fedlada", FLOWER):
        few = case(name, FEW)
        growth[name] = case(name, MANY) / few
    beside = growth.pop(FLOWER)
    what = f"peak RSS with {MANY} replies over {FEW} ({FLOWER} {beside:.2f})"
    measure.finish(options, growth, goal=GOAL, what=what)


if __name__ == "__main__":
    main()
