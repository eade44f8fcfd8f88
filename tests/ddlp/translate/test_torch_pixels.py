"""Behind ToImage and PILToTensor, resampling has torch's own pixels: v2's by bytes, v1's by floats."""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.models import ResNet18_Weights
from torchvision.transforms import InterpolationMode, v2

from csd_engine.arithmetic.keyed import Keyed
from csd_engine.transforms import torch_pixels as torch_definitions
from csd_engine.transforms import torch_resample
from csd_engine.transforms.torch_pixels import PIXELS, is_v2, sampled
from csd_engine.transforms.torch_resample import torch_resize
from csd_engine.transforms.warps import inverse_affine
from ddlp import DDLPLoader, ImageFiles
from ddlp.errors import Untranslatable
from ddlp.translate import torch_pixels
from ddlp.translate.transforms import translate

KNOWN = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
pytestmark = pytest.mark.skipif(not KNOWN, reason="torch has other kernels for bytes on this processor")
END = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5, 0.4, 0.3], [0.25, 0.2, 0.3])]
END_OF_V1 = [v1.ConvertImageDtype(torch.float32), v1.Normalize([0.5, 0.4, 0.3], [0.25, 0.2, 0.3])]


def noise(rng: np.random.Generator, *shape: int) -> np.ndarray:
    pixels = rng.integers(0, 256, shape, dtype=np.uint8)
    return pixels // 128 * 255 if rng.integers(0, 3) == 0 else pixels


def differing(functional, name):
    """Images for which the definition does not make the pixels of torchvision's function; the filter is this process's."""
    rng, filter_name = np.random.default_rng(1), torch_pixels.torch_filter(functional, name, True)
    for trial in range(90):
        (height, width), (to_height, to_width) = rng.integers(1, 300, 2), rng.integers(1, 200, 2)
        channels, to_width = (1, 3)[trial % 2], 1 if trial % 15 == 0 else to_width  # one column is a case of its own
        pixels = noise(rng, height, width, channels)
        image = Image.fromarray(pixels if channels == 3 else pixels[:, :, 0])
        tensor, to = torch.from_numpy(pixels).permute(2, 0, 1), [int(to_height), int(to_width)]
        theirs = functional.resize(tensor.contiguous() if trial % 3 else tensor, to, InterpolationMode(name), antialias=True)
        ours = np.asarray(torch_resize(image, to[1], to[0], filter_name)).reshape(*to, channels)
        if not np.array_equal(ours, theirs.permute(1, 2, 0).numpy()):
            yield channels, height, width, to


@pytest.mark.parametrize("name", ["bilinear", "bicubic"])
def test_the_definition_of_bytes_is_v2s(name):
    assert not list(differing(v2.functional, name))


_DEFINED = """
from tests.ddlp.translate.test_torch_pixels import differing, torch_pixels, v1
for name in ("bilinear", "bicubic"):
    assert not list(differing(v1.functional, name))
    print(torch_pixels.torch_filter(v1.functional, name, True))
"""


@pytest.mark.parametrize("capability, arithmetic", [("default", "float"), ("avx2", "fused"), (None, "fused")])
def test_the_definition_of_floats_is_v1s(capability, arithmetic):
    environment = {**os.environ, **({} if capability is None else {"ATEN_CPU_CAPABILITY": capability})}
    done = subprocess.run([sys.executable, "-c", _DEFINED], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == f"torch-{arithmetic}-bilinear\ntorch-{arithmetic}-bicubic\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    (root / "a").mkdir()
    for number in range(24):
        height, width = rng.integers(40, 400, 2)
        y, x = np.mgrid[:height, :width]
        pixels = np.stack([x * 3 + y, y * 2, x + y], axis=2) + rng.integers(0, 60, (height, width, 3))
        image = Image.fromarray(pixels.astype(np.uint8)).convert("L" if number % 6 == 1 else "RGB")
        image.save(root / "a" / f"{number:02}.{'png' if number % 7 == 0 else 'jpg'}", quality=90, subsampling=number % 3)
    return root


FIXED = {
    "evaluation": lambda mode: [v2.ToImage(), v2.Resize(80, mode, antialias=True), v2.CenterCrop(64), *END],
    "longer side": lambda mode: [v2.ToImage(), v2.Resize(None, mode, max_size=90, antialias=True), v2.CenterCrop(96), *END],
    "flipped": lambda mode: [v2.PILToTensor(), v2.Resize((70, 50), mode, antialias=True), v2.RandomHorizontalFlip(1.0), *END],
    "larger": lambda mode: [v2.ToImage(), v2.Resize((420, 410), mode, antialias=True), v2.ToPureTensor()],
    "in bytes": lambda mode: [
        v2.CenterCrop((39, 38)), v2.ToImage(), v2.Resize((20, 20), mode, antialias=True), v2.RandomVerticalFlip(1.0),
    ],
    "v1, evaluation": lambda mode: [
        v1.PILToTensor(), v1.Resize(80, mode, antialias=True), v1.CenterCrop((64, 70)), *END_OF_V1
    ],
    "v1, both flips": lambda mode: [
        v1.PILToTensor(), v1.Resize((70, 50), mode, antialias=True), v1.RandomHorizontalFlip(1.0), v1.RandomVerticalFlip(1.0),
        v1.Pad((1, 2, 3, 4), padding_mode="reflect"), *END_OF_V1,
    ],
    "v1, larger": lambda mode: [v1.PILToTensor(), v1.Resize((420, 410), mode, antialias=True)],
    "v1, one axis": lambda mode: [
        v1.PILToTensor(), v1.CenterCrop((39, 38)), v1.Resize((39, 20), mode, antialias=True), *END_OF_V1
    ],
    "v1, one column": lambda mode: [v1.PILToTensor(), v1.Resize((30, 1), mode, antialias=True), *END_OF_V1],
}  # fmt: skip




def colours(m):
    return [
        m.ColorJitter(brightness=(1.3, 1.3)), m.ColorJitter(contrast=(0.6, 0.6)), m.ColorJitter(saturation=(1.7, 1.7)),
        m.ColorJitter(hue=(0.11, 0.11)), m.RandomAdjustSharpness(1.9, 1.0), m.RandomAutocontrast(1.0), m.RandomEqualize(1.0),
        m.RandomSolarize(100.3, 1.0), m.RandomPosterize(5, 1.0), m.RandomInvert(1.0), m.RandomGrayscale(1.0),
    ]  # fmt: skip


def maps(m, mode):
    how = {"interpolation": mode, "fill": (9, 200, 30)}
    return [
        m.RandomRotation((17, 17), **how), m.RandomAffine((-7, -7), scale=(0.9, 0.9), shear=(4, 4, 3, 3), interpolation=mode),
        m.RandomRotation((90, 90), interpolation=mode, center=(3, 8)), m.RandomRotation((180, 180), **how),
    ]  # fmt: skip


CHANGED = {
    "colours": lambda m: [m.CenterCrop((60, 80)), *colours(m)],
    "maps of nearest pixels": lambda m: [m.CenterCrop((60, 80)), *maps(m, InterpolationMode.NEAREST)],
    "bilinear maps": lambda m: [m.CenterCrop((60, 80)), *maps(m, InterpolationMode.BILINEAR)],
    "grey": lambda m: [m.CenterCrop((60, 80)), m.Grayscale(1), *colours(m)[:-1], m.Grayscale(1)],
    "grey in three": lambda m: [m.CenterCrop((60, 80)), m.Grayscale(3), m.ColorJitter(contrast=(1.6, 1.6))],
    "v1's three greys of one": lambda m: [m.CenterCrop((60, 80)), m.Grayscale(1), m.Grayscale(3), *colours(m)[:1]],
}


@pytest.mark.parametrize("version", [v1, v2])
@pytest.mark.parametrize("name", CHANGED)
def test_colours_and_maps_are_torchvisions(folder, name, version):
    dataset = datasets.ImageFolder(folder, v2.Compose([v2.PILToTensor(), *CHANGED[name](version), *END[:1]]))
    loader = DDLPLoader(dataset, 5, num_workers=1)
    assert "\ntravels    " in str(loader.explain())
    ours = torch.cat([images for images, _ in loader])
    assert torch.equal(ours, torch.stack([dataset[k][0] for k in range(len(dataset))]))


@pytest.mark.parametrize("policy", ["RandAugment", "TrivialAugmentWide", "AutoAugment"])
@pytest.mark.parametrize("version, end", [(v1, END_OF_V1), (v2, END)])
def test_the_reference_trainings_policies_travel(folder, version, end, policy):
    steps = [
        v1.PILToTensor() if version is v1 else v2.PILToTensor(), version.RandomResizedCrop(48, antialias=True),
        version.RandomHorizontalFlip(), getattr(version, policy)(interpolation=InterpolationMode.BILINEAR), *end,
        version.RandomErasing(0.1),
    ]  # fmt: skip
    explained = str(DDLPLoader(datasets.ImageFolder(folder, v2.Compose(steps)), 5).explain())
    assert "\ntravels    " in explained and "own steps" not in explained


_ROWS_ELSEWHERE = """
from benchmarks.torchvision_rows import all_names, compare_row, torchs_pixels, v1, v2
names = [name for name in all_names() if ", torch-v" in name]
assert len(names) > 15
for name in names:
    found = compare_row(name, 2)
    assert found.right and found.values, found
print(*(torchs_pixels(m.functional, maps) for m in (v1, v2) for maps in (False, True)))

import torch
square = 1 + 2**-11  # of the next number, but for 2**-24
left, right = torch.tensor([[-square, 1 + 2**-12, 0.0]] * 70), torch.tensor([[1.0, 1.0], [1 + 2**-12] * 2, [0.0, 0.0]])
print("-grid" if left[None].bmm(right[None]).any() else "")
"""


@pytest.mark.parametrize(
    "capability, mkl, whose",
    [
        ("default", "", "torch-v1 torch-v1{0} None None"),
        ("avx2", "", "torch-v1 torch-v1-fused{0} torch-v2-fused torch-v2-fused{0}"),
        ("avx2", "AVX2", "torch-v1 torch-v1-fused torch-v2-fused torch-v2-fused"),
    ],
)
def test_colours_and_maps_are_this_processors(capability, mkl, whose):
    """MKL's product of matrices is fused on Intel's processors with AVX-512, unless it is told to use AVX2."""
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability, "MKL_CBWR": mkl}
    command = [sys.executable, "-c", _ROWS_ELSEWHERE]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    kinds, product = done.stdout.splitlines()
    assert kinds == whose.format(product) and not (mkl and product)


@pytest.mark.parametrize("kind", PIXELS[1:])
def test_the_images_of_the_check_tell_all_kinds_of_maps_apart(kind):
    def affine(image, angle, translate, scale, shear, interpolation, fill):
        pixels = image.permute(1, 2, 0).numpy().astype(np.uint8)
        matrix = inverse_affine((0.0, 0.0), angle, tuple(map(float, translate)), scale, tuple(shear), is_v2(kind))
        return torch.from_numpy(sampled(pixels, matrix, interpolation.value, fill, kind)).permute(2, 0, 1)

    kinds = [other for other in PIXELS[1:] if is_v2(other) == is_v2(kind)]
    assert [other for other in kinds if torch_pixels._maps(SimpleNamespace(affine=affine), other)] == [kind]


def test_thresholds_are_compared_as_float32():
    """v2's RandAugment solarizes from 153.000006, which is 153 for torch."""
    pixels = np.arange(256, dtype=np.uint8).reshape(1, 16, 16).repeat(3, 0).transpose(1, 2, 0)
    transform = v2.Compose([v2.ToImage(), v2.RandomSolarize(153.000006, 1.0)])
    pipeline = translate(transform).pipeline
    out = np.empty((16, 16, 3), np.uint8)
    pipeline.run(Image.fromarray(pixels), Keyed(0, 0, 0, 0), out, None)
    assert np.array_equal(out, transform(Image.fromarray(pixels)).permute(1, 2, 0).numpy()) and out[9, 9, 0] == 102


@pytest.mark.parametrize(
    "says, steps",
    [
        ("its size isn't known", [v2.ToImage(), v2.ColorJitter(contrast=0.3), v2.CenterCrop(32)]),
        ("its size isn't known", [v1.PILToTensor(), v1.RandAugment(), v1.CenterCrop(32)]),
        ("it has \\(300, 220\\) pixels", [v2.ToImage(), v2.CenterCrop((300, 220)), v2.RandAugment()]),
        ("its size isn't known", [
            v2.ToImage(), v2.CenterCrop(32), v2.RandomApply([v2.CenterCrop(300), v2.RandAugment()]), v2.CenterCrop(32)
        ]),
        ("torch does not rotate", [v2.ToImage(), v2.RandomRotation(3, InterpolationMode.BICUBIC), v2.CenterCrop(32)]),
        ("torch does not rotate", [v1.PILToTensor(), v1.RandomRotation(3, InterpolationMode.NEAREST_EXACT), v1.CenterCrop(32)]),
        ("size of an expanded image", [v2.ToImage(), v2.RandomRotation(3, expand=True), v2.CenterCrop(32)]),
        ("a colour that no byte has", [v2.ToImage(), v2.RandomAffine(3, fill=0.5), v2.CenterCrop(32)]),
        ("kernels for floats", [v2.ToImage(), v2.CenterCrop(32), v2.ToDtype(torch.float32, scale=True), v2.RandAugment()]),
    ],
)  # fmt: skip
def test_colours_and_maps_that_stay_torchs(says, steps):
    with pytest.raises(Untranslatable, match=says):
        translate(v2.Compose([*steps, *END]))


@pytest.mark.parametrize("mode", [InterpolationMode.BILINEAR, InterpolationMode.BICUBIC])
@pytest.mark.parametrize("name", FIXED)
def test_batches_are_torchvisions(folder, name, mode):
    dataset = datasets.ImageFolder(folder, v2.Compose(FIXED[name](mode)))
    loader = DDLPLoader(dataset, 5, num_workers=1)
    assert "\ntravels    " in str(loader.explain())
    ours = torch.cat([images for images, _ in loader])
    assert torch.equal(ours, torch.stack([dataset[k][0] for k in range(len(dataset))]))


_ELSEWHERE = """
import sys, torch
from torchvision import datasets
from ddlp import DDLPLoader
from tests.ddlp.translate.test_torch_pixels import FIXED, InterpolationMode, torch_pixels, v2

for name in ("evaluation", "v1, evaluation"):
    dataset = datasets.ImageFolder(sys.argv[1], v2.Compose(FIXED[name](InterpolationMode.BICUBIC)))
    ours = torch.cat([images for images, _ in DDLPLoader(dataset, 5, num_workers=1)])
    assert torch.equal(ours, torch.stack([dataset[k][0] for k in range(len(dataset))]))
print(torch_pixels.torch_filter(v2.functional, "bicubic", True))
"""


@pytest.mark.parametrize(
    "setting, known",
    [
        ({"DDLP_KERNEL": "off"}, "torch-bicubic"),  # torch's own operators run then
        ({"ATEN_CPU_CAPABILITY": "avx2"}, "torch-bicubic"),
        ({"ATEN_CPU_CAPABILITY": "default"}, "None"),
    ],
)
def test_the_bits_are_torchs_whatever_makes_them(folder, setting, known):
    command = [sys.executable, "-c", _ELSEWHERE, str(folder)]
    done = subprocess.run(command, env={**os.environ, **setting}, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == f"{known}\n"


def test_files_that_pillow_decodes_need_no_numpy(folder, need_kernel, monkeypatch):
    """numpy's definition takes three times as long as torch."""
    files = [path for path in sorted((folder / "a").iterdir()) if path.suffix == ".png"]
    transform = v1.Compose([
        v1.PILToTensor(), v1.RandomResizedCrop(48, antialias=True), v1.RandAugment(interpolation=InterpolationMode.BILINEAR),
        *END_OF_V1,
    ])  # fmt: skip
    loader = DDLPLoader(ImageFiles(files, [0] * len(files), transform), len(files))
    assert "\ntravels    " in str(loader.explain())
    for module, name in ((torch_resample, "torch_resample"), (torch_definitions, "sampled"), (torch_definitions, "enhanced")):
        monkeypatch.setattr(module, name, None)
    assert len(files) > 2 and sum(len(images) for images, _ in loader) == len(files)


def test_what_pillow_decodes_at_a_part_of_its_size(tmp_path, need_kernel, monkeypatch):
    """decode="fast" holds for a JPEG that the kernel refuses, too."""
    pixels = noise(np.random.default_rng(3), 400, 600, 4)
    Image.fromarray(pixels, "CMYK").save(tmp_path / "a.jpg", quality=90)
    transform = v1.Compose([v1.PILToTensor(), v1.Resize((40, 60), antialias=True), *END_OF_V1])
    loader = DDLPLoader(ImageFiles([tmp_path / "a.jpg"], [0], transform), 1, decode="fast")
    by_kernel = next(iter(loader))[0]
    monkeypatch.setattr("csd_engine.prepare.sample.is_torchs", lambda step: False)
    assert torch.equal(by_kernel, next(iter(loader))[0])


def test_without_a_kernel_the_operators_are_torchs(folder, monkeypatch):
    monkeypatch.setattr("ddlp.translate.transforms.kernel", lambda: None)
    dataset = datasets.ImageFolder(folder, v2.Compose(FIXED["evaluation"](InterpolationMode.BILINEAR)))
    loader = DDLPLoader(dataset, 5)
    assert "ddlp's kernel isn't used" in str(loader.explain())
    assert torch.equal(torch.cat([images for images, _ in loader]), torch.stack([image for image, _ in dataset]))


@pytest.mark.parametrize("version", [v1, v2])
def test_random_crops_are_torchvisions_of_the_drawn_boxes(folder, version):
    crop = version.RandomResizedCrop((48, 40), interpolation=InterpolationMode.BICUBIC, antialias=True)
    transform = v2.Compose([v2.PILToTensor(), crop, *END[:1]])
    pipeline = translate(transform).pipeline
    for number, path in enumerate(sorted((folder / "a").iterdir())):
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        crop = pipeline.draw(image.size, Keyed(1, 0, number, 0)).primitives[0]
        out = np.empty((48, 40, 3), np.uint8)
        pipeline.run(image, Keyed(1, 0, number, 0), out, None)
        tensor, box = v2.functional.pil_to_tensor(image), (crop.top, crop.left, crop.height, crop.width)
        wanted = version.functional.resized_crop(tensor, *box, [48, 40], InterpolationMode.BICUBIC, antialias=True)
        assert np.array_equal(out, wanted.permute(1, 2, 0).numpy())


@pytest.mark.parametrize(
    "steps",
    [
        [v2.ToImage(), v2.Resize(40, antialias=False)],
        [v1.PILToTensor(), v1.Resize(40, antialias=False)],
        [v1.PILToTensor(), v1.Resize(40, InterpolationMode.NEAREST)],
        [v2.ToImage(), v2.Resize(40, InterpolationMode.NEAREST)],
        [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Resize(40)],
    ],
)
def test_what_torch_makes_otherwise_stays_torchs(steps):
    with pytest.raises(Untranslatable):
        translate(v2.Compose([*steps, v2.CenterCrop(32), *END]))


@pytest.mark.parametrize("name, functional", [("evaluation", v2.functional), ("v1, evaluation", v1.functional)])
def test_another_torch_keeps_its_own_pixels(monkeypatch, name, functional):
    """A torch that rounds otherwise is seen by the check at the start."""
    torch_pixels._arithmetic.cache_clear()
    resize = functional.resize
    monkeypatch.setattr(functional, "resize", lambda image, *given, **named: resize(image, *given, **named) ^ 1)
    try:
        with pytest.raises(Untranslatable, match="torch's kernels, here one that ddlp doesn't know"):
            translate(v2.Compose(FIXED[name](InterpolationMode.BILINEAR)))
    finally:
        torch_pixels._arithmetic.cache_clear()


@pytest.mark.parametrize("name, step", [("adjust_saturation", v2.RandomGrayscale()), ("affine", v2.RandomRotation(3))])
def test_another_torch_keeps_its_own_colours_and_maps(monkeypatch, name, step):
    theirs = getattr(v2.functional, name)
    monkeypatch.setattr(v2.functional, name, lambda *given, **named: theirs(*given, **named) + 1)
    torch_pixels._pixels.cache_clear()
    try:
        with pytest.raises(Untranslatable, match="torch's kernels, here one that ddlp doesn't know"):
            translate(v2.Compose([v2.ToImage(), step, v2.CenterCrop(32), *END]))
    finally:
        torch_pixels._pixels.cache_clear()


def test_another_default_dtype_has_colours_of_its_own():
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(Untranslatable, match="torch's kernels, here one that ddlp doesn't know"):
            translate(v2.Compose([v2.ToImage(), v2.CenterCrop(32), v2.RandAugment(), *END]))
    finally:
        torch.set_default_dtype(torch.float32)


# -- decode_image as an ImageFolder's loader ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def jpegs(folder, tmp_path_factory):
    """JPEG files, one of them grey and one of four inks."""
    root = tmp_path_factory.mktemp("jpegs")
    (root / "a").mkdir()
    for path in sorted((folder / "a").glob("*.jpg")):
        (root / "a" / path.name).hardlink_to(path)
    with Image.open(folder / "a" / "02.jpg") as image:
        image.convert("CMYK").save(root / "a" / "inks.jpg", quality=90)
    return root


ON_TENSORS = [v2.RandomHorizontalFlip(1.0), v2.Resize(80, antialias=True), v2.CenterCrop(64), *END]
ON_TENSORS_OF_V1 = [v1.RandomHorizontalFlip(1.0), v1.Resize(80, antialias=True), v1.CenterCrop(64), *END_OF_V1]


def torchcodec_decoders():
    try:
        return importlib.import_module("torchcodec.decoders")
    except (ImportError, OSError, RuntimeError) as error:  # it is made for one version of torch
        pytest.skip(f"torchcodec can't be imported: {error!s:.80}")


DECODERS = {
    "torchvision": lambda: functools.partial(torchvision.io.decode_image, mode="RGB"),
    "torchvision, its enumeration": lambda: functools.partial(
        torchvision.io.decode_image, mode=torchvision.io.ImageReadMode.RGB
    ),
    "torchcodec": lambda: torchcodec_decoders().decode_image,
    "torchcodec, told": lambda: functools.partial(
        torchcodec_decoders().decode_image, mode="rgb", output_dtype=torch.uint8
    ),
}


@pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")
@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(
    "transform", [v2.Compose(ON_TENSORS), v1.Compose(ON_TENSORS_OF_V1), ResNet18_Weights.DEFAULT.transforms()]
)
def test_decode_image_as_the_loader(jpegs, decoder, transform):
    dataset = datasets.ImageFolder(jpegs, transform, loader=DECODERS[decoder]())
    loader = DDLPLoader(dataset, 5, num_workers=1)
    assert "\ntravels    " in str(loader.explain())
    ours = torch.cat([images for images, _ in loader])
    assert torch.equal(ours, torch.stack([dataset[k][0] for k in range(len(dataset))])) and type(ours) is torch.Tensor


@pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")
def test_own_steps_behind_decode_image_get_its_tensor(jpegs):
    steps = [v2.Resize((50, 60), antialias=True), v2.Lambda(lambda image: image.flip(0)), *END[:1]]
    dataset = datasets.ImageFolder(
        jpegs, v2.Compose(steps), loader=functools.partial(torchvision.io.decode_image, mode="RGB")
    )
    loader = DDLPLoader(dataset, 5)
    assert "own steps" in str(loader.explain())
    ours = torch.cat([images for images, _ in loader])
    assert torch.equal(ours, torch.stack([dataset[k][0] for k in range(len(dataset))]))


@pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")
@pytest.mark.parametrize("which", ["no mode", "PNG files"])
def test_what_has_other_channels_or_bits_stays_torchvisions(folder, jpegs, which):
    decode = torchvision.io.decode_image if which == "no mode" else functools.partial(torchvision.io.decode_image, mode="RGB")
    transform = v2.Compose([v2.Grayscale(3), *ON_TENSORS])
    dataset = datasets.ImageFolder(folder if which == "PNG files" else jpegs, transform, loader=decode)
    loader = DDLPLoader(dataset, 1)
    says = "as many channels and bits as each file has" if which == "no mode" else "other pixels than Pillow of files"
    assert says in str(loader.explain())
