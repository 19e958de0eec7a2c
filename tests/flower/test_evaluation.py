"""Clients evaluate the model on their own data: what they say, what it costs, what it cannot do."""

from dataclasses import asdict, replace

import pytest
import torch
from flwr.app import ConfigRecord, Message, MetricRecord
from flwr.clientapp import ClientApp
from torch import nn

from fedlada import Checkpoints, LocalTraining
from fedlada.data import ClientData
from fedlada.errors import FedladaError
from fedlada.flower import ServerConfig, answer_query, client_app, evaluating, run_server, training
from fedlada.flower.memory_grid import MemoryGrid
from fedlada.flower.wire.records import HEADER, METRICS
from fedlada.protocol.messages import Assessment
from fedlada.server import Guard
from fedlada.server.evaluation import combine
from fedlada.training.objective import OBJECTIVES

CLIENTS, ROUNDS = 5, 3
train = LocalTraining(steps=2, batch_size=8)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5), nn.Linear(4, 3))


def data(client: int) -> ClientData:
    generator = torch.Generator().manual_seed(client)
    inputs = torch.randn(20 + 3 * client, 5, generator=generator) + client
    return ClientData(inputs, inputs[:, :3].argmax(1))


def node_data(context) -> ClientData:
    return data(int(context.node_config["partition-id"]))


def outputs(model: nn.Module, data: ClientData) -> dict[str, float]:
    """A number that depends on every bit of the model and the data, and on its mode."""
    return {"output": float(model(data.inputs).double().mean()), "rows": float(len(data))}


class Grid(MemoryGrid):
    """Remembers the evaluations that were asked for, and lets some nodes answer as they please."""

    def __init__(self, app: ClientApp, **settings) -> None:
        super().__init__(app, nodes=CLIENTS, **settings)
        self.asked: list[Message] = []
        self.lies = {}

    def reply(self, message: Message) -> Message | None:
        if message.metadata.message_type != "evaluate":
            return super().reply(message)
        self.asked.append(message)
        reply = super().reply(message)
        lie = self.lies.get(message.metadata.dst_node_id - 1000)
        return reply if lie is None else lie(reply)


def grid(**settings) -> Grid:
    return Grid(client_app(model, node_data, train, evaluate=outputs), **settings)


def config(**settings) -> ServerConfig:
    usual = {"algorithm": "fedlada", "rounds": ROUNDS, "nodes": CLIENTS}
    usual["evaluate-cohort"] = "all"
    return ServerConfig.read(usual | {key.replace("_", "-"): v for key, v in settings.items()})


def said(reply: Message, header: dict | None = None, **metrics) -> Message:
    """The same answer with other numbers."""
    reply.content[HEADER] = ConfigRecord({**reply.content[HEADER], **(header or {})})
    reply.content[METRICS] = MetricRecord({**reply.content[METRICS], **metrics})
    return reply


def test_the_record_has_the_mean_by_examples_and_the_median_of_what_each_client_computes():
    run = run_server(grid(), config(), model)
    run.model.eval()
    with torch.no_grad():
        alone = [outputs(run.model, data(client))["output"] for client in range(CLIENTS)]
    sizes = [len(data(client)) for client in range(CLIENTS)]
    last = run.history[-1]
    mean = sum(a * n for a, n in zip(alone, sizes, strict=True)) / sum(sizes)
    assert last.evaluation["output"] == pytest.approx(mean, rel=1e-12)
    assert last.evaluation_median == {"output": sorted(alone)[2], "rows": sorted(sizes)[2]}
    assert last.evaluation_worst == {"output": min(alone), "rows": min(sizes)}
    each = zip(alone, sizes, strict=True)
    assert last.evaluation_clients == {
        str(client): {"output": output, "rows": rows} for client, (output, rows) in enumerate(each)
    }
    assert (last.evaluated_by, last.evaluation_failures) == (CLIENTS, {})


def test_it_has_no_effect_on_the_model_and_its_place_is_apart_from_every_other_metric():
    with_, without = (run_server(grid(), config(evaluate_cohort=n), model) for n in ("all", 0))
    for name, vector in with_.state.vectors.items():
        assert vector.equal(without.state.vectors[name])
    for one, other in zip(with_.history, without.history, strict=True):
        told = ("evaluation", "evaluation_median", "evaluation_worst", "evaluation_clients")
        bare = replace(one, **{key: {} for key in told}, evaluated_by=0, evaluation_bytes=0)
        timed = {key for key in asdict(one) if "seconds" in key}
        assert {k: v for k, v in asdict(bare).items() if k not in timed} == {
            k: v for k, v in asdict(other).items() if k not in timed
        }
        assert not {"output", "rows"} & {*one.metrics, *one.client_metrics}


def test_only_the_model_travels():
    nodes = grid()
    run = run_server(nodes, config(rounds=1), model)
    assert len(run.state.vectors) > 1  # FedLADA has more than a model
    for message in nodes.asked:
        assert list(message.content["fedlada.vectors"]) == ["x"]
    assert run.history[0].evaluation_bytes == CLIENTS * run.state.vectors.x.nbytes()


def test_clients_are_asked_when_the_plan_evaluates_and_as_many_as_the_config_says():
    nodes = grid()
    run = run_server(nodes, config(evaluate_every=2, evaluate_cohort=2), model)
    assert [record.evaluated_by for record in run.history] == [0, 2, 2]
    again = grid()
    run_server(again, config(evaluate_every=2, evaluate_cohort=2), model)
    who = [sorted(m.metadata.dst_node_id for m in n.asked) for n in (nodes, again)]
    assert who[0] == who[1]
    assert run_server(grid(), config(evaluate_cohort=99), model).history[0].evaluated_by == CLIENTS


@pytest.mark.parametrize("wrong", [-1, 1.0, 1.5, -0.5, True, "most"])
def test_a_wrong_number_of_evaluating_clients_is_refused_before_round_1(wrong):
    with pytest.raises(FedladaError, match=r"evaluate-cohort is .* such as 0\.5"):
        config(evaluate_cohort=wrong)


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def variance(model: nn.Module, data: ClientData) -> dict[str, float]:
    return {"variance": float(model[1].running_var.double().sum()), "is": float(model.training)}


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_the_model_has_its_averaged_buffers_or_those_that_the_client_kept(buffers):
    app = client_app(normed, node_data, train, evaluate=variance)
    nodes = Grid(app)
    run = run_server(nodes, config(buffers=buffers, algorithm="fedavg"), normed)
    averaged = variance(run.model, data(0))["variance"]
    last = run.history[-1]
    assert (last.evaluated_by, last.evaluation["is"]) == (CLIENTS, 0.0)
    travelled = {tuple(message.content["fedlada.vectors"]) for message in nodes.asked}
    if buffers == "average":
        assert last.evaluation_median["variance"] == averaged != 4
        assert travelled == {("x", "buffers")}
    else:
        assert averaged == 4  # the server's stay as they were, and each client's do not
        assert last.evaluation_median["variance"] != 4
        assert travelled == {("x",)}


def test_evaluating_inside_an_app_of_ones_own_is_the_same():
    app = ClientApp()
    app.query()(answer_query)

    @app.train()
    def fit(message, context):
        own, mine = model(), node_data(context)
        with training(message, context, own) as local:
            local.metrics = train(own, mine, local.optimizer())
        return local.reply

    @app.evaluate()
    def assess(message, context):
        own, mine = model(), node_data(context)
        with evaluating(message, context, own) as local:
            assert not own.training
            assert not torch.is_grad_enabled()
            local.metrics, local.examples = outputs(own, mine), len(mine)
        return local.reply

    mine, ready = (run_server(g, config(), model) for g in (Grid(app), grid()))
    assert [r.evaluation for r in mine.history] == [r.evaluation for r in ready.history]


def test_data_that_were_held_out_are_evaluated_and_not_trained_on():
    def apart(context):
        return ClientData(torch.full((7, 5), 9.0), torch.zeros(7, dtype=torch.int64))

    app = client_app(model, node_data, train, evaluate=outputs, held_out=apart)
    run, usual = (run_server(g, config(), model) for g in (Grid(app), grid()))
    assert run.history[-1].evaluation["rows"] == 7
    assert run.state.vectors.x.equal(usual.state.vectors.x)


def hanging(reply: Message) -> None:
    return None


BREACHES = {
    "reply to another task": lambda reply: said(reply, {"nonce": "another"}),
    "impossible counts": lambda reply: said(reply, {"examples": 0}),
    "wrong header keys": lambda reply: said(reply, {"more": 1}),
    "wrong name of a metric": lambda reply: said(reply, **{"a\nb": 1.0}),
    "reply for another client": lambda reply: said(reply, {"client": 3}),
    "metrics not finite": lambda reply: said(reply, output=float("nan")),
    "examples beyond its limit": lambda reply: said(reply, {"examples": 2**52}),
    "metrics of a minority": lambda reply: said(reply, test_accuracy=1.0),
    "deadline": hanging,
}


@pytest.mark.parametrize("reason", BREACHES)
def test_what_is_wrong_with_an_evaluation_is_counted_and_costs_nothing_else(reason):
    nodes = grid()
    nodes.lies[1] = BREACHES[reason]
    given = {"deadline": 2.0} if reason == "deadline" else {}
    run = run_server(nodes, config(rounds=1, **given), model)
    (record,) = run.history
    assert record.applied
    assert record.accepted == CLIENTS
    assert record.evaluation_failures == {reason: 1}
    assert set(record.evaluation) == {"output", "rows"} == set(record.evaluation_median)
    assert 1 < record.evaluation["rows"] < 100


def test_an_app_that_does_not_evaluate_and_an_evaluation_that_fails_end_no_round(tmp_path):
    def broken(model, data):
        raise RuntimeError("no memory")

    for evaluate in (None, broken):
        app = client_app(model, node_data, train, evaluate=evaluate)
        run = run_server(Grid(app), config(), model)
        assert run.state.updates == ROUNDS
        for record in run.history:
            assert (record.evaluation, record.evaluated_by) == ({}, 0)
            assert record.evaluation_failures == {"error in app": CLIENTS}


def test_a_grid_that_fails_while_clients_evaluate_costs_the_evaluation_and_the_round_is_saved(
    tmp_path,
):
    nodes = grid()
    push = nodes.push_messages

    def gone(*_):
        raise ConnectionError("nobody listens")

    def until_the_evaluation(messages):
        messages = list(messages)
        if messages[0].metadata.message_type == "evaluate":
            nodes.push_messages = nodes.pull_messages = nodes.get_node_ids = gone
        return (push if nodes.push_messages is not gone else gone)(messages)

    nodes.push_messages = until_the_evaluation
    with pytest.raises(ConnectionError, match="nobody listens"):
        run_server(nodes, config(checkpoints=str(tmp_path)), model)
    saved = Checkpoints(tmp_path).latest()
    assert saved.state.round == 1
    assert saved.record.evaluation_failures == {"grid: ConnectionError": CLIENTS}


def answers(values, examples=None) -> list[Assessment]:
    return [
        Assessment(client=i, round=0, examples=n, metrics={"accuracy": value})
        for i, (value, n) in enumerate(zip(values, examples or [100] * len(values), strict=True))
    ]


def test_one_liar_has_no_more_than_its_capped_share_of_the_mean_and_none_of_the_median():
    honest = [0.5] * 29
    for claimed in (100, 10_000, 2**52):
        found = combine(answers([*honest, 1.0], [100] * 29 + [claimed]), Guard())
        most = 30 / (29 + 30)  # Guard.widest, whatever it claims; here it is much less
        assert 0.5 <= found.means["accuracy"] <= 0.5 + 0.5 * most
        assert found.medians["accuracy"] == 0.5
    cap = Guard().limits(Guard().remember({}, {"examples": [100.0] * 30}))["examples"].high
    found = combine(answers([*honest, 1.0], [100] * 29 + [int(9 * cap)]), Guard())
    assert found.means["accuracy"] == pytest.approx((0.5 * 2900 + cap) / (2900 + cap))
    without = combine(answers([*honest, 1.0], [100] * 29 + [10**9]), None)
    assert without.means["accuracy"] > 0.99


def test_a_minority_adds_no_name_and_half_of_the_clients_are_no_majority():
    found = combine(answers([0.5, 0.5, 0.5]), Guard())
    assert found.means == {"accuracy": 0.5}
    mixed = [replace(one, metrics={f"name {one.client}": 1.0}) for one in answers([0.5] * 2)]
    assert combine(mixed, Guard()).means == {}
    assert combine([], Guard()).clients == 0


@pytest.mark.parametrize(("clients", "tenth"), [(1, 1), (10, 1), (11, 2), (40, 4)])
def test_the_worst_tenth_is_low_for_an_accuracy_and_high_for_a_loss(clients, tenth):
    values = [float(i) for i in range(clients)]
    found = combine(answers(values), None)
    assert found.worst["accuracy"] == pytest.approx(sum(values[:tenth]) / tenth)
    for name in ("loss", "test_loss", "auc_error", "mse", "loss_tuned"):
        losses = [replace(one, metrics={name: one.metrics["accuracy"]}) for one in answers(values)]
        assert combine(losses, None).worst[name] == pytest.approx(sum(values[-tenth:]) / tenth)
    assert combine(answers(values), None, lower=["accuracy"]).worst["accuracy"] == pytest.approx(
        sum(values[-tenth:]) / tenth
    )


def test_a_metric_is_on_record_for_each_client_unless_there_are_too_many(monkeypatch):
    assert combine(answers([0.5, 0.25]), None).each == {0: {"accuracy": 0.5}, 1: {"accuracy": 0.25}}
    monkeypatch.setattr("fedlada.server.evaluation.MOST_CLIENTS", 1)
    assert combine(answers([0.5, 0.25]), None).each == {}


def test_the_names_of_all_metrics_of_ready_objectives_say_which_values_are_worst():
    for objective in OBJECTIVES.values():
        worst = combine(
            [
                Assessment(client=i, round=0, examples=1, metrics={objective.score: float(i)})
                for i in range(2)
            ],
            None,
        ).worst
        assert worst[objective.score] == (0.0 if objective.scale.higher else 1.0)


def test_the_order_of_arrival_makes_no_difference():
    given = answers([0.1, 0.7, 1e-9, 0.3], [3, 50, 7, 1000])
    assert combine(given, Guard()) == combine(given[::-1], Guard())


def test_the_hook_sees_every_round_with_its_model_and_the_history_has_them_all():
    seen = []

    def on_round(record, model):
        seen.append((record, model()))

    run = run_server(grid(), config(), model, on_round=on_round)
    assert [record for record, _ in seen] == list(run.history)
    assert [record.round for record in run.history] == [1, 2, 3]
    states = [own.state_dict() for _, own in seen]
    for key, value in run.model.state_dict().items():
        assert torch.equal(states[-1][key], value)
    assert not torch.equal(states[0]["0.weight"], states[1]["0.weight"])


def test_an_error_in_the_hook_ends_the_run_after_the_round_is_saved_and_it_can_go_on(tmp_path):
    def on_round(record, model):
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        run_server(grid(), config(checkpoints=str(tmp_path)), model, on_round=on_round)
    run = run_server(grid(), config(checkpoints=str(tmp_path)), model)
    assert [record.round for record in run.history] == [1, 2, 3]
    assert run.history[0].evaluated_by == CLIENTS
    ended = run_server(grid(), config(checkpoints=str(tmp_path)), model)
    assert [record.round for record in ended.history] == [1, 2, 3]
