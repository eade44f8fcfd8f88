"""Prepares many images of one size at once: as windows of their sources, in one call of the kernel or by numpy.

This works for arrays of images of one size, if the pipeline only moves pixels (crops, borders, flips) or draws masks. Every
result is the one that `Pipeline.run` makes sample by sample, but it takes a fraction of the time: for a 32 x 32 image, the
objects of Python and Pillow take many times longer than the pixels. Any other pipeline goes sample by sample.
"""

from __future__ import annotations

from typing import Optional, Tuple

import numpy as np

from csd_engine.arithmetic.keyed import KeyedRows
from csd_engine.errors import PipelineError
from csd_engine.kernels import kernel
from csd_engine.transforms.draws import DrawKind, NotInBulk, drawn, program_of
from csd_engine.transforms.pipeline import Pipeline
from csd_engine.transforms.primitives import CHANNELS, border_indices

__all__ = ["Bulk"]

_SLICE_BYTES = 1 << 20  # of finished images: they stay in a core's cache, and a cancel is noticed soon


class Bulk:
    """A pipeline on the rows of one array, many samples at a time. Made by `of`; any thread may use it."""

    def __init__(self, pipeline: Pipeline, rows: np.ndarray) -> None:
        self._masks = pipeline.boxes
        self._rows = rows if rows.ndim == 4 else rows[..., np.newaxis]
        self._program = program = program_of(pipeline, *rows.shape[1:3])
        self.shape = (program.height, program.width, program.channels)
        self._windows, fast, size = None, kernel(), (program.height, program.width)
        self._drawn_there = fast is not None and all(step.kind is not DrawKind.ERASE for step in program.steps)
        if fast is not None:
            steps = [(step.kind, step.numbers, step.chance) for step in program.steps] if self._drawn_there else []
            self._windows = fast.windows(self._rows, size, program.colour, program.padding_mode, steps, self._masks)

    @staticmethod
    def of(pipeline: Pipeline, rows: Optional[np.ndarray]) -> Optional[Bulk]:
        """The bulk form of a pipeline; None if it, or its data, must go sample by sample.

        Args:
            pipeline: any.
            rows: the samples, uint8 (n, height, width) or (n, height, width, channels); None if they are files.
        """
        if rows is None or len(rows) == 0 or (rows.shape[3] if rows.ndim == 4 else 1) != CHANNELS[pipeline.mode]:
            return None
        try:
            pipeline.output_shape((rows.shape[2], rows.shape[1]))
            return Bulk(pipeline, rows)
        except (NotInBulk, PipelineError, ValueError):  # the sample that fails reports the error
            return None

    @property
    def at_once(self) -> int:
        """How many samples to make in one call: they stay in a core's cache, and a batch can be cancelled between calls."""
        height, width, channels = self.shape
        return max(1, _SLICE_BYTES // (height * width * channels))

    def takes(self, indices: np.ndarray) -> bool:
        """Tell whether there is a row for each index, int64. If not, the samples are made singly, which reports the error."""
        return not len(indices) or int(indices.view(np.uint64).max()) < len(self._rows)  # a negative one becomes very large

    def fill(
        self,
        indices: np.ndarray,
        occurrences: np.ndarray,
        seed: int,
        epoch: int,
        out: np.ndarray,
        boxes: Optional[np.ndarray],
        table: Optional[np.ndarray] = None,
        channels_last: bool = False,
    ) -> None:
        """Make samples whose indices it `takes`.

        Args:
            indices, occurrences: int64 (n,).
            seed, epoch: with these, the keys of all random draws.
            out: C-contiguous uint8 (n, height, width, channels), filled.
            boxes: int32 (n, masks, 4), filled, or None for a pipeline without masks.
            table, channels_last: only with a kernel: ``out`` is filled as the kernel's `table` would fill it from the bytes.
        """
        program, windows = self._program, self._windows
        if windows is not None and self._drawn_there:
            windows.draw(seed, epoch, indices, occurrences, out, boxes, table, channels_last)
            return
        parameters = drawn(program, KeyedRows(seed, epoch, indices, occurrences), self._masks)
        if boxes is not None:
            boxes[...] = parameters.boxes
        corners = indices, parameters.top, parameters.left, parameters.across, parameters.down
        if windows is not None:
            windows.cut(*corners, out, table, channels_last)
        else:
            assert table is None
            _windows(self._rows, *corners, program.colour, out, program.padding_mode)


def _windows(
    rows: np.ndarray,
    indices: np.ndarray,
    top: np.ndarray,
    left: np.ndarray,
    across: np.ndarray,
    down: np.ndarray,
    fill: Tuple[int, ...],
    out: np.ndarray,
    padding_mode: str,
) -> None:
    """Do what the kernel's `windows` does, without a kernel."""
    n, height, width, channels = out.shape
    _, rows_height, rows_width, _ = rows.shape
    before_y, before_x = max(0, -int(top.min())), max(0, -int(left.min()))
    after_y = max(0, int(top.max()) + height - rows_height)
    after_x = max(0, int(left.max()) + width - rows_width)
    sources = np.take(rows, indices, axis=0) if rows.flags.c_contiguous else np.ascontiguousarray(rows[indices])
    if padding_mode != "constant":
        across_rows = border_indices(rows_height, before_y, after_y, padding_mode)
        sources = sources[:, across_rows][:, :, border_indices(rows_width, before_x, after_x, padding_mode)]
        sources = np.ascontiguousarray(sources)
    elif before_y or before_x or after_y or after_x:
        padded = np.empty((n, before_y + rows_height + after_y, before_x + rows_width + after_x, channels), dtype=np.uint8)
        padded[...] = fill[0] if len(set(fill)) == 1 else fill  # many times faster for one value
        padded[:, before_y : before_y + rows_height, before_x : before_x + rows_width] = sources
        sources = padded
    steps = np.arange(height)
    y = (top + before_y)[:, np.newaxis] + np.where(down[:, np.newaxis], steps[::-1], steps)
    y += (np.arange(n) * sources.shape[1])[:, np.newaxis]
    starts = y * sources.shape[2] + (left + before_x)[:, np.newaxis]
    # Each line of a window, from any start, is one element here: numpy copies it in one piece.
    line = width * channels
    lines = np.ndarray((sources.size - line + 1,), f"V{line}", sources, strides=(1,))
    out.reshape(n, height, line).view(lines.dtype)[..., 0] = lines[starts * channels]
    mirrored = np.flatnonzero(across)
    pixels = out.view(f"V{channels}")[..., 0]
    pixels[mirrored] = pixels[mirrored, :, ::-1]
