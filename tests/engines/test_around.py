"""Engines around another engine pass on what they do not change."""

import pytest

from fedlada.engines.around import Complete
from fedlada.redteam.faulty import Faulty


@pytest.mark.parametrize("wrap", [Complete, lambda engine: Faulty(engine, lambda r, c: None)])
def test_an_engine_around_another_follows_the_number_of_its_clients(wrap):
    class Growing:
        clients, keeps = 3, False

    inner = Growing()
    outer = wrap(inner)
    inner.clients = 5
    assert outer.clients == 5
