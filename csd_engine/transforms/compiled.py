"""From a sample's plan to the one call that a kernel does for it: crop, resample, crop, flip, from the file into the row.

Pure: nothing is decoded here, and it does not matter whether there is a kernel.
"""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple

from csd_engine.kernels.library import Job
from csd_engine.transforms.pipeline import CHANNELS, Pipeline, SamplePlan
from csd_engine.transforms.primitives import Crop, Flip, Primitive, Resize, UserCall
from csd_engine.transforms.resample import FILTERS, vertical_first

__all__ = ["RESAMPLED", "Compiled", "compile_plan"]

RESAMPLED = {name: FILTERS[name] for name in ("bilinear", "bicubic")}  # what a kernel resamples as Pillow does


class Compiled(NamedTuple):
    """What a kernel does, all but where to, and the steps that are left for Pillow."""

    job: Job
    rest: Tuple[Primitive, ...]


def compile_plan(plan: SamplePlan, size: Tuple[int, int], pipeline: Pipeline) -> Optional[Compiled]:
    """Return the plan's beginning as one job: [Crop ...][Resize][Crop or Flip ...].

    A crop behind the resize becomes the part of the resized image that is kept, so that no other pixel is resampled.

    Args:
        plan: of an image of that size.
        size: the file's (width, height) in pixels.
        pipeline: that the plan was drawn by.

    Returns:
        None where a kernel could not do a single step, or must not: a function of the user's sees what Pillow keeps beside
        the pixels (EXIF data), which pixels from a kernel do not have.
    """
    steps, reduce = plan.primitives, plan.reduce
    left = top = done = 0
    width, height = -(-size[0] // reduce), -(-size[1] // reduce)
    for step in steps:
        if not isinstance(step, Crop):
            break
        left, top, width, height = left + step.left, top + step.top, step.width, step.height
        done += 1
    full_width, full_height, number, vertical = width, height, 0, False
    resize = steps[done] if done < len(steps) else None
    if isinstance(resize, Resize) and resize.interpolation in RESAMPLED:
        full_width, full_height, number = resize.width, resize.height, RESAMPLED[resize.interpolation]
        vertical = vertical_first(pipeline.order, width, height, full_width, full_height)
        done += 1
    out_left = out_top = 0
    out_width, out_height = full_width, full_height
    mirrored = upside_down = False
    for step in steps[done:]:
        if isinstance(step, Flip):
            mirrored, upside_down = mirrored != step.horizontal, upside_down == step.horizontal
        elif isinstance(step, Crop):  # told in the flipped image, kept as in the one before it was flipped
            out_left += out_width - step.left - step.width if mirrored else step.left
            out_top += out_height - step.top - step.height if upside_down else step.top
            out_width, out_height = step.width, step.height
        else:
            break
        done += 1
    rest = steps[done:]
    if (rest and not done) or any(isinstance(step, UserCall) for step in rest):
        return None
    if not number:  # then the part that is kept is the crop
        left, top, out_left, out_top = left + out_left, top + out_top, 0, 0
        width, height = full_width, full_height = out_width, out_height
    # In the order of the structure's fields: by name it takes twice as long.
    return Compiled(
        Job(
            left, top, width, height, full_width, full_height, number, out_left, out_top, out_width, out_height,
            mirrored, upside_down, vertical, reduce, CHANNELS[pipeline.mode],
        ),
        rest,
    )
