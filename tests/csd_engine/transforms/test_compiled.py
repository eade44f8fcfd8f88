"""A compiled plan gives the plan's pixels: Pillow carries out its job, then the remaining steps run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from csd_engine.arithmetic.keyed import Keyed
from csd_engine.transforms.compiled import compile_plan
from csd_engine.transforms.pipeline import Pipeline, SamplePlan
from csd_engine.transforms.primitives import Crop, Flip, Gray, Pad, Resize, UserCall
from csd_engine.transforms.resample import FILTERS, resize

SIZE = (61, 47)  # width, height
FLIP = Flip(horizontal=True)
PIXELS = np.random.default_rng(5).integers(0, 256, (SIZE[1], SIZE[0], 3), dtype=np.uint8)


def pipeline(*ops, order="pillow13", mode="RGB"):
    return Pipeline.parse({"format": 1, "order": order, "mode": mode, "ops": list(ops)})


def carried_out(job, image):
    """Carry out a kernel's job with Pillow on a decoded image."""
    names = {number: name for name, number in FILTERS.items()}
    image = image.crop((job.left, job.top, job.left + job.width, job.top + job.height))
    if job.filter:
        order = "pillow13" if job.vertical_first else "pillow12"
        image = resize(image, job.full_width, job.full_height, names[job.filter], order)
    else:
        assert (job.full_width, job.full_height) == (job.width, job.height) == (job.out_width, job.out_height)
    right, bottom = job.out_left + job.out_width, job.out_top + job.out_height
    assert 0 <= job.out_left < right <= job.full_width and 0 <= job.out_top < bottom <= job.full_height
    image = image.crop((job.out_left, job.out_top, right, bottom))
    for flipped, how in ((job.flip_horizontal, Image.FLIP_LEFT_RIGHT), (job.flip_vertical, Image.FLIP_TOP_BOTTOM)):
        image = image.transpose(how) if flipped else image
    return image


@st.composite
def plans(draw):
    """Primitive steps in any order, each valid at its place."""
    width, height = SIZE
    steps = []
    for kind in draw(st.lists(st.sampled_from(["crop", "crop", "resize", "flip", "pad", "gray"]), max_size=6)):
        if kind == "crop":
            left, top = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
            width, height = draw(st.integers(1, width - left)), draw(st.integers(1, height - top))
            steps.append(Crop(top, left, height, width))
        elif kind == "resize":
            width, height = draw(st.integers(1, 70)), draw(st.integers(1, 70))
            steps.append(Resize(height, width, draw(st.sampled_from(sorted(FILTERS)))))
        elif kind == "flip":
            steps.append(Flip(draw(st.booleans())))
        elif kind == "pad":
            steps.append(Pad(1, 2, 3, 4, (9, 8, 7), "constant"))
            width, height = width + 4, height + 6
        else:
            steps.append(Gray(3))
    return SamplePlan(tuple(steps), (height, width, 3), ())


@settings(max_examples=400, deadline=None)
@given(plans(), st.sampled_from(["pillow12", "pillow13"]))
def test_job_and_rest_are_the_plan(plan, order):
    pipe = pipeline(order=order)
    image = Image.fromarray(PIXELS)
    expected, made = np.zeros(plan.shape, np.uint8), np.zeros(plan.shape, np.uint8)
    pipe.apply(image, plan, expected)
    compiled = compile_plan(plan, SIZE, pipe)
    if compiled is None:
        assert isinstance(plan.primitives[0], (Pad, Gray, Resize))
        return
    job, rest = compiled
    assert (job.channels, job.reduce) == (3, 1)
    pipe.finish(carried_out(job, image), rest, made)
    assert np.array_equal(made, expected)


def fields(job):
    return [getattr(job, name) for name, _ in job._fields_[:16]]


def test_usual_pipelines_are_one_call():
    train = pipeline(
        {"op": "RandomResizedCrop", "size": [22, 22], "scale": [0.08, 1.0], "ratio": [0.75, 1.333],
         "interpolation": "bilinear"},
        {"op": "RandomHorizontalFlip", "p": 0.5},
    )
    for index in range(40):
        plan = train.draw(SIZE, Keyed(1, 2, index, 0))
        compiled = compile_plan(plan, SIZE, train)
        assert compiled is not None and compiled.rest == ()
        assert (compiled.job.out_width, compiled.job.out_height) == (22, 22)
    test = pipeline(
        {"op": "Resize", "size": 24, "max_size": None, "interpolation": "bicubic"}, {"op": "CenterCrop", "size": [20, 18]}
    )
    compiled = compile_plan(test.draw(SIZE, Keyed(0, 0, 0, 0)), SIZE, test)
    assert compiled.rest == () and fields(compiled.job) == [0, 0, 61, 47, 31, 24, 3, 6, 2, 18, 20, 0, 0, 0, 1, 3]
    grey = pipeline(mode="L")
    assert compile_plan(SamplePlan((), (47, 61, 1), ()), SIZE, grey).job.channels == 1


def test_an_image_decoded_smaller():
    plan = SamplePlan((Resize(10, 12, "bilinear"), FLIP), (10, 12, 3), (), 4)
    job = compile_plan(plan, SIZE, pipeline()).job
    assert (job.width, job.height, job.reduce, job.flip_horizontal) == (16, 12, 4, 1)  # sizes are rounded up
    job = compile_plan(SamplePlan((Crop(1, 2, 5, 6),), (5, 6, 3), (), 2), SIZE, pipeline()).job
    assert (job.left, job.top, job.width, job.height, job.reduce) == (2, 1, 6, 5, 2)


CALL = UserCall(lambda image, key, size: image, 0, (5, 5))


@pytest.mark.parametrize("steps", [(Gray(3), Resize(5, 5, "nearest")), (CALL,), (Gray(3), CALL)])
def test_what_is_left_to_pillow_alone(steps):
    assert compile_plan(SamplePlan(steps, (5, 5, 3), ()), SIZE, pipeline()) is None


def test_what_stands_before_a_users_function_is_the_kernels():
    for steps, left in (((Crop(0, 0, 5, 5), CALL), 1), ((FLIP, Gray(3), CALL), 2)):
        assert compile_plan(SamplePlan(steps, (5, 5, 3), ()), SIZE, pipeline()).rest == steps[-left:]
