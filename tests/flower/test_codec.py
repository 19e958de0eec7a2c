"""A codec is one file and one registry line, and works in process, on Ray and over TLS alike.

`app/coded` is the model for real codecs: bfloat16, half the bytes of float32.  `test_engines_agree`
runs it on Ray, `test_loopback` over TLS.
"""

import pytest
import torch

from flower.agreement import in_process

NODES = 2
PARAMETERS = 300 * 100 + 100


@pytest.fixture(autouse=True)
def registered(coded):
    """The codec's package can be imported."""


def alone(name: str, codec: str):
    return in_process(name, codec, nodes=NODES, cohort=NODES)


def test_in_process_both_sides_see_what_was_decoded():
    run = alone("fedlada", "halves")
    records = run.run()
    exact = alone("fedlada", "exact").run()
    for record, other in zip(records, exact, strict=True):
        assert 2 * record.bytes_down == other.bytes_down == NODES * 3 * 4 * PARAMETERS
        assert 2 * record.bytes_up == other.bytes_up == NODES * 2 * 4 * PARAMETERS
    # The server's own x keeps all its bits, and only what travels loses some.
    assert not all(torch.equal(t, t.bfloat16().float()) for t in run.state.vectors.x)
    # The news of a round are what clients made of the x they saw.
    assert not any(record.rejected or record.limited for record in records)


def test_an_exact_vector_is_not_copied_in_process():
    from fedlada.server.loop import next_task

    run = alone("fedlada", "delta=halves")
    task, _ = next_task(run.plan, run.state, NODES)
    for name, vector in task.vectors.items():
        for mine, theirs in zip(vector, run.state.vectors[name], strict=True):
            assert mine.data_ptr() == theirs.data_ptr()
