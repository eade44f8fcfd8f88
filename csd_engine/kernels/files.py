"""The kernel's call on many files of a data set: opened ahead, read, drawn for, decoded, resampled, brought to a type."""

from __future__ import annotations

import ctypes
import os
from typing import NamedTuple, Optional, Sequence, Tuple

import numpy as np

from csd_engine.kernels.library import Job, Kernel
from csd_engine.kernels.places import address, check_out, checked_table

__all__ = ["FilePlan", "Files", "PlanOperator", "Stopped"]

_LARGE = 7  # DDLP_LARGE of src/ddlp.h
_ALL = (1 << 63) - 1
_MASK = (1 << 64) - 1


class _Operator(ctypes.Structure):
    """plan_operator of src/plan.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("kind", "height", "width", "filter", "box")),
        *((name, ctypes.c_double) for name in ("chance", "low", "high", "ratio_low", "ratio_high", "log_low", "log_high")),
    ]


class _Plan(ctypes.Structure):
    """ddlp_plan of src/plan.h."""

    _fields_ = [
        ("operators", ctypes.c_void_p),
        ("operator_count", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("channels", "boxes", "pillow13", "fast", "height", "width")),
    ]


class _FilesJob(ctypes.Structure):
    """ddlp_files_job of src/files.h."""

    _fields_ = [
        ("plan", ctypes.c_void_p),
        ("seed", ctypes.c_uint64),
        ("epoch", ctypes.c_uint64),
        ("count", ctypes.c_int64),
        ("indices", ctypes.c_void_p),
        ("occurrences", ctypes.c_void_p),
        ("paths", ctypes.c_void_p),
        ("beneath", ctypes.c_void_p),
        ("beneath_count", ctypes.c_int64),
        ("descriptors", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("ahead", "opened", "next", "end", "enough_ns")),
        *((name, ctypes.c_int64) for name in ("most_bytes", "most_pixels", "most_memory")),
        ("out", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("element_bytes", ctypes.c_int32),
        ("channels_last", ctypes.c_int32),
        ("planes", ctypes.c_int32),
        ("boxes", ctypes.c_void_p),
        ("reading_ns", ctypes.c_int64),
    ]


class PlanOperator(NamedTuple):
    """One operator as the kernel draws it; csd_engine.transforms.fileplan explains the fields."""

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
    """What is drawn and done for every file. Any thread may use it.

    Args:
        kernel: the library.
        operators: in turn.
        shape: (height, width, channels) of every sample, 1 or 3 channels.
        boxes: of a sample's masks.
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
        self._operators = (_Operator * len(operators))(*(_Operator(*operator) for operator in operators))
        self._plan = _Plan(
            ctypes.addressof(self._operators), len(operators), shape[2], boxes, pillow13, fast, shape[0], shape[1]
        )

    @property
    def pointer(self) -> int:
        """For a job; valid while this object lives."""
        return ctypes.addressof(self._plan)

    def job(self, size: Tuple[int, int], key: Tuple[int, int, int, int]) -> Optional[Tuple[Job, np.ndarray]]:
        """What comes of one image: the kernel's job and its boxes, int32 (boxes, 4). None: that is left to Pillow.

        Args:
            size: the file's (width, height) in pixels.
            key: seed, epoch, index, occurrence.
        """
        made, boxes = Job(), np.empty((self.boxes, 4), dtype=np.int32)
        sizes, keys = (ctypes.c_int32 * 2)(*size), (ctypes.c_uint64 * 4)(*(number & _MASK for number in key))
        result = self.kernel.library.ddlp_plan_job(self.pointer, sizes, keys, ctypes.byref(made), address(boxes))
        return None if result else (made, boxes)


class Stopped(NamedTuple):
    """How far a call went.

    Attributes:
        next: the first file whose sample was not made.
        refused: it is not the kernel's; else there was no time or no room.
        read: `Files.content` has its bytes, and it is Pillow's; else it cannot be read, or decoding it takes too much memory.
        reading_s: what opening and reading took, seconds.
    """

    next: int
    refused: bool
    read: bool
    reading_s: float


class Files:
    """The files of one batch. For one thread; `close` it.

    Args:
        plan: what to do with each.
        paths: of the files, without a NUL.
        seed, epoch: with each file's index and occurrence the key of its draws; all modulo 2**64.
        indices, occurrences: int64 (n,).
        ahead: so many files are opened before their turn.
        most_bytes, most_pixels, most_memory: of a file, of its image, and for decoding one whose coefficients are in memory all
            at once; those beyond are refused.
        beneath: real directories; a file that really lies outside all of them is refused. None: any.
    """

    def __init__(
        self,
        plan: FilePlan,
        paths: Sequence[bytes],
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
        self._plan = plan
        self._paths = (ctypes.c_char_p * n)(*paths)
        self._indices, self._occurrences = (np.ascontiguousarray(v, dtype=np.int64) for v in (indices, occurrences))
        if self._indices.shape != (n,) or self._occurrences.shape != (n,):
            raise ValueError(f"{n} files need as many indices and occurrences, got {indices.shape} and {occurrences.shape}")
        self._descriptors, self._sizes = np.full(n, -1, dtype=np.int32), np.zeros(n, dtype=np.int64)
        self._job = _FilesJob(
            plan=plan.pointer, seed=seed & _MASK, epoch=epoch & _MASK, count=n, indices=address(self._indices),
            occurrences=address(self._occurrences), paths=ctypes.addressof(self._paths),
            descriptors=address(self._descriptors), sizes=address(self._sizes), ahead=ahead, most_bytes=most_bytes,
            most_pixels=_ALL if most_pixels is None else most_pixels, most_memory=_ALL if most_memory is None else most_memory,
        )  # fmt: skip
        self._job.beneath_count = -1
        if beneath is not None:
            self._beneath = (ctypes.c_char_p * len(beneath))(*(os.fsencode(root.rstrip("/") + "/") for root in beneath))
            self._job.beneath, self._job.beneath_count = ctypes.addressof(self._beneath), len(beneath)

    def __len__(self) -> int:
        return len(self._paths)

    def make(
        self,
        first: int,
        out: np.ndarray,
        boxes: Optional[np.ndarray],
        enough_s: float,
        table: Optional[np.ndarray] = None,
        channels_last: bool = True,
    ) -> Stopped:
        """Make the samples of the n-th file and those behind it, as many as this time allows, one at least.

        Args:
            first: which file's turn it is; they go in order.
            out: C-contiguous, room for some samples, of which those made are filled: uint8 (m, height, width, channels); or,
                with a table or channels that do not come last, as the kernel's `table` and `planes` make them.
            boxes: C-contiguous int32 (m, masks, 4), likewise; None where the plan has no masks.
            enough_s: seconds.
            table, channels_last: as of the kernel's `table`; without a table bytes stay bytes.

        Raises:
            ValueError: shapes or types do not fit.
        """
        (height, width, channels), m, masks = self._plan.shape, len(out), self._plan.boxes
        kind = np.dtype(np.uint8) if table is None else checked_table(table, channels).dtype
        expected = (m, height, width, channels) if channels_last else (m, channels, height, width)
        if out.dtype != kind or out.shape != expected or not 0 <= first <= first + m <= len(self):
            raise ValueError(f"samples from {first} on of {len(self)} go to {kind} {expected}, got {out.dtype} {out.shape}")
        check_out(out)
        if masks:
            if boxes is None or boxes.dtype != np.int32 or boxes.shape != (m, masks, 4):
                raise ValueError(f"boxes of {m} samples are int32 ({m}, {masks}, 4)")
            check_out(boxes)
        job = self._job
        job.next, job.end, job.enough_ns, job.reading_ns = first, first + m, max(1, int(enough_s * 1e9)), 0
        job.out, job.boxes = address(out), address(boxes) if masks and boxes is not None else None
        job.table, job.element_bytes = None if table is None else address(table), kind.itemsize
        job.channels_last, job.planes = channels_last, table is None and not channels_last
        kernel = self._plan.kernel
        result = kernel.library.ddlp_files(kernel.context().pointer, ctypes.byref(job))
        return Stopped(job.next, result != 0, result > 0 and result != _LARGE, job.reading_ns * 1e-9)

    def content(self) -> bytes:
        """Return the bytes of the file that the last call stopped at, where it has ``read`` them."""
        return self._plan.kernel.context().content()

    def close(self) -> None:
        """Close what was opened ahead of its turn."""
        for descriptor in self._descriptors[self._descriptors >= 0].tolist():
            os.close(descriptor)
        self._descriptors[:] = -1
