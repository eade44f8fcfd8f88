"""Colour, blur, rotation, affine maps, perspective and the automatic policies: torchvision's pixels, parameters and chances."""

import inspect
import itertools
import math
import random
from fractions import Fraction

import numpy as np
import PIL.Image
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, autoaugment, v2
from torchvision.transforms import functional as F
from torchvision.transforms.v2 import _auto_augment as v2_auto_augment
from torchvision.transforms.v2.functional import _geometry as v2_geometry

from csd_engine.arithmetic import angles
from csd_engine.arithmetic.keyed import Keyed
from csd_engine.kernels import kernel
from csd_engine.prepare.sample import prepare_sample
from csd_engine.transforms import policies, warps
from csd_engine.transforms.colour_steps import Blur, Hue
from csd_engine.transforms.operators import Canvas
from csd_engine.transforms.pipeline import Pipeline
from ddlp import DDLPLoader, ImageArrays
from ddlp.errors import Untranslatable
from ddlp.translate.datasets import translate_dataset
from ddlp.translate.transforms import translate
from tests.ddlp.translate.draws import P, same, steps_of

N = 4000
MODES = ("nearest", "bilinear", "bicubic")


def noisy(rnd):
    height, width = rnd.choice([(224, 224), (64, 96), (33, 57), (32, 32)])
    channels = rnd.choice([3, 3, 1])
    numbers = np.random.RandomState(rnd.randrange(1 << 30))
    walk = np.cumsum(numbers.randint(-9, 10, (height, width, channels)), 1) + 128
    return np.clip(walk + numbers.randint(-20, 20, walk.shape), 0, 255).astype(np.uint8)


def rgb(seed):
    """The same image of 64 x 96 in each run: a blur of one image in a hundred differs from torch's in a value."""
    return next(array for number in itertools.count(seed) if (array := noisy(random.Random(number))).shape == (64, 96, 3))


def picture(array):
    return Image.fromarray(array if array.shape[2] == 3 else array[..., 0])


def canvas_of(array):
    return Canvas(array.shape[0], array.shape[1], array.shape[2], 0)


def made(array, canvas):
    """The image after a canvas's steps, by Pillow."""
    image = picture(array)
    for step in canvas.steps:
        image = step.by_pillow(image, "pillow13")
    return np.asarray(image)


@pytest.mark.parametrize("kind", ["RandAugment", "TrivialAugmentWide", "AutoAugment"])
@pytest.mark.parametrize("module", [v1, v2])
def test_policies_have_torchvisions_operators_and_magnitudes(kind, module):
    rnd = random.Random(kind)
    theirs = getattr(module, kind)()
    ours = {"RandAugment": policies.RAND, "TrivialAugmentWide": policies.WIDE, "AutoAugment": policies.AUTO}[kind]
    for _ in range(25):
        array, bins = noisy(rnd), 10 if kind == "AutoAugment" else rnd.choice([31, 10, 11])
        canvas, image = canvas_of(array), picture(array)
        if module is v1:
            sizes = () if kind == "TrivialAugmentWide" else (array.shape[:2],)
            space = theirs._augmentation_space(bins, *sizes)
        else:
            listed = theirs._AUGMENTATION_SPACE.items()
            space = {name: (found(bins, *array.shape[:2]), signed) for name, (found, signed) in listed}
        assert set(space) == set(ours.names)
        for name, (magnitudes, signed) in space.items():
            level = rnd.randrange(bins)
            strong = magnitudes is not None and magnitudes.ndim > 0
            magnitude = float(magnitudes[level]) if strong else 0.0
            mine = magnitude * 255.0 if name == "Solarize" and module is v2 else magnitude
            assert policies._magnitude(ours, name, level, bins, module is v2, canvas) == mine or not strong
            assert signed == (name in ours.signed)
            sign = rnd.choice([1, -1]) if signed else 1
            mode, fill = rnd.choice(MODES), rnd.randrange(256)
            canvas = canvas_of(array)
            policies.augment(canvas, name, mine * sign, mode, (fill,), module is v2)
            if module is v1:
                expected = autoaugment._apply_op(image, name, magnitude * sign, InterpolationMode(mode), fill)
            else:
                how = (InterpolationMode(mode), {"others": fill})
                expected = theirs._apply_image_or_video_transform(image, name, magnitude * sign, *how)
            assert np.array_equal(made(array, canvas), np.asarray(expected)), (name, magnitude, mode)


class CorrectMath:
    """The module math with correctly rounded functions (`csd_engine.arithmetic.angles`) in the place of the C library's."""

    sin, cos = (staticmethod(lambda x, part=part: angles.sine_cosine(x)[part]) for part in (0, 1))
    tan, atan = staticmethod(angles.tangent), staticmethod(angles.arctangent)

    def __getattr__(self, name):
        return getattr(math, name)


@pytest.fixture
def correct_math(monkeypatch):
    """Call it: from now on, torchvision and Pillow compute with correctly rounded functions."""

    def change():
        for module in (F, v2_geometry, autoaugment, v2_auto_augment, PIL.Image):
            monkeypatch.setattr(module, "math", CorrectMath())

    return change


@pytest.mark.parametrize("module", [v1, v2])
@pytest.mark.parametrize("correct", [False, True])
def test_matrices_are_torchvisions(module, correct, correct_math):
    """All their bits, but for one to three of a hundred in which the C library rounds a sine to the other neighbour."""
    if correct:
        correct_math()
    theirs = (F if module is v1 else v2_geometry)._get_inverse_affine_matrix
    rnd, others = random.Random(8), 0
    for _ in range(500):
        center = [rnd.choice([112.0, 31.5, rnd.uniform(0, 300)]) for _ in range(2)]
        angle, scale, move = rnd.uniform(-180, 180), rnd.uniform(0.3, 3), [float(rnd.randrange(-40, 40)) for _ in range(2)]
        shear = [rnd.choice([0.0, 5.0, rnd.uniform(-60, 60)]) for _ in range(2)]
        ours = warps.inverse_affine(tuple(center), angle, tuple(move), scale, tuple(shear), module is v2)
        others += list(ours) != theirs(center, angle, move, scale, shear)
    assert others == 0 if correct else others < 20


@pytest.mark.parametrize("module", [v1, v2])
def test_a_policys_shears_have_torchvisions_matrices(module, correct_math):
    """A shear by a tangent is for torchvision the tangent of so many degrees, which may be another number."""
    correct_math()
    theirs = (F if module is v1 else v2_geometry)._get_inverse_affine_matrix
    others = 0
    for level in range(1, 31):
        magnitude = float(np.float32(0.99 * level / 30)) * (-1) ** level
        degrees = math.degrees(angles.arctangent(magnitude))
        for name, shear in (("ShearX", [degrees, 0.0]), ("ShearY", [0.0, degrees])):
            canvas = Canvas(64, 96, 3, 0)
            policies.augment(canvas, name, magnitude, "bilinear", (0,), module is v2)
            ours = canvas.steps[0].coefficients
            assert list(ours) == theirs([0, 0], 0.0, [0, 0], 1.0, shear)
            others += magnitude not in ours
    assert others


def itself(transform, array):
    """What an operator without chance makes of an image: (by ddlp, by torchvision)."""
    pipeline, image = translate(v1.Compose([transform, v1.PILToTensor()])).pipeline, picture(array)
    plan = pipeline.draw(image.size, Keyed(0, 0, 0, 0))
    out = np.empty(plan.shape, np.uint8)
    pipeline.apply(image, plan, out)
    return out, np.asarray(transform(image)).reshape(out.shape)


def fixed(rnd, low, high):
    number = rnd.uniform(low, high)
    return (number, number)


FIXED = {  # operators whose intervals are one number each
    "rotation": lambda m, rnd, how: m.RandomRotation(fixed(rnd, -360, 360), expand=rnd.random() < 0.5, **how),
    "rotation around": lambda m, rnd, how: m.RandomRotation(fixed(rnd, -360, 360), center=(rnd.uniform(0, 60), 9.25), **how),
    "angle": lambda m, rnd, how: m.RandomAffine(fixed(rnd, -180, 180), **how),
    "scale": lambda m, rnd, how: m.RandomAffine((9, 9), scale=fixed(rnd, 0.2, 4), shear=(5, 5, 3, 3), **how),
    "shear": lambda m, rnd, how: m.RandomAffine((0, 0), shear=(*fixed(rnd, -80, 80), *fixed(rnd, -80, 80)), **how),
    "one shear": lambda m, rnd, how: m.RandomAffine((-9, -9), scale=(1.2, 1.2), shear=fixed(rnd, -80, 80), **how),
    "all": lambda m, rnd, how: m.RandomAffine(
        fixed(rnd, -180, 180), None, fixed(rnd, 0.3, 3), (*fixed(rnd, -60, 60), 3, 3), **how
    ),
}


@pytest.mark.parametrize("module", [v1, v2])
@pytest.mark.parametrize("name", FIXED)
@pytest.mark.some(3)
def test_warps_of_fixed_parameters_are_torchvisions_own(name, module):
    """torch draws float32 numbers, so a scale of (1.2, 1.2) is 1.2000000476837158 for both."""
    rnd, differ, values = random.Random(name), 0, 0
    for _ in range(20):
        how = {"interpolation": InterpolationMode(rnd.choice(MODES)), "fill": rnd.randrange(256)}
        ours, theirs = itself(FIXED[name](module, rnd, how), rgb(rnd.randrange(1000)))
        differ, values = differ + int(np.count_nonzero(ours != theirs)), values + ours.size
    assert differ <= values / 500_000  # the C library's part, see test_matrices_are_torchvisions


@pytest.mark.parametrize("module", [v1, v2])
def test_other_fixed_parameters_are_torchvisions_own(module):
    array, rnd = rgb(3), random.Random(2)
    hues = [k / 255 for k in range(-127, 128)] + [-0.5, 0.5]
    for hue in rnd.sample(hues, 80):
        ours, theirs = itself(module.ColorJitter(hue=(hue, hue)), array)
        assert np.array_equal(ours, theirs), hue
    for name in ("brightness", "contrast", "saturation"):
        for _ in range(20):
            ours, theirs = itself(module.ColorJitter(**{name: fixed(rnd, 0, 3)}), array)
            assert np.array_equal(ours, theirs), name
    # 0.49 of 75 x 75 pixels is a square of 52.5; float32's 0.49 is a little more.
    for scale, side in ((0.49, 75), (0.49, 65), (0.25, 101), (0.09, 45), (0.81, 35)):
        transform = v1.Compose([module.RandomResizedCrop(8, (scale, scale), (1.0, 1.0)), v1.PILToTensor()])
        crop = translate(transform).pipeline.draw((side, side), Keyed(1, 1, 1, 1)).primitives[0]
        theirs = v1.RandomResizedCrop.get_params(Image.new("L", (side, side)), [scale, scale], [1.0, 1.0])
        assert (crop.height, crop.width) == theirs[2:]
        transform = v1.Compose([v1.ToTensor(), module.RandomErasing(1.0, (scale, scale), (1.0, 1.0))])
        pipeline = translate(transform).pipeline
        _, _, h, w, _ = v1.RandomErasing.get_params(torch.zeros(1, side, side), (scale, scale), (1.0, 1.0), [0.0])
        for canvas in range(2):
            top, left, bottom, right = pipeline.draw((side, side), Keyed(1, 1, canvas, 1)).boxes[0]
            assert (bottom - top, right - left) == (h, w)


def test_auto_augments_tables():
    for policy in autoaugment.AutoAugmentPolicy:
        theirs = [tuple(map(tuple, pair)) for pair in v1.AutoAugment(policy).policies]
        assert list(policies.POLICIES[policy.value]) == theirs


def test_warps_are_torchvisions():
    rnd = random.Random(3)
    for _ in range(60):
        array = noisy(rnd)
        image, (height, width) = picture(array), array.shape[:2]
        mode, fill = rnd.choice(MODES), rnd.randrange(256)
        theirs = {"interpolation": InterpolationMode(mode), "fill": fill}
        angle = rnd.choice([rnd.uniform(-400, 400), 90.0, 180.0, 0.0, 270.0, -90.0])
        center = rnd.choice([None, (rnd.uniform(0, width), rnd.uniform(0, height))])
        for expand in (False, True):
            canvas = canvas_of(array)
            warps.rotate(canvas, angle, mode, expand, center, (fill,))
            expected = F.rotate(image, angle, expand=expand, center=center, **theirs)
            assert (canvas.width, canvas.height) == expected.size
            assert np.array_equal(made(array, canvas), np.asarray(expected)), (angle, mode, expand, center)
        move, scale = (rnd.randrange(-20, 20), rnd.randrange(-20, 20)), rnd.uniform(0.4, 2)
        shear = (rnd.uniform(-40, 40), rnd.choice([0.0, rnd.uniform(-30, 30)]))
        canvas = canvas_of(array)
        matrix = warps.inverse_affine(center or (width * 0.5, height * 0.5), angle, move, scale, shear, False)
        canvas.warp(height, width, matrix, mode, (fill,))
        expected = F.affine(image, angle, list(move), scale, list(shear), center=list(center) if center else None, **theirs)
        assert np.array_equal(made(array, canvas), np.asarray(expected))


def exactly(start, end):
    """torchvision's equations for a perspective, solved in fractions; None if they have no solution."""
    rows = []
    for (x, y), (u, v) in zip(end, start, strict=True):
        rows.append([Fraction(n) for n in (x, y, 1, 0, 0, 0, -u * x, -u * y, u)])
        rows.append([Fraction(n) for n in (0, 0, 0, x, y, 1, -v * x, -v * y, v)])
    for k in range(8):
        best = next((row for row in range(k, 8) if rows[row][k]), None)
        if best is None:
            return None
        rows[k], rows[best] = rows[best], rows[k]
        rows[k] = [value / rows[k][k] for value in rows[k]]
        for row in range(8):
            if row != k:
                rows[row] = [value - rows[row][k] * pivot for value, pivot in zip(rows[row], rows[k], strict=True)]
    return [float(np.float32(float(row[8]))) for row in rows]


def test_perspectives_are_exact_and_torchvisions_where_lapack_leaves_no_dust():
    rnd, differ, values = random.Random(6), 0, 0
    exact = "float64" in inspect.getsource(F._get_perspective_coeffs)  # older versions solve the equations in float32
    for _ in range(120):
        array = noisy(rnd)
        image, (height, width) = picture(array), array.shape[:2]
        start, end = v1.RandomPerspective.get_params(width, height, rnd.choice([0.0, 0.03, 0.5, 1.0, rnd.random()]))
        ours = warps.perspective_coefficients(start, end)
        wanted = exactly(start, end)
        if wanted is None:
            assert all(map(math.isnan, ours))
            continue
        assert list(ours) == wanted
        theirs = F._get_perspective_coeffs(start, end)
        if exact and 0.0 not in wanted:
            assert theirs == wanted
            mode, fill = rnd.choice(MODES), rnd.randrange(256)
            canvas = canvas_of(array)
            canvas.warp(height, width, ours, mode, (fill,))
            expected = F.perspective(image, start, end, interpolation=InterpolationMode(mode), fill=fill)
            difference = made(array, canvas) != np.asarray(expected)
            differ, values = differ + int(difference.sum()), values + difference.size
        elif exact:
            assert np.allclose(theirs, wanted, rtol=1e-6, atol=1e-9)
    assert differ == 0 and (values > 1_000_000 or not exact)


def test_blur_differs_by_one_in_few_values_and_hue_in_none():
    rnd, differ, values = random.Random(4), 0, 0
    for _ in range(40):
        array = noisy(rnd)
        taps, sigma = (rnd.choice([3, 5, 9, 23]), rnd.choice([3, 5, 9, 23])), rnd.uniform(0.1, 2)
        canvas = canvas_of(array)
        canvas.add(Blur(taps, (sigma, sigma)))
        difference = made(array, canvas).astype(int) - np.asarray(F.gaussian_blur(picture(array), list(taps), [sigma, sigma]))
        assert np.abs(difference).max() <= 1
        differ, values = differ + int((difference != 0).sum()), values + difference.size
        turn = rnd.uniform(-0.5, 0.5)
        canvas = canvas_of(array)
        canvas.add(Hue(int(turn * 255) & 255))
        assert np.array_equal(made(array, canvas), np.asarray(F.adjust_hue(picture(array), turn)))
    assert differ <= values / 10_000


COMPOSED = [
    lambda m: m.ColorJitter(0.4, 0.4, 0.4, 0.1),
    lambda m: m.ColorJitter(brightness=(0.5, 1.5)),
    lambda m: m.GaussianBlur(9, (0.1, 2.0)),
    lambda m: m.GaussianBlur((3, 5)),
    lambda m: m.RandomAdjustSharpness(2.0, p=1.0),
    lambda m: m.RandomPosterize(3, p=1.0),
    lambda m: m.RandomSolarize(128.0, p=1.0),
    lambda m: m.RandomInvert(p=1.0),
    lambda m: m.RandomAutocontrast(p=1.0),
    lambda m: m.RandomEqualize(p=1.0),
    lambda m: m.RandomRotation(30, interpolation=InterpolationMode.BILINEAR, fill=7),
    lambda m: m.RandomAffine(20, (0.1, 0.2), (0.8, 1.2), 10, fill=(1, 2, 3)),
    lambda m: m.RandomAffine(20, shear=(-5, 5, -8, 8), center=(3, 4)),
    lambda m: m.RandomPerspective(0.4, p=1.0, fill=9),
    lambda m: m.AutoAugment(autoaugment.AutoAugmentPolicy.CIFAR10),
    lambda m: m.RandAugment(3, 12, fill=128),
    lambda m: m.TrivialAugmentWide(interpolation=InterpolationMode.BILINEAR),
]


@pytest.mark.skipif(kernel() is None, reason="no kernel was built")
@pytest.mark.parametrize("number", range(len(COMPOSED)))
@pytest.mark.parametrize("module", [v1, v2])
@pytest.mark.some(12)
def test_a_pipeline_with_it_gives_pillows_bits_by_the_kernel(number, module):
    array = rgb(1)[np.newaxis]
    transform = v1.Compose([COMPOSED[number](module), v1.RandomHorizontalFlip(), v1.ToTensor()])
    pipeline = translate(transform).pipeline
    assert Pipeline.parse(pipeline.to_data()).to_data() == pipeline.to_data()
    reader = translate_dataset(ImageArrays(array, [0], transform)).reader()
    for index in range(12):
        out, expected = np.zeros((64, 96, 3), np.uint8), np.empty((64, 96, 3), np.uint8)
        prepare_sample(reader, pipeline, (0, index), 5, 0, out)
        pipeline.run(picture(array[0]), Keyed(5, 0, 0, index), expected, None)
        assert np.array_equal(out, expected)


def test_they_stay_before_the_tensor():
    for kind in COMPOSED:
        with pytest.raises(Untranslatable, match="torch's kernels"):
            translate(v1.Compose([v1.ToTensor(), kind(v1)]))


BEHIND = [  # operators after ToImage, and whether torch's kernels for bytes give Pillow's pixels there
    (lambda: v2.RandomPosterize(3, p=1.0), True),
    (lambda: v2.RandomSolarize(100.0, p=1.0), True),
    (lambda: v2.RandomInvert(p=1.0), True),
    (lambda: v2.RandomEqualize(p=1.0), True),
    (lambda: v2.GaussianBlur(5, 1.0), True),
    (lambda: v2.Grayscale(1), False),
    (lambda: v2.Grayscale(3), False),
    (lambda: v2.ColorJitter(brightness=(1.3, 1.3)), False),
]


@pytest.mark.parametrize("number", range(len(BEHIND)))
def test_behind_to_image_it_runs_as_on_a_pil_image_where_that_was_asked_for(number):
    operator, same_pixels = BEHIND[number]
    array = rgb(12)
    tensor = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.25])]
    transform = v2.Compose([v2.CenterCrop((60, 90)), v2.ToImage(), operator(), v2.CenterCrop(18), *tensor])
    data = ImageArrays(array[np.newaxis], [0], transform)
    ((ours, _),), ((as_on_pil, _),) = DDLPLoader(data, 1), DDLPLoader(data, 1, as_pil=True)
    as_pil = v2.Compose([v2.CenterCrop((60, 90)), operator(), v2.ToImage(), v2.CenterCrop(18), *tensor])
    assert torch.equal(as_on_pil[0], as_pil(picture(array)))
    assert torch.equal(ours[0], transform(picture(array)))
    assert (ours[0] - as_on_pil[0]).abs().max() <= (0 if same_pixels else 2.01) / 255 / 0.25


def test_behind_to_image_torchs_perspective_is_unknown():
    transform = v2.Compose([v2.ToImage(), v2.RandomPerspective(), v2.ToDtype(torch.float32, scale=True)])
    with pytest.raises(Untranslatable, match="as_pil=True"):
        translate(transform)
    assert translate(transform, as_pil=True)


def test_what_a_fill_by_type_or_another_filter_gets():
    with pytest.raises(Untranslatable, match="by type of input"):
        translate(v2.Compose([v2.RandomRotation(3, fill={Image.Image: 3, "others": 4}), v2.ToTensor()]))
    with pytest.raises(Untranslatable, match="lanczos"):
        translate(v1.Compose([v1.RandomRotation(3, interpolation=InterpolationMode.LANCZOS), v1.ToTensor()]))


def test_colour_jitters_factors_and_orders():
    from scipy import stats

    jitter = v1.ColorJitter(0.4, 0.3, 0.2, 0.1)
    torch.manual_seed(0)
    theirs, orders = [], {}
    for _ in range(N):
        order, *factors = v1.ColorJitter.get_params(jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue)
        theirs.append([*factors[:3], int(factors[3] * 255)])
        orders[tuple(order.tolist())] = orders.get(tuple(order.tolist()), 0) + 1
    ours, ours_orders = [], {}
    names = ["brightness", "contrast", "saturation", "hue"]
    for steps in steps_of(jitter, N):
        found = {getattr(step, "what", "hue"): getattr(step, "factor", getattr(step, "shift", 0)) for step in steps}
        order = tuple(names.index(name) for name in found)
        ours_orders[order] = ours_orders.get(order, 0) + 1
        hue = found["hue"]
        ours.append([*(found[name] for name in names[:3]), hue - 256 if hue > 127 else hue])
    same(ours, theirs)
    assert len(ours_orders) == 24
    assert stats.chisquare(list(ours_orders.values())).pvalue > P


def test_affine_and_perspective_parameters():
    torch.manual_seed(1)
    t = v1.RandomAffine(20, (0.1, 0.2), (0.8, 1.2), (-5, 5, -8, 8))
    theirs = []
    for _ in range(N):
        angle, move, scale, shear = t.get_params(t.degrees, t.translate, t.scale, t.shear, [120, 90])
        theirs.append(F._get_inverse_affine_matrix([60.0, 45.0], angle, list(move), scale, list(shear)))
    same([steps[0].coefficients for steps in steps_of(t, N)], theirs)
    random.seed(2)
    ends = [v1.RandomPerspective.get_params(120, 90, 0.5) for _ in range(N)]
    ours = [steps[0].coefficients for steps in steps_of(v1.RandomPerspective(p=1.0), N)]
    same(ours, [F._get_perspective_coeffs(*e) for e in ends])


def test_chances_of_the_policies():
    from scipy import stats

    steps = steps_of(v1.RandAugment(1, 9), N)
    seen = {}
    for found in steps:
        step = found[0] if found else None
        name = "Identity" if step is None else getattr(step, "what", type(step).__name__)
        seen[name] = seen.get(name, 0) + 1
    expected = {"Warp": 5, "brightness": 1, "contrast": 1, "saturation": 1, "sharpness": 1, "Table": 2, "AutoContrast": 1,
                "Equalize": 1, "Identity": 1}  # of 14 operators  # fmt: skip
    assert set(seen) == set(expected)
    assert stats.chisquare([seen[k] for k in expected], [expected[k] * N / 14 for k in expected]).pvalue > P
    angles = [np.sign(found[0].coefficients[1]) for found in steps_of(v1.RandomRotation(30), N)]
    assert stats.binomtest(angles.count(1.0), N, 0.5).pvalue > P
    steps = [found[0] for found in steps_of(v1.TrivialAugmentWide(), N) if found]
    levels = {round((step.factor - 1) / 0.033) for step in steps if getattr(step, "what", "") == "contrast"}
    assert min(levels) < -20 and max(levels) > 20 and len(levels) > 40
