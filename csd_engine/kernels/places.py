"""Addresses of arrays, and checks that C may use them."""

from __future__ import annotations

import numpy as np

__all__ = ["address", "check_out", "checked_table"]


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
