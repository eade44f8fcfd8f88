"""Float32 operations that reproduce a table of 256 values a channel bit for bit, found from the table alone."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import torch
from torch import Tensor

__all__ = ["Arithmetic"]

_REACH = 8  # float32 steps to each side of an estimate


@dataclasses.dataclass(frozen=True, eq=False)
class Arithmetic:
    """((x * factor) or (x / divisor) - mean) / std, each step rounded to float32, as torchvision computes it.

    Attributes:
        multiply: whether ``scale`` multiplies (v2's ToDtype) or divides (ToTensor).
        scale: a number, None where bytes are taken as they are.
        mean: float32 (channels,), None if all are 0.
        std: float32 (channels,), None if all are 1.
    """

    multiply: bool
    scale: np.float32 | None
    mean: np.ndarray | None
    std: np.ndarray | None

    @staticmethod
    def find(table: np.ndarray) -> Arithmetic | None:
        """Operations for a float32 table (channels, 256), None if none of these give exactly its bits."""
        bytes_ = np.arange(256, dtype=np.float32)
        for multiply, scale in ((False, np.float32(255)), (True, np.float32(1.0 / 255)), (True, None)):
            base = bytes_ if scale is None else bytes_ * scale if multiply else bytes_ / scale
            constants = [_mean_and_std(base, row) for row in table]
            if all(pair is not None for pair in constants):
                mean, std = np.array(constants, dtype=np.float32).T.copy()
                return Arithmetic(multiply, scale, mean if mean.any() else None, std if (std != 1).any() else None)
        return None

    def run(self, source: np.ndarray, values: np.ndarray, mean: np.ndarray | None, std: np.ndarray | None) -> None:
        """Compute float32 ``values`` of bytes. ``mean`` and ``std`` have shapes that broadcast against them."""
        np.copyto(values, source)
        if self.scale is not None:
            (np.multiply if self.multiply else np.divide)(values, self.scale, out=values)
        if mean is not None:
            np.subtract(values, mean, out=values)
        if std is not None:
            np.divide(values, std, out=values)

    def run_on_device(self, values: Tensor) -> Tensor:
        """Change a float32 tensor (batch, channels, height, width) in place, on any device."""
        if values.device not in self._kept:
            self._kept[values.device] = self._constants(values.device)
        scale, mean, std = self._kept[values.device]
        if scale is not None:
            values = values.mul_(scale) if self.multiply else values.div_(scale)
        if mean is not None:
            values = values.sub_(mean)
        if std is not None:
            values = values.div_(std)
        return values

    @functools.cached_property
    def _kept(self) -> dict[torch.device, tuple[Tensor | None, Tensor | None, Tensor | None]]:
        """The constants on each device."""
        return {}

    def _constants(self, device: torch.device) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Scale, mean and std as tensors on the device: to divide by a Python number, a GPU multiplies by its reciprocal.

        They are made once, since each small copy would wait for the large copies before it.
        """
        constants = (None if self.scale is None else np.array([self.scale]), self.mean, self.std)
        scale, mean, std = (None if k is None else torch.from_numpy(k).to(device).view(1, -1, 1, 1) for k in constants)
        return scale, mean, std


def _mean_and_std(base: np.ndarray, row: np.ndarray) -> tuple[np.float32, np.float32] | None:
    """Constants with (base - mean) / std == row bit for bit, searched near the values that the row's two ends give."""
    if _same(base, row):
        return np.float32(0), np.float32(1)
    ends = row[[0, -1]].astype(np.float64)
    if not np.isfinite(ends).all() or ends[0] == ends[1]:
        return None
    std = (float(base[-1]) - float(base[0])) / (ends[1] - ends[0])
    means = _neighbours(np.float32(-ends[0] * std))
    stds = _neighbours(np.float32(std))
    with np.errstate(all="ignore"):
        tried = (base - means[:, None, None]) / stds[:, None]
    hits = np.argwhere((tried.view(np.int32) == row.view(np.int32)).all(axis=2))
    if not len(hits):
        return None
    first, second = hits[len(hits) // 2]
    return means[first], stds[second]


def _neighbours(value: np.float32) -> np.ndarray:
    """The value and the float32 numbers next to it; for zero, zero alone."""
    if value == 0:
        return np.zeros(1, dtype=np.float32)
    bits = np.float32(value).view(np.int32)
    return (bits + np.arange(-_REACH, _REACH + 1, dtype=np.int32)).view(np.float32)


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return bool((a.view(np.int32) == b.view(np.int32)).all())
