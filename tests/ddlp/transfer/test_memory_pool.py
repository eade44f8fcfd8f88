"""Memory is used again, but never while anything can still read it."""

from __future__ import annotations

import gc
import random
import weakref

import numpy as np
import pytest
import torch

from ddlp.transfer.memory_pool import SIZES, SMALL_BYTES, MemoryPool
from tests.at_once import at_once

SHAPE = (4, 37, 53, 3)


def address(array):
    return array.__array_interface__["data"][0]


HOLDERS = {
    "array": lambda array: array,
    "view": lambda array: array[1:2, ::2].T,
    "other type": lambda array: array.view(np.int8),
    "memoryview": lambda array: memoryview(array)[1:2],
    "tensor": torch.from_numpy,
    "slice of a tensor": lambda array: torch.from_numpy(array)[2, 3:5],
    "one number": lambda array: torch.from_numpy(array)[0, 0, 0, 0],
    "numpy export of a tensor": lambda array: torch.from_numpy(array).permute(0, 3, 1, 2).numpy(),
    "storage": lambda array: torch.from_numpy(array).untyped_storage(),
    "dlpack": lambda array: torch.from_dlpack(torch.from_numpy(array)),
    "detached view of another dtype": lambda array: torch.from_numpy(array).view(torch.int8).detach(),
    "autograd": lambda array: (torch.from_numpy(array).view(torch.bool) * torch.ones(1, requires_grad=True)).grad_fn,
}


@pytest.mark.parametrize("name", HOLDERS)
def test_a_block_is_not_used_again_while_anything_sees_it(name):
    pool = MemoryPool(spare=4)
    array = pool.empty(SHAPE, np.uint8)
    array[...] = 1
    first = address(array)
    holder = HOLDERS[name](array)
    del array
    gc.collect()
    others = [pool.empty(SHAPE, np.uint8) for _ in range(6)]
    assert first not in map(address, others)
    for other in others:
        other[...] = 7
    del holder
    assert address(pool.empty(SHAPE, np.uint8)) == first


@pytest.mark.parametrize("shape", [(1,), SHAPE, (64, 224, 224, 3)])
def test_blocks_begin_with_a_page(shape):
    pool = MemoryPool(spare=2)
    held = [pool.empty(shape, np.uint8) for _ in range(3)]
    assert [address(array) % 4096 for array in held] == [0, 0, 0]
    del held
    assert address(pool.empty(shape, np.uint8)) % 4096 == 0


def test_arrays_are_as_asked_for():
    pool = MemoryPool(spare=2)
    for dtype in (np.uint8, np.int16, np.int32, np.float32):
        array = pool.empty((3, 5, 7), dtype)
        assert array.shape == (3, 5, 7) and array.dtype == dtype and array.flags.c_contiguous and array.flags.writeable
        assert address(array) % 16 == 0
    assert pool.empty((0, 5), np.float32).shape == (0, 5)


def test_blocks_of_another_size_stay_for_later():
    pool = MemoryPool(spare=3)
    small, large = pool.empty((10,), np.uint8), pool.empty((1000,), np.float32)
    places = address(small), address(large)
    del small, large
    again = pool.empty((1000,), np.float32), pool.empty((10,), np.uint8)
    assert (address(again[1]), address(again[0])) == places


def blocks_alive(pool, count, size):
    """Weak references to the blocks of `count` arrays, which are dropped."""
    arrays = [pool.empty((size,), np.uint8) for _ in range(count)]
    blocks = [weakref.ref(array.base._block) for array in arrays]
    arrays.clear()
    return [block for block in blocks if block() is not None]


@pytest.mark.parametrize(("size", "waiting"), [(SMALL_BYTES, 3), (SMALL_BYTES // 4, 4), (SMALL_BYTES // 6, 6), (100, 10)])
def test_what_waits_is_bounded_and_goes_at_the_end(size, waiting):
    """Three blocks wait; of small ones, as many as fit a few MiB."""
    pool = MemoryPool(spare=3)
    kept = pool.empty((size,), np.uint8)
    assert len(blocks_alive(pool, 10, size)) == waiting
    pool.close()
    assert blocks_alive(pool, 10, size) == []
    kept[...] = 3  # memory in use stays unchanged
    block = weakref.ref(kept.base._block)
    del kept
    assert block() is None
    pool.close()


def waiting_bytes(pool):
    return sum(len(blocks) * size for size, blocks in pool._blocks.items())


def test_what_waits_is_bounded_over_all_sizes_and_the_size_used_longest_ago_goes():
    """As with Poisson sampling, where each batch has another number of samples."""
    pool = MemoryPool(spare=2)
    largest = SMALL_BYTES // 2 + 200
    usual = address(pool.empty((100,), np.uint8))
    for k in range(200):
        pool.empty((SMALL_BYTES // 2 + k,), np.uint8)
        assert waiting_bytes(pool) <= SIZES * 2 * largest
        assert address(pool.empty((100,), np.uint8)) == usual, "a size that is used all the time must keep its block"
    assert len(pool._blocks) == len(pool._last_turn) == SIZES
    pool.close()
    assert waiting_bytes(pool) == 0


def test_threads_share_a_pool():
    pool = MemoryPool(spare=4)
    wrong = []
    inbox = [[] for _ in range(4)]

    def work(me):
        numbers = random.Random(me)
        held = []
        for k in range(3000):
            array = pool.empty((numbers.choice((64, 128)),), np.uint8)
            array[...] = value = (me * 50 + k) % 251
            inbox[numbers.randrange(4)].append((array, value))  # another thread frees it
            while len(inbox[me]) > 3:
                held.append(inbox[me].pop(0))
            while len(held) > numbers.randrange(6):
                seen, expected = held.pop(numbers.randrange(len(held)))
                if not (seen == expected).all():
                    wrong.append(expected)

    at_once(work, 4)
    assert not wrong
    inbox.clear()
    assert len(pool._blocks) <= 4
