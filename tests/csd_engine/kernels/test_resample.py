"""The kernel's resample against its definition, by Pillow or numpy, value by value."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from csd_engine.kernels.library import Job
from csd_engine.transforms.resample import FILTERS, RESAMPLED, resize, vertical_first

GUARD = 0xA5


def noise(height, width, channels, seed, extreme=False):
    """Random values; extreme: 0 and 255 only, where bicubic and lanczos overshoot."""
    pixels = np.random.RandomState(seed).randint(0, 256, (height, width, channels)).astype(np.uint8)
    return pixels // 128 * 255 if extreme else pixels


def by_definition(crop, job, order):
    """What Pillow or numpy makes of the job's crop: resized, cut, flipped."""
    image = Image.fromarray(crop if crop.shape[2] == 3 else crop[:, :, 0])
    if job.filter:
        name = {number: name for name, number in RESAMPLED.items()}[job.filter]
        image = resize(image, job.full_width, job.full_height, name, order)
    whole = np.asarray(image).reshape(job.full_height, job.full_width, job.channels)
    kept = whole[job.out_top : job.out_top + job.out_height, job.out_left : job.out_left + job.out_width]
    return kept[:: -1 if job.flip_vertical else 1, :: -1 if job.flip_horizontal else 1]


def by_kernel(kernel, pixels, job, gap=5):
    """The kernel's result, in rows that lie `gap` bytes apart; asserts that the bytes between them are unchanged."""
    line = job.out_width * job.channels
    memory = np.full((job.out_height + 2, line + gap), GUARD, dtype=np.uint8)
    out = np.lib.stride_tricks.as_strided(
        memory[1:], (job.out_height, job.out_width, job.channels), (line + gap, job.channels, 1)
    )
    assert kernel.context().resample(pixels, job, out)
    result = out.copy()
    out[...] = GUARD
    assert (memory == GUARD).all(), "written beside the job's rows"
    return result


def draw_job(draw, most):
    """A job on a random crop of a random image, and the pixels. Often the crop is one pixel, or its size is kept."""
    size = st.one_of(st.integers(1, 9), st.integers(1, most))
    width, height, full_width, full_height = (draw(size) for _ in range(4))
    filter_number = draw(st.sampled_from([0, *RESAMPLED.values()]))
    if filter_number == 0 or draw(st.integers(0, 7)) == 0:
        full_width = width
    if filter_number == 0 or draw(st.integers(0, 7)) == 0:
        full_height = height
    out_width, out_height = full_width, full_height
    if draw(st.booleans()):
        out_width, out_height = draw(st.integers(1, full_width)), draw(st.integers(1, full_height))
    left, top, right, bottom = (draw(st.integers(0, 7)) for _ in range(4))
    order = draw(st.sampled_from(["pillow12", "pillow13"]))
    job = Job(
        left=left, top=top, width=width, height=height, full_width=full_width, full_height=full_height,
        filter=filter_number, out_width=out_width, out_height=out_height,
        out_left=draw(st.integers(0, full_width - out_width)), out_top=draw(st.integers(0, full_height - out_height)),
        flip_horizontal=draw(st.booleans()), flip_vertical=draw(st.booleans()), reduce=1,
        channels=draw(st.sampled_from([1, 3, 3])),
        vertical_first=vertical_first(order, width, height, full_width, full_height),
    )  # fmt: skip
    pixels = noise(top + height + bottom, left + width + right, job.channels, draw(st.integers(0, 99)), draw(st.booleans()))
    return job, pixels, order


@pytest.mark.parametrize("most, examples", [(70, 150), (900, 25)])
@pytest.mark.some(3)
def test_any_job_gives_the_definitions_values(kernel, variant, most, examples):
    @settings(max_examples=examples, deadline=None, derandomize=True)
    @given(st.data())
    def check(data):
        job, pixels, order = draw_job(data.draw, most)
        crop = np.ascontiguousarray(pixels[job.top : job.top + job.height, job.left : job.left + job.width])
        assert np.array_equal(by_kernel(kernel, pixels, job), by_definition(crop, job, order))

    check()


@pytest.mark.parametrize(
    ("size", "out", "number"),
    [
        *(((61, 83), (40, 37), number) for number in sorted(FILTERS.values())[1:]),
        ((1100, 1500), (1000, 600), 2),  # 256 KiB hold 87 rows between the passes: the image passes in many windows
    ],
)
@pytest.mark.parametrize("first", [0, 1])
def test_each_order_of_passes_whatever_the_sizes(kernel, variant, size, out, number, first):
    pixels = noise(size[1], size[0], 3, 7)
    job = Job(width=size[0], height=size[1], full_width=out[0], full_height=out[1], filter=number, out_width=out[0],
              out_height=out[1], vertical_first=first, reduce=1, channels=3)  # fmt: skip
    between = (size[0], out[1]) if first else (out[0], size[1])
    wanted = np.asarray(Image.fromarray(pixels).resize(between, number).resize(out, number))
    assert np.array_equal(by_kernel(kernel, pixels, job), wanted)


def test_the_orders_of_passes_differ_for_these_sizes():
    image = Image.fromarray(noise(83, 61, 3, 7))
    one, other = (image.resize(between, 2).resize((40, 37), 2).tobytes() for between in ((61, 37), (40, 83)))
    assert one != other


@pytest.mark.parametrize("name", RESAMPLED)
def test_hundreds_of_taps(kernel, variant, name):
    pixels = noise(403, 1501, 3, 5)
    job = Job(width=1501, height=403, full_width=3, full_height=4, filter=RESAMPLED[name], out_width=3, out_height=4,
              flip_horizontal=1, reduce=1, channels=3)  # fmt: skip
    wanted = np.asarray(resize(Image.fromarray(pixels), 3, 4, name, "pillow12"))[:, ::-1]
    assert np.array_equal(by_kernel(kernel, pixels, job), wanted)


@pytest.mark.parametrize("kept", [1, 3])
@pytest.mark.parametrize("name", [name for name in RESAMPLED if name.startswith("torch-")])
def test_a_part_of_one_column(kernel, variant, name, kept):
    """torch makes all rows of one column alike by floats: each part is the first row."""
    pixels = noise(40, 30, 3, 9)
    job = Job(width=30, height=40, full_width=1, full_height=13, filter=RESAMPLED[name], out_top=5, out_width=1,
              out_height=kept, flip_vertical=1, reduce=1, channels=3)  # fmt: skip
    assert np.array_equal(by_kernel(kernel, pixels, job), by_definition(pixels, job, "pillow12"))


@pytest.mark.parametrize(
    "changes",
    [
        {"filter": 12}, {"filter": 0}, {"filter": -1}, {"channels": 2}, {"out_width": 9}, {"out_height": 9}, {"out_left": 1},
        {"out_top": -1}, {"width": 0}, {"height": -3}, {"full_width": 0}, {"left": -1}, {"full_height": 2**31 - 1},
    ],
)  # fmt: skip
def test_what_is_no_job_is_refused(kernel, changes):
    job = Job(width=16, height=16, full_width=8, full_height=8, filter=2, out_width=8, out_height=8, reduce=1, channels=3)
    for name, value in changes.items():
        setattr(job, name, value)
    out = np.full((64, 64, 4), GUARD, dtype=np.uint8)
    job.out, job.out_stride = out.ctypes.data, 256
    pixels = noise(16, 16, 3, 0)
    context = kernel.context()
    assert kernel._library.ddlp_resample(context._pointer, pixels.ctypes.data, pixels.strides[0], job) == 5
    assert (out == GUARD).all()
