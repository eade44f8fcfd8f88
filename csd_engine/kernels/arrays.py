"""The kernel's calls on whole arrays: values through a table, the checksum's blocks, the generator's numbers."""

from __future__ import annotations

import ctypes
import os
from typing import Sequence, Union

import numpy as np

from csd_engine.kernels.places import address, check_out, checked_table

__all__ = ["BLOCK_BYTES", "ArrayCalls"]

BLOCK_BYTES = 1 << 14  # of the batch file's checksum


class ArrayCalls:
    """The part of `Kernel` that works on arrays. Any number of threads may call at once."""

    _library: ctypes.CDLL

    def _declare_arrays(self) -> None:
        pointer, number, size = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
        self._library.ddlp_table.argtypes = [pointer, size, size, number, pointer, number, number, pointer]
        self._library.ddlp_table.restype = None
        self._library.ddlp_planes.argtypes = [pointer, size, size, number, pointer]
        self._library.ddlp_planes.restype = None
        self._library.ddlp_sum.argtypes = [pointer, pointer, size]
        self._library.ddlp_sum.restype = None
        self._library.ddlp_image_sums.argtypes = [pointer, pointer, size, pointer]
        self._library.ddlp_image_sums.restype = None
        self._library.ddlp_read_sum.argtypes = [ctypes.c_int, pointer, size, pointer]
        self._library.ddlp_read_sum.restype = size
        self._library.ddlp_keyed.argtypes = [ctypes.c_uint64, ctypes.c_uint64, pointer, size, pointer]
        self._library.ddlp_keyed.restype = None
        self._library.ddlp_populate.argtypes = [pointer, size]
        self._library.ddlp_populate.restype = None

    def table(self, pixels: np.ndarray, table: np.ndarray, out: np.ndarray, channels_last: bool = False) -> None:
        """Replace each value by its entry in a table. ToTensor and Normalize, or a change of type, are such a table.

        Args:
            pixels: C-contiguous uint8 (n, height, width, channels) or (height, width, channels).
            table: C-contiguous (channels, 256), of elements of 2 or 4 bytes.
            out: C-contiguous, of the table's type: (n, channels, height, width) or (channels, height, width). With
                channels_last it has the order of `pixels`.
            channels_last: keep the channels of a pixel together.

        Raises:
            ValueError: shapes or types do not fit.
        """
        images = pixels if pixels.ndim == 4 else pixels[np.newaxis]
        n, height, width, channels = images.shape
        shape = images.shape if channels_last else (n, channels, height, width)
        if (
            pixels.dtype != np.uint8
            or checked_table(table, channels).dtype != out.dtype
            or out.shape != shape[4 - pixels.ndim :]
            or not pixels.flags.c_contiguous
        ):
            raise ValueError(
                f"uint8 pixels of {pixels.shape} through a table of (channels, 256) go to {shape}, without gaps; got "
                f"{pixels.dtype} pixels, a table {table.dtype} {table.shape} and a place {out.dtype} {out.shape}"
            )
        check_out(out)
        self._library.ddlp_table(
            address(pixels), n, height * width, channels, address(table), table.dtype.itemsize, channels_last, address(out)
        )

    def planes(self, pixels: np.ndarray, out: np.ndarray) -> None:
        """Bring each channel's bytes together, as ToTensor does, but without its change of type.

        Args:
            pixels: C-contiguous uint8 (n, height, width, channels).
            out: C-contiguous uint8 (n, channels, height, width).

        Raises:
            ValueError: shapes or types do not fit.
        """
        n, height, width, channels = pixels.shape
        if pixels.dtype != np.uint8 or out.dtype != np.uint8 or out.shape != (n, channels, height, width):
            raise ValueError(f"{pixels.dtype} pixels of {pixels.shape} do not become planes of {out.dtype} {out.shape}")
        if not pixels.flags.c_contiguous:
            raise ValueError("the pixels have gaps")
        check_out(out)
        self._library.ddlp_planes(address(pixels), n, height * width, channels, address(out))

    def keyed(self, seed: int, epoch: int, keys: np.ndarray, out: np.ndarray) -> None:
        """Draw the next eight numbers of each row's stream (csd_engine.arithmetic.keyed).

        Args:
            seed, epoch: 0 .. 2**64 - 1.
            keys: C-contiguous uint64 (n, 3): index, occurrence, and how many times eight numbers were drawn before.
            out: C-contiguous uint64 (n, 8), filled.

        Raises:
            ValueError: shapes or types do not fit.
        """
        if keys.dtype != np.uint64 or out.dtype != np.uint64 or keys.shape[1:] != (3,) or out.shape != (len(keys), 8):
            raise ValueError(f"no numbers for keys {keys.dtype} {keys.shape} into {out.dtype} {out.shape}")
        if not keys.flags.c_contiguous:
            raise ValueError("the keys have gaps")
        check_out(out)
        self._library.ddlp_keyed(seed, epoch, address(keys), len(keys), address(out))

    def add_blocks(self, acc: np.ndarray, data: Union[bytes, bytearray, memoryview, np.ndarray], blocks: int) -> None:
        """Add the first `blocks` blocks of 16 KiB of `data` to an unfinished checksum (csd_engine.batchfile.checksum).

        Args:
            acc: C-contiguous uint32 (4096,), changed in place.
            data: contiguous bytes, at any address.
            blocks: at least 0.

        Raises:
            ValueError: there are fewer bytes than that, or `acc` is something else.
        """
        content = np.frombuffer(data, dtype=np.uint8)
        if acc.dtype != np.uint32 or acc.shape != (BLOCK_BYTES // 4,) or not 0 <= blocks <= content.size // BLOCK_BYTES:
            raise ValueError(f"{blocks} blocks of {BLOCK_BYTES} of {content.size} bytes do not go into {acc.dtype} {acc.shape}")
        check_out(acc)
        self._library.ddlp_sum(address(acc), address(content), blocks)

    def image_sums(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """Return the checksum of each image in the cache (csd_engine.cache.segments), uint64 (n,).

        Args:
            images: contiguous uint8, of any shape.

        Raises:
            ValueError: an image has gaps, or another type.
        """
        if not all(image.dtype == np.uint8 and image.flags.c_contiguous for image in images):
            raise ValueError("an image's checksum is that of contiguous uint8")
        places = np.array([address(image) for image in images], np.uintp)
        sizes, sums = np.array([image.size for image in images], np.int64), np.empty(len(images), np.uint64)
        self._library.ddlp_image_sums(address(places), address(sizes), len(images), address(sums))
        return sums

    def populate(self, memory: np.ndarray) -> None:
        """Make the system map the pages of fresh memory, a C-contiguous array, now. The content does not change."""
        check_out(memory)
        self._library.ddlp_populate(address(memory), memory.nbytes)

    def read_blocks(self, descriptor: int, place: memoryview, acc: np.ndarray) -> int:
        """Read whole blocks of 16 KiB from a file's position, and add them to a checksum while they are in the cache.

        Args:
            descriptor: of an open file.
            place: writable bytes; as many whole blocks as fit are filled.
            acc: C-contiguous uint32 (4096,), changed in place.

        Returns:
            The number of bytes read. If the file ends within a block, the bytes of that block are read, but not added.

        Raises:
            OSError: the file can't be read.
            ValueError: `acc` or `place` is something else.
        """
        content = np.frombuffer(place, dtype=np.uint8)
        _check_sums(acc)
        check_out(content)
        blocks = content.size // BLOCK_BYTES
        done = int(self._library.ddlp_read_sum(descriptor, address(content), blocks, address(acc)))
        if done < 0:
            raise OSError(-done, os.strerror(-done))
        return done


def _check_sums(acc: np.ndarray) -> None:
    if acc.dtype != np.uint32 or acc.shape != (BLOCK_BYTES // 4,):
        raise ValueError(f"blocks of {BLOCK_BYTES} bytes do not go into {acc.dtype} {acc.shape}")
    check_out(acc)
