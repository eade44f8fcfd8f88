"""Turns a sample's plan into one call of the kernel: crop, resample, crop, flip, from the file into the row.

It is pure: nothing is decoded here, and no kernel is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Optional, Tuple

from csd_engine.kernels.library import Job
from csd_engine.transforms.primitives import CHANNELS, Crop, Flip, Primitive, Resize, kernel_steps
from csd_engine.transforms.resample import RESAMPLED, vertical_first

if TYPE_CHECKING:  # `ddlp.decode` needs a part of this module alone, in a few milliseconds
    from csd_engine.transforms.pipeline import Pipeline, SamplePlan

__all__ = ["Compiled", "compile_plan", "compile_steps"]


class Compiled(NamedTuple):
    """The work that a kernel does while it decodes, without its destination, and the steps that are left after it."""

    job: Job
    rest: Tuple[Primitive, ...]


def compile_plan(plan: SamplePlan, size: Tuple[int, int], pipeline: Pipeline) -> Optional[Compiled]:
    """Return the plan's beginning as one job: [Crop ...][Resize][Crop or Flip ...].

    Args:
        plan: of an image of this size.
        size: the file's (width, height) in pixels.
        pipeline: the pipeline that drew the plan.

    Returns:
        None if a kernel could not do a single step.
    """
    compiled = compile_steps(plan.primitives, size, plan.reduce, pipeline.order, CHANNELS[pipeline.mode])
    rest = compiled.rest
    alone = rest and len(rest) == len(plan.primitives)  # the call that decodes gets no step: it would do no more than Pillow
    return None if alone and kernel_steps(rest, pipeline.order) is None else compiled


def compile_steps(
    steps: Tuple[Primitive, ...], size: Tuple[int, int], reduce: int, order: str, channels: int
) -> Compiled:
    """Return one job for as many of the first steps as it can do, and the other steps.

    A crop after the resize becomes the part of the resized image that is kept, so that no other pixel is resampled.

    Args:
        steps: of an image that is decoded at 1 / reduce of this size.
        size: the file's (width, height) in pixels.
        reduce: 1, 2, 4 or 8.
        order: of the resampling passes, one of `resample.ORDERS`.
        channels: of the result, 1 or 3.
    """
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
        vertical = vertical_first(order, width, height, full_width, full_height)
        done += 1
    out_left = out_top = 0
    out_width, out_height = full_width, full_height
    mirrored = upside_down = False
    for step in steps[done:]:
        if isinstance(step, Flip):
            mirrored, upside_down = mirrored != step.horizontal, upside_down == step.horizontal
        elif isinstance(step, Crop):  # its place is in the flipped image, the job's is in the image before the flip
            out_left += out_width - step.left - step.width if mirrored else step.left
            out_top += out_height - step.top - step.height if upside_down else step.top
            out_width, out_height = step.width, step.height
        else:
            break
        done += 1
    if not number:  # without a resize the kept part is the crop
        left, top, out_left, out_top = left + out_left, top + out_top, 0, 0
        width, height = full_width, full_height = out_width, out_height
    # Arguments are in the order of the structure's fields: by name the call takes twice as long.
    return Compiled(
        Job(
            left, top, width, height, full_width, full_height, number, out_left, out_top, out_width, out_height,
            mirrored, upside_down, vertical, reduce, channels,
        ),
        steps[done:],
    )
