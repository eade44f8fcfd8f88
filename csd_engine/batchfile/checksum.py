"""The batch file's checksum: block-wise Horner over 32-bit words, then a digest.

The data are read as little-endian uint32 words in blocks of 16 KiB, the last one padded with zeros. Word by word,
`acc = acc * M + block` (mod 2**32); the checksum is blake2b-128 of the final 16 KiB of `acc`. M is odd, so a changed
bit stays changed whatever follows. numpy does it in place at cache speed, on 32-bit ARM too. A GPU does it with integer
operations, one thread a word. If there is a kernel, it adds the blocks.
"""

from __future__ import annotations

import hashlib
import os
from typing import Union

import numpy as np

from csd_engine.kernels import kernel
from csd_engine.kernels.arrays import BLOCK_BYTES

__all__ = ["BLOCK_BYTES", "MULTIPLIER", "READ_BYTES", "Checksum", "digest"]

READ_BYTES = 16 * BLOCK_BYTES  # stays in a core's second-level cache
_UNDER_THE_LOCK = 1024  # hashlib releases the GIL from 2048 bytes on, and 16 KiB take less time than that
MULTIPLIER = 0x9E3779BB  # 3 (mod 8): its powers minus one have few factors of two, so swapped blocks show as well


class Checksum:
    """A running checksum over bytes that come in pieces of any length."""

    def __init__(self) -> None:
        self._acc = np.zeros(BLOCK_BYTES // 4, dtype=np.uint32)  # in this processor's order of bytes, as in the kernel
        self._multiplier = np.array(MULTIPLIER, dtype=np.uint32)
        self._pending = bytearray(BLOCK_BYTES)
        self._filled = 0

    def update(self, data: Union[bytes, bytearray, memoryview]) -> None:
        """Add `data`, a contiguous buffer of bytes."""
        view = memoryview(data).cast("B")
        position, end = 0, len(view)
        fast = kernel()
        while position < end:
            if fast is not None and self._filled == 0 and end - position >= BLOCK_BYTES:
                blocks = (end - position) // BLOCK_BYTES
                fast.add_blocks(self._acc, view[position:], blocks)
                position += blocks * BLOCK_BYTES
                continue
            if self._filled == 0 and end - position >= BLOCK_BYTES:
                # Unaligned words are slow or forbidden on some processors: those go through the buffer below.
                block = np.frombuffer(view, dtype="<u4", count=BLOCK_BYTES // 4, offset=position)
                if block.flags.aligned:
                    self._add(block)
                    position += BLOCK_BYTES
                    continue
            count = min(BLOCK_BYTES - self._filled, end - position)
            self._pending[self._filled : self._filled + count] = view[position : position + count]
            self._filled += count
            position += count
            if self._filled == BLOCK_BYTES:
                self._add(np.frombuffer(self._pending, dtype="<u4"))
                self._filled = 0

    def read(self, descriptor: int, place: memoryview) -> int:
        """Read from an open file's position to the beginning of `place`, and add the bytes read.

        With a kernel it reads as many whole blocks as `place` holds, else 256 KiB at most. The bytes are added while they are
        in the cache, so that they cross the memory bus once.

        Returns:
            The bytes read, 0 at the file's end.

        Raises:
            OSError: it can't be read.
        """
        fast = kernel()
        if fast is None or self._filled or len(place) < BLOCK_BYTES:
            count = os.readv(descriptor, [place[:READ_BYTES]])
            self.update(place[:count])
            return count
        count = fast.read_blocks(descriptor, place, self._acc)
        self.update(place[count - count % BLOCK_BYTES : count])
        return count

    def _add(self, block: np.ndarray) -> None:
        np.multiply(self._acc, self._multiplier, out=self._acc)
        np.add(self._acc, block, out=self._acc)

    def hexdigest(self) -> str:
        """Return the checksum of all bytes so far: 32 hex digits. More may be added afterwards."""
        acc = self._acc
        if self._filled:
            last = np.frombuffer(bytes(self._pending[: self._filled]).ljust(BLOCK_BYTES, b"\0"), dtype="<u4")
            acc = acc * self._multiplier + last
        return digest(acc)


def digest(acc: np.ndarray) -> str:
    """Return the 32 hex digits for the sum of all blocks, BLOCK_BYTES / 4 words of 32 bits; a GPU may have added them."""
    hasher, words = hashlib.blake2b(digest_size=16), memoryview(np.ascontiguousarray(acc, dtype="<u4").tobytes())
    for start in range(0, len(words), _UNDER_THE_LOCK):
        hasher.update(words[start : start + _UNDER_THE_LOCK])
    return hasher.hexdigest()
