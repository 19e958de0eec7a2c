"""A tree ends in the bits of the flat federation, and loses no more than a leaf's own clients.

Here leaves live on a grid in memory; ``test_tree_over_tls.py`` starts them as programs.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from torch import Tensor, nn

import fedlada
from federations import KINDS, same_bits
from fedlada import LocalTraining, Plan
from fedlada.algorithms import Round, Vector, Vectors
from fedlada.data import ClientData
from fedlada.engines.around import Around
from fedlada.engines.in_process import InProcess
from fedlada.flower import Finished, ServerConfig, client_app, leaf_app, run_server
from fedlada.flower.dry_run import rehearse
from fedlada.flower.memory_grid import MemoryGrid
from fedlada.flower.tree import leaves
from fedlada.flower.tree.records import read_order
from fedlada.flower.wire.header import HEADER
from fedlada.flower.wire.packing import opened, packed
from fedlada.flower.wire.records import VECTORS
from fedlada.protocol.codecs import PRESETS
from fedlada.protocol.messages import Task
from fedlada.protocol.seeds import seed_of
from fedlada.server.state import ServerState

pytestmark = pytest.mark.filterwarnings("ignore:the guard stepped in")

LEAVES, EACH, ROUNDS = 3, 4, 2
CLIENTS, COHORT = LEAVES * EACH, 10
train = LocalTraining(steps=2, batch_size=4)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


def data(client: int) -> ClientData:
    generator = torch.Generator().manual_seed(client)
    inputs = torch.randn(8 + client % 5, 4, generator=generator) + client % 3
    return ClientData(inputs, inputs[:, :3].argmax(1))


def leaf_data(context) -> list[ClientData]:
    leaf = int(context.node_config["partition-id"])
    return [data(client) for client in range(leaf, CLIENTS, LEAVES)]


class Tree(MemoryGrid):
    """Leaves of which some answer as they please, or not at all."""

    def __init__(self, *, train=train, **settings) -> None:
        super().__init__(leaf_app(model, leaf_data, train), nodes=LEAVES, **settings)
        self.misbehave: dict[int, Callable[[Message], Message | None]] = {}

    def reply(self, message: Message) -> Message | None:
        leaf = message.metadata.dst_node_id - 1000
        if message.metadata.message_type == "train" and leaf in self.misbehave:
            return self.misbehave[leaf](message)
        return super().reply(message)


def settings(name: str, **more) -> dict:
    usual = {"algorithm": name, "rounds": ROUNDS, "cohort": COHORT, "nodes": LEAVES}
    usual |= {"buffers": "average", "clients": CLIENTS, "guard": "calibration = 6"}
    return usual | {key.replace("_", "-"): value for key, value in more.items()}


def through(tree: Tree, name: str, **more) -> Finished:
    return run_server(tree, ServerConfig.read(settings(name, **more)), model)


def flat(name: str, around: type | None = None, *arguments, **more) -> Finished:
    torch.manual_seed(seed_of(0, "model"))
    clients = [data(client) for client in range(CLIENTS)]
    plan = ServerConfig.read(settings(name, **more)).plan
    net, engine = model(), None
    if around is not None:
        inner = InProcess(plan.algorithm, net, clients, train, buffers=plan.buffers)
        engine = around(inner, *arguments)
    run = fedlada.simulate(net, clients, train=train, engine=engine, **plan.settings())
    if engine is not None:
        engine.state = run.state
    records = run.run()
    return Finished(model=run.model, state=run.state, history=records)


def untimed(records) -> list:
    times = {"seconds": 0.0, "local_seconds": 0.0, "server_seconds": 0.0}
    return [vars(record) | times for record in records]


@pytest.mark.parametrize("name", KINDS)
def test_a_tree_ends_in_the_bits_of_the_flat_federation(name):
    """Limits, buffers, client state and all that is on record are the same."""
    tree, alone = through(Tree(), name), flat(name)
    assert same_bits(tree.state.vectors, alone.state.vectors)
    assert tree.state.history == alone.state.history
    assert tree.state.contributed == alone.state.contributed
    assert tree.state.last_accepted == alone.state.last_accepted
    assert untimed(tree.history) == untimed(alone.history)


@pytest.mark.parametrize(
    "more",
    [
        {"aggregator": "trimmed-mean"},
        {"aggregator": "{name = 'centered-clipping', iterations = 2}"},
        {"weighting": "examples", "algorithm": "fedlada"},
        {"guard": "strict"},
        {"guard": "off"},
        {"target": 7},
        {"cohort": 0.5},
        *({"codec": preset} for preset in PRESETS),
    ],
    ids=str,
)
def test_so_does_one_with_other_settings(more):
    more = {"algorithm": "scaffold"} | more
    name = more["algorithm"]
    tree, alone = through(Tree(), name, **more), flat(name, **more)
    assert same_bits(tree.state.vectors, alone.state.vectors)
    assert untimed(tree.history) == untimed(alone.history)


def test_clients_of_a_leaf_keep_their_vectors_on_its_disk(tmp_path):
    config = {"state-directory": str(tmp_path)}
    tree = through(Tree(node_config=config), "scaffold")
    assert same_bits(tree.state.vectors, flat("scaffold").state.vectors)
    assert {int(path.name) for path in tmp_path.iterdir()} == set(tree.state.last_accepted)


def test_a_client_that_fails_on_a_leaf_fails_alone():
    def fragile(model, mine, optimizer):
        if torch.equal(mine.inputs, data(4).inputs):
            raise RuntimeError("no memory")
        return train(model, mine, optimizer)

    run = through(Tree(train=fragile), "fedlada", cohort=CLIENTS)
    for record in run.history:
        assert record.failures == {"client error": 1}
        assert record.accepted == CLIENTS - 1


def test_a_leaf_without_an_answer_loses_its_clients_alone():
    tree = Tree()
    tree.misbehave[1] = lambda message: None
    run = through(tree, "fedlada", cohort=CLIENTS, deadline=2.0, guard="off")
    for record in run.history:
        assert record.accepted == CLIENTS - EACH
        assert record.failures == {"deadline": EACH}
        assert record.seconds < 4


def test_a_leaf_sends_what_it_has_before_the_deadline():
    """The root gives it less time than it has itself; what is not trained by then has failed."""
    given = []

    def slow(model, mine, optimizer):
        time.sleep(0.3)
        return train(model, mine, optimizer)

    tree = Tree(train=slow)

    def hurried(message: Message) -> Message:
        header = dict(message.content[HEADER])
        order = json.loads(header["order"])
        given.append(order["seconds"])
        header["order"] = json.dumps(order | {"seconds": 0.2})
        message.content[HEADER] = ConfigRecord(header)
        return MemoryGrid.reply(tree, message)

    tree.misbehave[1] = hurried
    more = {"deadline": 100.0, "guard": "off", "rounds": 1}
    (record,) = through(tree, "fedlada", cohort=CLIENTS, **more).history
    assert 0 < given[0] <= 80
    assert EACH - 1 <= record.failures["deadline"] <= EACH
    assert record.accepted == CLIENTS - record.failures["deadline"]


def altered(tree: Tree, change: Callable[[dict], object]) -> Callable[[Message], Message]:
    """A leaf that tells lies about its tally."""

    def answer(message: Message) -> Message:
        reply = MemoryGrid.reply(tree, message)
        header = dict(reply.content[HEADER])
        told = json.loads(header["tally"])
        change(told)
        reply.content[HEADER] = ConfigRecord(header | {"tally": json.dumps(told)})
        return reply

    return answer


LIES = {
    "others' clients": lambda told: told["accepted"].__setitem__(0, 0),
    "a client twice": lambda told: told["accepted"].append(told["accepted"][0]),
    "more weight": lambda told: told["total"]["scalars"].update(weight=["ff", 0]),
    "weight below zero": lambda told: told["total"]["scalars"].update(weight=["-1", 0]),
    "a number that is none": lambda told: told["total"]["scalars"].update(weight=["0x1", 0]),
    "more terms": lambda told: told["total"].update(count=50),
    "more failures": lambda told: told["failures"].update(deadline=7),
    "endless seconds": lambda told: told.update(local_seconds=float("inf")),
    "other limits": lambda told: told["limits"]["delta"].__setitem__(1, 1e9),
    "an account of others": lambda told: told["contributed"].append([0, 1.0]),
    "another key": lambda told: told.update(other=1),
    "sizes of none": lambda told: told["seen"]["delta"].pop(),
    "a name of two lines": lambda told: told["reported"].update({"a\nb": 1}),
    "the bytes of others": lambda told: told.update(bytes_up=2**52),
    "limits of its own": lambda told: told["limited"].update({"what it likes": 1}),
    "limited more than it has": lambda told: told["limited"].update(delta=EACH + 1),
    "no steps": lambda told: told["seen"].update(steps=[0] * EACH),
    "no learning rates": lambda told: told["seen"].update(lr_sum=[0.0] * EACH),
    "a weight beyond float64": lambda told: told["total"]["scalars"].update(
        weight=[f"{10**310:x}", 0]
    ),
    "no accounts": lambda told: told.update(contributed=[[c, 0.0] for c in told["accepted"]]),
    "accounts that cancel": lambda told: told["contributed"].__setitem__(
        slice(None), [[c, float((-1) ** i * 1e6)] for i, c in enumerate(told["accepted"])]
    ),
    "steps beyond the limit": lambda told: told["total"]["scalars"]["sums"].update(
        steps=[["fffff", 0], told["total"]["scalars"]["weight"]]
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_tally_that_cannot_be_is_rejected_with_its_clients(lie):
    tree = Tree()

    def from_the_second_round_on(message: Message) -> Message:
        later = message.content[HEADER]["round"] > 0
        return altered(tree, LIES[lie])(message) if later else MemoryGrid.reply(tree, message)

    tree.misbehave[1] = from_the_second_round_on
    run = through(tree, "scaffold", cohort=CLIENTS, rounds=3)
    for record in run.history[1:]:
        assert record.accepted == CLIENTS - EACH
        assert sum(record.rejected.values()) == EACH
    assert run.history[0].accepted == CLIENTS


def test_an_error_while_a_tally_is_read_costs_that_leaf_its_clients_alone(monkeypatch):
    """Whatever a leaf sends, the run goes on."""

    check, tree = leaves.check_share, Tree()

    def defect(tally, plan, share, *arguments, **settings):
        if share[0] % LEAVES == 1:
            raise OverflowError("integer division result too large for a float")
        return check(tally, plan, share, *arguments, **settings)

    monkeypatch.setattr(leaves, "check_share", defect)
    (record,) = through(tree, "fedlada", cohort=CLIENTS, rounds=1).history
    assert record.accepted == CLIENTS - EACH
    assert record.rejected == {"leaf: cannot be judged (OverflowError)": EACH}


def test_a_weight_beyond_float64_ends_no_run():
    tree = Tree()
    lie = LIES["a weight beyond float64"]
    tree.misbehave[1] = lambda message: (
        altered(tree, lie)(message)
        if message.content[HEADER]["round"]
        else MemoryGrid.reply(tree, message)
    )
    run = through(tree, "fedlada", cohort=CLIENTS, weighting="examples")
    assert run.history[1].accepted == CLIENTS - EACH


@pytest.mark.parametrize("factor", [1000.0, float("nan")])
@pytest.mark.parametrize("name", ["fedlada", "scaffold", "fedavg"])
def test_a_sum_that_no_limited_replies_have_is_rejected(name, factor):
    tree = Tree()

    def exaggerated(message: Message) -> Message:
        reply = MemoryGrid.reply(tree, message)
        if message.content[HEADER]["round"] == 0:
            return reply
        sums = opened(reply.content[VECTORS]["tensors"], copy=True).view(torch.float64)
        arrays = ArrayRecord({"tensors": packed(sums.mul_(factor).view(torch.uint8))})
        reply.content[VECTORS] = arrays
        return reply

    tree.misbehave[1] = exaggerated
    run = through(tree, name, cohort=CLIENTS)
    first, second = run.history
    assert (first.accepted, second.accepted) == (CLIENTS, CLIENTS - EACH)
    (reason,) = second.rejected
    assert ("not finite" if factor != factor else "beyond its limit") in reason


SIZES = [p.numel() for p in model().parameters()]


def fixed(c: Tensor) -> Tensor:
    """The same direction in all rounds."""
    generator = torch.Generator().manual_seed(5)
    direction = torch.randn(len(c), dtype=torch.float64, generator=generator)
    return direction / direction.norm()


def sideways(c: Tensor) -> Tensor:
    """A direction that does not lengthen c, so that no account shows it."""
    u, c = fixed(c), c.double()
    u -= u.dot(c) / c.dot(c).clamp_min(1e-300) * c
    return u / u.norm()


def lies(plan: Plan, task: Task, up: str, direction: Callable[[Tensor], Tensor]):
    """What a client without gradients would send, and the direction of a lie, both flat."""
    known = plan.algorithm.part.known(task.vectors, Round(steps=2, lr_sum=2 * task.lr)).get(up)
    like = torch.cat([t.reshape(-1) for t in task.vectors.get("c", task.vectors.x)])
    start = like * 0 if known is None else torch.cat([t.reshape(-1) for t in known])
    return start.double(), direction(like)


def forging(
    tree: Tree, plan: Plan, up: str, direction: Callable[[Tensor], Tensor], far: float = 0.99
) -> Callable[[Message], Message]:
    """A leaf that sends a vector in a direction, as far as some limits, with accounts of zero."""

    def answer(message: Message) -> Message:
        reply = MemoryGrid.reply(tree, message)
        header = dict(reply.content[HEADER])
        told, names = json.loads(header["tally"]), header["names"].split()
        if up not in (told["limits"] or {}) or not message.content[HEADER]["round"]:
            return reply
        summed = f"total/high:{up}" in names
        each = sum(SIZES)
        kind = torch.float64 if summed else torch.float32
        flat = opened(reply.content[VECTORS]["tensors"], copy=True).view(kind)
        vectors = sum(not name.endswith("buffers") for name in names)
        buffers = (len(flat) - each * vectors) // max(1, len(names) - vectors)
        sizes = [buffers if name.endswith("buffers") else each for name in names]
        task = read_order(message.content, model()).order.task
        start, u = lies(plan, task, up, direction)
        lie = start + u * (far * told["limits"][up][1])
        count = len(told["accepted"]) if summed else 1
        for name, part in zip(names, flat.split(sizes), strict=True):
            if name.startswith("total/") and name.endswith(f":{up}") and "low" not in name:
                part.copy_(lie * count)
        told["contributed"] = [[client, 0.0] for client, _ in told["contributed"]]
        reply.content[HEADER] = ConfigRecord(header | {"tally": json.dumps(told)})
        reply.content[VECTORS] = ArrayRecord({"tensors": packed(flat.view(torch.uint8))})
        return reply

    return answer


class Colluding(Around):
    """A flat federation in which the clients of leaf 1 say what that leaf says of them."""

    def __init__(self, engine, plan: Plan, up: str, direction: Callable[[Tensor], Tensor]) -> None:
        super().__init__(engine)
        self._plan, self._up, self._direction = plan, up, direction
        self.state = ServerState(Vectors())

    def exchange(self, task, cohort):
        start, u = lies(self._plan, task, self._up, self._direction)
        limit = self._plan.guard.limits(self.state.history).get(self._up)
        for reply in self._engine.exchange(task, cohort):
            if limit is not None and reply.client % LEAVES == 1:
                lie = (start + u * (0.99 * limit.high)).float().split(SIZES)
                parts = zip(lie, reply.vectors[self._up], strict=True)
                false = Vector(part.reshape(t.shape) for part, t in parts)
                reply = replace(reply, vectors=Vectors(reply.vectors | {self._up: false}))
            yield reply


@pytest.mark.parametrize(
    ("name", "up", "total", "direction", "more"),
    [
        ("scaffold", "c_change", "c", fixed, {}),
        ("scaffold", "c_change", "c", sideways, {}),
        ("feddyn", "delta", "h", fixed, {}),
        ("fedlada", "delta", "x", fixed, {}),
        ("fedlada", "delta", "x", fixed, {"guard": "strict"}),
        ("fedlada", "delta", "x", fixed, {"aggregator": "coordinate-median"}),
    ],
)
def test_a_lying_leaf_moves_the_model_no_further_than_its_clients_could(
    name, up, total, direction, more
):
    rounds = int(os.environ.get("FEDLADA_LEAF_ROUNDS", "15"))
    tree, settings_ = Tree(), {"rounds": rounds, "cohort": CLIENTS} | more
    plan = ServerConfig.read(settings(name, **settings_)).plan
    tree.misbehave[1] = forging(tree, plan, up, direction)
    leaf = through(tree, name, **settings_)
    clients = flat(name, Colluding, plan, up, direction, **settings_)
    assert leaf.state.vectors[total].norm() <= 1.5 * clients.state.vectors[total].norm()


def biases(like: Tensor) -> Tensor:
    """A direction in one tensor."""
    parts = [torch.full((size,), float(i == 1)) for i, size in enumerate(SIZES)]
    return torch.cat(parts).double() / SIZES[1] ** 0.5


@pytest.mark.parametrize(("direction", "far"), [(biases, 0.99), (fixed, 1.5)])
def test_a_strict_limit_is_that_of_each_tensor_and_longer_training_does_not_widen_it(
    direction, far
):
    tree, settings_ = Tree(), {"rounds": 3, "cohort": CLIENTS, "guard": "strict"}
    plan = ServerConfig.read(settings("fedlada", **settings_)).plan
    tree.misbehave[1] = forging(tree, plan, "delta", direction, far)
    first, *others = through(tree, "fedlada", **settings_).history
    assert first.accepted == CLIENTS
    assert [record.rejected for record in others] == [{"leaf: delta beyond its limit": EACH}] * 2


@pytest.mark.parametrize("vector", ["delta", "c_change"])
def test_single_replies_in_a_tally_are_measured_one_by_one(vector):
    """A robust rule needs them; a leaf may not send others than it could have accepted."""
    tree = Tree()

    def exaggerated(message: Message) -> Message:
        reply = MemoryGrid.reply(tree, message)
        names = reply.content[HEADER]["names"].split()
        if not message.content[HEADER]["round"]:
            return reply
        flat = opened(reply.content[VECTORS]["tensors"], copy=True).view(torch.float32)
        buffers = (len(flat) - sum(SIZES) * EACH * 2) // EACH
        sizes = [buffers if name.endswith("buffers") else sum(SIZES) for name in names]
        for name, part in zip(names, flat.split(sizes), strict=True):
            if name == f"total/1:{vector}":
                part *= 100.0
        reply.content[VECTORS] = ArrayRecord({"tensors": packed(flat.view(torch.uint8))})
        return reply

    tree.misbehave[1] = exaggerated
    first, second = through(
        tree, "scaffold", cohort=CLIENTS, aggregator="coordinate-median"
    ).history
    assert (first.accepted, second.accepted) == (CLIENTS, CLIENTS - EACH)
    (reason,) = second.rejected
    assert reason == f"leaf: {vector} beyond its limit"


def test_a_tally_of_another_task_is_rejected():
    tree, kept = Tree(), []

    def stale(message: Message) -> Message:
        reply = MemoryGrid.reply(tree, message)
        kept.append(reply.content)
        return Message(kept[0], reply_to=message)

    tree.misbehave[1] = stale
    run = through(tree, "fedlada", cohort=CLIENTS, guard="off")
    assert [record.accepted for record in run.history] == [CLIENTS, CLIENTS - EACH]
    assert run.history[1].rejected == {"leaf: reply to another task": EACH}


def test_a_leaf_and_a_client_are_told_apart_with_a_sentence():
    grid = MemoryGrid(client_app(model, lambda context: data(0), train), nodes=LEAVES)
    with pytest.raises(fedlada.FedladaError, match="error in app"):
        run_server(grid, ServerConfig.read(settings("fedavg")), model)
    tree, told = Tree(), []
    tree.misbehave = dict.fromkeys(
        range(LEAVES), lambda message: told.append(MemoryGrid.reply(tree, message)) or told[-1]
    )
    with pytest.raises(fedlada.FedladaError, match="error in app"):
        run_server(tree, ServerConfig.read(settings("fedavg", clients=0)), model)
    assert "this node is a leaf" in told[0].error.reason


def test_leaves_do_not_evaluate_and_the_config_says_so():
    with pytest.raises(ValueError, match="leaves do not evaluate the model"):
        ServerConfig.read(settings("fedavg", evaluate_cohort=3))


def test_a_leaf_can_be_rehearsed_before_it_joins(tmp_path, monkeypatch):
    (tmp_path / "leaf_of_a_tree.py").write_text(
        "from flower.test_tree import Tree\napp = Tree().app\n"
    )
    (tmp_path / "pyproject.toml").write_text(
        '[tool.flwr.app.components]\nclientapp = "leaf_of_a_tree:app"\n'
        f'[tool.flwr.app.config]\nclients = {CLIENTS}\nbuffers = "average"\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    node = f"partition-id=1 num-partitions={LEAVES}"
    assert rehearse(tmp_path, node, model).accepted == 1
