"""An operator sees a run while it runs: the same lines and counters through every door."""

import json
import re
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import fedlada
from fedlada import FedladaError, LocalTraining, RoundRecord
from fedlada.data import ClientData
from fedlada.experiment.config.reading import experiment, parse
from fedlada.experiment.run import execute
from fedlada.experiment.run.directory import RunDirectory
from fedlada.flower import ServerConfig, client_app, run_server
from fedlada.flower.loopback.processes import free_port
from fedlada.flower.memory_grid import MemoryGrid
from fedlada.server.record import plain_record
from fedlada.server.watch import LOG_FORMAT, METRICS, watchers
from fedlada.server.watch.metrics import MOST_REASONS, Metrics

ROUNDS = 3
DIGITS = (
    *("data.dataset=digits", "data.clients=4", "federation.cohort=2", "train.batch_size=5"),
    *("train.steps=2", f"federation.rounds={ROUNDS}"),
)


def data(client: int) -> ClientData:
    inputs = torch.randn(20, 5, generator=torch.Generator().manual_seed(client))
    return ClientData(inputs, inputs[:, :3].argmax(1))


def model() -> nn.Module:
    return nn.Linear(5, 3)


def simulation(**settings) -> fedlada.Simulation:
    return fedlada.simulate(
        model(), [data(i) for i in range(4)], rounds=ROUNDS, cohort=2, **settings
    )


def through_simulate(tmp_path, see: Callable[[], None]) -> None:
    for _ in simulation(checkpoints=tmp_path / "run"):
        see()


def through_a_file(tmp_path, see: Callable[[], None]) -> None:
    RunDirectory(tmp_path / "run").prepare(
        experiment(dict(map(parse, DIGITS)), source="these words")
    )
    for _ in execute.run(tmp_path / "run"):
        see()


def through_flower(tmp_path, see: Callable[[], None]) -> None:
    app = client_app(
        model,
        lambda context: data(int(context.node_config["partition-id"])),
        LocalTraining(steps=2, batch_size=5),
    )
    config = ServerConfig.read(
        {"rounds": ROUNDS, "cohort": 2, "nodes": 4, "checkpoints": str(tmp_path / "run")}
    )

    def evaluate(model: nn.Module) -> dict[str, float]:
        see()  # in this round: those before it are on record
        return {}

    run_server(MemoryGrid(app, nodes=4), config, model, evaluate=evaluate)


DOORS = [through_simulate, through_a_file, through_flower]


@pytest.fixture
def port(monkeypatch) -> int:
    chosen = free_port()
    monkeypatch.setenv(METRICS, str(chosen))
    return chosen


def page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()


def value(text: str, name: str) -> float:
    found = re.findall(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert len(found) == 1, f"{name} is {len(found)} times in\n{text}"
    return float(found[0])


def events(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("door", DOORS)
def test_every_door_serves_metrics_while_the_run_runs_and_not_after(door, port, tmp_path):
    seen = []
    door(tmp_path, lambda: seen.append(page(port)))
    counted = [value(text, "fedlada_round") for text in seen]
    assert counted == ([0, 1, 2] if door is through_flower else [1, 2, 3])
    assert value(seen[-1], "fedlada_planned_rounds") == ROUNDS
    assert value(seen[-1], "fedlada_checkpoint_round") == counted[-1]
    with pytest.raises(urllib.error.URLError):
        page(port)


@pytest.mark.parametrize("door", DOORS)
def test_every_door_logs_one_json_object_per_event(door, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv(LOG_FORMAT, "json")
    door(tmp_path, lambda: None)
    found = events(capsys.readouterr().err)
    assert [each["event"] for each in found] == ["begin", *["round"] * ROUNDS, "end"]
    assert [each["round"] for each in found] == [0, 1, 2, 3, 3]
    assert len({each["run"] for each in found}) == 1
    assert [each["time"] for each in found] == sorted(each["time"] for each in found)
    assert all(each["checkpoint"] for each in found[1:-1])


def test_the_counters_are_the_sums_of_the_records(port):
    shown, records = "", []
    for record in simulation(evaluate=lambda model: {"weight": model.weight.sum().item()}):
        records.append(record)
        shown = page(port)
    assert value(shown, 'fedlada_bytes_total{direction="up"}') == sum(r.bytes_up for r in records)
    assert value(shown, 'fedlada_bytes_total{direction="down"}') == sum(
        r.bytes_down for r in records
    )
    accepted = 'fedlada_replies_total{outcome="accepted",reason=""}'
    assert value(shown, accepted) == sum(r.accepted for r in records)
    assert value(shown, "fedlada_round_seconds_count") == ROUNDS
    assert value(shown, "fedlada_round_seconds_sum") == pytest.approx(
        sum(r.seconds for r in records)
    )
    assert value(shown, 'fedlada_evaluation{metric="weight"}') == pytest.approx(
        records[-1].metrics["weight"]
    )
    assert value(shown, "fedlada_checkpoint_round") == 0  # there are none


def test_a_log_line_of_a_round_is_its_record(monkeypatch, capsys):
    monkeypatch.setenv(LOG_FORMAT, "json")
    records = simulation(evaluate=lambda model: {"odd": float("nan")}).run()
    found = [each for each in events(capsys.readouterr().err) if each["event"] == "round"]
    for line, record in zip(found, records, strict=True):
        told = json.loads(json.dumps(plain_record(record)))
        told["simulated_time"] = told.pop("time")
        assert {key: line[key] for key in told} == told
        assert line["metrics"] == {"odd": None}
        assert (line["level"], line["rounds"], line["checkpoint"]) == ("info", ROUNDS, False)


def record(**settings) -> RoundRecord:
    usual = {"round": 1, "lr": 0.1, "cohort": (0,), "accepted": 1, "applied": True, "steps": 1.0}
    usual |= {"bytes_down": 1, "bytes_up": 1, "seconds": 1.0, "local_seconds": 1.0}
    return RoundRecord(**(usual | {"server_seconds": 1.0} | settings))


@pytest.mark.parametrize("odd", [{"applied": False}, {"rejected": {"too large": 1}}])
def test_a_round_that_went_wrong_is_a_warning(odd, capsys):
    (watcher,) = watchers("json")
    watcher.record(record(), saved=False)
    watcher.record(record(**odd), saved=False)
    assert [each["level"] for each in events(capsys.readouterr().err)] == ["info", "warning"]


def test_replies_are_counted_by_outcome_and_clients_cannot_invent_endless_reasons(port):
    metrics = Metrics(str(port))
    try:
        metrics.record(
            record(failures={"deadline": 2}, rejected={"too large": 3}, limited={"delta": 4}),
            saved=False,
        )
        for i in range(2 * MOST_REASONS):
            metrics.record(record(failures={f"Flower error {i}": 1}), saved=False)
        shown = page(port)
    finally:
        metrics.close()
    assert value(shown, 'fedlada_replies_total{outcome="failed",reason="deadline"}') == 2
    assert value(shown, 'fedlada_replies_total{outcome="rejected",reason="too large"}') == 3
    assert value(shown, 'fedlada_limited_total{quantity="delta"}') == 4
    counted = re.findall(r'^fedlada_replies_total{outcome="failed".* (\S+)$', shown, re.MULTILINE)
    assert sum(map(float, counted)) == 2 + 2 * MOST_REASONS
    assert len(counted) == MOST_REASONS  # with "other", and one of the reasons was a rejection


def test_a_run_that_goes_on_says_so(monkeypatch, capsys, port, tmp_path):
    iterator: Iterator[RoundRecord] = iter(first := simulation(checkpoints=tmp_path))
    next(iterator)
    first.close()
    monkeypatch.setenv(LOG_FORMAT, "json")
    with simulation(checkpoints=tmp_path):
        shown = page(port)
    found = events(capsys.readouterr().err)
    assert [(each["event"], each["round"]) for each in found] == [("resume", 1), ("end", 1)]
    assert value(shown, "fedlada_round") == 1


def test_nothing_is_logged_or_served_unless_it_is_asked_for(capsys):
    assert watchers() == []
    simulation(quiet=True).run()
    assert capsys.readouterr().err == ""


def listeners(port: int) -> list[str]:
    """The addresses on which something answers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing; chooses the address of this machine
        own = probe.getsockname()[0]
    found = []
    for address in ("127.0.0.1", own):
        with socket.socket() as asked:
            asked.settimeout(5)
            if asked.connect_ex((address, port)) == 0:
                found.append(address)
    return found


def test_metrics_are_served_on_the_loopback_only(port):
    (watcher,) = watchers(metrics=port)
    try:
        assert listeners(port) == ["127.0.0.1"]
    finally:
        watcher.close()


@pytest.mark.parametrize("where", ["no", "0", "65536", "127.0.0.1:", "a b:1", "-1"])
def test_a_wrong_place_for_metrics_is_named(where):
    with pytest.raises(FedladaError, match=r"metrics is .* 127\.0\.0\.1 from 1 to 65535"):
        watchers(metrics=where)


def test_a_busy_port_is_named(port):
    (watcher,) = watchers()
    try:
        with pytest.raises(FedladaError, match=f"{port}.*cannot be opened.*a free port"):
            simulation()
    finally:
        watcher.close()


def test_another_format_is_named():
    with pytest.raises(FedladaError, match="log-format is 'jsn'; did you mean 'json'"):
        watchers("jsn")


def test_without_the_library_metrics_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(FedladaError, match=r'pip install "fedlada\[metrics\]"'):
        watchers(metrics=9464)
