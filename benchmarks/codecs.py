"""CPU time of coding against a client's training, and of folding a coded reply.

`fedlada-rows` on ResNet-18-GN.  A client decodes x and g_a and encodes its delta; that is held
against ten steps of 50 images.  The server decodes replies, checks them and adds them up, as
many at a time as it adds together; that is held against the bare operations: decode, add the
zero-gradient delta, and add to one float64 number per element.

Run: python benchmarks/codecs.py --check
"""

import time
from dataclasses import replace

import torch

import measure
from fedlada import LocalTraining, Plan
from fedlada.algorithms import Vector, Vectors
from fedlada.client.round import train_client
from fedlada.client.store import MemoryStore
from fedlada.data import ClientData
from fedlada.engines import ServerState
from fedlada.engines.in_process import InProcess
from fedlada.models import ResNet18
from fedlada.processes import keep_memory
from fedlada.protocol.codecs import PRESETS
from fedlada.protocol.manifest import Manifest
from fedlada.protocol.messages import Reply, Task, reply_parcel
from fedlada.protocol.residual import base
from fedlada.protocol.wire import Parcel, receive
from fedlada.server.aggregate.mean import TOGETHER
from fedlada.server.collect.collect import new_tally
from fedlada.server.loop import advance, next_task

GOALS = {f"{preset} of training": 0.05 for preset in PRESETS} | {"fold over bare": 2.0}
STEPS, BATCH, TURNS, FOLDS = 10, 50, 3, 3


class Client:
    """One client with images of its own."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.data = ClientData(torch.randn(100, 3, 32, 32), torch.randint(10, (100,)))
        self.model, self.train = ResNet18(10), LocalTraining(steps=STEPS, batch_size=BATCH)
        self.manifest = Manifest.of(self.model, "refuse")

    def reply(self, plan: Plan, task: Task) -> Reply:
        """Train."""
        return train_client(
            plan.algorithm,
            self.model,
            task,
            client=0,
            data=self.data,
            train=self.train,
            store=MemoryStore(),
        )

    def read(self, parcel: Parcel) -> Vectors:
        """Decode what was sent, as the receiver does."""
        return Vectors(
            (
                name,
                receive(name, parcel.payload(name), self.manifest.layout(name), parcel.codecs, way),
            )
            for way in [parcel.way]
            for name in parcel.given
        )


def planned(codec: str) -> Plan:
    return Plan(algorithm="fedlada-rows", cohort=1, codec=codec, guard={"calibration": 1})


def after_a_round(client: Client) -> ServerState:
    """The server's state when there is a direction g_a to send."""
    plan = planned("exact")
    x = Vector(p.detach().clone() for p in client.model.parameters())
    state = ServerState.new(plan.algorithm, x)
    task, _ = next_task(plan, state, 1)
    tally = new_tally(plan, task, [0], state)
    tally.add(client.reply(plan, task))
    engine = InProcess(plan.algorithm, client.model, [client.data], client.train)
    advance(plan, state, tally, engine)
    return state


def coding(client: Client, state: ServerState) -> dict[str, float]:
    """The least CPU seconds that a client needs to code, by preset, and to train."""
    tasks = {preset: next_task(planned(preset), state, 1)[0] for preset in PRESETS}
    replies = {preset: client.reply(planned(preset), task) for preset, task in tasks.items()}
    turns = {
        **{f"decode {preset}": lambda t=t: client.read(t.parcel) for preset, t in tasks.items()},
        **{
            f"encode {preset}": lambda t=t, r=replies[preset]: reply_parcel(r, t)
            for preset, t in tasks.items()
        },
        "train": lambda: client.reply(planned("default"), tasks["default"]),
    }
    seconds = measure.alternate(turns, repeats=TURNS, warmup=1, clock=time.process_time)
    return {name: min(values) for name, values in seconds.items()}


def folding(client: Client, state: ServerState) -> dict[str, list[float]]:
    """CPU seconds of each turn of the server and of the bare operations."""
    plan = planned("default")
    task, _ = next_task(plan, state, 1)
    reply = client.reply(plan, task)
    parcel, added = reply_parcel(reply, task), base(plan.algorithm, plan.codec, state.vectors)
    assert added is not None
    cohort = range(TOGETHER * (1 + FOLDS))
    tally, turns = new_tally(plan, task, cohort, state), iter(cohort)
    sums = [torch.zeros_like(t, dtype=torch.float64) for t in reply.vectors.delta]

    def server() -> None:
        for _ in range(TOGETHER):
            tally.add(replace(reply, client=next(turns), vectors=client.read(parcel)))

    def bare() -> None:
        for _ in range(TOGETHER):
            delta = client.read(parcel).delta.add_(added, alpha=reply.lr_sum)
            for total, t in zip(sums, delta, strict=True):
                total += t

    seconds = measure.alternate(
        {"server": server, "bare": bare}, repeats=FOLDS, warmup=1, clock=time.process_time
    )
    assert len(tally.accepted) == len(cohort), f"not all accepted: {tally.rejected}"
    return seconds


def main() -> None:
    options = measure.arguments(__doc__.splitlines()[0])
    torch.set_num_threads(1)
    keep_memory()
    print(measure.machine())
    client = Client()
    state = after_a_round(client)
    least = coding(client, state)
    for name, seconds in least.items():
        print(f"{name:16} {1e3 * seconds:6.0f} ms")
    figures = {
        f"{preset} of training": (least[f"decode {preset}"] + least[f"encode {preset}"])
        / least["train"]
        for preset in PRESETS
    }
    folded = folding(client, state)
    figures["fold over bare"] = measure.paired(folded["server"], folded["bare"])
    for side, each in folded.items():
        print(f"fold, {side:10} {1e3 * min(each) / TOGETHER:6.0f} ms")
    measure.finish(options, figures, goal=GOALS, what="CPU time of coding, ResNet-18-GN, K = 10")


if __name__ == "__main__":
    main()
