"""The kernel's calls on whole arrays: windows of samples, values through a table, the checksum's blocks."""

from __future__ import annotations

import ctypes
import os
from typing import Optional, Sequence, Union

import numpy as np

__all__ = ["BLOCK_BYTES", "PADDING_MODES", "ArrayCalls"]

BLOCK_BYTES = 1 << 14  # of the batch file's checksum
PADDING_MODES = {"constant": 0, "edge": 1, "reflect": 2, "symmetric": 3}  # src/windows.h


class _WindowsJob(ctypes.Structure):
    """ddlp_windows_job of src/windows.h."""

    _fields_ = [
        ("rows", ctypes.c_void_p),
        ("sample_stride", ctypes.c_int64),
        ("line_stride", ctypes.c_int64),
        ("pixel_stride", ctypes.c_int64),
        ("channel_stride", ctypes.c_int64),
        ("samples", ctypes.c_int64),
        ("height", ctypes.c_int32),
        ("width", ctypes.c_int32),
        ("channels", ctypes.c_int32),
        ("padding_mode", ctypes.c_int32),
        ("count", ctypes.c_int64),
        ("indices", ctypes.c_void_p),
        ("tops", ctypes.c_void_p),
        ("lefts", ctypes.c_void_p),
        ("across", ctypes.c_void_p),
        ("down", ctypes.c_void_p),
        ("fill", ctypes.c_void_p),
        ("out_height", ctypes.c_int32),
        ("out_width", ctypes.c_int32),
        ("out", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("element_bytes", ctypes.c_int32),
        ("channels_last", ctypes.c_int32),
    ]


_FEW_KEYS = 512  # 50 us


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def _check_out(out: np.ndarray) -> None:
    if not (out.flags.c_contiguous and out.flags.writeable):
        raise ValueError(f"the result goes to a writable array without gaps, got strides {out.strides} of shape {out.shape}")


def _checked_table(table: np.ndarray, channels: int) -> np.ndarray:
    if table.shape != (channels, 256) or table.dtype.itemsize not in (2, 4) or not table.flags.c_contiguous:
        raise ValueError(
            f"a table is (channels, 256) elements of 2 or 4 bytes without gaps, got {table.dtype} {table.shape} for {channels}"
        )
    return table


class ArrayCalls:
    """The part of `Kernel` that works on arrays. Any number of threads may call at once."""

    _library: ctypes.CDLL
    _holding: ctypes.PyDLL

    def _declare_arrays(self) -> None:
        pointer, number, size = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
        self._library.ddlp_windows.argtypes = [ctypes.POINTER(_WindowsJob)]
        self._library.ddlp_table.argtypes = [pointer, size, size, number, pointer, number, number, pointer]
        self._library.ddlp_table.restype = None
        self._library.ddlp_planes.argtypes = [pointer, size, size, number, pointer]
        self._library.ddlp_planes.restype = None
        self._library.ddlp_sum.argtypes = [pointer, pointer, size]
        self._library.ddlp_sum.restype = None
        self._library.ddlp_read_sum.argtypes = [ctypes.c_int, pointer, size, pointer]
        self._library.ddlp_read_sum.restype = size
        self._library.ddlp_populate.argtypes = [pointer, size]
        self._library.ddlp_populate.restype = None
        self._holding = ctypes.PyDLL(self._library._name)  # the same library, called without letting go of the GIL
        for library in (self._library, self._holding):
            library.ddlp_keyed.argtypes = [ctypes.c_uint64, ctypes.c_uint64, pointer, size, pointer]
            library.ddlp_keyed.restype = None

    def windows(
        self,
        rows: np.ndarray,
        indices: np.ndarray,
        tops: np.ndarray,
        lefts: np.ndarray,
        across: Optional[np.ndarray],
        down: Optional[np.ndarray],
        fill: Sequence[int],
        out: np.ndarray,
        padding_mode: str = "constant",
        table: Optional[np.ndarray] = None,
        channels_last: bool = False,
    ) -> None:
        """Cut one window out of each of n samples, with borders made up where it reaches outside, and mirror it.

        Args:
            rows: uint8 (samples, height, width, channels), of any strides.
            indices: int64 (n,), the samples.
            tops, lefts: int64 (n,), each window's corner in its sample, before mirroring; negative within a border.
            across, down: bool (n,), whether it is mirrored left-right, top-bottom; None: none is.
            fill: the value of each channel, 0 .. 255, outside of the samples (mode "constant").
            out: C-contiguous uint8 (n, height of the windows, width, channels), filled; with a table as `table` makes it.
            padding_mode: one of `PADDING_MODES`, as numpy.pad and torchvision name them.
            table, channels_last: as of `table`, which each window goes through while it is in the nearest cache.

        Raises:
            IndexError: an index is none of the samples; nothing was written.
            ValueError: shapes or types do not fit.
        """
        if table is None or channels_last:
            count, height, width, channels = out.shape
        else:
            count, channels, height, width = out.shape
        kind = np.dtype(np.uint8)
        if table is not None:
            kind = _checked_table(table, channels).dtype
        if rows.dtype != np.uint8 or out.dtype != kind or rows.ndim != 4 or rows.shape[3] != channels:
            raise ValueError(f"need uint8 (n, height, width, channels), got {rows.dtype} {rows.shape}, {out.dtype} {out.shape}")
        if min(rows.shape[1:]) < 1 or len(fill) != channels:
            raise ValueError(f"no window of {rows.shape} with a fill of {len(fill)} channels")
        _check_out(out)
        if out.size == 0:
            return
        numbers = [np.ascontiguousarray(values, dtype=np.int64) for values in (indices, tops, lefts)]
        flags = [None if values is None else np.ascontiguousarray(values, dtype=bool) for values in (across, down)]
        color = np.array(fill, dtype=np.uint8)
        for values in [*numbers, *flags]:
            if values is not None and values.shape != (count,):
                raise ValueError(f"expected {count} values, one a window, got {values.shape}")
        job = _WindowsJob(
            _address(rows), *rows.strides, *rows.shape, PADDING_MODES[padding_mode], count,
            *(_address(values) for values in numbers),
            *(None if values is None else _address(values) for values in flags),
            _address(color), height, width, _address(out),
            *((None, 0, 0) if table is None else (_address(table), kind.itemsize, channels_last)),
        )  # fmt: skip
        result = self._library.ddlp_windows(job)
        if result < 0:
            raise MemoryError("the kernel got no memory")
        if result:
            wrong = [int(i) for i in numbers[0] if not 0 <= i < len(rows)][:1]
            raise IndexError(f"index {wrong[0]} is none of {len(rows)} samples" if wrong else "a window lies too far outside")

    def table(self, pixels: np.ndarray, table: np.ndarray, out: np.ndarray, channels_last: bool = False) -> None:
        """Replace each value by its entry in a table: what ToTensor and Normalize, or a change of type, come to.

        Args:
            pixels: C-contiguous uint8 (n, height, width, channels) or (height, width, channels).
            table: C-contiguous (channels, 256), of elements of 2 or 4 bytes.
            out: C-contiguous, of the table's type: (n, channels, height, width) or (channels, height, width); with
                channels_last in the order of `pixels`.
            channels_last: keep the channels of a pixel together.

        Raises:
            ValueError: shapes or types do not fit.
        """
        images = pixels if pixels.ndim == 4 else pixels[np.newaxis]
        n, height, width, channels = images.shape
        shape = images.shape if channels_last else (n, channels, height, width)
        if (
            pixels.dtype != np.uint8
            or _checked_table(table, channels).dtype != out.dtype
            or out.shape != shape[4 - pixels.ndim :]
            or not pixels.flags.c_contiguous
        ):
            raise ValueError(
                f"uint8 pixels of {pixels.shape} through a table of (channels, 256) go to {shape}, without gaps; got "
                f"{pixels.dtype} pixels, a table {table.dtype} {table.shape} and a place {out.dtype} {out.shape}"
            )
        _check_out(out)
        self._library.ddlp_table(
            _address(pixels), n, height * width, channels, _address(table), table.dtype.itemsize, channels_last, _address(out)
        )

    def planes(self, pixels: np.ndarray, out: np.ndarray) -> None:
        """Bring each channel's bytes together: what ToTensor's change of order is without its change of type.

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
        _check_out(out)
        self._library.ddlp_planes(_address(pixels), n, height * width, channels, _address(out))

    def keyed(self, seed: int, epoch: int, keys: np.ndarray, out: np.ndarray) -> None:
        """Draw the next eight numbers of each row's stream (csd_engine.keyed).

        Args:
            seed, epoch: 0 .. 2**64 - 1.
            keys: C-contiguous uint64 (n, 3): index, occurrence, and how many eights were drawn before.
            out: C-contiguous uint64 (n, 8), filled.

        Raises:
            ValueError: shapes or types do not fit.
        """
        if keys.dtype != np.uint64 or out.dtype != np.uint64 or keys.shape[1:] != (3,) or out.shape != (len(keys), 8):
            raise ValueError(f"no numbers for keys {keys.dtype} {keys.shape} into {out.dtype} {out.shape}")
        if not keys.flags.c_contiguous:
            raise ValueError("the keys have gaps")
        _check_out(out)
        # Where another thread takes the GIL meanwhile, to get it back takes longer than a few keys.
        library = self._holding if len(keys) <= _FEW_KEYS else self._library
        library.ddlp_keyed(seed, epoch, _address(keys), len(keys), _address(out))

    def add_blocks(self, acc: np.ndarray, data: Union[bytes, bytearray, memoryview, np.ndarray], blocks: int) -> None:
        """Add the first `blocks` blocks of 16 KiB of `data` to a checksum in the making (csd_engine.checksum).

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
        _check_out(acc)
        self._library.ddlp_sum(_address(acc), _address(content), blocks)

    def populate(self, memory: np.ndarray) -> None:
        """Have the system give fresh memory, a C-contiguous array, its pages now; what it holds stays."""
        _check_out(memory)
        self._library.ddlp_populate(_address(memory), memory.nbytes)

    def read_blocks(self, descriptor: int, place: memoryview, acc: np.ndarray) -> int:
        """Read whole blocks of 16 KiB from where a file stands, and add them to a checksum while they are in the cache.

        Args:
            descriptor: of an open file.
            place: writable bytes, filled as far as whole blocks go.
            acc: C-contiguous uint32 (4096,), changed in place.

        Returns:
            The bytes read: fewer than whole blocks where the file ends, the last of them then not added.

        Raises:
            OSError: the file can't be read.
            ValueError: `acc` or `place` is something else.
        """
        content = np.frombuffer(place, dtype=np.uint8)
        if acc.dtype != np.uint32 or acc.shape != (BLOCK_BYTES // 4,):
            raise ValueError(f"blocks of {BLOCK_BYTES} bytes do not go into {acc.dtype} {acc.shape}")
        _check_out(acc)
        _check_out(content)
        blocks = content.size // BLOCK_BYTES
        done = int(self._library.ddlp_read_sum(descriptor, _address(content), blocks, _address(acc)))
        if done < 0:
            raise OSError(-done, os.strerror(-done))
        return done
