"""The kernel gives the same bits as Pillow for every step, on images of all sizes."""

import math
import random

import numpy as np
import pytest
from PIL import Image

from csd_engine.kernels import kernel
from csd_engine.kernels.steps import PackedSteps
from csd_engine.transforms.colour_steps import (
    AutoContrast,
    Blur,
    Enhance,
    Equalize,
    Hue,
    TorchHue,
    brightened_below,
    inverted,
    posterized,
    solarized,
)
from csd_engine.transforms.crops import Crops
from csd_engine.transforms.primitives import Crop, Flip, Gray, Pad, Resize, kernel_steps
from csd_engine.transforms.resample import RESAMPLED
from csd_engine.transforms.torch_pixels import GRID_FILTERS, PIXELS
from csd_engine.transforms.warp_steps import WARP_FILTERS, GridWarp, Turn, Warp

SIZES = [(1, 1), (2, 3), (3, 3), (40, 31), (64, 64), (97, 50)]
needs_kernel = pytest.mark.skipif(kernel() is None, reason="no kernel was built")


def pixels(rnd, height, width, channels):
    numbers = np.random.RandomState(rnd.randrange(1 << 30))
    shape = (height, width, channels)
    kinds = [
        lambda: numbers.randint(0, 256, shape),
        lambda: np.cumsum(np.cumsum(numbers.randint(-3, 4, shape), 0), 1) % 256,
        lambda: np.full(shape, numbers.randint(0, 256)),
        lambda: numbers.randint(100, 108, shape),
    ]
    return np.ascontiguousarray(rnd.choice(kinds)().astype(np.uint8))


def warp(rnd, width, height, channels, coefficients):
    angle, scale = rnd.uniform(-4, 4), rnd.uniform(0.5, 2)
    sine, cosine = math.sin(angle) * scale, math.cos(angle) * scale
    found = rnd.choice([
        [cosine, sine, rnd.uniform(-width, width), -sine, cosine, rnd.uniform(-height, height)],
        [scale, 0.0, rnd.uniform(-width, width), 0.0, scale, rnd.uniform(-5, 5)],
        [1.0, 0.0, float(rnd.randrange(-9, 9)), 0.0, 1.0, 0.0],
        [30000.0 / width, 1.0, 0.0, 1.0, 40000.0 / height, 0.0],
    ])
    if coefficients == 8:
        found += [rnd.uniform(-0.01, 0.01), rnd.uniform(-0.01, 0.01)]
    fill = tuple(rnd.randrange(256) for _ in range(channels))
    size = rnd.choice([width, width + 7]), rnd.choice([height, height + 3])
    return Warp(*size, tuple(found), rnd.choice(WARP_FILTERS), fill)


def grid_warp(rnd, width, height, channels):
    moved = warp(rnd, width, height, channels, 6)
    return GridWarp(moved.coefficients, rnd.choice(GRID_FILTERS), rnd.choice([None, moved.fill]), torchs(rnd))


def torchs(rnd):
    return rnd.choice(PIXELS[1:])


def crop(rnd, width, height):
    x, y = rnd.randrange(width), rnd.randrange(height)
    return Crop(y, x, rnd.randrange(1, height - y + 1), rnd.randrange(1, width - x + 1))


def pad(rnd, channels):
    borders = [rnd.randrange(9) for _ in range(4)]
    fill = tuple(rnd.randrange(256) for _ in range(channels))
    return Pad(*borders, fill, rnd.choice(["constant", "edge", "reflect", "symmetric"]))


def taps(rnd, length):
    return 2 * rnd.randrange(0, min(12, (length + 1) // 2)) + 1


STEPS = {
    "brightness": lambda rnd, w, h, c: Enhance("brightness", factor(rnd)),
    "contrast": lambda rnd, w, h, c: Enhance("contrast", factor(rnd)),
    "saturation": lambda rnd, w, h, c: Enhance("saturation", factor(rnd)),
    "sharpness": lambda rnd, w, h, c: Enhance("sharpness", factor(rnd)),
    "hue": lambda rnd, w, h, c: Hue(rnd.randrange(256)),
    "posterize": lambda rnd, w, h, c: posterized(rnd.randrange(9)),
    "solarize": lambda rnd, w, h, c: solarized(rnd.choice([rnd.uniform(-1, 257), float(rnd.randrange(257))])),
    "brighten below": lambda rnd, w, h, c: brightened_below(rnd.randrange(257), rnd.randrange(256)),
    "invert": lambda rnd, w, h, c: inverted(),
    "autocontrast": lambda rnd, w, h, c: AutoContrast(),
    "equalize": lambda rnd, w, h, c: Equalize(),
    "blur": lambda rnd, w, h, c: Blur((taps(rnd, w), taps(rnd, h)), (rnd.uniform(0.1, 3), rnd.uniform(0.1, 3))),
    "turn": lambda rnd, w, h, c: Turn(rnd.randrange(1, 4)),
    "affine": lambda rnd, w, h, c: warp(rnd, w, h, c, 6),
    "perspective": lambda rnd, w, h, c: warp(rnd, w, h, c, 8),
    "crop": lambda rnd, w, h, c: crop(rnd, w, h),
    "crops": lambda rnd, w, h, c: crops(rnd, w, h),
    "flip": lambda rnd, w, h, c: Flip(rnd.random() < 0.5),
    "pad": lambda rnd, w, h, c: pad(rnd, c),
    "gray": lambda rnd, w, h, c: Gray(rnd.choice([1, 3])),
    "torch's brightness": lambda rnd, w, h, c: Enhance("brightness", factor(rnd), torchs(rnd)),
    "torch's contrast": lambda rnd, w, h, c: Enhance("contrast", factor(rnd), torchs(rnd)),
    "torch's saturation": lambda rnd, w, h, c: Enhance("saturation", factor(rnd), torchs(rnd)),
    "torch's sharpness": lambda rnd, w, h, c: Enhance("sharpness", factor(rnd), torchs(rnd)),
    "torch's hue": lambda rnd, w, h, c: TorchHue(rnd.uniform(-0.5, 0.5), torchs(rnd)),
    "torch's autocontrast": lambda rnd, w, h, c: AutoContrast(torchs(rnd)),
    "torch's gray": lambda rnd, w, h, c: Gray(rnd.choice([1, 3]), torchs(rnd)),
    "torch's grid": grid_warp,
    "resize": lambda rnd, w, h, c: Resize(rnd.randrange(1, 90), rnd.randrange(1, 90), rnd.choice(sorted(RESAMPLED))),
}


def crops(rnd, w, h):
    height, width = rnd.randrange(1, min(h, 40) + 1), rnd.randrange(1, min(w, 40) + 1)
    middle = rnd.randrange(w - width + 1), rnd.randrange(h - height + 1)
    return Crops(height, width, *middle, rnd.choice([None, Flip(True), Flip(False)]))


def factor(rnd):
    return rnd.choice([0.0, 1.0, rnd.uniform(0, 1), rnd.uniform(1, 3)])


def by_pillow(image, steps, order):
    found = Image.fromarray(image if image.shape[2] == 3 else image[..., 0])
    for step in steps:
        found = step.by_pillow(found, order)
    array = np.asarray(found)
    return array.reshape(*array.shape[:2], -1)


def by_kernel(image, steps, order, shape):
    out = np.empty(shape, np.uint8)
    assert kernel().context().steps(image, PackedSteps(kernel_steps(tuple(steps), order)), out)
    return out


@needs_kernel
@pytest.mark.parametrize("name", STEPS)
def test_one_step(name):
    rnd = random.Random(name)
    for _ in range(120):
        height, width = rnd.choice(SIZES)
        channels = rnd.choice([1, 3, 3])
        image, order = pixels(rnd, height, width, channels), rnd.choice(["pillow12", "pillow13"])
        step = STEPS[name](rnd, width, height, channels)
        expected = by_pillow(image, [step], order)
        assert np.array_equal(by_kernel(image, [step], order, expected.shape), expected), (step, image.shape)


@needs_kernel
def test_many_steps_one_after_the_other():
    rnd = random.Random(1)
    for _ in range(150):
        height, width = rnd.choice(SIZES)
        image = pixels(rnd, height, width, rnd.choice([1, 3]))
        steps, made = [], image
        for _ in range(rnd.randrange(0, 6)):
            step = STEPS[rnd.choice(list(STEPS))](rnd, made.shape[1], made.shape[0], made.shape[2])
            made = by_pillow(made, [step], "pillow13")
            steps.append(step)
        assert np.array_equal(by_kernel(image, steps, "pillow13", made.shape), made), steps


@needs_kernel
def test_what_does_not_fit_is_refused():
    context, image = kernel().context(), np.zeros((8, 8, 3), np.uint8)

    def done(step, shape):
        return context.steps(image, PackedSteps(kernel_steps((step,), "pillow13")), np.empty(shape, np.uint8))

    assert done(Crop(0, 0, 8, 4), (8, 4, 3))
    for step, shape in (
        (Crop(0, 0, 8, 4), (8, 8, 3)),  # the result has another size
        (Crop(0, 5, 8, 4), (8, 4, 3)),
        (Crop(-1, 0, 8, 4), (8, 4, 3)),
        (Blur((17, 3), (1.0, 1.0)), (8, 8, 3)),  # wider than the reflected border
        (Resize(0, 4, "bilinear"), (1, 4, 3)),
        (Gray(1), (8, 8, 3)),
    ):
        assert not done(step, shape), step
    assert "step" in context.why()
    with pytest.raises(ValueError, match="one piece"):
        context.steps(image[:, ::2], PackedSteps([]), np.empty((8, 4, 3), np.uint8))


@needs_kernel
def test_points_that_are_not_numbers_are_outside():
    image = np.full((8, 8, 3), 9, np.uint8)
    for interpolation in WARP_FILTERS:
        step = Warp(8, 8, (math.nan,) * 8, interpolation, (1, 2, 3))
        assert (by_kernel(image, [step], "pillow13", (8, 8, 3)) == (1, 2, 3)).all()
