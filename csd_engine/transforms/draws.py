"""Turns a pipeline for many samples of one size into a few steps, which draw numbers and move each sample's window.

A crop, border or flip only moves the window that is cut out of a source, or mirrors it. How far it moves follows from the
sample's draws and from sizes that all samples share. So the sizes are computed once, and a few steps remain for each sample.
The kernel runs these steps (src/batch/draws.h). `drawn` does the same with numpy.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple, Type

import numpy as np

from csd_engine.arithmetic import keyed as keyed_numbers
from csd_engine.arithmetic.keyed import KeyedRows
from csd_engine.transforms import masks, operators
from csd_engine.transforms.checks import MAX_PIXELS, MAX_SIDE
from csd_engine.transforms.pipeline import Pipeline
from csd_engine.transforms.primitives import CHANNELS

__all__ = ["DrawKind", "NotInBulk", "Parameters", "Program", "Step", "drawn", "program_of"]


class NotInBulk(Exception):
    """This pipeline has no program: it goes sample by sample."""


class DrawKind(enum.IntEnum):
    """What a step does to a sample; ``n`` are the step's numbers. The kernel uses the same values (src/batch/draws.h)."""

    MOVE = 0  # add n[0] to top (n[1] if upside down), and n[2] to left (n[3] if mirrored)
    ROW = 1  # add a draw below n[0] to top (n[0] - 1 minus the draw if upside down)
    COLUMN = 2  # the same for left
    ACROSS = 3  # mirror left-right with this chance
    DOWN = 4  # mirror top-bottom with this chance
    HOLE = 5  # box n[0] reaches n[1] to each side of a point drawn in n[2] rows and n[3] columns, clipped
    ERASE = 6  # box n[0] is the one that a RandomErasing draws; only numpy does this step


class Step(NamedTuple):
    """One step of a program."""

    kind: DrawKind
    numbers: Tuple[int, int, int, int] = (0, 0, 0, 0)
    chance: float = 0.0
    erasing: Optional[masks.RandomErasing] = None


@dataclass
class Program:
    """A pipeline's steps for images of one size, and the parameters that all its samples share.

    Attributes:
        height, width: pixels of the results.
        channels: bytes of a pixel.
        steps: in the order of their draws.
        fill: the borders' colour, one value a channel.
        padding_mode: of the borders.
    """

    height: int
    width: int
    channels: int
    steps: Tuple[Step, ...] = ()
    fill: Optional[Tuple[int, ...]] = None
    padding_mode: str = "constant"
    cropped: bool = False  # pixels were cut off: a border added later would show them again

    @property
    def colour(self) -> Tuple[int, ...]:
        """The borders' colour; black if there are no borders."""
        return self.fill or (0,) * self.channels

    def add(self, kind: DrawKind, *numbers: int, chance: float = 0.0, erasing: Optional[masks.RandomErasing] = None) -> None:
        """Append a step."""
        n = (*numbers, 0, 0, 0, 0)
        self.steps += (Step(kind, (n[0], n[1], n[2], n[3]), chance, erasing),)

    def move(self, top: int, upside_down: int, left: int, mirrored: int) -> None:
        """Move the window, unless all distances are zero."""
        if any((top, upside_down, left, mirrored)):
            self.add(DrawKind.MOVE, top, upside_down, left, mirrored)

    def crop(self, top: int, left: int, height: int, width: int) -> None:
        """Keep a rectangle."""
        self.move(top, self.height - height - top, left, self.width - width - left)
        self.resized(height, width)

    def resized(self, height: int, width: int) -> None:
        """Set the window's size, which lies inside the former window."""
        self.cropped = self.cropped or (height, width) != (self.height, self.width)
        self.height, self.width = height, width

    def pad(self, left: int, top: int, right: int, bottom: int, fill: Tuple[int, ...], padding_mode: str) -> None:
        """Add borders; negative ones crop first."""
        left, top, right, bottom = operators.cut_negative(self, left, top, right, bottom)
        if max(left, top, right, bottom) > 0:
            colour = fill if len(fill) == self.channels else fill * self.channels
            if self.cropped or self.padding_mode != "constant" or (self.fill is not None and padding_mode != "constant"):
                raise NotInBulk  # borders of borders
            if padding_mode == "constant":
                if self.fill not in (None, colour):
                    raise NotInBulk
                self.fill = colour
            self.padding_mode = padding_mode
            self.move(-top, -bottom, -left, -right)
            self.height, self.width = self.height + top + bottom, self.width + left + right
            if max(self.height, self.width) > MAX_SIDE or self.height * self.width > MAX_PIXELS:
                raise NotInBulk


def _drawn_alike(operator: Any, program: Program) -> None:
    """Run an operator that draws nothing on the program itself."""
    operator.draw(program, None)


def _random_crop(operator: operators.RandomCrop, program: Program) -> None:
    height, width = operator.size
    operator.pad(program)
    program.add(DrawKind.ROW, program.height - height + 1)
    program.add(DrawKind.COLUMN, program.width - width + 1)
    program.resized(height, width)


def _horizontal_flip(operator: operators.RandomHorizontalFlip, program: Program) -> None:
    program.add(DrawKind.ACROSS, chance=operator.p)


def _vertical_flip(operator: operators.RandomVerticalFlip, program: Program) -> None:
    program.add(DrawKind.DOWN, chance=operator.p)


def _cutout(operator: masks.Cutout, program: Program) -> None:
    for hole in range(operator.slot, operator.slot + operator.holes):
        program.add(DrawKind.HOLE, hole, operator.length // 2, program.height, program.width)


def _random_erasing(operator: masks.RandomErasing, program: Program) -> None:
    program.add(DrawKind.ERASE, operator.slot, 0, program.height, program.width, erasing=operator)


_COMPILE: Dict[Type[operators.Operator], Callable[[Any, Program], None]] = {
    operators.Pad: _drawn_alike,
    operators.CenterCrop: _drawn_alike,
    operators.RandomCrop: _random_crop,
    operators.RandomHorizontalFlip: _horizontal_flip,
    operators.RandomVerticalFlip: _vertical_flip,
    masks.Cutout: _cutout,
    masks.RandomErasing: _random_erasing,
}


def program_of(pipeline: Pipeline, height: int, width: int) -> Program:
    """A pipeline's program for images of this size.

    Raises:
        NotInBulk: it has none.
        PipelineError: the pipeline can't run on such images.
    """
    program = Program(height, width, CHANNELS[pipeline.mode])
    for operator in pipeline.operators:
        compile_one = _COMPILE.get(type(operator))
        if compile_one is None:
            raise NotInBulk
        compile_one(operator, program)
    return program


@dataclass
class Parameters:
    """The numbers that were drawn for n samples.

    Attributes:
        top, left: int64 (n,), where each window begins in its source; negative if it begins in a border.
        across, down: bool (n,), whether each window is mirrored left-right and top-bottom.
        boxes: int32 (n, masks, 4).
    """

    top: np.ndarray
    left: np.ndarray
    across: np.ndarray
    down: np.ndarray
    boxes: np.ndarray


def drawn(program: Program, keyed: KeyedRows, boxes: int) -> Parameters:
    """Run a program on many samples' streams; ``boxes``: the number of boxes of each sample."""
    n = len(keyed)
    origin, no = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=bool)
    parameters = Parameters(origin, origin, no, no, np.zeros((n, boxes, 4), dtype=np.int32))
    for kind, (first, second, third, fourth), chance, erasing in program.steps:
        if kind is DrawKind.MOVE:
            parameters.top = parameters.top + np.where(parameters.down, second, first)
            parameters.left = parameters.left + np.where(parameters.across, fourth, third)
        elif kind is DrawKind.ROW:
            row = keyed.below(first)
            parameters.top = parameters.top + np.where(parameters.down, first - 1 - row, row)
        elif kind is DrawKind.COLUMN:
            column = keyed.below(first)
            parameters.left = parameters.left + np.where(parameters.across, first - 1 - column, column)
        elif kind is DrawKind.ACROSS:
            parameters.across = parameters.across ^ (keyed.uniform() < chance)
        elif kind is DrawKind.DOWN:
            parameters.down = parameters.down ^ (keyed.uniform() < chance)
        elif kind is DrawKind.HOLE:
            for side, length in enumerate((third, fourth)):
                centre = keyed.below(length)
                parameters.boxes[:, first, side] = np.maximum(centre - second, 0)
                parameters.boxes[:, first, side + 2] = np.minimum(centre + second, length)
        else:
            assert erasing is not None
            _erase(erasing, third, fourth, keyed, parameters.boxes)
    return parameters


def _erase(erasing: masks.RandomErasing, rows: int, columns: int, keyed: KeyedRows, boxes: np.ndarray) -> None:
    """Do as RandomErasing.rectangle: a sample that has found no box tries again, ten times in all."""
    low, high = map(keyed_numbers.single_log, erasing.ratio)
    trying = np.flatnonzero(keyed.uniform() < erasing.p)
    for _ in range(10):
        if not len(trying):
            return
        areas = rows * columns * keyed.single(*erasing.scale, rows=trying)
        ratios = map(keyed_numbers.single_exp, keyed.single(low, high, rows=trying).tolist())
        sides = [(round(math.sqrt(a * r)), round(math.sqrt(a / r))) for a, r in zip(areas.tolist(), ratios)]
        height, width = np.array(sides, dtype=np.int64).T
        fits = (height < rows) & (width < columns)
        placed, height, width = trying[fits], height[fits], width[fits]
        if len(placed):
            top = keyed.below(rows - height + 1, rows=placed)
            left = keyed.below(columns - width + 1, rows=placed)
            boxes[placed, erasing.slot] = np.stack((top, left, top + height, left + width), axis=1)
        trying = trying[~fits]
