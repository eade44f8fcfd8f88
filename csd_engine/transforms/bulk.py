"""Whole batches of equal images at once: parameters drawn as numpy arrays, pixels copied as windows of the sources.

For arrays of images of one size whose pipeline only moves pixels (crops, borders, flips) or draws masks.
Every result is the one that `Pipeline.run` makes sample by sample, at a fraction of its cost: of a 32 x 32 image, Python and
Pillow's objects take many times longer than its pixels. Any other pipeline goes that other way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, Optional, Tuple, Type

import numpy as np

from csd_engine import keyed as keyed_numbers
from csd_engine.errors import PipelineError
from csd_engine.kernels import kernel
from csd_engine.keyed import KeyedRows
from csd_engine.transforms import masks, operators
from csd_engine.transforms.checks import MAX_PIXELS, MAX_SIDE
from csd_engine.transforms.pipeline import CHANNELS, Pipeline
from csd_engine.transforms.primitives import border_indices

__all__ = ["Bulk", "Drawn"]

_SLICE_BYTES = 1 << 20  # of finished images: they stay in a core's cache, and a cancel is heard soon


class _NotInBulk(Exception):
    """This pipeline goes sample by sample."""


@dataclass
class _Canvas:
    """Many samples' plans while they are drawn; all have one size.

    Attributes:
        height, width: pixels of the images so far.
        top, left: int64 (n,), where the images so far begin in their sources; negative within a border.
        across, down: bool (n,), whether they are mirrored left-right and top-bottom.
        fill: the borders' colour, one value a channel; None while there is no border of a colour.
        padding_mode: of the borders.
        cropped: pixels were cut off: a border behind that would show them again.
        boxes: int32 (n, masks, 4).
    """

    height: int
    width: int
    channels: int
    top: np.ndarray
    left: np.ndarray
    across: np.ndarray
    down: np.ndarray
    boxes: np.ndarray
    fill: Optional[Tuple[int, ...]] = None
    padding_mode: str = "constant"
    cropped: bool = False

    def crop(self, top: Any, left: Any, height: int, width: int) -> None:
        """Keep a rectangle of one size; ``top`` and ``left`` for all, or one each."""
        self.top = self.top + np.where(self.down, self.height - height - top, top)
        self.left = self.left + np.where(self.across, self.width - width - left, left)
        self.cropped = self.cropped or (height, width) != (self.height, self.width)
        self.height, self.width = height, width

    def pad(self, left: int, top: int, right: int, bottom: int, fill: Tuple[int, ...], padding_mode: str) -> None:
        """Add borders; negative ones crop first."""
        left, top, right, bottom = operators.cut_negative(self, left, top, right, bottom)
        if max(left, top, right, bottom) > 0:
            colour = fill if len(fill) == self.channels else fill * self.channels
            if self.cropped or self.padding_mode != "constant" or (self.fill is not None and padding_mode != "constant"):
                raise _NotInBulk  # borders of borders
            if padding_mode == "constant":
                if self.fill not in (None, colour):
                    raise _NotInBulk
                self.fill = colour
            self.padding_mode = padding_mode
            self.top = self.top - np.where(self.down, bottom, top)
            self.left = self.left - np.where(self.across, right, left)
            self.height, self.width = self.height + top + bottom, self.width + left + right
            if max(self.height, self.width) > MAX_SIDE or self.height * self.width > MAX_PIXELS:
                raise _NotInBulk


def _pad(operator: operators.Pad, canvas: _Canvas, keyed: KeyedRows) -> None:
    canvas.pad(*operator.padding, operator.fill, operator.padding_mode)


def _center_crop(operator: operators.CenterCrop, canvas: _Canvas, keyed: KeyedRows) -> None:
    height, width = operator.size
    down, across = max(height - canvas.height, 0), max(width - canvas.width, 0)
    canvas.pad(across // 2, down // 2, (across + 1) // 2, (down + 1) // 2, (0,), "constant")
    canvas.crop(int(round((canvas.height - height) / 2.0)), int(round((canvas.width - width) / 2.0)), height, width)


def _random_crop(operator: operators.RandomCrop, canvas: _Canvas, keyed: KeyedRows) -> None:
    height, width = operator.size
    left, top, right, bottom = operator.padding or (0, 0, 0, 0)
    if operator.pad_if_needed:
        down = max(height - (canvas.height + top + bottom), 0)
        across = max(width - (canvas.width + left + right), 0)
        left, top, right, bottom = left + across, top + down, right + across, bottom + down
    canvas.pad(left, top, right, bottom, operator.fill, operator.padding_mode)
    row = keyed.below(canvas.height - height + 1)
    canvas.crop(row, keyed.below(canvas.width - width + 1), height, width)


def _horizontal_flip(operator: operators.RandomHorizontalFlip, canvas: _Canvas, keyed: KeyedRows) -> None:
    canvas.across = canvas.across ^ (keyed.uniform() < operator.p)


def _vertical_flip(operator: operators.RandomVerticalFlip, canvas: _Canvas, keyed: KeyedRows) -> None:
    canvas.down = canvas.down ^ (keyed.uniform() < operator.p)


def _cutout(operator: masks.Cutout, canvas: _Canvas, keyed: KeyedRows) -> None:
    half = operator.length // 2
    for hole in range(operator.slot, operator.slot + operator.holes):
        y, x = keyed.below(canvas.height), keyed.below(canvas.width)
        for side, (centre, length) in enumerate(((y, canvas.height), (x, canvas.width))):
            canvas.boxes[:, hole, side] = np.maximum(centre - half, 0)
            canvas.boxes[:, hole, side + 2] = np.minimum(centre + half, length)


def _random_erasing(operator: masks.RandomErasing, canvas: _Canvas, keyed: KeyedRows) -> None:
    """As RandomErasing.rectangle: who has found no box tries again, ten times in all."""
    low, high = keyed_numbers.log(operator.ratio[0]), keyed_numbers.log(operator.ratio[1])
    rows = np.flatnonzero(keyed.uniform() < operator.p)
    for _ in range(10):
        if not len(rows):
            return
        areas = canvas.height * canvas.width * keyed.uniform(*operator.scale, rows=rows)
        ratios = map(keyed_numbers.exp, keyed.uniform(low, high, rows=rows).tolist())
        sides = [(round(math.sqrt(a * r)), round(math.sqrt(a / r))) for a, r in zip(areas.tolist(), ratios)]
        height, width = np.array(sides, dtype=np.int64).T
        fits = (height < canvas.height) & (width < canvas.width)
        found, height, width = rows[fits], height[fits], width[fits]
        if len(found):
            top = keyed.below(canvas.height - height + 1, rows=found)
            left = keyed.below(canvas.width - width + 1, rows=found)
            canvas.boxes[found, operator.slot] = np.stack((top, left, top + height, left + width), axis=1)
        rows = rows[~fits]


_Draw = Callable[[Any, _Canvas, KeyedRows], None]
_DRAWS: Dict[Type[operators.Operator], _Draw] = {
    operators.Pad: _pad,
    operators.CenterCrop: _center_crop,
    operators.RandomCrop: _random_crop,
    operators.RandomHorizontalFlip: _horizontal_flip,
    operators.RandomVerticalFlip: _vertical_flip,
    masks.Cutout: _cutout,
    masks.RandomErasing: _random_erasing,
}


class Bulk:
    """A pipeline on the rows of one array, many samples at a time. Made by `of`; any thread may use it."""

    def __init__(self, pipeline: Pipeline, rows: np.ndarray) -> None:
        self._pipeline = pipeline
        self._rows = rows if rows.ndim == 4 else rows[..., np.newaxis]
        plan = self._draw(KeyedRows(0, 0, np.zeros(0, np.int64), np.zeros(0, np.int64)))
        self.shape = (plan.height, plan.width, plan.channels)

    @staticmethod
    def of(pipeline: Pipeline, rows: Optional[np.ndarray]) -> Optional[Bulk]:
        """The bulk form of a pipeline; None where it, or its data, go sample by sample.

        Args:
            pipeline: any.
            rows: the samples, uint8 (n, height, width) or (n, height, width, channels); None where they are files.
        """
        if rows is None or len(rows) == 0 or (rows.shape[3] if rows.ndim == 4 else 1) != CHANNELS[pipeline.mode]:
            return None
        if any(type(operator) not in _DRAWS for operator in pipeline.operators):
            return None
        try:
            pipeline.output_shape((rows.shape[2], rows.shape[1]))
            return Bulk(pipeline, rows)
        except (_NotInBulk, PipelineError, ValueError):  # what is wrong with it is told by the sample that meets it
            return None

    def _draw(self, keyed: KeyedRows) -> _Canvas:
        _, height, width, channels = self._rows.shape
        n = len(keyed)
        origin, no = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=bool)
        boxes = np.zeros((n, self._pipeline.boxes, 4), dtype=np.int32)
        canvas = _Canvas(height, width, channels, origin, origin, no, no, boxes)
        for operator in self._pipeline.operators:
            _DRAWS[type(operator)](operator, canvas, keyed)
        return canvas

    def slices(self, n: int) -> Iterator[slice]:
        """Parts of n samples, each small enough to stay in a core's cache and to be broken off between."""
        height, width, channels = self.shape
        step = max(1, _SLICE_BYTES // (height * width * channels))
        for start in range(0, n, step):
            yield slice(start, min(start + step, n))

    def takes(self, indices: np.ndarray) -> bool:
        """False where an index is none of the array's rows: its sample, made by itself, says so."""
        return not len(indices) or (0 <= int(indices.min()) and int(indices.max()) < len(self._rows))

    def draw(self, indices: np.ndarray, occurrences: np.ndarray, seed: int, epoch: int) -> Drawn:
        """Draw the parameters of samples whose indices it `takes`, all at once: each of numpy's calls costs as much for one.

        Args:
            indices, occurrences: int64 (n,).
            seed, epoch: with these, the keys of all random draws.
        """
        return Drawn(self._rows, indices, self._draw(KeyedRows(seed, epoch, indices, occurrences)))


class Drawn:
    """Samples whose parameters are drawn, to be made in parts. Made by `Bulk.draw`."""

    def __init__(self, rows: np.ndarray, indices: np.ndarray, canvas: _Canvas) -> None:
        self._rows, self._indices, self._canvas = rows, indices, canvas

    def fill(
        self,
        part: slice,
        out: np.ndarray,
        boxes: Optional[np.ndarray],
        table: Optional[np.ndarray] = None,
        channels_last: bool = False,
    ) -> None:
        """Make some of the samples.

        Args:
            part: which of them.
            out: C-contiguous uint8 (n, height, width, channels), filled.
            boxes: int32 (n, masks, 4), filled, or None for a pipeline without masks.
            table, channels_last: only where there is a kernel: ``out`` is filled as its `table` would fill it from the bytes.
        """
        canvas = self._canvas
        if boxes is not None:
            boxes[...] = canvas.boxes[part]
        fill = canvas.fill or (0,) * canvas.channels
        indices, top, left, across, down = (
            values[part] for values in (self._indices, canvas.top, canvas.left, canvas.across, canvas.down)
        )
        fast = kernel()
        if fast is None:
            assert table is None
            _windows(self._rows, indices, top, left, across, down, fill, out, canvas.padding_mode)
        else:
            mode = canvas.padding_mode
            fast.windows(self._rows, indices, top, left, across, down, fill, out, mode, table, channels_last)


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
    """What the kernel's `windows` does, where there is none."""
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
    # A line of a window as one element, wherever it begins: numpy copies it in one piece.
    line = width * channels
    lines = np.ndarray((sources.size - line + 1,), f"V{line}", sources, strides=(1,))
    out.reshape(n, height, line).view(lines.dtype)[..., 0] = lines[starts * channels]
    mirrored = np.flatnonzero(across)
    pixels = out.view(f"V{channels}")[..., 0]
    pixels[mirrored] = pixels[mirrored, :, ::-1]
