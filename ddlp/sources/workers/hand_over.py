"""How torch's workers hand batches to the training process: large tensors are in shared memory that is used again.

torch makes a new piece of shared memory for each tensor, passes on its descriptor, and maps it; the system fills it with zeros,
page by page. Here each worker keeps a few blocks of shared memory. A large tensor has a block of its own, so it does not depend
on the rest of its batch. Small tensors come with the message. A block is free for the worker again when all tensors over it are
gone in the training process, which then sets the block's first byte. Blocks have no name in the file system: they are gone with
the last process that has them mapped.

Anything but a plain tensor in this computer's memory is sent in torch's way, inside the same message.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import pickle
import threading
import weakref
from multiprocessing import reduction, util
from typing import Any

import numpy as np
import torch

__all__ = ["Blocks", "Ring"]

_HEAD = 64  # bytes before a block's tensor; the first byte is 1 while the training process has the block
_LEAST = 32 << 10  # bytes: a smaller tensor gets no block, since it goes through the pipe faster
_PAGE = 4096
_KEPT = 64  # a block that was not used for so many batches is given up
_LENT, _FREE = 1, 0

Storages = list[tuple[int, int] | bytes]
"""For each storage of a message: (block, bytes), or its content."""


# -- in the workers --------------------------------------------------------------------------------------------------------


class _Block:
    """A piece of shared memory, as its worker sees it."""

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = -(-(_HEAD + size) // _PAGE) * _PAGE
        descriptor = os.memfd_create("ddlp-batch", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, self.size)
            self.memory = mmap.mmap(descriptor, self.size)
            self.passed_on = reduction.DupFd(descriptor)
        finally:
            os.close(descriptor)
        whole = np.frombuffer(self.memory, np.uint8)
        self.address: int = whole.ctypes.data + _HEAD
        self.piece: weakref.ref[np.ndarray] | None = None  # the array below this process's tensors
        self.used = 0  # the number of the batch that used it last

    @property
    def lent(self) -> bool:
        return self.memory[0] == _LENT

    @property
    def free(self) -> bool:
        return not self.lent and (self.piece is None or self.piece() is None)

    def storage(self, size: int) -> torch.UntypedStorage:
        """Return a storage over the first ``size`` bytes."""
        piece = np.frombuffer(self.memory, np.uint8, size, _HEAD)
        self.piece = weakref.ref(piece)
        return torch.frombuffer(piece, dtype=torch.uint8).untyped_storage()


class Ring:
    """A worker's blocks. torch's default collate puts a large result straight into a block.

    Args:
        token: the token of the training process's `Blocks`.
    """

    def __init__(self, token: int) -> None:
        self._token = token
        self._blocks: dict[int, _Block] = {}  # by address
        self._numbers = itertools.count()
        self._thread = threading.get_ident()
        self._new: list[_Block] = []
        self._given_up: list[int] = []
        self._batch = 0
        self._torchs = torch.UntypedStorage._new_shared
        torch.UntypedStorage._new_shared = self._new_shared  # type: ignore[method-assign]

    def _new_shared(self, size: int, *, device: Any = "cpu") -> torch.UntypedStorage:
        """Make a storage. This replaces torch's function, which its collate functions call."""
        if threading.get_ident() != self._thread or torch.device(device).type != "cpu":
            return self._torchs(size, device=device)
        return self.block(size).storage(size) if size >= _LEAST else torch.UntypedStorage(size)

    def block(self, size: int) -> _Block:
        """Return a free block for ``size`` bytes, or a new one."""
        wanted = _HEAD + size
        fitting = (one for one in self._blocks.values() if wanted <= one.size <= 2 * wanted + _PAGE and one.free)
        found = min(fitting, key=lambda one: one.size, default=None)
        if found is None:
            found = _Block(next(self._numbers), size)
            self._blocks[found.address] = found
            self._new.append(found)
        found.used = self._batch
        return found

    def at(self, address: int) -> _Block | None:
        """Return the block whose tensor begins at an address. None if there is none, or the training process has it."""
        block = self._blocks.get(address)
        return None if block is None or block.lent else block

    def packed(self, batch: Any) -> _Packed:
        """Return the batch as a message. From now on its blocks belong to the training process."""
        stream = _Bytes()
        packer = _Packer(stream, self)
        try:
            packer.dump(batch)
        except BaseException:
            for block in packer.blocks:
                block.memory[0] = _FREE
            raise
        new = [(one.number, one.size, one.passed_on) for one in self._new]
        given_up = self._given_up
        message = _Packed(self._token, os.getpid(), new, given_up, packer.storages, stream.content)
        self._new, self._given_up = [], []
        self._batch += 1
        if self._batch % _KEPT == 0:
            old = [address for address, one in self._blocks.items() if one.used < self._batch - _KEPT]
            self._given_up = [self._blocks.pop(address).number for address in old]
        return message


class _Bytes:
    """A file-like object to write to."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, part: Any) -> None:
        self._parts.append(bytes(part))

    @property
    def content(self) -> bytes:
        return b"".join(self._parts)


class _Packer(reduction.ForkingPickler):
    """Pickles a batch without the content of its plain tensors."""

    def __init__(self, stream: Any, ring: Ring) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self._ring = ring
        self.storages: Storages = []
        self.blocks: list[_Block] = []
        self._places: dict[int, int | None] = {}  # address -> index in `storages`; None: the storage is sent in torch's way
        self._kept: list[Any] = []  # keeps the storages, so that no address is used again meanwhile

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is not torch.Tensor or not _is_plain(thing):
            return NotImplemented
        storage = thing.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if address not in self._places:
            self._kept.append(storage)
            self._places[address] = self._place(thing, storage, address, size)
        place = self._places[address]
        if place is None:
            return NotImplemented
        return _tensor, (place, thing.dtype, thing.storage_offset(), tuple(thing.size()), thing.stride())

    def _place(self, tensor: torch.Tensor, storage: torch.UntypedStorage, address: int, size: int) -> int | None:
        block = self._ring.at(address)
        if block is None:
            if tensor.is_shared() or (size >= _LEAST and tensor.nbytes < size):  # it is shared, or a part of a large one
                return None
            if size < _LEAST:
                self.storages.append(ctypes.string_at(address, size))
                return len(self.storages) - 1
            block = self._ring.block(size)
            block.storage(size).copy_(storage)
        block.memory[0] = _LENT
        self.blocks.append(block)
        self.storages.append((block.number, size))
        return len(self.storages) - 1


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        not tensor.is_nested
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and tensor.untyped_storage().nbytes() > 0
    )


class _Packed:
    """A batch on its way to the training process. Unpickling it gives the batch itself."""

    def __init__(self, *message: Any) -> None:
        self._message = message

    def __reduce__(self) -> Any:
        return _unpacked, self._message


# -- in the training process ---------------------------------------------------------------------------------------------------


class Blocks:
    """The blocks of an iterator's workers, mapped in this process. Tensors over the blocks may outlive this object."""

    _tokens = itertools.count()

    def __init__(self) -> None:
        self.token = next(self._tokens)
        self.memory: dict[tuple[int, int], mmap.mmap] = {}  # by process and number
        _blocks[self.token] = self
        util.get_temp_dir()  # for the sockets that pass descriptors: a worker's own directory would stay when it is ended


_blocks: weakref.WeakValueDictionary[int, Blocks] = weakref.WeakValueDictionary()
_unpacking = threading.local()  # `storages` of the message that is unpacked


class _Lease(weakref.ref):
    """A reference to the array below all tensors over a block. It frees the block when the array is gone."""

    memory: mmap.mmap


_leases: dict[int, _Lease] = {}


def _over(lease: Any) -> None:
    if _leases.pop(id(lease), None) is not None:
        lease.memory[0] = _FREE


def _storage(memory: mmap.mmap, size: int) -> torch.UntypedStorage:
    piece = np.frombuffer(memory, np.uint8, size, _HEAD)
    lease = _Lease(piece, _over)
    lease.memory = memory
    _leases[id(lease)] = lease
    return torch.frombuffer(piece, dtype=torch.uint8).untyped_storage()


def _unpacked(
    token: int, worker: int, new: list[tuple[int, int, Any]], given_up: list[int], storages: Storages, content: bytes
) -> Any:
    """Return the batch. Unpickling the message calls this."""
    blocks = _blocks.get(token)
    if blocks is None:  # the iterator is gone: its queue is only being emptied
        return None
    for number, size, passed_on in new:
        descriptor = passed_on.detach()
        try:
            blocks.memory[worker, number] = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
    for number in given_up:
        blocks.memory.pop((worker, number), None)
    _unpacking.storages = [
        torch.frombuffer(bytearray(one), dtype=torch.uint8).untyped_storage()
        if isinstance(one, bytes)
        else _storage(blocks.memory[worker, one[0]], one[1])
        for one in storages
    ]
    try:
        return pickle.loads(content)
    finally:
        del _unpacking.storages


def _tensor(place: int, dtype: torch.dtype, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(0, dtype=dtype).set_(_unpacking.storages[place], offset, size, stride)


# A forked child has the tensors too. So a block that is lent while this process forks is never used again.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_leases.clear)
