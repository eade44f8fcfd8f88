"""Arrays that C may use: their addresses, and the place of the samples of a call that makes many."""

from __future__ import annotations

import ctypes
from typing import NamedTuple, Optional, Tuple

import numpy as np

__all__ = ["Samples", "Stopped", "address", "check_out", "checked_table", "samples_to"]


def address(array: np.ndarray) -> int:
    """The address of an array's first element."""
    return int(array.__array_interface__["data"][0])


def check_out(out: np.ndarray) -> None:
    """Raise ValueError unless a result can be written into the array in one piece."""
    if not (out.flags.c_contiguous and out.flags.writeable):
        raise ValueError(f"the result goes to a writable array without gaps, got strides {out.strides} of shape {out.shape}")


def checked_table(table: np.ndarray, channels: int) -> np.ndarray:
    """Return the table; ValueError unless it has (channels, 256) elements of 2 or 4 bytes, without gaps."""
    if table.shape != (channels, 256) or table.dtype.itemsize not in (2, 4) or not table.flags.c_contiguous:
        raise ValueError(
            f"a table is (channels, 256) elements of 2 or 4 bytes without gaps, got {table.dtype} {table.shape} for {channels}"
        )
    return table


class Samples(ctypes.Structure):
    """ddlp_samples of src/batch/samples.h."""

    _fields_ = [
        ("out", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("element_bytes", ctypes.c_int32),
        ("channels_last", ctypes.c_int32),
        ("planes", ctypes.c_int32),
        ("boxes", ctypes.c_void_p),
    ]


class Stopped(NamedTuple):
    """Where a call stopped, and why.

    Attributes:
        next: the first sample that was not made.
        refused: the kernel refused its file or image; False: there was no more time or no more room.
        read: `Files.content` has the file's bytes, for Pillow; False: it can't be read, decoding takes too much memory, or it
            is no file.
        reading_s: the time for opening and reading, in seconds.
    """

    next: int
    refused: bool
    read: bool = False
    reading_s: float = 0.0


def samples_to(
    shape: Tuple[int, int, int],
    masks: int,
    left: int,
    out: np.ndarray,
    boxes: Optional[np.ndarray],
    table: Optional[np.ndarray],
    channels_last: bool,
) -> Samples:
    """Return the place of a call's samples.

    Args:
        shape: (height, width, channels) of a sample.
        masks: the number of its boxes.
        left: how many samples can still be made.
        out: C-contiguous, room for m samples; the samples made are filled: uint8 (m, height, width, channels). With a
            table, or if the channels do not come last, they have the form of the kernel's `table` or `planes`.
        boxes: C-contiguous int32 (m, masks, 4), filled in the same way; None if there are no masks.
        table, channels_last: as for the kernel's `table`; without a table bytes stay bytes.

    Raises:
        ValueError: shapes or types do not fit.
    """
    (height, width, channels), m = shape, len(out)
    kind = np.dtype(np.uint8) if table is None else checked_table(table, channels).dtype
    expected = (m, height, width, channels) if channels_last else (m, channels, height, width)
    if out.dtype != kind or out.shape != expected or m > left:
        raise ValueError(f"{left} samples go to {kind} {expected}, got {out.dtype} {out.shape}")
    check_out(out)
    if masks:
        if boxes is None or boxes.dtype != np.int32 or boxes.shape != (m, masks, 4):
            raise ValueError(f"boxes of {m} samples are int32 ({m}, {masks}, 4)")
        check_out(boxes)
    return Samples(
        out=address(out), table=None if table is None else address(table), element_bytes=kind.itemsize,
        channels_last=channels_last, planes=table is None and not channels_last,
        boxes=address(boxes) if masks and boxes is not None else None,
    )  # fmt: skip
