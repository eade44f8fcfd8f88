"""The kernel's calls for the samples of a batch, and that on many files: it opens, reads, draws, decodes and resamples."""

from __future__ import annotations

import ctypes
import os
from typing import NamedTuple, Optional, Sequence, Tuple

import numpy as np

from csd_engine.kernels.library import Job, Kernel
from csd_engine.kernels.places import Samples, Stopped, address, samples_to

__all__ = ["FilePlan", "Files", "Parts", "PlanOperator", "SampleCalls"]

_LARGE = 7  # DDLP_LARGE of src/ddlp.h
_ALL = (1 << 63) - 1
_MASK = (1 << 64) - 1


class _Operator(ctypes.Structure):
    """plan_operator of src/batch/plan.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("kind", "height", "width", "filter", "box")),
        *((name, ctypes.c_double) for name in ("chance", "low", "high", "ratio_low", "ratio_high", "log_low", "log_high")),
    ]


class _Plan(ctypes.Structure):
    """ddlp_plan of src/batch/plan.h."""

    _fields_ = [
        ("operators", ctypes.c_void_p),
        ("operator_count", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("channels", "boxes", "pillow13", "fast", "height", "width")),
    ]


class _FilesJob(ctypes.Structure):
    """ddlp_files_job of src/batch/files.h."""

    _fields_ = [
        ("plan", ctypes.c_void_p),
        ("seed", ctypes.c_uint64),
        ("epoch", ctypes.c_uint64),
        ("count", ctypes.c_int64),
        ("indices", ctypes.c_void_p),
        ("occurrences", ctypes.c_void_p),
        ("paths", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("parts", ctypes.c_void_p),
        ("shared", ctypes.c_void_p),
        ("upright", ctypes.c_void_p),
        ("beneath", ctypes.c_void_p),
        ("beneath_count", ctypes.c_int64),
        ("descriptors", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("ahead", "opened", "next", "end", "enough_ns")),
        *((name, ctypes.c_int64) for name in ("most_bytes", "most_pixels", "most_memory")),
        ("to", Samples),
        ("reading_ns", ctypes.c_int64),
    ]


class PlanOperator(NamedTuple):
    """One operator in the kernel's form; csd_engine.transforms.fileplan explains the fields."""

    kind: int
    height: int = 0
    width: int = 0
    filter: int = 0
    box: int = 0
    chance: float = 0.0
    low: float = 0.0
    high: float = 0.0
    ratio_low: float = 0.0
    ratio_high: float = 0.0
    log_low: float = 0.0
    log_high: float = 0.0


class FilePlan:
    """The operators that the kernel draws and runs for every file. Any thread may use it.

    Args:
        kernel: the library.
        operators: in turn.
        shape: (height, width, channels) of every sample, 1 or 3 channels.
        boxes: the number of boxes of a sample.
        pillow13: whether the resampling passes have Pillow 13's order.
        fast: decode="fast".
    """

    def __init__(
        self,
        kernel: Kernel,
        operators: Sequence[PlanOperator],
        shape: Tuple[int, int, int],
        boxes: int,
        pillow13: bool,
        fast: bool,
    ) -> None:
        self.kernel, self.shape, self.boxes = kernel, shape, boxes
        #: Pixels of a crop, at most.
        self.most_cropped = max((operator.height * operator.width for operator in operators), default=0)
        self._operators = (_Operator * len(operators))(*(_Operator(*operator) for operator in operators))
        self._plan = _Plan(
            ctypes.addressof(self._operators), len(operators), shape[2], boxes, pillow13, fast, shape[0], shape[1]
        )

    @property
    def pointer(self) -> int:
        """The plan's address for a job; valid while this object lives."""
        return ctypes.addressof(self._plan)

    def job(self, size: Tuple[int, int], key: Tuple[int, int, int, int]) -> Optional[Tuple[Job, np.ndarray]]:
        """Return the kernel's job and the boxes, int32 (boxes, 4), for one image. None: the image is left to Pillow.

        Args:
            size: the file's (width, height) in pixels.
            key: seed, epoch, index, occurrence.
        """
        job, boxes = Job(), np.empty((self.boxes, 4), dtype=np.int32)
        sizes, keys = (ctypes.c_int32 * 2)(*size), (ctypes.c_uint64 * 4)(*(number & _MASK for number in key))
        result = self.kernel.library.ddlp_plan_job(self.pointer, sizes, keys, ctypes.byref(job), address(boxes))
        return None if result else (job, boxes)


class SampleCalls:
    """The samples of one batch, made by calls of the kernel. It is for one thread.

    Args:
        plan: what to do with each image.
        job: the kernel's, for all its calls.
        count: of the images.
        seed, epoch: the key of an image's draws, together with its index and occurrence; all modulo 2**64.
        indices, occurrences: int64 (count,).
    """

    def __init__(
        self,
        plan: FilePlan,
        job: ctypes.Structure,
        count: int,
        seed: int,
        epoch: int,
        indices: np.ndarray,
        occurrences: np.ndarray,
    ) -> None:
        self._plan, self._job, self._count = plan, job, count
        self._indices, self._occurrences = (np.ascontiguousarray(v, dtype=np.int64) for v in (indices, occurrences))
        if self._indices.shape != (count,) or self._occurrences.shape != (count,):
            raise ValueError(f"{count} images need as many indices and occurrences: {indices.shape} and {occurrences.shape}")
        job.plan, job.seed, job.epoch = plan.pointer, seed & _MASK, epoch & _MASK
        job.indices, job.occurrences = address(self._indices), address(self._occurrences)

    def make(
        self,
        first: int,
        out: np.ndarray,
        boxes: Optional[np.ndarray],
        enough_s: float,
        table: Optional[np.ndarray] = None,
        channels_last: bool = True,
    ) -> Stopped:
        """Make the samples from ``first`` on: as many as the time allows, at least one.

        Args:
            first: the image whose turn it is; they go in order.
            out, boxes, table, channels_last: as for `samples_to`.
            enough_s: seconds after which no further image is begun.

        Raises:
            ValueError: shapes or types do not fit.
        """
        job, plan = self._job, self._plan
        if not 0 <= first <= self._count:
            raise ValueError(f"image {first} of {self._count}")
        job.to = samples_to(plan.shape, plan.boxes, self._count - first, out, boxes, table, channels_last)
        job.next, job.end, job.enough_ns = first, first + len(out), max(1, int(enough_s * 1e9))
        return self._stopped(plan.kernel)

    def _stopped(self, kernel: Kernel) -> Stopped:
        """Call the kernel with the job."""
        raise NotImplementedError


class Parts(NamedTuple):
    """Where samples lie in files. Each array has one element for every sample.

    Attributes:
        offsets: bytes, int64.
        sizes: bytes, int64; -1: up to the file's end.
        descriptors: int32, of the file, which stays open; -1: the kernel opens it by its path, and closes it.
        upright: int32; 1: the kernel refuses the image if its EXIF orientation may turn it.
    """

    offsets: np.ndarray
    sizes: np.ndarray
    descriptors: np.ndarray
    upright: np.ndarray


class Files(SampleCalls):
    """The files of one batch. Call `close` at the end.

    Args:
        plan: what to do with each file.
        paths: of the files, without a NUL.
        parts: where the samples lie in the files at these paths; None: each sample is a whole file.
        seed, epoch, indices, occurrences: as for `SampleCalls`.
        ahead: how many files are opened before their turn.
        most_bytes: the limit for a file or part; a larger one is refused.
        most_pixels: the limit for an image; a larger one is refused.
        most_memory: an image is refused if its coefficients are in memory all at once, and take so many bytes or more.
        beneath: real directories; a file that really lies outside all of them is refused. None: any place is allowed.
    """

    def __init__(
        self,
        plan: FilePlan,
        paths: Sequence[bytes],
        parts: Optional[Parts],
        seed: int,
        epoch: int,
        indices: np.ndarray,
        occurrences: np.ndarray,
        ahead: int,
        most_bytes: int,
        most_pixels: Optional[int] = None,
        most_memory: Optional[int] = None,
        beneath: Optional[Sequence[str]] = None,
    ) -> None:
        n = len(paths)
        self._paths = (ctypes.c_char_p * n)(*paths)
        self._descriptors, self._sizes = np.full(n, -1, dtype=np.int32), np.zeros(n, dtype=np.int64)
        job = _FilesJob(
            count=n, paths=ctypes.addressof(self._paths), descriptors=address(self._descriptors), sizes=address(self._sizes),
            ahead=ahead, most_bytes=most_bytes, most_pixels=_ALL if most_pixels is None else most_pixels,
            most_memory=_ALL if most_memory is None else most_memory,
        )  # fmt: skip
        super().__init__(plan, job, n, seed, epoch, indices, occurrences)
        self._parts: Optional[Parts] = None
        if parts is not None:
            self._parts = Parts(
                np.ascontiguousarray(parts.offsets, dtype=np.int64),
                np.ascontiguousarray(parts.sizes, dtype=np.int64),
                np.ascontiguousarray(parts.descriptors, dtype=np.int32),
                np.ascontiguousarray(parts.upright, dtype=np.int32),
            )
            if any(column.shape != (n,) for column in self._parts):
                raise ValueError(f"{n} files need as many of each column of parts")
            self._job.offsets, self._job.parts, self._job.shared, self._job.upright = map(address, self._parts)
        self._job.beneath_count = -1
        if beneath is not None:
            self._beneath = (ctypes.c_char_p * len(beneath))(*(os.fsencode(root.rstrip("/") + "/") for root in beneath))
            self._job.beneath, self._job.beneath_count = ctypes.addressof(self._beneath), len(beneath)

    def _stopped(self, kernel: Kernel) -> Stopped:
        job = self._job
        job.reading_ns = 0
        result = kernel.library.ddlp_files(kernel.context().pointer, ctypes.byref(job))
        read = result > 0 and result != _LARGE
        return Stopped(job.next, result != 0, read, job.reading_ns * 1e-9)

    def upright(self, position: int) -> bool:
        """Tell whether this sample's image must be turned by its EXIF orientation."""
        return self._parts is not None and bool(self._parts.upright[position])

    def content(self) -> bytes:
        """Return the bytes of the file at which the last call stopped, if it has ``read`` them."""
        return self._plan.kernel.context().content()

    def close(self) -> None:
        """Close the files that were opened before their turn."""
        for descriptor in self._descriptors[self._descriptors >= 0].tolist():
            os.close(descriptor)
        self._descriptors[:] = -1
