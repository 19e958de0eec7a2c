"""What a run's directory remembers of its configuration: unlike values are told apart."""

import dataclasses
import enum
import functools
import json
import math
import operator

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays
from torch import nn

import fedlada
from fedlada.server.saving.fingerprint import describe, differences, fingerprint


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Split:
    rows: object


UNLIKE = {
    "arrays": (np.array([1, 2, 3]), np.array([9])),
    "arrays of one length": (np.array([1, 2, 3]), np.array([1, 2, 4])),
    "arrays of other types": (np.zeros(4, np.float32), np.zeros(4, np.int32)),
    "arrays of other shapes": (np.zeros(4), np.zeros((2, 2))),
    "arrays of objects": (np.array(["a", None]), np.array(["b", None])),
    "integers of numpy": (np.int64(1), np.int64(2)),
    "floats of numpy": (np.float32(0.1), np.float32(0.2)),
    "truths of numpy": (np.bool_(True), np.bool_(False)),
    "sets": ({1, 2}, {1, 3}),
    "frozen sets": (frozenset("ab"), frozenset("a")),
    "partial functions": (functools.partial(pow, 2), functools.partial(pow, 3)),
    "partial functions by name": (functools.partial(int, base=2), functools.partial(int, base=8)),
    "partials of other functions": (functools.partial(max, 2), functools.partial(min, 2)),
    "tensors": (torch.zeros(4), torch.ones(4)),
    "tensors of other shapes": (torch.zeros(4), torch.zeros(2, 2)),
    "tensors of other types": (torch.zeros(4), torch.zeros(4, dtype=torch.int32)),
    "modules": (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.1)),
    "modules with weights": (
        nn.CrossEntropyLoss(torch.ones(2)),
        nn.CrossEntropyLoss(torch.zeros(2)),
    ),
    "members of an enumeration": (Colour.RED, Colour.BLUE),
    "devices": (torch.device("cpu"), torch.device("meta")),
    "inside a dataclass": (Split(np.array([1])), Split(np.array([2]))),
    "inside a list": ([np.array([1])], [np.array([2])]),
    "functions": (operator.add, operator.sub),
    "classes": (nn.Linear, nn.Conv2d),
}


@pytest.mark.parametrize("case", UNLIKE)
def test_unlike_values_are_told_apart_and_each_is_itself(case):
    for one, other in (UNLIKE[case], UNLIKE[case][::-1]):
        assert differences({"split": describe(one)}, {"split": describe(other)})
        again = json.loads(json.dumps(describe(one)))
        assert not differences({"split": describe(one)}, {"split": again})


@given(arrays.arrays(arrays.scalar_dtypes(), arrays.array_shapes(min_side=0)))
def test_an_array_is_described_by_what_it_holds_and_not_by_where_it_lies(array):
    once = describe(array)
    assert differences({"a": once}, {"a": describe(np.asfortranarray(array.copy()))}) == []
    json.dumps(once)


@given(st.sets(st.integers() | st.text()))
def test_a_set_has_no_order(values):
    backwards = set[object]()
    for value in sorted(values, key=repr, reverse=True):
        backwards.add(value)
    assert describe(values) == describe(backwards)


def test_what_is_not_a_number_is_itself():
    for value in (math.nan, [math.nan, 1.0], {"a": math.nan}, np.float32("nan"), [np.nan]):
        saved = json.loads(json.dumps({"x": describe(value)}))
        assert differences({"x": describe(value)}, saved) == []
    assert differences({"x": math.nan}, {"x": 1.0})


def test_a_number_written_otherwise_is_the_same_number():
    assert differences({"lr": 1, "guard": {"slack": 2.0}}, {"lr": 1.0, "guard": {"slack": 2}}) == []
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})


@pytest.mark.parametrize("value", [object(), torch.Generator(), iter([1]), lambda: 0])
def test_what_cannot_be_described_is_refused_with_a_sentence(value):
    if callable(value):
        assert describe(value).endswith("<lambda>")  # a function is its name
        return
    with pytest.raises(fedlada.FedladaError, match="make it a dataclass, a function, or plain"):
        describe(value)


def test_a_directory_refuses_a_run_of_another_split(tmp_path):
    from fedlada.data import ClientData

    data = [ClientData(torch.randn(9, 4), torch.arange(9) % 2) for _ in range(2)]

    def start(split, **settings):
        config = {"split": split}
        return fedlada.simulate(nn.Linear(4, 2), data, rounds=1, config=config, **settings)

    start(np.array([1, 2, 3]), checkpoints=tmp_path).run()
    assert start(np.array([1, 2, 3]), checkpoints=tmp_path).run() == []
    with pytest.raises(fedlada.CheckpointError, match=r"split is .* and was"):
        start(np.array([9]), checkpoints=tmp_path)
    start(object()).run()  # without a directory nobody asks
