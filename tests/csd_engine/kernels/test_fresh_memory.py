import mmap
import os
import subprocess
import sys

import numpy as np
import pytest

from csd_engine.kernels import fresh_memory as module
from csd_engine.kernels.fresh_memory import fresh

POPULATE_WRITE = 23
FAULTS = """
import resource
from csd_engine.kernels.fresh_memory import fresh
memory = fresh(48 << 20)  # too large to come from the heap
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
memory[:] = 1
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.parametrize("size", [1, 4096, 100_001])
def test_memory_begins_with_a_page(size):
    memory = fresh(size)
    assert memory.shape == (size,) and memory.dtype == np.uint8 and memory.flags.c_contiguous
    assert memory.ctypes.data % mmap.PAGESIZE == 0
    memory[:] = 9


def test_its_pages_are_mapped_in_advance():
    if module.kernel() is None:
        pytest.skip("needs the kernel")
    try:
        with mmap.mmap(-1, mmap.PAGESIZE) as probe:
            probe.madvise(POPULATE_WRITE)
    except (OSError, AttributeError):
        pytest.skip("this system gives no pages in advance")

    # In a process of its own: in a long run's heap there may be free memory of that size, whose pages are mapped.
    command = [sys.executable, "-c", FAULTS]
    with_kernel, without = (
        subprocess.run(command, env={**os.environ, **setting}, capture_output=True, check=True).stdout
        for setting in ({}, {"DDLP_KERNEL": "off"})
    )
    assert int(with_kernel) < 8 <= int(without)
