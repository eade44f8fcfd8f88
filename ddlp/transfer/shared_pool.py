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

import numpy as np
import torch
import torch.multiprocessing

from ddlp.transfer.memory_pool import MemoryPool

__all__ = ["Block", "BlockOnItsWay", "ReceivedBlocks", "SentBlocks", "SharedPool"]

_numbers = itertools.count()  # of all pools' blocks: processes that are kept see those of several epochs
_KNOWN = 32  # the other side keeps at most so many blocks, those that came last

Block = tuple[int, torch.Tensor]
"""A block's number, and its bytes, uint8 (size,)."""

BlockOnItsWay = tuple[int, torch.Tensor | None]
"""The same; None where the other side has it."""


class SharedPool(MemoryPool):
    """Lends shared memory. Its blocks are numbered, and no number comes twice."""

    def __init__(self, spare: int) -> None:
        super().__init__(spare)
        self._allocate = self._shared
        self._by_address: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()
        self._numbers: dict[int, int] = {}  # by address
        multiprocessing.util.get_temp_dir()  # for the sockets that pass descriptors: this process ends last, and removes it

    def _shared(self, size: int) -> np.ndarray:
        storage = torch.UntypedStorage._new_shared(size, device="cpu")
        if torch.multiprocessing.get_sharing_strategy() == "file_descriptor":
            try:  # else the first write to a page without room ends the process
                os.posix_fallocate(storage._share_fd_cpu_()[0], 0, size)
            except OSError as error:
                raise OSError(
                    error.errno,
                    f"no room for a batch of {size} bytes in shared memory ({error.strerror}): give the container more "
                    "(docker run --shm-size), or leave the processes out: num_workers=0 or own_steps='threads'",
                ) from None
        block: np.ndarray = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).numpy()
        address = block.ctypes.data
        self._numbers[address] = next(_numbers)
        self._by_address[address] = block
        return block

    def block_of(self, tensor: torch.Tensor) -> Block | None:
        """The block that begins where a tensor begins; None if the memory is not this pool's."""
        block = self._by_address.get(tensor.data_ptr())
        return None if block is None else (self._numbers[tensor.data_ptr()], block.base)  # type: ignore[return-value]

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
        return number, None if known else content


class ReceivedBlocks:
    """The receiver's record: the blocks that this process has."""

    def __init__(self) -> None:
        self._here: OrderedDict[int, torch.Tensor] = OrderedDict()

    def receive(self, block: BlockOnItsWay) -> torch.Tensor:
        """The block's bytes, uint8 (size,)."""
        number, content = block
        if content is not None:
            self._here[number] = content
        self._here.move_to_end(number)
        while len(self._here) > _KNOWN:
            self._here.popitem(last=False)
        return self._here[number]
