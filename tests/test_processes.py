"""What a step frees is there for the next step."""

import os
import platform
import subprocess
import sys

from fedlada.processes import keep_memory

STEPS = """
import resource
import torch
from fedlada.processes import keep_memory
assert keep_memory()
def step():
    activations = [torch.ones(2**20) for _ in range(8)]
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):  # aligned pieces find their places in the heap
    step()
before = faults()
for _ in range(10):
    step()
print(faults() - before)
"""
PAGES_OF_A_STEP = 8 * 2**20 * 4 // 4096


def test_no_step_takes_its_memory_from_the_system_again():
    if platform.libc_ver()[0] != "glibc":
        assert not keep_memory()
        return
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    ended = subprocess.run(
        [sys.executable, "-c", STEPS], env=plain, capture_output=True, text=True, check=True
    )
    assert int(ended.stdout) < 2 * PAGES_OF_A_STEP  # of ten steps
