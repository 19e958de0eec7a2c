"""The server's log names the sites that are missing, and says why in the client's own words."""

import logging
import re
import urllib.request

import pytest
import torch
from flwr.app import Error, Message
from flwr.clientapp import ClientApp
from torch import nn

from fedlada import LocalTraining
from fedlada.data import ClientData
from fedlada.flower import ServerConfig, answer_query, client_app, run_server, training
from fedlada.flower.attendance import LONGEST, MOST_LINES, Attendance, failed
from fedlada.flower.loopback.processes import free_port
from fedlada.flower.memory_grid import MemoryGrid
from fedlada.protocol.messages import Failure, Rejection
from fedlada.server.loop import NothingApplied

NODES = 3
train = LocalTraining(steps=1, batch_size=4)


def model() -> nn.Module:
    return nn.Linear(2, 2)


def data(context) -> ClientData:
    return ClientData(torch.ones(4, 2), torch.zeros(4, dtype=torch.long))


def config(**settings) -> ServerConfig:
    usual = {"algorithm": "fedavg", "rounds": 1, "cohort": "all", "nodes": NODES, "wait": 1.0}
    return ServerConfig.read(usual | settings)


def own_app(fit) -> ClientApp:
    app = ClientApp()
    app.query()(answer_query)
    app.train()(fit)
    return app


def as_in_the_template(message, context):
    lr = message.content["config"]["lr"]
    raise AssertionError(f"there is no {lr}")


def own_optimizer(message, context):
    network = model()
    with training(message, context, network) as local:
        torch.optim.SGD(network.parameters(), lr=0.1).step()
    return local.reply


def wrong_column(message, context):
    with training(message, context, model()) as local:
        raise ValueError("there is no column 'age'")
    return local.reply


@pytest.mark.parametrize(
    ("fit", "sentence"),
    [
        (as_in_the_template, r"KeyError: 'config': a message here has no record .*local\.lr"),
        (
            own_optimizer,
            r"client 0 \(Ulm\), round 1: .* took a step with an optimizer of its own, SGD",
        ),
        (
            wrong_column,
            r"client 0 \(Ulm\), round 1: ValueError at .*, line \d+: there is no column 'age'",
        ),
    ],
)
def test_a_mistake_in_an_app_is_a_sentence_in_the_log_and_in_the_error_of_the_run(
    fit, sentence, caplog
):
    grid = MemoryGrid(own_app(fit), nodes=NODES, node_config={"site": "Ulm"})
    with pytest.raises(NothingApplied, match=rf"error in app 3x(?s:.*)site 0 \(Ulm\): {sentence}"):
        run_server(grid, config(), model)
    assert re.search(
        rf"round 1: site 0 \(Ulm\) sent no reply: error in app: {sentence}", caplog.text
    )


def test_a_node_that_cannot_say_its_number_is_named_with_its_own_words(caplog):
    grid = MemoryGrid(client_app(model, data, train), nodes=1)
    next(iter(grid.contexts.values())).node_config.clear()
    with pytest.raises(ValueError, match="0 nodes answered"):
        run_server(grid, config(nodes=1, wait=0.1), model)
    assert "start the SuperNode with --node-config 'partition-id=0" in caplog.text


def test_the_words_of_a_mistake_are_found_behind_those_of_ray():
    reason = (
        "<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'ray::ClientAppActor.run()\n"
        "flwr.clientapp.client_app.ClientAppException: \n"
        "Exception ClientAppException occurred. Message: there is no\ncolumn 'age''>"
    )
    assert failed(0, Error(2, reason)).cause == "there is no column 'age'"


def test_a_node_cannot_fill_the_log_or_write_lines_into_it(caplog):
    attendance = Attendance(str, "reply")
    for site in range(5 * MOST_LINES):
        text = "\x1b[31m\nround 2: all is well\n" + "x" * 10**6
        attendance.note(0, site, failed(site, Error(2, text)))
    assert len(caplog.records) == MOST_LINES + 1
    assert all(len(record.getMessage()) < LONGEST + 100 for record in caplog.records)
    assert all(record.getMessage().isprintable() for record in caplog.records)


class Leaving(MemoryGrid):
    """A grid whose last node answers no task of rounds 2 and 3."""

    def reply(self, message: Message) -> Message | None:
        away = message.metadata.group_id in ("2", "3")
        if away and message.metadata.dst_node_id == 1000 + NODES - 1:
            return Message(Error(5), reply_to=message)
        return super().reply(message)


def test_a_missing_site_is_named_in_log_records_and_metrics_until_it_is_back(caplog):
    port, pages = free_port(), []
    grid = Leaving(client_app(model, data, train), nodes=NODES)
    grid.contexts[1000 + NODES - 1].node_config["site"] = "Ulm"

    def on_round(record, model):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            pages.append(answer.read().decode())

    run = run_server(grid, config(rounds=5, metrics=port), model, on_round=on_round)
    assert [record.missing for record in run.history] == [
        {},
        {"2 (Ulm)": 1},
        {"2 (Ulm)": 2},
        {},
        {},
    ]
    shown = [re.findall(r'^fedlada_missing_rounds{site="2 \(Ulm\)"} (.*)$', p, re.M) for p in pages]
    assert shown == [[], ["1.0"], ["2.0"], ["0.0"], ["0.0"]]
    lines = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert lines == [
        "round 2: site 2 (Ulm) sent no reply: node lost",
        "round 4: site 2 (Ulm) is back; it missed 2 rounds",
    ]


def test_a_site_whose_reply_is_rejected_is_not_missing_and_one_asked_twice_is_missing_once():
    attendance = Attendance(str, "reply")
    attendance.note(0, 1, Rejection(client=1, reason="too large"))
    attendance.note(0, 2, Failure(client=2, reason="deadline"))
    attendance.note(0, 2, Failure(client=2, reason="deadline"))
    assert attendance.missing == {"2": 1}
