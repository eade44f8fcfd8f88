"""The kernel's C interface (src/ddlp.h) through ctypes, which releases the GIL during each call."""

from __future__ import annotations

import ctypes
import errno
import os
import shlex
import threading
from typing import Any, ClassVar, Optional, Tuple

import numpy as np

from csd_engine.kernels.arrays import ArrayCalls
from csd_engine.kernels.build import LIBRARY, KernelError
from csd_engine.kernels.places import address
from csd_engine.kernels.steps import PackedSteps
from csd_engine.kernels.windows import Windows

__all__ = ["Context", "Job", "Kernel", "rebuild"]

ABI = 14  # DDLP_ABI of src/ddlp.h
_REFUSALS = {
    1: "there is no libjpeg",
    2: "no JPEG with a plain header",
    3: "a kind of JPEG that is left to Pillow",
    4: "damaged",
    5: "the job does not fit the image",
    6: "a step does not fit the image",
}
_JOB_NUMBERS = (
    "left",
    "top",
    "width",
    "height",
    "full_width",
    "full_height",
    "filter",
    "out_left",
    "out_top",
    "out_width",
    "out_height",
    "flip_horizontal",
    "flip_vertical",
    "vertical_first",
    "reduce",
    "channels",
)


class Job(ctypes.Structure):
    """What to do with one image: crop, resize, keep a part, flip. It is ddlp_job of src/ddlp.h, which explains each field.

    It takes keywords: `Job(left=8, top=0, width=64, height=64, full_width=32, ...)`. Fields that are not named are 0.
    `Context.sample` sets `out` and `out_stride`.
    """

    _fields_: ClassVar = [
        *((name, ctypes.c_int32) for name in _JOB_NUMBERS),
        ("out", ctypes.c_void_p),
        ("out_stride", ctypes.c_int64),
    ]


def _raise(result: int) -> None:
    """Raise an error for a negative result: there is no memory, or the file can't be read."""
    if result < 0:
        raise MemoryError("the kernel got no memory") if result == -errno.ENOMEM else OSError(-result, os.strerror(-result))


class Context:
    """One thread's decoder and buffers, kept from image to image. Two threads must not use it at once."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._free = library.ddlp_free
        self._info = (ctypes.c_int32 * 4)()
        self._pointer = library.ddlp_new()
        if not self._pointer:
            raise MemoryError("the kernel got no memory")
        self.refusal = 0  #: why the last call refused, a number of ddlp_refusal in src/ddlp.h

    @property
    def pointer(self) -> int:
        """The context's address for the library's functions; valid while this object lives."""
        return int(self._pointer)

    def __del__(self) -> None:
        pointer, self._pointer = getattr(self, "_pointer", None), None
        if pointer:
            self._free(pointer)

    def read(self, descriptor: int, size: int, offset: int = 0) -> Optional[Tuple[int, int]]:
        """Read `size` bytes of an open file, from `offset` on.

        Returns:
            (width, height) in pixels from the JPEG's header; None: the file is left to Pillow, which can use `content`.

        Raises:
            OSError: the file can't be read.
        """
        return self._size(self._library.ddlp_read(self._pointer, descriptor, offset, size, self._info))

    def take(self, data: bytes) -> Optional[Tuple[int, int]]:
        """Do the same as `read` with bytes in memory, which are copied."""
        return self._size(self._library.ddlp_take(self._pointer, data, len(data), self._info))

    def _size(self, result: int) -> Optional[Tuple[int, int]]:
        _raise(result)
        self.refusal = result
        return None if result else (self._info[0], self._info[1])

    @property
    def components(self) -> int:
        """The components of the image last read or taken: 1 (grey) or 3."""
        return self._info[2]

    @property
    def several_scans(self) -> bool:
        """Whether decoding the image last read or taken needs memory for the whole image. Mostly it is a progressive one."""
        return self._info[3] != 0

    @property
    def turned(self) -> bool:
        """Whether the JPEG last read or taken may have an orientation other than upright; Pillow must then check it."""
        return bool(self._library.ddlp_turned(self._pointer))

    @property
    def own_entropy(self) -> bool:
        """Whether one of our entropy decoders has read the last sample. If not, libjpeg's has."""
        return bool(self._library.ddlp_own_entropy(self._pointer))

    def content(self) -> bytes:
        """Return the bytes last read or taken: all of the file, or fewer if it ended early."""
        size = ctypes.c_int64()
        place = self._library.ddlp_content(self._pointer, ctypes.byref(size))
        return ctypes.string_at(place, size.value) if size.value else b""

    def sample(self, job: Job, out: np.ndarray) -> bool:
        """Decode, resample and flip the image last read or taken.

        Args:
            job: what to do; this call sets its `out` and `out_stride`.
            out: uint8 (job.out_height, job.out_width, job.channels); there may be gaps between rows.

        Returns:
            False: the image is left to Pillow (`refusal` tells why); the content of `out` is then undefined.

        Raises:
            ValueError: `out` does not fit the job.
        """
        _fit(job, out)
        self.refusal = result = self._library.ddlp_sample(self._pointer, job)
        if result < 0:
            _raise(result)
        return not result

    def resample(self, pixels: np.ndarray, job: Job, out: np.ndarray) -> bool:
        """Do the job as `sample` on an image in memory, uint8 (height, width, channels); there may be gaps between rows.

        Raises:
            ValueError: `out` or the crop does not fit.
        """
        _fit(job, out)
        height, width = _check_pixels(pixels, job.channels)
        if min(job.left, job.top) < 0 or job.left + job.width > width or job.top + job.height > height:
            raise ValueError(f"crop {job.width}x{job.height} at ({job.left}, {job.top}) is not inside {width}x{height}")
        place = address(pixels)
        self.refusal = result = self._library.ddlp_resample(self._pointer, place, pixels.strides[0], job)
        if result < 0:
            _raise(result)
        return not result

    def steps(self, pixels: np.ndarray, steps: PackedSteps, out: np.ndarray) -> bool:
        """Run steps on an image in memory. The image itself does not change.

        Args:
            pixels: C-contiguous uint8 (height, width, channels), 1 or 3 channels.
            steps: one after the other.
            out: uint8, the result's (height, width, channels); there may be gaps between rows.

        Returns:
            False: a step does not fit the image, or the result has another size; the content of `out` is then undefined.

        Raises:
            ValueError: an array is of another kind.
        """
        height, width = _check_pixels(pixels, pixels.shape[-1])
        made_height, made_width = _check_pixels(out, out.shape[-1])
        if not pixels.flags.c_contiguous or not out.flags.writeable:
            raise ValueError("the image must lie in one piece, and the result must be writable")
        size = (ctypes.c_int32 * 3)(width, height, pixels.shape[2])
        out_size = (ctypes.c_int32 * 3)(made_width, made_height, out.shape[2])
        self.refusal = result = self._library.ddlp_steps(
            self._pointer, address(pixels), size, steps.pointer, steps.count, address(out), out_size, out.strides[0]
        )
        if result < 0:
            _raise(result)
        return not result

    def why(self) -> str:
        """Return in words why the last call refused."""
        return _REFUSALS.get(self.refusal, "")


def _check_pixels(pixels: np.ndarray, channels: int) -> Tuple[int, int]:
    """Return (height, width); raises ValueError if the array's layout is not one that C can handle."""
    if (
        pixels.dtype != np.uint8
        or pixels.ndim != 3
        or pixels.shape[2] != channels
        or pixels.strides[2] != 1
        or pixels.strides[1] != channels
        or pixels.strides[0] < 0
    ):
        raise ValueError(
            f"expected uint8 (height, width, {channels}) with rows in one piece, "
            f"got {pixels.dtype} {pixels.shape} with strides {pixels.strides}"
        )
    return pixels.shape[0], pixels.shape[1]


def _fit(job: Job, out: np.ndarray) -> None:
    """Check that `out` fits the job, and make the job write there."""
    if _check_pixels(out, job.channels) != (job.out_height, job.out_width) or not out.flags.writeable:
        raise ValueError(f"the job makes {job.out_height}x{job.out_width}, the array is {out.shape}, to be writable")
    job.out = address(out)
    job.out_stride = out.strides[0]


def rebuild(path: str) -> str:
    """Return the command that builds the library at `path` again."""
    there = "" if path == LIBRARY else f" --output {shlex.quote(path)}"
    return f"python -m csd_engine.kernels.build{there}"


class Kernel(ArrayCalls):
    """The loaded library.

    Raises:
        KernelError: it can't be loaded, has another version, or the image library (with Pillow's libjpeg) is not usable.

    Args:
        path: the shared library.
        image_library: a file that is linked with libjpeg: Pillow's extension module.
    """

    def __init__(self, path: str, image_library: str) -> None:
        self.path = path
        try:
            self._library = ctypes.CDLL(path)
            self._declare()
            abi = self._library.ddlp_abi()
        except (OSError, AttributeError) as error:
            raise KernelError(f"{path} cannot be loaded: {error}. Build it again: {rebuild(path)}") from error
        if abi != ABI:
            raise KernelError(f"{path} has version {abi}, needed is {ABI}. Build it again: {rebuild(path)}")
        result = self._library.ddlp_use_jpeg(os.fsencode(image_library))
        if result < 0:
            raise KernelError(f"Pillow's libjpeg cannot be loaded through {ascii(image_library)}: {os.strerror(-result)}")
        if result:
            raise KernelError(
                f"Pillow's libjpeg (through {image_library}) is not libjpeg-turbo 1.5 or newer with the interface 6.2 or 8. "
                "Install Pillow from its own project's wheels"
            )
        self._threads = threading.local()

    def _declare(self) -> None:
        pointer, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
        job = ctypes.POINTER(Job)
        for name, result, arguments in (
            ("ddlp_abi", number, []),
            ("ddlp_sources", ctypes.c_char_p, []),
            ("ddlp_made", ctypes.c_char_p, []),
            ("ddlp_variant", ctypes.c_char_p, []),
            ("ddlp_choose", number, [ctypes.c_char_p]),
            ("ddlp_use_jpeg", number, [ctypes.c_char_p]),
            ("ddlp_new", pointer, []),
            ("ddlp_free", None, [pointer]),
            ("ddlp_read", number, [pointer, number, size, size, pointer]),
            ("ddlp_take", number, [pointer, ctypes.c_char_p, size, pointer]),
            ("ddlp_content", pointer, [pointer, pointer]),
            ("ddlp_turned", number, [pointer]),
            ("ddlp_own_entropy", number, [pointer]),
            ("ddlp_sample", number, [pointer, job]),
            ("ddlp_resample", number, [pointer, pointer, size, job]),
            ("ddlp_steps", number, [pointer, pointer, pointer, ctypes.c_char_p, size, pointer, pointer, size]),
            ("ddlp_windows", number, [pointer]),
            ("ddlp_plan_job", number, [pointer, pointer, pointer, job, pointer]),
            ("ddlp_files", number, [pointer, pointer]),
            ("ddlp_pixels", number, [pointer, pointer]),
        ):
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
        self._declare_arrays()

    @property
    def library(self) -> ctypes.CDLL:
        """The library's functions, for the part of the interface in files.py."""
        return self._library

    @property
    def sources(self) -> str:
        """`sources_hash` of the sources that it was built from; empty: not known."""
        return str(self._library.ddlp_sources().decode())

    @property
    def made(self) -> str:
        """How it was made: "compiled with gcc 12.2.0"."""
        return str(self._library.ddlp_made().decode())

    @property
    def variant(self) -> str:
        """The instruction set of the inner loops on this processor: "vnni" (AVX-512), "avx2", "sse2", "neon" or "c"."""
        return str(self._library.ddlp_variant().decode())

    def choose(self, variant: str) -> bool:
        """Force a variant, for tests; False: this processor does not have it. No other thread may use the kernel meanwhile."""
        return self._library.ddlp_choose(variant.encode()) == 0

    def windows(self, *arguments: Any, **options: Any) -> Windows:
        """Return the `Windows` of an array. That class explains the arguments."""
        return Windows(self._library, *arguments, **options)

    def context(self) -> Context:
        """Return this thread's context; it is freed with the thread."""
        try:
            return self._threads.context
        except AttributeError:
            self._threads.context = Context(self._library)
            return self._threads.context
