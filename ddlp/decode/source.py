"""The bytes of a JPEG that is not decoded yet. The kernel makes the image from them, or Pillow if the kernel declines."""

from __future__ import annotations

import io
import threading
import time
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from csd_engine.kernels import kernel
from csd_engine.kernels.library import Kernel
from csd_engine.transforms.compiled import compile_steps
from csd_engine.transforms.primitives import Crop, Flip, Primitive, Resize, apply_primitive
from csd_engine.transforms.resample import native_order
from ddlp.decode.savings import COUNTING

__all__ = ["Chain", "Source", "read_source"]

_MOST_BYTES = 64 << 20  # of a file that is kept in memory; a larger one is decoded at once, as Pillow does
_LOOKS_AT_PARTS = 2  # so many times only a part is decoded; then the whole image is, once, since crops of one image overlap
_CHANNELS = {"RGB": 3, "L": 1}
_END = b"\xff\xd9"


class Source:
    """A JPEG file's bytes.

    Args:
        data: the whole file.
        file: the image as Pillow has opened it, at the size that its ``draft`` has chosen.
    """

    def __init__(self, data: bytes, file: JpegImageFile) -> None:
        self.size = file.size
        self.mode = file.mode
        self.lock = threading.RLock()
        self._data = data
        self._filename = file.filename
        self._tile = list(file.tile)
        self._config = file.decoderconfig
        self._reduce = file.decoderconfig[0] if file.decoderconfig else 1
        self._looks = 0
        self._both_ways: bool | None = None  # whether Pillow does the work too, to measure it; None: not decided
        self._decoded: Image.Image | None = None  # by Pillow, for that
        self._whole: dict[int, np.ndarray] = {}  # by channels

    def make(self, mode: str, steps: tuple[Primitive, ...]) -> np.ndarray | Image.Image:
        """Decode, convert to ``mode`` and do the steps.

        Returns:
            The kernel's array, uint8 (height, width, channels), or Pillow's image if Pillow has done some of the work.

        Raises:
            OSError and others: Pillow's own errors, if Pillow can't decode the file either.
        """
        if self._both_ways is None:
            self._both_ways = COUNTING.counter is not None and COUNTING.counter.image()
        if not self._both_ways or COUNTING.counter is None:
            return self._make(mode, steps)
        began_s = time.thread_time()
        pixels = self._make(mode, steps)
        made_s = time.thread_time()
        if self._decoded is None:
            self._decoded = self._by_pillow(self.mode, ())
        _finished(self._decoded if self.mode == mode else self._decoded.convert(mode), steps)
        COUNTING.counter.took(made_s - began_s, time.thread_time() - made_s)
        return pixels

    def _make(self, mode: str, steps: tuple[Primitive, ...]) -> np.ndarray | Image.Image:
        library = kernel()
        pixels = None if library is None else self._by_kernel(library, mode, steps)
        return self._by_pillow(mode, steps) if pixels is None else pixels

    def _by_kernel(self, library: Kernel, mode: str, steps: tuple[Primitive, ...]) -> np.ndarray | Image.Image | None:
        context, channels = library.context(), _CHANNELS[mode]
        taken = context.take(self._data)
        if taken is None:
            return None
        with self.lock:
            self._looks += 1
            whole = self._whole.get(channels)
            if whole is None and self._looks > _LOOKS_AT_PARTS:
                job, _ = compile_steps((), taken, self._reduce, native_order(), channels)
                whole = np.empty((job.out_height, job.out_width, channels), np.uint8)
                if not context.sample(job, whole):
                    return None
                self._whole[channels] = whole
        job, rest = compile_steps(steps, taken, self._reduce, native_order(), channels)
        out = np.empty((job.out_height, job.out_width, channels), np.uint8)
        if not (context.sample(job, out) if whole is None else context.resample(whole, job, out)):
            return None
        return _finished(to_image(out), rest) if rest else out

    def _by_pillow(self, mode: str, steps: tuple[Primitive, ...]) -> Image.Image:
        file = JpegImageFile(io.BytesIO(self._data), self._filename)
        file.tile, file.decoderconfig, file._size = list(self._tile), self._config, self.size
        file.load()
        return _finished(file if file.mode == mode else file.convert(mode), steps)


@dataclass(frozen=True)
class Chain:
    """The work to do on a source: convert it to ``mode``, then do the steps. ``size``: (width, height) of the result."""

    source: Source
    mode: str
    size: tuple[int, int]
    steps: tuple[Primitive, ...] = ()

    def then(self, *steps: Crop | Resize | Flip) -> Chain:
        """Return the same chain with more steps at its end."""
        size = self.size
        for step in steps:
            size = size if isinstance(step, Flip) else (step.width, step.height)
        return Chain(self.source, self.mode, size, (*self.steps, *steps))

    def converted(self, mode: str) -> Chain:
        """Return the same chain in another mode. For a grey image in RGB, each channel gets what the one would have become."""
        return Chain(self.source, mode, self.size, self.steps)

    def make(self) -> np.ndarray | Image.Image:
        """Do the same as `Source.make`."""
        return self.source.make(self.mode, self.steps)


def to_image(pixels: np.ndarray) -> Image.Image:
    """Return the image for an array, uint8 (height, width, channels)."""
    height, width, channels = pixels.shape
    return Image.frombytes("RGB" if channels == 3 else "L", (width, height), pixels)


def _finished(image: Image.Image, steps: tuple[Primitive, ...]) -> Image.Image:
    for step in steps:
        image = apply_primitive(image, step, native_order())
    return image


def read_source(file: JpegImageFile) -> Source | None:
    """Return the bytes of an image that Pillow has opened and not read yet. None: Pillow must decode it now.

    It is None for a file that the kernel does not decode, and for a file that breaks off: its error then comes where Pillow
    raises it. The whole file is read, both for a file object that was given to Pillow and for one that Pillow has opened.
    Neither is closed.
    """
    stream: Any = file.fp
    library = kernel()
    if library is None or stream is None or file.mode not in _CHANNELS or len(file.tile) != 1:
        return None
    codec, extents, offset, arguments = file.tile[0]
    if (codec, extents, offset, arguments) != ("jpeg", (0, 0, *file.size), 0, (file.mode, "")):
        return None
    data = _content(stream)
    if data is None:
        return None
    context = library.context()
    size, reduce = context.take(data), file.decoderconfig[0] if file.decoderconfig else 1
    if size is None or context.components != _CHANNELS[file.mode]:
        return None
    if tuple(-(-length // reduce) for length in size) != file.size:
        return None
    return Source(data, file)


def _content(stream: IO[bytes]) -> bytes | None:
    """Return all bytes of a file, if its image has an end marker.

    None: the file is too large or breaks off, or the stream raises an error, which Pillow will meet again. A missing end marker
    is nearly the only damage in a scan that Pillow reports as an error.
    """
    try:
        scan = stream.tell()  # Pillow has read up to there
        if stream.seek(0, io.SEEK_END) > _MOST_BYTES:
            return None
        stream.seek(0)
        data = stream.read()
    except Exception:  # a file object of the user's may raise anything
        return None
    return data if type(data) is bytes and data.rfind(_END, scan) >= 0 else None
