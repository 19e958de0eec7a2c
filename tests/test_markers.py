"""A test without a marker is quick: it can neither start Flower's programs nor read CIFAR."""

import subprocess

import pytest

from conftest import MARKERS
from fedlada.data import load
from places import ROOT


def test_flower_does_not_start():
    for program in ("flower-superlink", "/some/where/flower-supernode", "flwr"):
        with pytest.raises(AssertionError, match="needs the marker flower"):
            subprocess.Popen([program, "--insecure"])


def test_cifar_is_not_there():
    with pytest.raises(FileNotFoundError, match="the/marker/cifar/cifar10"):
        load("cifar10", split="test")


@pytest.mark.programs
def test_a_marker_takes_the_hindrances_away():
    with pytest.raises(FileNotFoundError, match="flower-nothing"):
        subprocess.Popen(["flower-nothing"])


def test_the_quick_run_leaves_out_every_marker():
    assert f"-m 'not ({' or '.join(MARKERS)})'" in (ROOT / "scripts/test").read_text()
