"""Bits against torchvision: whole transforms if they are deterministic, single operators for the drawn parameters if random."""

import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import functional as F
from torchvision.transforms import v2

from csd_engine.arithmetic.keyed import Keyed
from csd_engine.transforms import primitives as steps
from ddlp.errors import Untranslatable
from ddlp.transforms import Cutout
from ddlp.translate.transforms import translate

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
N1, N2 = v1.Normalize(MEAN, STD), v2.Normalize(MEAN, STD, inplace=True)
SIZES = [(1, 1), (33, 47), (64, 32), (97, 61), (120, 41), (40, 130), (31, 7)]
MODES = ["RGB", "L", "CMYK", "P", "LA"]


def image(size, mode="RGB", seed=0):
    values = np.random.RandomState(seed).randint(0, 256, (size[1], size[0], 4)).astype(np.uint8)
    return Image.fromarray(values[..., :3]).convert(mode) if mode != "CMYK" else Image.frombytes("CMYK", size, values)


def ours(translation, source, keyed=None):
    pipe, epilogue = translation.pipeline, translation.epilogue
    keyed = keyed or Keyed(0, 0, 0, 0)
    plan = pipe.draw(source.size, keyed)
    out = np.empty((1, *plan.shape), dtype=np.uint8)
    pipe.apply(source, plan, out[0])
    boxes = torch.tensor([plan.boxes], dtype=torch.int32) if pipe.boxes else None
    return epilogue(torch.from_numpy(out), boxes)[0], plan


def bits(tensor):
    return tensor.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def to_float2(**kw):
    return [v2.ToImage(), v2.ToDtype(torch.float32, scale=True, **kw)]


DETERMINISTIC = [
    v1.Compose([v1.Resize(40), v1.CenterCrop(32), v1.ToTensor(), N1]),
    v1.Compose([v1.Compose([v1.Resize((37, 29), interpolation=v1.InterpolationMode.BICUBIC)]), v1.ToTensor()]),
    v1.Compose([v1.Resize([20], max_size=45), v1.Pad((1, 2, 3, 4), fill=(3, 4, 5)), v1.CenterCrop((51, 50)),
                v1.PILToTensor(), v1.ConvertImageDtype(torch.float32), v1.Normalize(MEAN, STD, inplace=True)]),
    v1.Compose([v1.CenterCrop((45, 70)), v1.Grayscale(), v1.ToTensor(), v1.Normalize([0.5], [0.25])]),
    v1.Compose([v1.Grayscale(3), v1.Resize((30, 31), interpolation=0), v1.ToTensor(), N1]),
    v1.Compose([v1.Resize((40, 40), v1.InterpolationMode.LANCZOS), v1.Pad([3, 5], padding_mode="symmetric"),
                v1.PILToTensor()]),
    v1.Compose([v1.Resize((40, 40), v1.InterpolationMode.BOX), v1.Pad(9, padding_mode="reflect"),
                v1.RandomHorizontalFlip(1.0), v1.RandomVerticalFlip(1), v1.ToTensor()]),
    v1.Compose([v1.Resize((40, 40), v1.InterpolationMode.HAMMING), v1.Pad((-3, 5, 2, -7), fill=9, padding_mode="edge"),
                v1.ToTensor(), v1.ConvertImageDtype(torch.float16)]),
    v1.Compose([nn.Sequential(v1.Resize((33, 20)), v1.CenterCrop(25)), v1.PILToTensor(),
                v1.ConvertImageDtype(torch.bfloat16), N1]),
    v1.Compose([v1.Resize((50, 40)), v1.ToTensor(), v1.CenterCrop(30), v1.Pad(4), v1.RandomHorizontalFlip(p=1), N1]),
    v1.Compose([v1.Resize((40, 50)), v1.RandomCrop((48, 54), padding=[2, 4], padding_mode="reflect"), v1.ToTensor()]),
    v2.Compose([v2.Resize((40, 50)), v2.RandomCrop((48, 54), padding=[2, 4], fill=[1, 2, 3]), v2.PILToTensor()]),
    v1.Compose([v1.Resize((40, 40)), v1.ToTensor(), v1.Pad(3, padding_mode="reflect"), v1.RandomVerticalFlip(1.0)]),
    v2.Compose([v2.Resize(40), v2.CenterCrop(32), *to_float2(), N2]),
    v2.Compose([v2.Resize([38, 22], antialias=False), v2.ToImage(), v2.ToDtype({torch.Tensor: torch.float32,
                                                                                "others": None})]),
    v2.Compose([v2.Resize((40, 40)), v2.RandomApply([v2.Pad(2), v2.CenterCrop(30)], p=1.0), v2.CenterCrop(20),
                *to_float2()]),
    v2.Compose([v2.Resize((40, 40)), v2.RandomChoice([v2.Pad(2), v2.Grayscale(3)], p=[0, 1]), *to_float2(), N2]),
]
if hasattr(v2, "RGB"):  # torchvision 0.20 and newer
    DETERMINISTIC += [
        v2.Compose([v2.Resize(size=None, max_size=50), v2.CenterCrop([48, 52]), *to_float2(), N2, v2.ToPureTensor()]),
        v2.Compose([v2.Resize([38, 22], interpolation="nearest-exact"), v2.Identity(), v2.PILToTensor(),
                    v2.ToDtype(torch.float32)]),
        v2.Compose([v2.Resize((38, 22)), v2.RGB(), v2.Pad((2, 3), fill=[9, 8, 7]), v2.ToImage(), v2.RandomVerticalFlip(1),
                    v2.Pad(2, fill=255), v2.ConvertImageDtype(torch.float32)]),
        v2.Compose([v2.Resize((38, 22)), v2.Grayscale(1), v2.RGB(), v2.ToImage()]),
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(len(DETERMINISTIC)))
@pytest.mark.some(5)
def test_deterministic_transforms_are_torchvisions_bit_for_bit(number):
    transform = DETERMINISTIC[number]
    translation = translate(transform)
    for i, size in enumerate(SIZES):
        for mode in MODES:
            source = image(size, mode, i)
            try:
                expected = transform(source.convert("RGB"))
            except ValueError:
                continue  # torchvision refuses this size
            result, _ = ours(translation, source)
            assert result.dtype == expected.dtype
            assert torch.equal(bits(result), bits(expected.as_subclass(torch.Tensor))), (size, mode)
            for dtype in (torch.float32, torch.float16, torch.bfloat16):
                for layout in (torch.contiguous_format, torch.channels_last):
                    epilogue = translation.epilogue.with_output(dtype, layout)
                    other, _ = ours(type(translation)(translation.pipeline, epilogue), source)
                    assert torch.equal(bits(other), bits(expected.as_subclass(torch.Tensor).to(dtype)))


def test_greyscale_sources():
    transform = v1.Compose([v1.Resize((20, 20)), v1.ToTensor(), v1.Normalize((0.1307,), (0.3081,))])
    source = image((28, 28), "L")
    result, _ = ours(translate(transform, mode="L"), source)
    assert torch.equal(result, transform(source))


def replay(plan, source):
    """Run the plan with torchvision's functional operators."""
    for step in plan.primitives:
        if isinstance(step, steps.Crop):
            source = F.crop(source, step.top, step.left, step.height, step.width)
        elif isinstance(step, steps.Resize):
            source = F.resize(source, [step.height, step.width], F.InterpolationMode(step.interpolation))
        elif isinstance(step, steps.Flip):
            source = F.hflip(source) if step.horizontal else F.vflip(source)
        elif isinstance(step, steps.Pad):
            source = F.pad(source, [step.left, step.top, step.right, step.bottom], step.fill, step.padding_mode)
        else:
            source = F.to_grayscale(source, step.channels)
    return source


RANDOM = [
    v1.Compose([v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), v1.ToTensor(), N1]),
    v1.Compose([v1.RandomCrop(32, padding=4, pad_if_needed=True, padding_mode="reflect"), v1.RandomHorizontalFlip(),
                v1.ToTensor(), N1, v1.RandomErasing(p=0.9, value=(0.1, -3.0, 7.5))]),
    v1.Compose([v1.RandomOrder([v1.RandomGrayscale(0.5), v1.RandomVerticalFlip(), v1.Resize((32, 32))]), v1.ToTensor(),
                v1.RandomErasing(p=0.7), N1, Cutout(9, 3, fill=0.5), Cutout(5)]),
    v2.Compose([v2.RandomChoice([v2.RandomResizedCrop(32, interpolation=v2.InterpolationMode.BICUBIC),
                                 v2.RandomCrop(32, pad_if_needed=True, fill=(9, 8, 7))], p=[0.3, 0.7]),
                v2.RandomApply([v2.RandomGrayscale(0.9), v2.RandomHorizontalFlip()], p=0.6), *to_float2(),
                v2.RandomErasing(p=0.8, value=0.25), N2]),
    v2.Compose([v2.ToImage(), v2.RandomCrop(32, padding=[3, 4], pad_if_needed=True, fill=13), v2.RandomVerticalFlip(),
                v2.ToDtype(torch.float32, scale=True), N2, Cutout(16)]),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(len(RANDOM)))
def test_random_transforms_are_torchvisions_for_the_parameters_drawn(number):
    transform = RANDOM[number]
    translation = translate(transform)
    flat = transform.transforms
    first = next(i for i, t in enumerate(flat) if isinstance(t, (v1.ToTensor, v2.ToImage)))
    for index in range(25):
        source = image(SIZES[index % 5 + 1] if index % 4 else (64, 64), "RGB", index)
        result, plan = ours(translation, source, Keyed(1, 0, index, 0))
        expected, boxes = flat[first](replay(plan, source)), list(plan.boxes)
        for t in flat[first + 1 :]:
            if isinstance(t, (v1.RandomErasing, v2.RandomErasing)):
                value = torch.tensor(t.value, dtype=torch.float32).reshape(-1, 1, 1)
                top, left, bottom, right = boxes.pop(0)
                expected = F.erase(expected, top, left, bottom - top, right - left, value)
            elif isinstance(t, Cutout):
                for _ in range(t.n_holes):
                    top, left, bottom, right = boxes.pop(0)
                    expected = F.erase(expected, top, left, bottom - top, right - left, torch.tensor(t.fill))
            elif not isinstance(t, (v2.RandomCrop, v2.RandomVerticalFlip)):
                expected = t(expected)
        assert not boxes and torch.equal(bits(result), bits(expected.as_subclass(torch.Tensor)))


class Own(v1.Resize):
    pass


def hooked():
    crop = v1.CenterCrop(8)
    crop.register_forward_hook(lambda *_: None)
    return crop


class Preset:
    """Like the presets of torchvision's references."""

    def __init__(self, *inner):
        self.inner = v1.Compose([*inner, v1.ToTensor()])

    def __call__(self, img):
        """A docstring, which must not matter."""
        return self.inner(img)


class Brighter(Preset):
    def __call__(self, img):
        return self.inner(img) * 2


class Switched(Preset):
    @property
    def inner(self):
        return self.inners[torch.is_grad_enabled()]

    @inner.setter
    def inner(self, inner):
        self.inners = [inner, v1.ToTensor()]


class Looked(Preset):
    def __getattribute__(self, name):
        return v1.ToTensor() if name == "inner" else object.__getattribute__(self, name)


TENSOR = [v1.ToTensor(), N1]
UNTRANSLATABLE = [
    (None, "transform=None", "PIL images"),
    (v1.Compose([v1.CenterCrop(8)]), "the transform", "PIL images"),
    (v1.Compose([v1.Lambda(lambda x: x), *TENSOR]), "Lambda", "exact torchvision types"),
    (v1.Compose([Own(8), *TENSOR]), "Own", "exact torchvision types"),
    (lambda x: x, "<lambda>", "exact torchvision types"),
    (Brighter(v1.CenterCrop(8)), "Brighter", "exact torchvision types"),
    (Switched(v1.CenterCrop(8)), "Switched", "exact torchvision types"),
    (Looked(v1.CenterCrop(8)), "Looked", "exact torchvision types"),
    (Preset(Own(8)), "Own", "exact torchvision types"),
    (v1.Compose([v1.ElasticTransform(), *TENSOR]), "ElasticTransform", "exact torchvision types"),
    (v1.Compose([hooked(), *TENSOR]), "CenterCrop", "hooks"),
    (v1.Compose([*TENSOR, v1.Resize(8)]), "Resize", "move ToImage or ToTensor behind Resize"),
    (v2.Compose([v2.ToImage(), v2.Resize(8, antialias=False)]), "Resize", "leave antialias out"),
    (v1.Compose([v1.PILToTensor(), v1.Resize(8, v1.InterpolationMode.NEAREST)]), "Resize", "torch's kernels"),
    (v2.Compose([v2.ToImage(), v2.RandomPerspective()]), "RandomPerspective", "torch's kernels"),
    (v1.Compose([*TENSOR, v1.Pad(3)]), "Pad", "no uint8 pixel has"),
    (v1.Compose([*TENSOR, v1.CenterCrop(9)]), "CenterCrop", "no uint8 pixel has"),
    (v2.Compose([v2.ToImage(), v2.Pad(3, fill={torch.Tensor: 3})]), "Pad", "dict"),
    (v1.Compose([*TENSOR, v1.RandomErasing(), v1.RandomHorizontalFlip()]), "RandomHorizontalFlip", "masks"),
    (v1.Compose([*TENSOR, v1.RandomErasing(value="random")]), "RandomErasing", "random"),
    (v2.Compose([v2.ToImage(), v2.RandomErasing(value="random")]), "RandomErasing", "random"),
    (v1.Compose([Cutout(4), *TENSOR]), "Cutout", "before the image is a tensor"),
    (v1.Compose([v1.ToTensor(), v1.RandomApply([N1])]), "Normalize", "inside RandomApply"),
    (v1.Compose([v1.RandomChoice([v1.ToTensor(), v1.PILToTensor()])]), "ToTensor", "inside RandomChoice"),
    (v1.Compose([v1.RandomApply([v1.Grayscale()]), *TENSOR]), "ToTensor", "channels is left to chance"),
    (v1.Compose([v1.ToTensor(), v1.Normalize([0.5], [0.0])]), "Normalize", "fails here with ValueError"),
    (v2.Compose([v2.ToImage(), v2.ToDtype(torch.float64)]), "the transform", "float64"),
    (v1.Compose([v1.RandomResizedCrop(8, scale=(0.5, float("nan"))), *TENSOR]), "RandomResizedCrop", "nan"),
    (v1.Compose([v1.CenterCrop(70000), *TENSOR]), "CenterCrop", "70000"),
    (v1.Compose([*TENSOR, v1.RandomOrder([Cutout(4), Cutout(4, fill=1.0)])]), "RandomOrder", "order matters"),
]


@pytest.mark.parametrize("transform, operator, why", UNTRANSLATABLE)
def test_what_cannot_travel_says_which_operator_and_the_ways_out(transform, operator, why):
    with pytest.raises(Untranslatable) as error:
        translate(transform)
    assert operator in error.value.operator and why in str(error.value)
    assert error.value.ways_out and "strategy='cpu'" in str(error.value)


def test_an_object_that_only_passes_images_on_is_what_it_passes_them_to():
    transform = Preset(v1.Resize(12), v1.CenterCrop(8))
    assert [op["op"] for op in translate(transform).pipeline.to_data()["ops"]] == ["Resize", "CenterCrop"]
    source = image((30, 40))
    assert torch.equal(ours(translate(v1.Compose([transform, N1])), source)[0], N1(transform(source)))


def test_a_pad_after_the_tensor_takes_the_byte_that_has_its_value():
    transform = v2.Compose([v2.Resize((20, 20)), *to_float2(), v2.Pad(2, fill=1.0), N2, v2.ToPureTensor()])
    translation = translate(transform)
    assert translation.pipeline.to_data()["ops"][1]["fill"] == [255, 255, 255]
    source = image((30, 30))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(ours(translation, source)[0], transform(source))


def test_identities_vanish_even_inside_random_operators():
    transform = v1.Compose([v1.RandomApply([nn.Identity()]), v1.CenterCrop(8), nn.Identity(), v1.ToTensor()])
    assert [op["op"] for op in translate(transform).pipeline.to_data()["ops"]] == ["CenterCrop"]
