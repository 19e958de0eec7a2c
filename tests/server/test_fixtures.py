"""Runs that 0.3.0 began end, in today's version, in the bits in which 0.3.0 ends them."""

import shutil

import pytest
from safetensors.torch import load_file

from fedlada import Checkpoints
from fedlada.algorithms import Vector
from fixtures.v0_3_0.program import FINAL, HERE, NAMES, SAVED, begin, vectors

pytestmark = pytest.mark.programs(seconds=50)


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_of_0_3_0_resumes_and_ends_in_its_bits(tmp_path, name):
    run = tmp_path / name
    shutil.copytree(HERE / name, run)
    begin(name, run, FINAL)
    # 0.3.0 wrote no records beside its checkpoints, so those of its rounds are unknown.
    rounds = [record.round for record in Checkpoints(run).records()]
    assert rounds == list(range(SAVED + 1, FINAL + 1))
    final, expected = load_file(vectors(run, FINAL)), load_file(HERE / f"{name}.safetensors")
    assert final.keys() == expected.keys()
    for key in expected.keys() - {"random"}:
        assert Vector([final[key]]).equal(Vector([expected[key]])), key
