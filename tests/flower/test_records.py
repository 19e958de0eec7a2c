"""What travels arrives bit for bit, and what does not fit is explained."""

import json

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import nn

from fedlada.algorithms import Vector, Vectors
from fedlada.flower.wire.records import (
    HEADER,
    METRICS,
    VECTORS,
    Assignment,
    pack,
    read_identity,
    read_reply,
    read_task,
    reply_record,
    task_record,
    unpack,
)
from fedlada.protocol.codecs import Codecs, MalformedReply
from fedlada.protocol.manifest import Manifest
from fedlada.protocol.messages import Reply, Task
from fedlada.protocol.wire import Parcel, send


class Mixed(nn.Module):
    def __init__(self, *dtypes: torch.dtype) -> None:
        super().__init__()
        self.w = nn.ParameterList(
            nn.Parameter(torch.randn(3, i + 1).to(dtype)) for i, dtype in enumerate(dtypes)
        )
        self.scalar = nn.Parameter(torch.tensor(1.5))


def parcel(vectors: Vectors) -> Parcel:
    return send(vectors, Codecs(), "down", seed=0)


def arriving(record: ArrayRecord, manifest: Manifest, *, copy: bool = True) -> Vectors:
    return unpack(record, manifest, Codecs(), "down", copy=copy)[0]


@pytest.mark.parametrize(
    "dtypes",
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float64, torch.float16, torch.float32),
        (),
    ],
)
def test_vectors_of_any_type_arrive_bit_for_bit(dtypes):
    model = Mixed(*dtypes)
    sent = Vectors(x=Vector(p.detach() for p in model.parameters()))
    arrived = arriving(pack(parcel(sent)), Manifest.of(model, "refuse"))
    assert arrived.x.equal(sent.x)


def test_a_channels_last_model_travels_in_logical_order():
    model = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
    sent = Vectors(x=Vector(p.detach() for p in model.parameters()))
    assert arriving(pack(parcel(sent)), Manifest.of(model, "refuse")).x.equal(sent.x)


def test_a_vector_is_one_array():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    record = pack(parcel(Vectors(x=Vector(model.parameters()), v=Vector(model.parameters()))))
    assert list(record) == ["x", "v"]
    assert record["x"].numpy().size == 4 * sum(p.numel() for p in model.parameters())


def test_unlike_models_are_told_apart_by_name_and_shape():
    server, client = Manifest.of(nn.Linear(2, 3), "refuse"), Manifest.of(nn.Linear(2, 4), "refuse")
    with pytest.raises(ValueError, match=r"weight \(float32 \[3, 2\]\) where this client's has"):
        client.check(server.text())
    with pytest.raises(ValueError, match="has 2 parameters, this client's has 1"):
        Manifest.of(nn.Linear(2, 3, bias=False), "refuse").check(server.text())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[[], []",
        "[" * 100_000,
        "9" * 5000,
        "null",
        "[[], [], []]",
        "[1, 2]",
        "[[1], []]",
        '[[["weight", "torch.float32"]], []]',
        '[[["weight", 32, [3, 2]]], []]',
        '[[["weight", "torch.float32", [3.5, 2]]], []]',
        '{"0": [], "1": []}',
    ],
)
def test_a_manifest_that_is_none_is_refused_with_a_sentence(text):
    with pytest.raises(ValueError, match="no manifest of a model"):
        Manifest.of(nn.Linear(2, 3), "refuse").check(text)


def test_an_unknown_type_in_a_manifest_is_another_model():
    text = json.dumps([[["weight", "torch.float4" + "0" * 999, [3, 2]], ["bias", "", []]], []])
    with pytest.raises(ValueError, match=r"weight \(float40+ \[3, 2\]\) where") as error:
        Manifest.of(nn.Linear(2, 3), "refuse").check(text)
    assert len(str(error.value)) < 500


def test_a_type_that_does_not_travel_is_named():
    with pytest.raises(ValueError, match=r"w\.0 is torch\.float8_e4m3fn; federated tensors"):
        Manifest.of(Mixed(torch.float8_e4m3fn), "refuse")


@pytest.mark.parametrize(
    "wrong",
    [torch.zeros(35, dtype=torch.uint8), torch.zeros(9), torch.zeros(6, 6, dtype=torch.uint8)],
)
def test_what_is_not_the_packed_bytes_is_refused(wrong):
    with pytest.raises(MalformedReply, match=r"wrong (type or shape|length) of a vector"):
        arriving(ArrayRecord({"x": Array(wrong.numpy())}), linear()[1])


def linear() -> tuple[nn.Module, Manifest, Vector]:
    model = nn.Linear(2, 3)
    return model, Manifest.of(model, "refuse"), Vector(p.detach() for p in model.parameters())


def honest(**changes) -> Reply:
    _, _, x = linear()
    settings = {"client": 1, "round": 2, "examples": 3, "steps": 4, "lr_sum": 0.5, "nonce": "n"}
    return Reply(**settings | {"vectors": Vectors(delta=x), "metrics": {"loss": 1.0}} | changes)


def test_a_reply_arrives_as_it_was():
    reply = honest(seconds=1.5, metrics={"loss": float("nan"), "größe": 3})
    arrived = read_reply(reply_record(reply), linear()[1])
    assert arrived.vectors.delta.equal(reply.vectors.delta)
    same = honest(seconds=1.5, metrics={"loss": float("nan"), "größe": 3.0}, received=36)
    assert repr(arrived) == repr(same)


def test_a_replys_vectors_are_the_bytes_that_came_and_a_tasks_are_the_clients_own():
    manifest, content = linear()[1], reply_record(honest())
    array = content[VECTORS]["delta"]
    one, two = (read_reply(content, manifest).vectors.delta.tensors[0] for _ in range(2))
    assert one.data_ptr() == two.data_ptr()
    record = ArrayRecord({"x": array})
    first, second = (arriving(record, manifest).x.tensors[0] for _ in range(2))
    first.zero_()
    assert not torch.equal(first, second)
    assert torch.equal(one, second)


@pytest.mark.parametrize("shift", range(8))
def test_vectors_that_lie_at_any_address_arrive(shift):
    model = Mixed(torch.float64, torch.float16, torch.float64)
    sent = Vectors(x=Vector(p.detach() for p in model.parameters()))
    record = pack(parcel(sent))
    manifest = Manifest.of(model, "refuse")
    array = record["x"]
    size, data = array.shape[0], array.data
    header = data[10 : len(data) - size].rstrip() + b" " * shift
    array.data = data[:8] + len(header).to_bytes(2, "little") + header + data[-size:]
    for copy in (False, True):
        assert arriving(record, manifest, copy=copy).x.equal(sent.x)


def spoil(kind: str, content: RecordDict) -> None:
    header, metrics, vectors = content[HEADER], content[METRICS], content[VECTORS]
    match kind.split("=")[0]:
        case "no vectors":
            del content[VECTORS]
        case "no header":
            del content[HEADER]
        case "no metrics":
            del content[METRICS]
        case "another record":
            content["more"] = MetricRecord()
        case "header of metrics":
            del content[HEADER]
            content[HEADER] = MetricRecord({"client": 1})
        case "vectors of metrics":
            del content[VECTORS]
            content[VECTORS] = MetricRecord()
        case "metrics of arrays":
            del content[METRICS]
            content[METRICS] = ArrayRecord()
        case "missing key":
            del header["steps"]
        case "another key":
            header["more"] = 1
        case "metric list":
            metrics["loss"] = [1.0]
        case "many metrics":
            metrics.update((str(i), 0.0) for i in range(100))
        case "long name":
            metrics["n" * 101] = 1.0
        case "cursor":
            metrics["\x1b[2J"] = 1.0
        case "line":
            metrics["loss\nround 7: accuracy"] = 1.0
        case "huge metric":
            metrics["loss"] = 10**400
        case "many vectors":
            vectors.update((str(i), vectors["delta"]) for i in range(32))
        case "long vector name":
            vectors["v" * 101] = vectors["delta"]
        case key:
            header[key] = eval(kind.split("=")[1])


@pytest.mark.parametrize(
    "kind",
    [
        *("no vectors", "no header", "no metrics", "another record", "header of metrics"),
        *("vectors of metrics", "metrics of arrays", "missing key", "another key", "metric list"),
        *("many metrics", "long name", "cursor", "line", "huge metric"),
        *("many vectors", "long vector name"),
        *("client=True", "client=1.0", "client='1'", "client=[1]", "round=b'2'", "steps=2**64"),
        *("examples=10**400", "lr_sum='0.5'", "lr_sum=False", "lr_sum=10**400"),
        *("seconds=[1.0]", "nonce=1", "nonce='n'*101", "nonce=b'n'"),
    ],
)
def test_what_is_not_a_reply_is_malformed_in_a_few_words(kind):
    content = reply_record(honest())
    spoil(kind, content)
    with pytest.raises(MalformedReply) as error:
        read_reply(content, linear()[1])
    assert len(str(error.value)) < 50


@pytest.mark.parametrize("content", [None, {}, ArrayRecord(), RecordDict()])
def test_what_is_not_even_content_is_malformed(content):
    for read in (lambda: read_reply(content, linear()[1]), lambda: read_identity(content)):
        with pytest.raises(MalformedReply, match="wrong records"):
            read()


def test_a_node_says_which_client_it_is():
    content = RecordDict({HEADER: ConfigRecord({"client": 3, "clients": 4, "site": "Ulm"})})
    assert read_identity(content) == (3, 4, "Ulm")


@pytest.mark.parametrize(
    "header",
    [
        *({}, {"client": 1}, {"client": 1, "clients": 4, "more": 1}),
        *({"client": "1", "clients": 4}, {"client": True, "clients": 4}),
        *({"client": 4, "clients": 4}, {"client": -1, "clients": 4}, {"client": 0, "clients": 0}),
        *({"client": 1, "clients": 10**9}, {"client": [1], "clients": 4}),
        *({"client": 1, "clients": 4, "site": site} for site in ("a\nb", "a" * 101, 7)),
    ],
)
def test_a_node_that_is_no_possible_client_is_malformed(header):
    with pytest.raises(MalformedReply):
        read_identity(RecordDict({HEADER: ConfigRecord({"site": ""} | header)}))


def test_a_task_that_is_none_is_refused_with_a_sentence():
    model, manifest, x = linear()
    task = Task(round=0, seed=1, lr=0.1, vectors=Vectors(x=x), nonce="n", run="r")
    assignment = Assignment(task=task, algorithm='["fedavg", {}]', buffers="refuse")
    content = task_record(assignment, pack(parcel(task.vectors)), manifest, client=5)
    client, arrived, _ = read_task(content, model)
    assert client == 5
    assert arrived.task.vectors.x.equal(x)
    assert repr(arrived.task).replace("{5: -1}", "{}") == repr(task)
    content[VECTORS]["x"].data += b"0" * 99
    with pytest.raises(ValueError, match=r"cannot be read \(wrong length of a vector"):
        read_task(content, model)
    del content[VECTORS]
    with pytest.raises(ValueError, match="the server's task cannot be read"):
        read_task(content, model)
