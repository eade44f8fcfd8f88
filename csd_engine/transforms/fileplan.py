"""Turns a pipeline into a plan that the kernel itself draws for each image file, if it only crops, resizes, flips and masks.

Image files each have their own size, so nothing can be computed ahead, as draws.py does for an array's rows. The operators go
to the kernel with their numbers (src/batch/plan.h). `Pipeline.draw` defines what they do. Python draws any other pipeline
sample by sample.
"""

from __future__ import annotations

import enum
import functools
import warnings
from typing import Any, Callable, Dict, Optional, Tuple, Type

from csd_engine.arithmetic import keyed as keyed_numbers
from csd_engine.arithmetic.keyed import Keyed
from csd_engine.errors import PipelineError
from csd_engine.kernels.files import FilePlan, PlanOperator
from csd_engine.kernels.library import Kernel
from csd_engine.transforms import masks, operators
from csd_engine.transforms.compiled import compile_plan
from csd_engine.transforms.pipeline import Pipeline
from csd_engine.transforms.resample import RESAMPLED

__all__ = ["FileKind", "file_plan", "first_difference"]


class FileKind(enum.IntEnum):
    """The kernel's operators, with the values of src/batch/plan.h."""

    RESIZED_CROP = 0
    RESIZE = 1
    SHORTER = 2
    LONGER = 3
    CENTER_CROP = 4
    CROP = 5
    ACROSS = 6
    DOWN = 7
    HOLES = 8
    ERASE = 9


_CHECKED = [
    {"op": "RandomResizedCrop", "size": [32, 24], "scale": [0.08, 1.0], "ratio": [0.75, 1.333], "interpolation": "bilinear"},
    {"op": "RandomHorizontalFlip", "p": 0.5},
    {"op": "RandomErasing", "p": 0.5, "scale": [0.02, 0.33], "ratio": [0.3, 3.3]},
]
_CHECKS = 20

_RESIZING = (FileKind.RESIZED_CROP, FileKind.RESIZE, FileKind.SHORTER, FileKind.LONGER)
_BEFORE_RESIZING = (FileKind.CENTER_CROP, FileKind.CROP)


class _NotTheKernels(Exception):
    """The kernel can't draw this operator with these parameters; Python draws it."""


def _resized_crop(operator: operators.RandomResizedCrop) -> PlanOperator:
    (low, high), (narrow, wide) = operator.scale, operator.ratio
    return PlanOperator(
        FileKind.RESIZED_CROP, *operator.size, _filter(operator), low=low, high=high, ratio_low=narrow, ratio_high=wide,
        log_low=keyed_numbers.single_log(narrow), log_high=keyed_numbers.single_log(wide),
    )  # fmt: skip


def _resize(operator: operators.Resize) -> PlanOperator:
    if isinstance(operator.size, tuple):
        return PlanOperator(FileKind.RESIZE, *operator.size, _filter(operator))
    if operator.size is None:
        return PlanOperator(FileKind.LONGER, 0, operator.max_size or 0, _filter(operator))
    return PlanOperator(FileKind.SHORTER, operator.size, operator.max_size or 0, _filter(operator))


def _filter(operator: Any) -> int:
    if operator.interpolation not in RESAMPLED:
        raise _NotTheKernels
    return RESAMPLED[operator.interpolation]


def _center_crop(operator: operators.CenterCrop) -> PlanOperator:
    return PlanOperator(FileKind.CENTER_CROP, *operator.size)


def _random_crop(operator: operators.RandomCrop) -> PlanOperator:
    if any(operator.padding or ()):
        raise _NotTheKernels
    return PlanOperator(FileKind.CROP, *operator.size)  # the kernel refuses an image that needs borders


def _horizontal_flip(operator: operators.RandomHorizontalFlip) -> PlanOperator:
    return PlanOperator(FileKind.ACROSS, chance=operator.p)


def _vertical_flip(operator: operators.RandomVerticalFlip) -> PlanOperator:
    return PlanOperator(FileKind.DOWN, chance=operator.p)


def _cutout(operator: masks.Cutout) -> PlanOperator:
    return PlanOperator(FileKind.HOLES, operator.holes, operator.length, box=operator.slot)


def _random_erasing(operator: masks.RandomErasing) -> PlanOperator:
    (low, high), (narrow, wide) = operator.scale, operator.ratio
    return PlanOperator(
        FileKind.ERASE, box=operator.slot, chance=operator.p, low=low, high=high, ratio_low=narrow, ratio_high=wide,
        log_low=keyed_numbers.single_log(narrow), log_high=keyed_numbers.single_log(wide),
    )  # fmt: skip


_COMPILE: Dict[Type[operators.Operator], Callable[[Any], PlanOperator]] = {
    operators.RandomResizedCrop: _resized_crop,
    operators.Resize: _resize,
    operators.CenterCrop: _center_crop,
    operators.RandomCrop: _random_crop,
    operators.RandomHorizontalFlip: _horizontal_flip,
    operators.RandomVerticalFlip: _vertical_flip,
    masks.Cutout: _cutout,
    masks.RandomErasing: _random_erasing,
}


def file_plan(pipeline: Pipeline, kernel: Optional[Kernel], size: Optional[Tuple[int, int]] = None) -> Optional[FilePlan]:
    """The kernel's plan for a pipeline on image files; None if there is none: Python then draws each sample.

    ``size``: (width, height) of all images; None: each has its own.
    """
    return None if kernel is None or not _agrees(kernel) else _plan_of(pipeline, kernel, size)


def _plan_of(pipeline: Pipeline, kernel: Kernel, size: Optional[Tuple[int, int]] = None) -> Optional[FilePlan]:
    if not all(type(operator) in _COMPILE for operator in pipeline.operators):
        return None
    try:
        shape = pipeline.output_shape(size)
        compiled = [_COMPILE[type(operator)](operator) for operator in pipeline.operators]
    except (_NotTheKernels, PipelineError):  # the sample that fails reports the error
        return None
    resizing = [k for k, operator in enumerate(compiled) if operator.kind in _RESIZING]
    if len(resizing) > 1 or any(operator.kind not in _BEFORE_RESIZING for operator in compiled[: sum(resizing)]):
        return None  # one job of the kernel resizes once, and flips after that
    return FilePlan(kernel, compiled, shape, pipeline.boxes, pipeline.order == "pillow13", pipeline.decode == "fast")


@functools.lru_cache(maxsize=None)
def _agrees(kernel: Kernel) -> bool:
    """Whether the kernel draws as Python does; warns if not. Checked once per process, in a millisecond."""
    difference = first_difference(kernel)
    if difference:
        warnings.warn(
            f"ddlp: the kernel draws otherwise than Python: {difference}. Python draws; please report this", stacklevel=3
        )
    return not difference


def first_difference(kernel: Kernel) -> str:
    """Return "" if the kernel's plans equal those of `Pipeline.draw`, number by number; else a line about the difference."""
    pipeline = Pipeline.parse({"format": 1, "order": "pillow13", "mode": "RGB", "ops": _CHECKED})
    plan = _plan_of(pipeline, kernel)
    for index in range(_CHECKS):
        size, key = (300 + 37 * index, 900 - 29 * index), (0, 0, index, 0)
        drawn = pipeline.draw(size, Keyed(*key))
        expected, planned = compile_plan(drawn, size, pipeline), None if plan is None else plan.job(size, key)
        if expected is None or planned is None:
            return f"an image of {size} was refused"
        if bytes(planned[0]) != bytes(expected.job) or [tuple(box) for box in planned[1].tolist()] != list(drawn.boxes):
            return f"image {index} of {size}"
    return ""
