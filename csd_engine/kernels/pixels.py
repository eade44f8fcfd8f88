"""The kernel's call on many images in memory: it draws, resamples, and converts to a type."""

from __future__ import annotations

import ctypes
from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from csd_engine.kernels.files import FilePlan, SampleCalls
from csd_engine.kernels.library import Kernel
from csd_engine.kernels.places import Samples, Stopped, address

__all__ = ["Pixels", "PixelSamples"]

_IMAGE = np.dtype(
    [("first", "u8"), ("row", "i8"), ("pixel", "i8"), ("channel", "i8"), ("width", "i4"), ("height", "i4"),
     ("channels", "i4"), ("unused", "i4")]
)  # fmt: skip
"""ddlp_image of src/batch/pixels.h."""


class Pixels(NamedTuple):
    """Images in memory. Each has its own size; the strides may be any.

    Attributes:
        images: one element for each image, in the kernel's form.
        arrays: whose memory it is, kept alive.
    """

    images: np.ndarray
    arrays: Tuple[np.ndarray, ...]

    @staticmethod
    def of_rows(rows: np.ndarray, indices: np.ndarray) -> Optional[Pixels]:
        """Return rows of one array; None if one of them does not exist.

        Args:
            rows: uint8 (n, height, width) or (n, height, width, 3).
            indices: int64.
        """
        if len(indices) and int(indices.view(np.uint64).max()) >= len(rows):  # a negative one becomes very large
            return None
        _, height, width, channels = rows.shape if rows.ndim == 4 else (*rows.shape, 1)
        strides = rows.strides if rows.ndim == 4 else (*rows.strides, 1)
        images = np.zeros(len(indices), _IMAGE)
        images["first"] = (address(rows) + indices * strides[0]).view(np.uint64)
        images["row"], images["pixel"], images["channel"] = strides[1:]
        images["width"], images["height"], images["channels"] = width, height, channels
        return Pixels(images, (rows,))

    @staticmethod
    def packed(
        first: np.ndarray, height: np.ndarray, width: np.ndarray, channels: int, arrays: Tuple[np.ndarray, ...]
    ) -> Pixels:
        """Return images that lie without gaps, each at an address.

        Args:
            first: uint64 (n,), the address of each first pixel.
            height, width: int (n,).
            channels: 1 or 3.
            arrays: whose memory it is.
        """
        images = np.zeros(len(first), _IMAGE)
        images["first"], images["pixel"], images["channel"], images["channels"] = first, channels, 1, channels
        images["row"], images["width"], images["height"] = width * channels, width, height
        return Pixels(images, arrays)

    def array(self, number: int) -> np.ndarray:
        """Return an image that lies without gaps, read-only uint8 (height, width[, 3]); keep this object as long."""
        image = self.images[number]
        height, width, channels = int(image["height"]), int(image["width"]), int(image["channels"])
        memory = (ctypes.c_uint8 * (height * width * channels)).from_address(int(image["first"]))
        pixels = np.frombuffer(memory, np.uint8).reshape((height, width) if channels == 1 else (height, width, channels))
        pixels.flags.writeable = False
        return pixels

    @staticmethod
    def of_parts(
        starts: Sequence[int], pixels: Callable[[int, np.ndarray], Optional[Pixels]], indices: np.ndarray
    ) -> Optional[Pixels]:
        """Return samples of several parts; None if one of these samples does not exist or is not in memory.

        Args:
            starts: the first index of each part, in order, and the number of all samples.
            pixels: of samples of one part, from its number and their indices in it.
            indices: int64, through all parts.
        """
        if len(indices) and int(indices.view(np.uint64).max()) >= starts[-1]:
            return None
        images = np.zeros(len(indices), _IMAGE)
        arrays: List[np.ndarray] = []
        part_of = np.searchsorted(starts, indices, side="right") - 1
        for part in sorted(set(part_of.tolist())):  # np.unique imports numpy.ma, which no thread of a host may do
            places = np.flatnonzero(part_of == part)
            part_pixels = pixels(part, indices[places] - starts[part])
            if part_pixels is None:
                return None
            images[places] = part_pixels.images
            arrays += part_pixels.arrays
        return Pixels(images, tuple(arrays))


class _PixelsJob(ctypes.Structure):
    """ddlp_pixels_job of src/batch/pixels.h."""

    _fields_ = [
        ("plan", ctypes.c_void_p),
        ("seed", ctypes.c_uint64),
        ("epoch", ctypes.c_uint64),
        ("images", ctypes.c_void_p),
        ("indices", ctypes.c_void_p),
        ("occurrences", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("next", "end", "enough_ns")),
        ("to", Samples),
    ]


class PixelSamples(SampleCalls):
    """The samples of one batch, made of images in memory.

    Args:
        plan, seed, epoch, indices, occurrences: as for `SampleCalls`.
        pixels: of each sample.
    """

    def __init__(
        self, plan: FilePlan, pixels: Pixels, seed: int, epoch: int, indices: np.ndarray, occurrences: np.ndarray
    ) -> None:
        self._pixels = pixels
        job = _PixelsJob(images=address(pixels.images))
        super().__init__(plan, job, len(pixels.images), seed, epoch, indices, occurrences)

    def _stopped(self, kernel: Kernel) -> Stopped:
        result = kernel.library.ddlp_pixels(kernel.context().pointer, ctypes.byref(self._job))
        return Stopped(self._job.next, result != 0)
