import mmap
import resource

import numpy as np
import pytest

from csd_engine.kernels import fresh_memory as module
from csd_engine.kernels.fresh_memory import fresh

POPULATE_WRITE = 23


@pytest.mark.parametrize("size", [1, 4096, 100_001])
def test_memory_begins_with_a_page(size):
    memory = fresh(size)
    assert memory.shape == (size,) and memory.dtype == np.uint8 and memory.flags.c_contiguous
    assert memory.ctypes.data % mmap.PAGESIZE == 0
    memory[:] = 9


def test_its_pages_are_mapped_in_advance(monkeypatch):
    if module.kernel() is None:
        pytest.skip("needs the kernel")
    try:
        with mmap.mmap(-1, mmap.PAGESIZE) as probe:
            probe.madvise(POPULATE_WRITE)
    except (OSError, AttributeError):
        pytest.skip("this system gives no pages in advance")

    def faults():
        memory = fresh(48 << 20)  # too large to come from the heap
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        memory[:] = 1
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    with_kernel = faults()
    monkeypatch.setattr(module, "kernel", lambda: None)
    assert with_kernel < 8 <= faults()
