"""Memory for batches that other processes of this computer see as well: `MemoryPool` over shared memory.

torch's queues make a new segment of shared memory for each tensor that they send, and its pages are new each time. For float32
images of 224x224 that takes half the time that albumentations takes for its work on them. Here a block is sent once, and used
again.
"""

from __future__ import annotations

import itertools
import multiprocessing.util
import os
import weakref
from collections import OrderedDict
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import torch

from ddlp.process.shared_memory import received, share
from ddlp.transfer.memory_pool import MemoryPool

__all__ = ["Block", "BlockOnItsWay", "ReceivedBlocks", "SentBlocks", "SharedPool"]

_numbers = itertools.count()  # of all pools' blocks: processes that are kept see those of several epochs
_KNOWN = 32  # the other side keeps at most so many blocks, those that came last

Block = tuple[int, torch.Tensor]
"""A block's number, and its bytes, uint8 (size,)."""

BlockOnItsWay = tuple[int, Any]
"""A block's number, and (its size, its descriptor on its way); None where the other side has it."""


_descriptors: dict[int, int] = {}  # of the blocks that live, by number


def _forget(number: int) -> None:
    os.close(_descriptors.pop(number))


class SharedPool(MemoryPool):
    """Lends shared memory. Its blocks are numbered, and no number comes twice."""

    def __init__(self, spare: int) -> None:
        super().__init__(spare)
        self._allocate = self._shared
        self._by_address: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()
        self._numbers: dict[int, int] = {}  # by address
        multiprocessing.util.get_temp_dir()  # for the sockets that pass descriptors: this process ends last, and removes it

    def _shared(self, size: int) -> np.ndarray:
        memory, descriptor = share(size)
        block = np.frombuffer(memory, np.uint8)
        number, address = next(_numbers), block.ctypes.data
        self._numbers[address], self._by_address[address], _descriptors[number] = number, block, descriptor
        weakref.finalize(block, _forget, number)
        return block

    def block_of(self, tensor: torch.Tensor) -> Block | None:
        """The block that begins where a tensor begins; None if the memory is not this pool's."""
        block = self._by_address.get(tensor.data_ptr())
        return None if block is None else (self._numbers[tensor.data_ptr()], torch.from_numpy(block))

    def lend(self, size: int) -> tuple[Block, np.ndarray]:
        """Lend a block of ``size`` bytes, more than 0. Return it and the lent array, uint8 (size,)."""
        lent = self.empty((size,), np.uint8)
        found = self.block_of(torch.from_numpy(lent))
        assert found is not None
        return found, lent


class SentBlocks:
    """The sender's record of the blocks that one other process has."""

    def __init__(self) -> None:
        self._there: OrderedDict[int, None] = OrderedDict()

    def send(self, block: Block) -> BlockOnItsWay:
        """Return what to send for a block. All of it must arrive, in the order of these calls."""
        number, content = block
        known = number in self._there
        self._there[number] = None
        self._there.move_to_end(number)
        while len(self._there) > _KNOWN:
            self._there.popitem(last=False)
        return number, None if known else (content.numel(), DupFd(_descriptors[number]))


class ReceivedBlocks:
    """The receiver's record: the blocks that this process has."""

    def __init__(self) -> None:
        self._here: OrderedDict[int, torch.Tensor] = OrderedDict()

    def receive(self, block: BlockOnItsWay) -> torch.Tensor:
        """The block's bytes, uint8 (size,)."""
        number, passed_on = block
        if passed_on is not None:
            size, descriptor = passed_on
            self._here[number] = torch.frombuffer(received(descriptor, size), dtype=torch.uint8)
        self._here.move_to_end(number)
        while len(self._here) > _KNOWN:
            self._here.popitem(last=False)
        return self._here[number]
