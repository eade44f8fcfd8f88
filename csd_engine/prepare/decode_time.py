"""The processor time that Pillow may take to decode one image. An engine's workers limit it; a host has no limit.

A file of half a megabyte may keep Pillow busy for many seconds: a PNG of one colour, a JPEG of many scans. What takes an engine
longer goes back to its host, so that no sample depends on how fast somebody is.
"""

from __future__ import annotations

import io
import time
from typing import Optional

from PIL import Image

from csd_engine.data.image_files import FileBytes
from csd_engine.errors import LeftToHost

__all__ = ["in_small_steps", "limit_decoding", "stream_of"]

_AT_A_TIME = 8 << 10  # bytes that Pillow takes between two looks at the time; deflated, they may be 8 MB of pixels
_IN_STEPS = ("PNG", "JPEG", "MPO")  # the others' decoders take far less time, or get all bytes at once

_limit_s: Optional[float] = None


def limit_decoding(seconds: float) -> None:
    """Limit the processor seconds for an image from now on in this process, which makes one sample at a time."""
    global _limit_s
    _limit_s = seconds


class _TimedBytes(io.BytesIO):
    """The bytes of a file, read while it is decoded."""

    def __init__(self, data: bytes, limit_s: float) -> None:
        super().__init__(data)
        self._limit_s, self._until_s = limit_s, time.process_time() + limit_s

    def read(self, size: Optional[int] = -1) -> bytes:
        """Read as any file. Raises LeftToHost."""
        if time.process_time() > self._until_s:
            raise LeftToHost(f"decoding takes longer than the {self._limit_s:g} s that the engine allows an image")
        return super().read(size)


def stream_of(data: bytes) -> io.BytesIO:
    """Return the bytes as a file for Pillow. In a process with a limit its reads raise LeftToHost once the time is over."""
    return FileBytes(data) if _limit_s is None else _TimedBytes(data, _limit_s)


def in_small_steps(image: Image.Image) -> Image.Image:
    """Have Pillow look at the time often while it decodes this opened image, where there is a limit. Returns the image."""
    if _limit_s is not None and image.format in _IN_STEPS:
        image.decodermaxblock = _AT_A_TIME  # type: ignore[attr-defined]
    return image
