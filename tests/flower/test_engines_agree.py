"""On Ray a run ends in the bits of the same run in process; `test_loopback` has the real nodes."""

import pytest

from federations import KINDS
from fedlada.flower.loopback import RaySimulation
from flower.agreement import Runs, run_on

pytestmark = pytest.mark.flower(seconds=80)

CODED = [
    *(("fedlada", "halves"), ("scaffold", "halves")),
    *(("fedlada", "safe"), ("fedcm", "default"), ("fedlada-rows", "small")),
    *(("fedlada-rows", "private"), ("fedcm", "private"), ("scaffold", "masked")),
]


PERSONAL = ("scaffold", "halves", "bias")
"""One whose clients keep a part of the model, and vectors for the rest of it."""


@pytest.fixture(scope="module")
def on_ray(coded, tmp_path_factory) -> Runs:
    """One algorithm of each kind, and some in a codec of the app's own and in each preset."""
    directory = tmp_path_factory.mktemp("ray")
    runs = [*((name, "exact") for name in KINDS), *CODED, PERSONAL]
    with RaySimulation(directory / "simulation", nodes=5) as engine:
        return run_on(engine, runs, directory / "saved", cohort=4)


def test_every_kind_of_algorithm_on_ray_ends_in_the_bits_of_the_in_process_engine(on_ray):
    for name in KINDS:
        assert list(on_ray.differences(name, "exact")) == []


def test_with_personal_parts_on_ray_it_ends_in_the_bits_of_the_in_process_engine(on_ray):
    assert list(on_ray.differences(*PERSONAL)) == []


def test_with_a_codec_on_ray_it_ends_in_the_bits_of_the_in_process_engine(on_ray):
    for name, codec in CODED:
        assert list(on_ray.differences(name, codec)) == []
