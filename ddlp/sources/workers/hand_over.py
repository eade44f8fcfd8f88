"""How a process hands batches to another one: large tensors are in shared memory that is used again.

torch makes a new piece of shared memory for each tensor, passes on its descriptor, and maps it; the system fills it with zeros,
page by page. Here the sender keeps a few blocks of shared memory. A large tensor has a block of its own, so it does not depend
on the rest of its batch. Small tensors come with the message. A block is free for the sender again when all tensors over it are
gone in the receiver, which then sets the block's first byte. Blocks have no name in the file system: they are gone with the
last process that has them mapped.

Workers send batches to the training process so, and it sends them those that own steps are to run on.

All tensors in this computer's memory come so, of whatever kind. Only one that the user's code has shared itself is passed on as
it is. Of a large storage only the tensor's part is sent, if it is a small one.
"""

from __future__ import annotations

import ctypes
import io
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

from ddlp.process.shared_memory import received, share

__all__ = ["Blocks", "Ring"]

_HEAD = 64  # bytes before a block's tensor; the first byte is 1 while the receiver has the block
_LEAST = 32 << 10  # bytes: a smaller tensor gets no block, since it goes through the pipe faster
_PAGE = 4096
_KEPT = 64  # a block that was not used for so many batches is given up
_LENT, _FREE = 1, 0

Storages = list[tuple[int, int] | bytes]
"""For each storage of a message: (block, bytes), or its content."""


# -- in the sender ---------------------------------------------------------------------------------------------------------


class _Block:
    """A piece of shared memory, as its sender sees it."""

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = -(-(_HEAD + size) // _PAGE) * _PAGE
        self.memory, descriptor = share(self.size)
        try:
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
    """A sender's blocks.

    Args:
        token: the token of the receiver's `Blocks`.
    """

    def __init__(self, token: int) -> None:
        self._token = token
        self._blocks: dict[int, _Block] = {}  # by address
        self._numbers = itertools.count()
        self._thread = threading.get_ident()
        self._new: list[_Block] = []
        self._given_up: list[int] = []
        self._batch = 0
        self._torchs: Any = torch.UntypedStorage._new_shared

    def take_results(self) -> Ring:
        """Have torch's default collate put a large result straight into a block, in this process and thread."""
        torch.UntypedStorage._new_shared = self._new_shared  # type: ignore[method-assign]
        return self

    def _new_shared(self, size: int, *, device: Any = "cpu") -> torch.UntypedStorage:
        """Make a storage. This replaces torch's function, which its collate functions call."""
        if torch.device(device).type != "cpu":
            theirs: torch.UntypedStorage = self._torchs(size, device=device)
            return theirs
        if size < _LEAST or threading.get_ident() != self._thread:
            return torch.UntypedStorage(size)
        return self.block(size).storage(size)

    def block(self, size: int) -> _Block:
        """Return a free block for ``size`` bytes, or a new one."""
        wanted = _HEAD + size
        fitting = (block for block in self._blocks.values() if wanted <= block.size <= 2 * wanted + _PAGE and block.free)
        block = min(fitting, key=lambda block: block.size, default=None)
        if block is None:
            block = _Block(next(self._numbers), size)
            self._blocks[block.address] = block
            self._new.append(block)
        block.used = self._batch
        return block

    def packed(self, batch: Any) -> _Packed:
        """Return the batch as a message. From now on its blocks belong to the receiver."""
        stream = io.BytesIO()
        packer = _Packer(stream, self)
        try:
            packer.dump(batch)
        except BaseException:
            for block in packer.blocks:
                block.memory[0] = _FREE
            raise
        pickled = stream.getvalue()
        content: bytes | tuple[int, int] = pickled
        if len(pickled) >= _LEAST:
            content = self.lend(np.frombuffer(pickled, np.uint8).ctypes.data, len(pickled)).number, len(pickled)
        new = [(block.number, block.size, block.passed_on) for block in self._new]
        message = _Packed(self._token, os.getpid(), new, self._given_up, packer.storages, content)
        self._new, self._given_up = [], []
        self._batch += 1
        if self._batch % _KEPT == 0:
            old = [address for address, block in self._blocks.items() if block.used < self._batch - _KEPT]
            self._given_up = [self._blocks.pop(address).number for address in old]
        return message

    def lend(self, address: int, size: int) -> _Block:
        """Return the block that begins at an address, or a copy of these bytes. It is lent to the receiver."""
        block = self._blocks.get(address)
        if block is None or block.lent:
            block = self.block(size)
            ctypes.memmove(block.address, address, size)
        block.memory[0] = _LENT
        return block


class _Packer(reduction.ForkingPickler):
    """Pickles a batch without the content of its tensors, whatever kinds of tensors they are."""

    def __init__(self, stream: Any, ring: Ring) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self._ring = ring
        self.storages: Storages = []
        self.blocks: list[_Block] = []
        self._places: dict[tuple[int, int], int] = {}  # (address, bytes) -> index in `storages`
        self._kept: list[Any] = []  # keeps the storages, so that no address is used again meanwhile

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is torch.Tensor and _is_plain(thing):
            storage = thing.untyped_storage()
            if storage.is_shared():
                return NotImplemented
            begin, end = 0, storage.nbytes()
            if end >= _LEAST and 2 * thing.nbytes < end and (storage.data_ptr(), end) not in self._places:
                begin, end = _span(thing)  # a small part of a large storage, which may be the whole data set's
            place, offset = self._place(storage, begin, end), thing.storage_offset() - begin // thing.itemsize
            return _tensor, (place, thing.dtype, offset, tuple(thing.size()), thing.stride())
        if isinstance(thing, torch.UntypedStorage) and thing.device.type == "cpu" and thing.nbytes() and not thing.is_shared():
            return _storage_at, (self._place(thing, 0, thing.nbytes()),)
        return NotImplemented

    def _place(self, storage: torch.UntypedStorage, begin: int, end: int) -> int:
        """Return the index in `storages` of these bytes of a storage."""
        address, size = storage.data_ptr() + begin, end - begin
        if (address, size) not in self._places:
            self._places[address, size] = len(self.storages)
            self._kept.append(storage)
            if size < _LEAST:
                self.storages.append(ctypes.string_at(address, size))
            else:
                self.blocks.append(self._ring.lend(address, size))
                self.storages.append((self.blocks[-1].number, size))
        return self._places[address, size]


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first byte of a tensor within its storage, and the byte after its last."""
    last = sum((length - 1) * stride for length, stride in zip(tensor.size(), tensor.stride(), strict=True))
    first = int(tensor.storage_offset())
    return first * tensor.itemsize, (first + int(last) + 1) * tensor.itemsize


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        not tensor.is_nested
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and tensor.numel() > 0
    )


class _Packed:
    """A batch on its way to the receiver. Unpickling it gives the batch itself."""

    def __init__(self, *message: Any) -> None:
        self._message = message

    def __reduce__(self) -> Any:
        return _unpacked, self._message


# -- in the receiver ---------------------------------------------------------------------------------------------------------


class Blocks:
    """The blocks of others, mapped in this process. Tensors over the blocks may outlive this object.

    ``token``: that of the training process's object, for a worker's own; None: a new one.
    """

    _tokens = itertools.count()

    def __init__(self, token: int | None = None) -> None:
        self.token = next(self._tokens) if token is None else token
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
    token: int,
    sender: int,
    new: list[tuple[int, int, Any]],
    given_up: list[int],
    storages: Storages,
    content: bytes | tuple[int, int],
) -> Any:
    """Return the batch. Unpickling the message calls this."""
    blocks = _blocks.get(token)
    if blocks is None:  # the receiver's iterator is gone: its queue is only being emptied
        return None
    for number, size, passed_on in new:
        blocks.memory[sender, number] = received(passed_on, size)
    for number in given_up:
        blocks.memory.pop((sender, number), None)
    _unpacking.storages = [
        torch.frombuffer(bytearray(storage), dtype=torch.uint8).untyped_storage()
        if isinstance(storage, bytes)
        else _storage(blocks.memory[sender, storage[0]], storage[1])
        for storage in storages
    ]
    try:
        if isinstance(content, bytes):
            return pickle.loads(content)
        memory, size = blocks.memory[sender, content[0]], content[1]
        batch = pickle.loads(memory[_HEAD : _HEAD + size])
        memory[0] = _FREE
        return batch
    finally:
        del _unpacking.storages


def _storage_at(place: int) -> torch.UntypedStorage:
    storage: torch.UntypedStorage = _unpacking.storages[place]
    return storage


def _tensor(place: int, dtype: torch.dtype, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(0, dtype=dtype).set_(_unpacking.storages[place], offset, size, stride)


# A forked child has the tensors too. So a block that is lent while this process forks is never used again.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_leases.clear)
