import os
import subprocess
import sys

import pytest
import torch

from fedlada.data import load, partition

EXTRA = ("datasets", "flwr_datasets", "sklearn", "PIL")


def hide(monkeypatch, library):
    """Make imports of a library fail as if it were not installed."""
    loaded = [name for name in sys.modules if name.split(".")[0] == library]
    for name in {library, *loaded}:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "fedlada.data.client_prior", raising=False)


@pytest.mark.parametrize(
    ("library", "use"),
    [
        ("datasets", lambda: load("cifar10", split="train")),
        ("PIL", lambda: load("cifar10", split="train")),
        ("sklearn", lambda: load("digits", split="train")),
        ("datasets", lambda: partition(torch.arange(4), "iid", clients=2)),
        ("flwr_datasets", lambda: partition(torch.arange(4), "client-prior", clients=2)),
        ("flwr_datasets", lambda: __import__("fedlada.data.client_prior")),
    ],
)
def test_a_missing_library_is_answered_with_the_extra_to_install(monkeypatch, library, use):
    hide(monkeypatch, library)
    monkeypatch.delenv("FEDLADA_DATA", raising=False)  # what was decoded before needs no library
    with pytest.raises(ImportError, match=rf'needs {library}.*pip install "fedlada\[data\]"'):
        use()


def test_importing_the_package_and_reading_digits_import_none_of_the_extra():
    """Of scikit-learn only the file of digits is read."""
    code = (
        "import sys, fedlada.data; fedlada.data.load('digits', split='test')\n"
        f"print([n for n in {EXTRA} if n in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == "[]"
