"""Personal parts: trained and kept on each client, never sent, and as safe as what clients keep."""

import functools

import pytest
import torch
from flwr.app import ConfigRecord
from flwr.clientapp import ClientApp
from safetensors import safe_open
from torch import nn

import fedlada
from digits import digits, perceptron
from federations import KINDS, Point, local_steps, quadratics
from fedlada import Evaluation, FedladaError, LocalTraining, simulate
from fedlada.algorithms import Vector, Vectors
from fedlada.cost import count
from fedlada.engines import InProcess, LocalRound, MemoryStore, Task
from fedlada.engines.around import Around
from fedlada.flower import ServerConfig, answer_query, client_app, run_server, training
from fedlada.flower.context_store import KEPT
from fedlada.flower.memory_grid import MemoryGrid
from fedlada.protocol.federated import personal_tensors
from fedlada.protocol.messages import Failure

HEAD = ("3.*",)
"""The last layer of the perceptron."""
CLIENTS = 6
TRAIN = LocalTraining(steps=3, batch_size=10)


def permuted(split: str, clients: int = CLIENTS) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Digits, of which each client has its own names: no common last layer can serve them all."""
    whole = digits(split)
    names = [torch.randperm(10, generator=torch.Generator().manual_seed(i)) for i in range(clients)]
    if split == "test":
        return [(whole.inputs, names[i][whole.labels]) for i in range(clients)]
    return [(whole.inputs[i::8], names[i][whole.labels[i::8]]) for i in range(clients)]


def federation(clients=None, *, model=None, **settings) -> fedlada.Simulation:
    usual = {"algorithm": "scaffold", "rounds": 4, "cohort": 4, "train": TRAIN, "personal": HEAD}
    model, clients = model or perceptron(), clients or permuted("train")
    return simulate(model, clients, quiet=True, **usual | settings)


def own(run: fedlada.Simulation, client: int) -> dict[str, torch.Tensor]:
    """The personal tensors of a client."""
    return {name: t for name, t in run.model_of(client).state_dict().items() if name[0] == "3"}


def same_everywhere(one: fedlada.Simulation, other: fedlada.Simulation) -> bool:
    """Whether every client has the same model in both runs."""
    pairs = [(one.model_of(i).state_dict(), other.model_of(i).state_dict()) for i in range(CLIENTS)]
    return all(a[name].equal(b[name]) for a, b in pairs for name in a)


def accuracy(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> float:
    return Evaluation(data=data)(model)["test_accuracy"]


def test_personal_heads_reach_local_training_where_no_common_head_can():
    """Each client is compared with itself, trained alone for as many steps."""
    clients, held_out = permuted("train", 4), permuted("test", 4)
    usual = {
        "algorithm": fedlada.algorithm("fedavg", lr=0.1),
        "rounds": 8,
        "cohort": "all",
        "train": LocalTraining(steps=15, batch_size=20),
    }
    run, common = federation(clients, **usual), federation(clients, personal=(), **usual)
    run.run()
    common.run()
    for i, (data, test) in enumerate(zip(clients, held_out, strict=True)):
        alone = federation([data], personal=(), **usual)
        alone.run()
        local = accuracy(alone.model, test)
        assert accuracy(run.model_of(i), test) >= 0.9 * local
        assert accuracy(common.model, test) < 0.5 * local
    bodies = [run.model_of(i)[1].weight for i in range(len(clients))]
    assert all(body.equal(run.state.vectors.x.tensors[0]) for body in bodies)


@pytest.mark.parametrize("name", KINDS)
def test_the_shared_part_is_that_of_a_federation_without_the_personal_part(name):
    """The loss is a sum over coordinates, so what happens to some does not concern the others."""

    class Shorter(Point):
        def flat(self):
            return torch.cat([self.w, self.rest])

    clients = quadratics(4)
    usual = {"algorithm": name, "rounds": 4, "cohort": 3, "train": local_steps(3), "quiet": True}
    personal = simulate(Point(at=1.0), clients, personal=("b",), **usual)
    model = Shorter(at=1.0)
    model.rest = torch.ones(2, dtype=torch.float64)
    del model.b
    without = simulate(model, clients, **usual)
    for one, other in zip(personal, without, strict=True):
        assert (one.bytes_down, one.bytes_up) == (other.bytes_down, other.bytes_up)
    assert all(personal.state.vectors[n].equal(v) for n, v in without.state.vectors.items())


@pytest.mark.parametrize("name", ["fedavg", "fedcm", "scaffold", "feddyn", "fedsam", "fednova"])
def test_the_local_rule_trains_the_personal_part_without_corrections(name):
    """Against torch's SGD on each client by itself, with the rate of each round."""
    clients, rounds = quadratics(3), 4
    algorithm = fedlada.algorithm(name, lr=0.1)
    settings = {"rounds": rounds, "lr_decay": 0.5, "personal": ("b",), "quiet": True}
    run = simulate(Point(at=1.0), clients, algorithm=algorithm, train=local_steps(3), **settings)
    run.run()
    for i, data in enumerate(clients):
        b = nn.Parameter(torch.ones(2, dtype=torch.float64))
        for round in range(rounds):
            decay = algorithm.local.weight_decay
            sgd = torch.optim.SGD([b], lr=0.1 * 0.5**round, weight_decay=decay)
            for _ in range(3):
                sgd.zero_grad()
                (0.5 * data.h[4:] * (b - data.b[4:]) ** 2).sum().backward()
                sgd.step()
        assert torch.allclose(run.model_of(i).b.flatten(), b, rtol=1e-12)


def test_workers_end_in_the_bits_of_one_process():
    runs = [federation(workers=workers) for workers in (1, 2)]
    assert [record.bytes_up for record in runs[0]] == [record.bytes_up for record in runs[1]]
    assert same_everywhere(*runs)
    assert not own(runs[0], 0)["3.weight"].equal(own(runs[0], 1)["3.weight"])


def test_a_resumed_run_is_the_run_undisturbed_though_its_model_is_made_anew(tmp_path):
    """A client may take part for the first time after the run was resumed."""
    whole = federation()
    whole.run()
    other = perceptron()
    nn.init.ones_(other[3].weight)
    for stop, model in ((1, perceptron()), (2, other), (None, other)):
        run = federation(checkpoints=tmp_path, model=model)
        for record in run:
            if record.round == stop:
                break
    assert same_everywhere(run, whole)


class Losing(Around):
    """Loses the replies of a client from the second round on."""

    def __init__(self, engine, client: int) -> None:
        super().__init__(engine)
        self._client = client

    def exchange(self, task, cohort):
        for reply in self._engine.exchange(task, cohort):
            lost = reply.client == self._client and task.round > 0
            yield Failure(client=reply.client, reason="lost") if lost else reply


def test_a_client_whose_reply_was_lost_keeps_what_it_had():
    first = federation(rounds=1, cohort="all")
    first.run()
    clients, store = permuted("train"), MemoryStore()
    engine = InProcess(
        fedlada.algorithm("scaffold"), perceptron(), clients, TRAIN, store=store, personal=HEAD
    )
    run = federation(engine=Losing(engine, 2), cohort="all", rounds=3)
    run.run()
    kept = {i: engine.model_of(run.state, i)[3].weight for i in (2, 3)}
    assert kept[2].equal(own(first, 2)["3.weight"])
    assert not kept[3].equal(own(first, 3)["3.weight"])


def test_a_head_that_is_no_longer_finite_is_not_kept():
    def loop(model, data, optimizer, *, round):
        TRAIN(model, data, optimizer)
        if round == 2:
            with torch.no_grad():
                model[3].bias[0] = float("inf")

    run, whole = federation(train=loop, rounds=2, cohort="all"), federation(cohort="all", rounds=1)
    with pytest.warns(UserWarning, match=r"3\.bias of client \d are not finite after round 2"):
        run.run()
    whole.run()
    assert own(run, 4)["3.bias"].equal(own(whole, 4)["3.bias"])


class Watched(MemoryGrid):
    """Remembers the bytes of all messages in both directions."""

    def __init__(self, *args, **named) -> None:
        super().__init__(*args, **named)
        self.passed: list[bytes] = []
        self.headers: list[ConfigRecord] = []

    def reply(self, message):
        reply = super().reply(message)
        for content in (message.content, reply.content):
            for record in content.array_records.values():
                self.passed += [array.data for array in record.values()]
            self.headers += content.config_records.values()
        return reply


def on_flower(app, **settings) -> tuple[Watched, fedlada.flower.server.Finished]:
    config = {"algorithm": "scaffold", "rounds": 4, "cohort": 4, "nodes": CLIENTS}
    config |= {"personal": "3.*"} | settings
    grid = Watched(app, nodes=CLIENTS, run_config=config)
    return grid, run_server(grid, ServerConfig.read(config), perceptron)


def site(context):
    return permuted("train")[int(context.node_config["partition-id"])]


def pieces(t: torch.Tensor) -> list[bytes]:
    """The bytes of each row of a tensor."""
    return [row.numpy().tobytes() for row in t.detach().reshape(-1, t.shape[-1])]


def test_nothing_personal_is_in_a_message_or_in_a_file_of_the_server(tmp_path):
    """Searched for are rows of what clients end with, and of what they began with."""
    settings = {"checkpoints": str(tmp_path / "server"), "state-directory": str(tmp_path / "node")}
    grid, ended = on_flower(client_app(perceptron, site, TRAIN), **settings)
    run = federation()
    run.run()
    for name in ("x", "c"):
        assert ended.state.vectors[name].equal(run.state.vectors[name])
    last = [own(run, i)["3.weight"] for i in run.state.last_accepted]
    passed, rows = b"".join(grid.passed), [row for t in last for row in pieces(t)]
    assert pieces(perceptron()[1].weight)[0] in passed  # so that a search finds what was sent
    assert not [row for row in [*rows, *pieces(perceptron()[3].weight)] if row in passed]
    files = [path for path in (tmp_path / "server").rglob("*") if path.is_file()]
    written = b"".join(path.read_bytes() for path in files)
    assert pieces(ended.state.vectors.x.tensors[0])[0] in written
    assert not [row for row in rows if row in written]
    kept = b"".join(path.read_bytes() for path in (tmp_path / "node").rglob("*.pt"))
    assert all(row in kept for row in rows)
    names = [header["manifest"] for header in grid.headers if "manifest" in header]
    assert names
    assert not any("3.weight" in text for text in names)


def test_in_flowers_own_state_and_on_leaves_the_bits_are_those_in_process():
    run = federation()
    run.run()
    grid, ended = on_flower(client_app(perceptron, site, TRAIN))
    assert ended.state.vectors.x.equal(run.state.vectors.x)
    assert any(key.startswith(KEPT) for context in grid.contexts.values() for key in context.state)

    def of_leaf(context):
        return permuted("train")[int(context.node_config["partition-id"]) :: 2]

    config = {"algorithm": "scaffold", "rounds": 4, "cohort": 4, "personal": "3.*", "clients": 6}
    leaves = MemoryGrid(
        fedlada.flower.leaf_app(perceptron, of_leaf, TRAIN), nodes=2, run_config=config
    )
    ended = run_server(leaves, ServerConfig.read(config), perceptron)
    assert ended.state.vectors.x.equal(run.state.vectors.x)


def unseeded() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 4), nn.Linear(4, 10))


def test_nodes_of_a_ready_app_begin_with_the_servers_personal_part():
    """Whatever was drawn in their processes before."""
    config = {"algorithm": "fedavg", "rounds": 2, "cohort": 3, "nodes": 3, "personal": "1.*"}
    train = LocalTraining(steps=2)
    clients = [(inputs.flatten(1), labels) for inputs, labels in permuted("train", 3)]
    run = simulate(unseeded, clients, train=train, **{k: config[k] for k in config if k != "nodes"})
    run.run()
    app = client_app(
        unseeded, lambda context: clients[int(context.node_config["partition-id"])], train
    )
    ended = run_server(MemoryGrid(app, nodes=3), ServerConfig.read(config), unseeded)
    assert ended.state.vectors.x.equal(run.state.vectors.x)


def test_sites_may_have_heads_of_different_sizes():
    app = ClientApp()
    app.query()(answer_query)

    @app.train()
    def train(message, context):
        site = int(context.node_config["partition-id"])
        model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2 + site))
        inputs = torch.randn(10, 8)
        with training(message, context, model) as local:
            TRAIN(model, (inputs, inputs[:, : 2 + site].argmax(1)), local.optimizer())
        return local.reply

    config = {"rounds": 2, "cohort": 3, "nodes": 3, "personal": "1.*"}
    grid, model = MemoryGrid(app, nodes=3), nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
    ended = run_server(grid, ServerConfig.read(config), lambda: model)
    assert [record.accepted for record in ended.history] == [3, 3]


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.norm, self.head = nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, inputs):
        return self.head(self.norm(self.body(inputs)))


def shifted(clients: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Clients whose inputs have other means and scales."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(40, 8, generator=generator) for _ in range(clients)]
    return [((1 + i) * x + 5 * i, x[:, :3].argmax(1)) for i, x in enumerate(inputs)]


def test_fedbn_keeps_each_clients_norms_and_statistics():
    run = simulate(Normed(), shifted(), personal="norm.*", rounds=5, train=TRAIN, quiet=True)
    (record, *_) = run.run()
    models = [run.model_of(i) for i in range(3)]
    for name in ("weight", "running_mean", "running_var"):
        values = [getattr(model.norm, name) for model in models]
        assert not any(a.equal(b) for a, b in zip(values, [*values[1:], values[0]], strict=True))
    assert models[0].body.weight.equal(models[2].body.weight)
    assert set(run.state.vectors) == {*run.plan.algorithm.down, "personal"}
    shared = sum(p.numel() for n, p in Normed().named_parameters() if not n.startswith("norm"))
    assert record.bytes_down == 3 * 4 * shared * len(run.plan.algorithm.down)
    assert run.model.norm.running_mean.equal(Normed().norm.running_mean)


def test_another_buffer_beside_personal_ones_still_has_its_policy():
    class Two(Normed):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.BatchNorm1d(3)

        def forward(self, inputs):
            return self.last(super().forward(inputs))

    with pytest.raises(FedladaError, match=r"buffers that training may change \(last\.running"):
        simulate(Two(), shifted(), personal="norm.*")
    run = simulate(
        Two(), shifted(), personal="norm.*", buffers="average", rounds=1, train=TRAIN, quiet=True
    )
    run.run()
    assert len(run.state.vectors.buffers) == 2


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(5, 4), nn.Linear(4, 5)
        self.head.weight = self.table.weight


def frozen() -> nn.Module:
    model = Normed()
    model.head.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("model", "personal", "said"),
    [
        (Normed(), ["hed.*"], r"'hed\.\*', which matches no .* did you mean 'head\.\*'\?"),
        (Normed(), ["head"], r"'head', which matches no .* did you mean 'head\.\*'\?"),
        (Normed(), ["*"], "matches all 6 trainable parameters, so none is left to share"),
        (frozen(), ["head.*"], "matches no trainable parameter"),
        (Tied(), ["head.*"], "is the same tensor as another parameter"),
        (Normed(), [3], r"it must be patterns of names, such as \('head\.\*',\)"),
    ],
)
def test_a_pattern_that_cannot_be_meant_is_refused(model, personal, said):
    with pytest.raises(FedladaError, match=said):
        simulate(model, shifted(), personal=personal, buffers="average")


def test_a_tied_weight_may_be_personal_by_both_of_its_names():
    model = Tied()
    model.body = nn.Linear(2, 2)
    assert list(personal_tensors(model, ["head.*", "table.*"])) == ["table.weight", "head.bias"]


def test_the_server_says_that_its_evaluation_has_no_personal_parts():
    run = federation(evaluate=Evaluation(data=permuted("test")[0]), rounds=1)
    with pytest.warns(UserWarning, match=r"personal parts as they were .* evaluate\.cohort in an"):
        run.run()


def test_what_a_loop_asks_for_by_name_it_gets():
    seen = []

    def loop(model, data, optimizer, *, round, client):
        seen.append((round, client, len(data)))
        return TRAIN(model, data, optimizer)

    run = federation(train=loop, rounds=2, cohort="all")
    run.run()
    assert seen == [(round, client, 2) for round in (1, 2) for client in range(CLIENTS)]

    def one(model, data, optimizer, client):
        return TRAIN(model, data, optimizer) | {"client": client}

    assert federation(train=one, rounds=1).run()[0].client_metrics["client"] > 0
    bound = federation(train=functools.partial(one, client=7), rounds=1).run()
    assert bound[0].client_metrics["client"] == 7

    def in_other_words(net, client, round):
        return TRAIN(net, client, round)

    assert federation(train=in_other_words, rounds=1).run()[0].accepted
    _, ended = on_flower(client_app(perceptron, site, one), rounds=1)
    assert ended.history[0].client_metrics["client"] > 0


def test_a_loop_may_train_both_parts_in_turns():
    """FedRep: the head with the body as it is, then the body with the head as it is."""
    moved = []

    def loop(model, data, optimizer):
        def step(only):
            before = [p.detach().clone() for p in model.parameters()]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(data[0]), data[1]).backward()
            optimizer.step(only=only)
            after = model.parameters()
            moved.append([not a.equal(b) for a, b in zip(after, before, strict=True)])

        step("personal")
        step("personal")
        step("shared")
        step(None)

    (record,) = federation(train=loop, rounds=1, cohort=1).run()
    head, body = [False, False, True, True], [True, True, False, False]
    assert moved == [head, head, body, [True] * 4]
    assert record.steps == 2
    with pytest.raises(FedladaError, match="the plan must name personal parameters"):
        federation(train=loop, personal=(), rounds=1).run()


def test_a_group_may_give_the_personal_part_another_rate():
    """The parameters move once, and so in proportion to their rate."""
    algorithm = fedlada.algorithm("fedavg", lr=0.1, weight_decay=0.0)
    inputs, labels = permuted("train", 1)[0]
    moved = {}
    for rate in (0.1, 0.2):
        model = perceptron()
        head, bias = model[3], model[3].bias.detach().clone()
        vectors = Vectors(x=Vector(p.detach().clone() for p in model[1].parameters()))
        task = Task(round=0, seed=0, lr=0.1, vectors=vectors)
        local = LocalRound(algorithm, model, task, client=0, personal=HEAD)
        groups = [{"params": model[1].parameters()}, {"params": head.parameters(), "lr": rate}]
        optimizer = local.optimizer(groups)
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        moved[rate] = head.bias.detach() - bias
    assert torch.allclose(moved[0.2], 2 * moved[0.1], rtol=1e-4, atol=1e-7)


def test_cost_counts_the_shared_part_and_what_clients_store():
    run = federation(rounds=1)
    (record,) = run.run()
    found = count(run.plan, perceptron(), cohort=4)
    assert 4 * found.nbytes("up") == record.bytes_up
    assert 4 * found.nbytes("down") == record.bytes_down
    head = sum(p.numel() for p in perceptron()[3].parameters())
    assert found.stored == 4 * (head + found.parameters)  # c_i, and the head


def test_an_exported_model_says_what_it_lacks(tmp_path):
    federation(rounds=1, checkpoints=tmp_path / "run").run()
    with pytest.warns(UserWarning, match=r"lacks 3\.weight, 3\.bias: they are personal"):
        fedlada.export(tmp_path / "run", tmp_path / "m.safetensors")
    with safe_open(tmp_path / "m.safetensors", "pt") as file:
        assert set(file.keys()) == {"1.weight", "1.bias"}
        assert "3.weight" in file.metadata()["personal"]
    with pytest.warns(UserWarning, match=r"has not trained 3\.weight"):
        fedlada.export(tmp_path / "run", tmp_path / "m.safetensors", model=perceptron())


def test_a_client_that_is_not_there_has_no_model():
    with pytest.raises(FedladaError, match=r"client is 6; clients are numbered from 0 to 5"):
        federation().model_of(6)


def test_each_client_can_be_evaluated_with_its_own_parts():
    run = federation(rounds=2)
    run.run()
    found = {}
    for i in range(CLIENTS):
        found[i] = accuracy(run.model_of(i), permuted("test")[i])
    engine, state = run._engine, run.state
    task = Task(
        round=1,
        seed=0,
        lr=0.0,
        vectors=state.vectors,
        run=state.run,
        last_accepted=state.last_accepted,
    )

    def evaluate(model, data):
        return {"accuracy": accuracy(model, data)}

    answers = list(engine.evaluate(task, range(CLIENTS), evaluate, permuted("test")))
    assert {answer.client: answer.metrics["accuracy"] for answer in answers} == found
