"""The app of these tests."""

import sys
from collections.abc import Iterator

import pytest

from fedlada.protocol.codecs import CODECS
from flower.agreement import APP


@pytest.fixture(scope="module")
def coded() -> Iterator[None]:
    """Its package can be imported in this process, too."""
    sys.path.insert(0, str(APP))
    try:
        yield
    finally:
        sys.path.remove(str(APP))
        CODECS.pop("halves", None)
        for name in [name for name in sys.modules if name.split(".")[0] == "coded"]:
            del sys.modules[name]
