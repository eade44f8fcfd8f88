"""The kernel's call on the rows of an array: it cuts a window out of each of many samples, mirrors it, and applies a table."""

from __future__ import annotations

import ctypes
from typing import Iterable, Optional, Sequence, Tuple

import numpy as np

from csd_engine.kernels.places import address, check_out, checked_table

__all__ = ["PADDING_MODES", "Windows"]

PADDING_MODES = {"constant": 0, "edge": 1, "reflect": 2, "symmetric": 3}  # src/batch/windows.h


_NO_STEP = 6  # DDLP_STEP of src/ddlp.h


class _Step(ctypes.Structure):
    """ddlp_step of src/batch/draws.h."""

    _fields_ = [("kind", ctypes.c_int32), ("numbers", ctypes.c_int64 * 4), ("chance", ctypes.c_double)]


class _Draws(ctypes.Structure):
    """ddlp_draws of src/batch/draws.h."""

    _fields_ = [
        ("steps", ctypes.c_void_p),
        ("step_count", ctypes.c_int64),
        ("seed", ctypes.c_uint64),
        ("epoch", ctypes.c_uint64),
        ("occurrences", ctypes.c_void_p),
        ("boxes", ctypes.c_void_p),
        ("masks", ctypes.c_int64),
    ]


class _WindowsJob(ctypes.Structure):
    """ddlp_windows_job of src/batch/windows.h."""

    _fields_ = [
        ("rows", ctypes.c_void_p),
        ("sample_stride", ctypes.c_int64),
        ("line_stride", ctypes.c_int64),
        ("pixel_stride", ctypes.c_int64),
        ("channel_stride", ctypes.c_int64),
        ("samples", ctypes.c_int64),
        ("height", ctypes.c_int32),
        ("width", ctypes.c_int32),
        ("channels", ctypes.c_int32),
        ("padding_mode", ctypes.c_int32),
        ("count", ctypes.c_int64),
        ("indices", ctypes.c_void_p),
        ("tops", ctypes.c_void_p),
        ("lefts", ctypes.c_void_p),
        ("across", ctypes.c_void_p),
        ("down", ctypes.c_void_p),
        ("draws", ctypes.c_void_p),
        ("fill", ctypes.c_void_p),
        ("out_height", ctypes.c_int32),
        ("out_width", ctypes.c_int32),
        ("out", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("element_bytes", ctypes.c_int32),
        ("channels_last", ctypes.c_int32),
    ]


class Windows:
    """Windows of one size out of an array's samples. Any number of threads may call at once.

    Arguments that are the same for every call are checked once, since a batch of small images takes little longer than the
    checks.

    Args:
        library: the kernel's.
        rows: uint8 (samples, height, width, channels), of any strides.
        size: (height, width) of the windows.
        fill: the value of each channel, 0 .. 255, outside of the samples (mode "constant").
        padding_mode: one of `PADDING_MODES`; the names are those of numpy.pad and torchvision.
        steps: for `draw`: (kind, four numbers, chance) of each step; csd_engine.transforms.draws explains them.
        masks: how many boxes the steps draw for each sample.

    Raises:
        ValueError: shapes or types do not fit, or there is no such mode.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        rows: np.ndarray,
        size: Tuple[int, int],
        fill: Sequence[int],
        padding_mode: str = "constant",
        steps: Iterable[Tuple[int, Sequence[int], float]] = (),
        masks: int = 0,
    ) -> None:
        if rows.dtype != np.uint8 or rows.ndim != 4:
            raise ValueError(f"need uint8 (n, height, width, channels), got {rows.dtype} {rows.shape}")
        if min(rows.shape[1:]) < 1 or len(fill) != rows.shape[3]:
            raise ValueError(f"no window of {rows.shape} with a fill of {len(fill)} channels")
        if padding_mode not in PADDING_MODES:
            raise ValueError(f"padding mode {padding_mode!r}: expected one of {', '.join(PADDING_MODES)}")
        packed_steps = [_Step(kind, tuple(numbers), chance) for kind, numbers, chance in steps]
        self._windows = library.ddlp_windows
        self._rows, self._size, self._masks = rows, size, masks
        self._fill, self._steps = np.array(fill, dtype=np.uint8), (_Step * len(packed_steps))(*packed_steps)
        self._job = _WindowsJob(
            rows=address(rows), padding_mode=PADDING_MODES[padding_mode], fill=address(self._fill),
            sample_stride=rows.strides[0], line_stride=rows.strides[1], pixel_stride=rows.strides[2],
            channel_stride=rows.strides[3], samples=rows.shape[0], height=rows.shape[1], width=rows.shape[2],
            channels=rows.shape[3], out_height=size[0], out_width=size[1],
        )  # fmt: skip
        self._draws = _Draws(steps=ctypes.addressof(self._steps), step_count=len(packed_steps), masks=masks)

    def cut(
        self,
        indices: np.ndarray,
        tops: np.ndarray,
        lefts: np.ndarray,
        across: Optional[np.ndarray],
        down: Optional[np.ndarray],
        out: np.ndarray,
        table: Optional[np.ndarray] = None,
        channels_last: bool = False,
    ) -> None:
        """Cut one window out of each of n samples, and mirror it. A window that reaches outside its sample gets borders.

        Args:
            indices: int64 (n,), the samples.
            tops, lefts: int64 (n,), each window's corner in its sample, before mirroring; negative within a border.
            across, down: bool (n,), whether a window is mirrored left-right, top-bottom; None: none is.
            out: C-contiguous uint8 (n, height of the windows, width, channels), filled. With a table it has the form that
                the kernel's `table` makes.
            table, channels_last: as for the kernel's `table`, which is applied while a window is in the nearest cache.

        Raises:
            IndexError: there is no sample with one of these indices; nothing was written.
            ValueError: shapes or types do not fit.
        """
        numbers = [np.ascontiguousarray(values, dtype=np.int64) for values in (indices, tops, lefts)]
        flags = [None if values is None else np.ascontiguousarray(values, dtype=bool) for values in (across, down)]
        job = self._begun(numbers[0], out, table, channels_last)
        for values in [*numbers, *flags]:
            if values is not None and values.shape != (len(out),):
                raise ValueError(f"expected {len(out)} values, one a window, got {values.shape}")
        job.tops, job.lefts = address(numbers[1]), address(numbers[2])
        job.across, job.down = (None if values is None else address(values) for values in flags)
        self._run(job, numbers[0])

    def draw(
        self,
        seed: int,
        epoch: int,
        indices: np.ndarray,
        occurrences: np.ndarray,
        out: np.ndarray,
        boxes: Optional[np.ndarray] = None,
        table: Optional[np.ndarray] = None,
        channels_last: bool = False,
    ) -> None:
        """Do the same as `cut`, but the steps draw the corners and flips, in the same call.

        Args:
            seed, epoch: the key of a sample's draws, together with its index and occurrence; all modulo 2**64.
            indices, occurrences: int64 (n,).
            out, table, channels_last: as for `cut`.
            boxes: C-contiguous int32 (n, masks, 4), filled; None if there are no masks.

        Raises:
            As `cut`.
        """
        indices, occurrences = (np.ascontiguousarray(values, dtype=np.int64) for values in (indices, occurrences))
        job = self._begun(indices, out, table, channels_last)
        if indices.shape != (len(out),) or occurrences.shape != (len(out),):
            raise ValueError(f"expected {len(out)} samples, got {indices.shape} indices and {occurrences.shape} occurrences")
        draws = _Draws.from_buffer_copy(self._draws)
        draws.seed, draws.epoch, draws.occurrences = seed, epoch, address(occurrences)
        if self._masks:
            if boxes is None or boxes.dtype != np.int32 or boxes.shape != (len(out), self._masks, 4):
                raise ValueError(f"boxes of {len(out)} samples are int32 ({len(out)}, {self._masks}, 4)")
            check_out(boxes)
            draws.boxes = address(boxes)
        job.draws = ctypes.addressof(draws)
        self._run(job, indices)

    def _begun(self, indices: np.ndarray, out: np.ndarray, table: Optional[np.ndarray], channels_last: bool) -> _WindowsJob:
        """Return a job with the samples and the place of the result."""
        channels, kind = self._rows.shape[3], np.dtype(np.uint8)
        if table is not None:
            kind = checked_table(table, channels).dtype
        pixelwise = table is None or channels_last
        expected = (len(indices), *self._size, channels) if pixelwise else (len(indices), channels, *self._size)
        if out.dtype != kind or out.shape != expected:
            raise ValueError(f"{len(indices)} windows go to {kind} {expected}, got {out.dtype} {out.shape}")
        check_out(out)
        job = _WindowsJob.from_buffer_copy(self._job)
        job.count, job.indices, job.out = len(indices), address(indices), address(out)
        if table is not None:
            job.table, job.element_bytes, job.channels_last = address(table), kind.itemsize, channels_last
        return job

    def _run(self, job: _WindowsJob, indices: np.ndarray) -> None:
        result = self._windows(ctypes.byref(job))
        if result < 0:
            raise MemoryError("the kernel got no memory")
        if result == _NO_STEP:
            raise ValueError("a step that the kernel does not know")
        if result:
            wrong = [int(i) for i in indices if not 0 <= i < len(self._rows)][:1]
            raise IndexError(
                f"index {wrong[0]} is none of {len(self._rows)} samples" if wrong else "a window lies too far outside"
            )
