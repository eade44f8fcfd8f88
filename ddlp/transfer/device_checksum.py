"""The batch file's checksum (`csd_engine.batchfile.checksum`), computed by an accelerator with integer operations."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from csd_engine.batchfile.checksum import BLOCK_BYTES, MULTIPLIER

__all__ = ["padded", "sum_blocks"]

_PART = 4096  # blocks at a time, 64 MiB: so much memory is needed besides the data


def padded(count: int) -> int:
    """Round a number of bytes up to a whole number of the checksum's blocks."""
    return -(-count // BLOCK_BYTES) * BLOCK_BYTES


def sum_blocks(data: Tensor) -> Tensor:
    """The sum of all blocks, int32 (BLOCK_BYTES / 4,) on the data's device, for `csd_engine.batchfile.checksum.digest`.

    Horner's rule written out: ``sum(block_i * M ** (n - 1 - i))`` mod 2**32, one multiplication a word.

    Args:
        data: uint8 (n * BLOCK_BYTES,), contiguous, the last block padded with zeros. Not changed.
    """
    blocks = data.view(torch.int32).view(-1, BLOCK_BYTES // 4)
    total = torch.zeros(BLOCK_BYTES // 4, dtype=torch.int32, device=data.device)
    for part in blocks.split(_PART):
        powers = _powers(len(part), data.device)
        if part.data_ptr() != blocks.data_ptr():
            total *= _as_int32(pow(MULTIPLIER, len(part), 1 << 32))
        # The lowest 32 bits are the same, whether 64 bits are summed or 32.
        total += (part * powers).sum(0, dtype=torch.int32)
    return total


@functools.cache
def _powers(count: int, device: torch.device) -> Tensor:
    """M ** (count - 1), ..., M, 1 as int32 (count, 1): 16 KB at most, for each size of a spool's files.

    The tensor is never freed. Otherwise the stream on which it was made could use its memory again while another loader's
    stream still reads it.
    """
    powers = np.ones(count, np.uint32)
    powers[1:] = MULTIPLIER
    falling = np.multiply.accumulate(powers, dtype=np.uint32)[::-1].copy()
    return torch.from_numpy(falling.view(np.int32))[:, None].to(device)


def _as_int32(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value
