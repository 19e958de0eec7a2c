"""Whatever bytes a client sends: a reply or a reason, and no other error, memory or effect."""

import importlib.util
import json
import os
import pickle
import resource
import struct
import subprocess
import sys
import tracemalloc
import warnings
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given, settings, strategies as st

import fedlada
from fedlada import LocalTraining, Plan
from fedlada.algorithms import Vector
from fedlada.data import ClientData
from fedlada.engines import ServerState, federate
from fedlada.flower import client_app
from fedlada.flower.grid import GridEngine
from fedlada.flower.memory_grid import MemoryGrid
from fedlada.flower.wire.records import (
    HEADER,
    METRICS,
    VECTORS,
    MalformedReply,
    Manifest,
    read_identity,
    read_reply,
)
from places import ROOT, TESTS

FUZZ = ROOT / "fuzz"


def load_cases():
    spec = importlib.util.spec_from_file_location("fuzz_cases", FUZZ / "cases.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


cases = load_cases()


@pytest.mark.parametrize("name", cases.corpus())
def test_the_kept_corpus_replays_within_the_cap(name):
    case = cases.case(cases.corpus()[name])
    if case is not None:
        cases.run(case)
        assert cases.metered(case) <= cases.CAP


@pytest.mark.parametrize("name", cases.seeds())
def test_what_the_fuzzer_starts_from_is_taken(name):
    found = cases.run(cases.case(cases.seeds()[name]))
    assert isinstance(found, fedlada.server.guard.Admitted | tuple)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_any_choice_of_faults_ends_in_a_reply_or_a_reason(data):
    case = cases.case(data)
    if case is not None:
        cases.run(case)


numbers = st.one_of(st.integers(), st.floats(), st.booleans())
scalars = st.one_of(numbers, st.text(max_size=200), st.binary(max_size=200))
arrays = st.builds(
    Array,
    st.one_of(st.sampled_from(cases.TYPES), st.text()),
    st.lists(st.integers(), max_size=3).map(tuple),
    st.one_of(st.just("numpy.ndarray"), st.text()),
    st.one_of(
        st.binary(),
        st.binary(min_size=46, max_size=46).map(cases.SENT[VECTORS]["delta"].data[:128].__add__),
    ),
)
vector_names = st.sampled_from(cases.NAMES)
records = st.one_of(
    st.dictionaries(st.sampled_from(cases.KEYS), scalars).map(ConfigRecord),
    st.dictionaries(st.text(), st.one_of(st.integers(), st.floats())).map(MetricRecord),
    st.dictionaries(vector_names, arrays).map(ArrayRecord),
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(cases.RECORDS), records), st.booleans())
def test_any_records_are_read_or_malformed(changes, replace):
    content = RecordDict() if replace else cases.reply()
    for name in changes:
        content.pop(name, None)
    content.update(changes)
    for read in (lambda: read_reply(content, cases.MANIFEST), lambda: read_identity(content)):
        reason = ""
        try:
            read()
        except MalformedReply as wrong:
            reason = str(wrong)
        assert len(reason) < 50


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_one_changed_byte_of_an_array_is_refused_or_a_changed_number(data):
    content = cases.reply()
    array = content[VECTORS]["delta"]
    at = data.draw(st.integers(0, len(array.data) - 1))
    changed = bytearray(array.data)
    changed[at] ^= data.draw(st.integers(1, 255))
    array.data = bytes(changed)
    padding = 10 + len("{'descr': '|u1', 'fortran_order': False, 'shape': (46,), }") <= at < 128
    try:
        reply = read_reply(content, cases.MANIFEST)
    except MalformedReply:
        assert at < 128
    else:
        assert at >= 128 or padding
        assert not reply.vectors.delta.equal(cases.X) or padding


@settings(max_examples=100, deadline=None)
@given(st.one_of(st.text(), st.recursive(st.none() | st.text(), st.lists).map(json.dumps)))
def test_any_manifest_is_a_sentence(text):
    with pytest.raises(ValueError, match=r"no manifest of a model|both must build the same"):
        cases.MANIFEST.check(text)


def npy(array: np.ndarray) -> bytes:
    made = BytesIO()
    np.save(made, array, allow_pickle=True)
    return made.getvalue()


def claiming(size: int, descr: str = "|u1", payload: bytes = b"") -> bytes:
    """A .npy file of version 1.0 whose header says what it likes."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({size},), }}".ljust(117)
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + header.encode() + b"\n" + payload


def put(**fields) -> object:
    """A fault: the delta of a reply with other fields."""

    def fault(content: RecordDict) -> None:
        for name, value in fields.items():
            setattr(content[VECTORS]["delta"], name, value)

    return fault


def replaced(array: np.ndarray) -> object:
    def fault(content: RecordDict) -> None:
        content[VECTORS]["delta"] = Array(array)

    return fault


# The model below has 5 * 3 + 3 = 18 parameters, which travel as 72 bytes.
PAYLOAD = np.ones(18, dtype=np.float32).tobytes()
ROW_3 = {
    "float16": replaced(np.ones(18, dtype=np.float16)),
    "float32": replaced(np.ones(18, dtype=np.float32)),
    "float64": replaced(np.ones(18, dtype=np.float64)),
    "float64 of as many bytes": replaced(np.ones(9, dtype=np.float64)),
    "complex": replaced(np.ones(18, dtype=np.complex64)),
    "string": replaced(np.array(["1"] * 18)),
    "object": put(data=npy(np.array([1.0] * 18, dtype=object))),
    "metadata says float32, payload is bytes": put(dtype="float32", shape=(18,)),
    "metadata says bytes, payload is float16": put(data=npy(np.ones(36, dtype=np.float16))),
    "metadata says bytes, payload is float32": put(data=npy(np.ones(18, dtype=np.float32))),
    "metadata says bytes, payload is two-dimensional": put(data=npy(np.ones((8, 9), np.uint8))),
    "metadata says bytes, payload is fewer": put(data=npy(np.ones(71, dtype=np.uint8))),
    "metadata says bytes, payload is more": put(data=npy(np.ones(73, dtype=np.uint8))),
    "header says fewer than there are": put(data=claiming(71, payload=PAYLOAD)),
    "header says objects": put(data=claiming(72, "|O", PAYLOAD)),
    "another shape": put(shape=(8, 9)),
    "another way of writing arrays": put(stype="torch.tensor"),
    "no data": put(data=b""),
}
TERABYTES = 4 * 2**40
ROW_4 = {
    "the payload claims 4 TB": put(data=claiming(TERABYTES, payload=PAYLOAD)),
    "everything claims 4 TB": put(data=claiming(TERABYTES, payload=PAYLOAD), shape=(TERABYTES,)),
    "the header itself is long": put(data=b"\x93NUMPY\x02\x00" + b"\xff" * 4 + PAYLOAD),
    "a header of brackets": put(data=b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535),
    "a compressed archive": None,  # made by the test: 16 kB that become 16 MB
}


class Hostile(MemoryGrid):
    """A grid of which client 1 spoils its replies, or sends none if there is no fault."""

    fault = None

    def reply(self, message: Message) -> Message | None:
        found = super().reply(message)
        if message.metadata.message_type == "train" and message.metadata.dst_node_id == 1001:
            if self.fault is None:
                return None
            self.fault(found.content)
        return found


def run(fault):
    torch.manual_seed(0)
    model, data = torch.nn.Linear(5, 3), torch.randn(30, 5)
    app = client_app(
        lambda: torch.nn.Linear(5, 3),
        lambda context: ClientData(data, data[:, :3].argmax(1)),
        LocalTraining(steps=2, batch_size=8),
    )
    grid = Hostile(app, nodes=3)
    grid.fault = fault
    engine = GridEngine(
        grid,
        Manifest.of(model, "refuse"),
        algorithm=json.dumps(fedlada.algorithm("fedlada").spec()),
        deadline=None if fault else 3.0,  # the hostile client does not answer at all
        nodes=3,
    )
    algorithm = fedlada.algorithm("fedlada")
    state = ServerState.new(algorithm, Vector(p.detach() for p in model.parameters()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the guard tells the user at the end
        plan = Plan(algorithm=algorithm, rounds=2, cohort=3, lr_decay=1.0)
        return state, list(federate(plan, engine, state))


@pytest.fixture(scope="module")
def without():
    state, rounds = run(None)
    assert [r.accepted for r in rounds] == [2, 2]
    return state


@pytest.mark.parametrize("name", [*ROW_3, *list(ROW_4)[:4]])
def test_rows_3_and_4_what_is_not_as_agreed_is_dropped_and_the_rest_is_bit_equal(name, without):
    state, rounds = run((ROW_3 | ROW_4)[name])
    assert [(r.accepted, sum(r.rejected.values())) for r in rounds] == [(2, 1), (2, 1)]
    for vector in without.vectors:
        assert state.vectors[vector].equal(without.vectors[vector])
        assert all(t.dtype == torch.float32 for t in state.vectors[vector])


def bombs() -> dict[str, RecordDict]:
    made = {}
    for name, fault in ROW_4.items():
        made[name] = content = cases.reply()
        if fault is None:
            archive = BytesIO()
            np.savez_compressed(archive, np.zeros(2**24, dtype=np.uint8))
            fault = put(data=archive.getvalue())
        fault(content)
    return made


def test_row_4_a_bomb_is_refused_before_it_allocates():
    for name, content in bombs().items():
        tracemalloc.start()
        try:
            with pytest.raises(MalformedReply):
                read_reply(content, cases.MANIFEST)
            assert tracemalloc.get_traced_memory()[1] < 20_000, name
        finally:
            tracemalloc.stop()


def test_row_4_a_bomb_is_refused_where_there_is_no_memory_to_give():
    """With one megabyte of address space left, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "flower.test_bytes"],
        capture_output=True,
        text=True,
        cwd=TESTS,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.stdout.split("\n")[-2] == f"refused {len(ROW_4)}", done.stderr[-2000:]


def refuse_bombs_without_memory() -> None:
    refused, made = 0, bombs()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for content in made.values():
        try:
            read_reply(content, cases.MANIFEST)
        except MalformedReply:
            refused += 1
    print(f"refused {refused}")


class Touch:
    """An object that makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


PICKLED = {
    "an array's data": lambda content, p: put(data=p)(content),
    "an array's payload": lambda content, p: put(data=claiming(46, payload=p))(content),
    "an array of objects": lambda content, p: put(data=claiming(1, "|O", p))(content),
    "an array of objects, and says so": lambda content, p: put(
        data=claiming(1, "|O", p), dtype="object", shape=(1,)
    )(content),
    "an array that calls itself pickled": lambda content, p: put(data=p, stype="pickle")(content),
    "a torch file": lambda content, p: put(data=b"PK\3\4" + p, stype="torch.tensor")(content),
    "the nonce": lambda content, p: content[HEADER].update(nonce=p),
    "the nonce as text": lambda content, p: content[HEADER].update(nonce=p.decode("latin-1")),
    "the number of examples": lambda content, p: content[HEADER].update(examples=[p]),
    "another key": lambda content, p: content[HEADER].update({p.decode("latin-1"): 1}),
    "a metric's name": lambda content, p: content[METRICS].update({p.decode("latin-1"): 1.0}),
    "a vector's name": lambda content, p: content[VECTORS].update(
        {p.decode("latin-1"): content[VECTORS]["delta"]}
    ),
    "another record": lambda content, p: content.update(
        {p.decode("latin-1"): ConfigRecord({"pickle": p})}
    ),
}


@pytest.mark.parametrize("field", PICKLED)
def test_row_5_a_pickle_in_any_field_has_no_effect(field, tmp_path):
    path = tmp_path / "unpickled"
    payload = pickle.dumps(Touch(path))
    content = cases.reply()
    PICKLED[field](content, payload)
    case = cases.Case(content)
    assert isinstance(cases.run(case), MalformedReply)
    assert not path.exists()
    pickle.loads(payload).close()
    assert path.exists()  # so it would have had one


if __name__ == "__main__":
    refuse_bombs_without_memory()
