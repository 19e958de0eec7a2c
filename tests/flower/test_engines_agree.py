"""On Ray a run ends in the bits of the same run in process; `test_loopback` has the real nodes."""

import pytest

import fedlada
from fedlada.flower.loopback import RaySimulation
from flower.agreement import Runs, run_on

CODED = [
    *(("fedlada", "halves"), ("scaffold", "halves")),
    *(("fedlada", "safe"), ("fedcm", "default"), ("fedlada-rows", "small")),
]


@pytest.fixture(scope="module")
def on_ray(coded, tmp_path_factory) -> Runs:
    """Every algorithm, and some of them in a codec of the app's own and in each preset."""
    directory = tmp_path_factory.mktemp("ray")
    runs = [*((name, "exact") for name in fedlada.ALGORITHMS), *CODED]
    with RaySimulation(directory / "simulation", nodes=5) as engine:
        return run_on(engine, runs, directory / "saved", cohort=4)


def test_every_algorithm_on_ray_ends_in_the_bits_of_the_in_process_engine(on_ray):
    for name in fedlada.ALGORITHMS:
        assert list(on_ray.differences(name, "exact")) == []


def test_with_a_codec_on_ray_it_ends_in_the_bits_of_the_in_process_engine(on_ray):
    for name, codec in CODED:
        assert list(on_ray.differences(name, codec)) == []
